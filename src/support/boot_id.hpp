// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace shardwire::support {

/// Identifies the running kernel: processes that read the same value run on one host, including in containers. Empty if
/// /proc does not provide it.
std::string boot_id();

}  // namespace shardwire::support

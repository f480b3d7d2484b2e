// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace shardwire::support {

/// Model of the processor as the system names it, or the numbers of its maker and part if it has no name; empty if the
/// system does not report it.
std::string processor_model();

}  // namespace shardwire::support

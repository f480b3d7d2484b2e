// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace shardwire {

/// The run id that bootstrap_from_env() uses; empty if there is none.
std::string run_id_of_environment();

}  // namespace shardwire

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace shardwire::support {

/// Model of the processor as the system names it, or by the numbers of its maker and part where it has no name; empty where
/// the system does not say.
std::string processor_model();

}  // namespace shardwire::support

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace shardwire::transport {

/// Whether this process maps memory of devices. Empty: it does; else why not, for people.
std::string why_no_device_memory();

}  // namespace shardwire::transport

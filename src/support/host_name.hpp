// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <string>

namespace shardwire::support {

/// Of this host; empty if the system does not tell it.
inline std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "";
}

}  // namespace shardwire::support

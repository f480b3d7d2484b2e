// SPDX-License-Identifier: Apache-2.0
#include "support/boot_id.hpp"

#include <fstream>

namespace shardwire::support {

std::string boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

}  // namespace shardwire::support

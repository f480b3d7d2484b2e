// SPDX-License-Identifier: Apache-2.0
#include "shardwire/version.hpp"

namespace shardwire {

const char* version() {
  return SHARDWIRE_VERSION;
}

}  // namespace shardwire

// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx/worker.hpp"

namespace shardwire::transport::ucx {

// Whether there is anything for it to do, registry.cpp has asked before it loads this.
Viability probe(Asked) {
  return {true, library_version()};
}

}  // namespace shardwire::transport::ucx

// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include "transport/libfabric/provider.hpp"

namespace shardwire::transport::libfabric {

Viability probe(Asked asked) {
  const Provider found = find_provider(asked);
  if (!found.info) {
    return {false, fmt::format("{}: {}", library_version(), found.why_not), FallbackReason::no_device};
  }
  return {true, fmt::format("{}, {} on {}", library_version(), found.rules.provider, found.rules.device)};
}

}  // namespace shardwire::transport::libfabric

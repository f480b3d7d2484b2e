// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "shardwire/costs.hpp"

namespace shardwire::support {

/// Whether somebody could remove the reason: other software, settings, rights or devices. The others follow from where processes and
/// memory are.
constexpr bool is_removable(FallbackReason reason) {
  switch (reason) {
    case FallbackReason::none:
    case FallbackReason::by_design:
    case FallbackReason::other_host:
    case FallbackReason::not_in_arena:
    case FallbackReason::not_connected: return false;
    default: return true;
  }
}

}  // namespace shardwire::support

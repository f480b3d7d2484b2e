// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <utility>

#include "transport/transport.hpp"

namespace shardwire {

/// A connection to one source over one fabric, which restores share. Whoever is bound over it keeps it: its completions would never
/// run without it.
struct FabricChannel {
  explicit FabricChannel(std::unique_ptr<transport::Endpoint> connected) : endpoint(std::move(connected)) {}

  std::unique_ptr<transport::Endpoint> endpoint;
  bool proven = false;  ///< bytes have been read over it
  bool cut = false;     ///< this process has given it up, whatever the peer and others say of it then

  void give_up() {
    if (std::exchange(cut, true)) return;
    endpoint->abort();
  }
};

}  // namespace shardwire

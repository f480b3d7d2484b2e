// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <utility>

#include "transport/transport.hpp"

namespace shardwire {

/// A connection to one source over one fabric, shared by restores. Each restore bound over it keeps it alive, since its
/// completions run only while it exists.
struct FabricChannel {
  explicit FabricChannel(std::unique_ptr<transport::Endpoint> connected) : endpoint(std::move(connected)) {}

  std::unique_ptr<transport::Endpoint> endpoint;
  bool proven = false;   ///< bytes have been read over it
  bool aborted = false;  ///< by this process, regardless of later reports

  void abort() {
    if (std::exchange(aborted, true)) return;
    endpoint->abort();
  }
};

}  // namespace shardwire

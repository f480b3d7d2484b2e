// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>

#include "support/descriptors.hpp"
#include "transport/gpu_direct.hpp"
#include "transport/libfabric/domain.hpp"

namespace shardwire::transport::libfabric {

/// Completions to run after libfabric has returned.
class DueCompletions {
 public:
  void add(const void* owner, Completion done, Outcome outcome) {
    items_.push_back({owner, std::move(done), std::move(outcome)});
  }
  /// Completions of this owner never run.
  void forget(const void* owner) {
    std::erase_if(items_, [&](const Item& one) { return one.owner == owner; });
  }
  [[nodiscard]] bool empty() const { return items_.empty(); }
  /// Runs the completions present now. False: there were none. Errors: rethrows their errors; the others stay queued.
  bool run();

 private:
  struct Item {
    const void* owner;
    Completion done;
    Outcome outcome;
  };
  std::deque<Item> items_;
};

/// The descriptor that aggregates all others.
class WakeDescriptor {
 public:
  /// Errors: throws Error{out_of_resources}.
  WakeDescriptor();
  void listen(int descriptor) const;
  /// Call it before the descriptor is closed.
  void unlisten(int descriptor) const;
  [[nodiscard]] int descriptor() const { return epoll_.get(); }

 private:
  support::Descriptor epoll_;
};

/// State shared by a fabric and its endpoints.
struct FabricState {
  std::shared_ptr<Domain> domain;  // owners: the fabric, its endpoints, its regions
  WakeDescriptor wake{};
  DueCompletions finished{};
  std::shared_ptr<GpuDirect> gpus{};  // sole owner
};

}  // namespace shardwire::transport::libfabric

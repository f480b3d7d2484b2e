// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>

#include "support/descriptors.hpp"
#include "transport/gpu_direct.hpp"
#include "transport/libfabric/domain.hpp"

namespace shardwire::transport::libfabric {

/// Completions that have to run once libfabric has returned.
class DueCompletions {
 public:
  void add(const void* owner, Completion done, Outcome outcome) {
    items_.push_back({owner, std::move(done), std::move(outcome)});
  }
  /// Those of an owner never run.
  void forget(const void* owner) {
    std::erase_if(items_, [&](const Item& one) { return one.owner == owner; });
  }
  [[nodiscard]] bool empty() const { return items_.empty(); }
  /// Runs those that there are now. False: there were none. Errors: rethrows theirs; the others stay.
  bool run();

 private:
  struct Item {
    const void* owner;
    Completion done;
    Outcome outcome;
  };
  std::deque<Item> items_;
};

/// The descriptor that tells of all others.
class WakeDescriptor {
 public:
  /// Errors: throws Error{out_of_resources}.
  WakeDescriptor();
  void listen(int descriptor) const;
  /// Before it is closed.
  void unlisten(int descriptor) const;
  [[nodiscard]] int descriptor() const { return epoll_.get(); }

 private:
  support::Descriptor epoll_;
};

/// What a fabric and its endpoints share.
struct FabricState {
  std::shared_ptr<Domain> domain;  // owners: the fabric, its endpoints, its regions
  WakeDescriptor wake{};
  DueCompletions finished{};
  std::shared_ptr<GpuDirect> gpus{};  // owners: this alone
};

}  // namespace shardwire::transport::libfabric

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "support/descriptors.hpp"

namespace shardwire::support {

/// A descriptor that any thread can make readable, to wake a thread in poll() or epoll_wait(): an eventfd.
/// Threads: any.
class WakeEvent {
 public:
  /// Errors: throws Error{out_of_resources}.
  WakeEvent();

  /// Makes the descriptor readable until the next clear().
  void signal() const;
  /// A signal() after this call makes the descriptor readable again. Returns whether it was readable.
  bool clear() const;
  [[nodiscard]] int descriptor() const { return descriptor_.get(); }

 private:
  Descriptor descriptor_;
};

}  // namespace shardwire::support

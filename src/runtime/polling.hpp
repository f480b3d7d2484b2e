// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

namespace shardwire {

/// Runs a task in each iteration of a loop, before the loop would wait for events, until it is destroyed. The task must
/// not throw, and must not destroy it.
/// Threads: loop thread only.
class Polling {
 public:
  /// While it lives, the loop wakes when its descriptor is readable; the next iteration begins with the task.
  class Watch {
   public:
    virtual ~Watch() = default;
  };

  virtual ~Polling() = default;
  /// False: iterations follow each other without waiting. True at the start.
  virtual void let_sleep(bool sleeps) = 0;
  /// Errors: throws Error{out_of_resources, transport_failed}. Ownership: borrows the descriptor.
  virtual std::unique_ptr<Watch> watch(int descriptor) = 0;
  /// The task no longer runs, and the loop may wait.
  virtual void stop() = 0;
};

}  // namespace shardwire

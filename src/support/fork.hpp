// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>
#include <unistd.h>

namespace shardwire::support {

/// The process that created an object. A child of fork() has a copy of the object, but none of its threads.
class OwningProcess {
 public:
  [[nodiscard]] bool is_this() const { return ::getpid() == id_; }
  [[nodiscard]] pid_t id() const { return id_; }

 private:
  pid_t id_ = ::getpid();
};

/// A descriptor that a child of fork() closes at once: a connection must end with its process, even if other processes
/// have inherited it.
/// Ownership: borrows the descriptor, which is closed in the parent after this is destroyed. Threads: any.
class ClosedOnFork {
 public:
  explicit ClosedOnFork(int descriptor);
  ~ClosedOnFork();
  ClosedOnFork(const ClosedOnFork&) = delete;
  ClosedOnFork& operator=(const ClosedOnFork&) = delete;

 private:
  int descriptor_;
};

}  // namespace shardwire::support

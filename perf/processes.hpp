// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pthread.h>

#include <chrono>
#include <functional>
#include <memory>

namespace shardwire::perf {

/// A barrier between processes. It costs no traffic on any fabric, so nothing that is measured is disturbed by it.
/// Must lie in memory that they share.
class Barrier {
 public:
  /// Before any process waits. Errors: throws std::system_error.
  void open(int members);
  void wait();

 private:
  pthread_barrier_t barrier_;
};

/// Zeroed memory that this process shares with the children it forks later. Errors: throws std::system_error.
std::shared_ptr<void> shared_pages(std::size_t bytes);

/// Forks one process per member, each runs `body(member)`, and waits for all. When one fails, or at the deadline, the rest
/// are killed: they would wait for it at a barrier for ever.
/// Requires: this process has one thread and has not called UCX.
/// Errors: throws std::runtime_error naming the first member that failed; what it died of is on stderr.
void run_processes(int members, std::chrono::seconds deadline, const std::function<void(int)>& body);

/// A port of the loopback interface that is free now. Errors: throws std::system_error.
std::uint16_t free_port();

}  // namespace shardwire::perf

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pthread.h>

#include <chrono>
#include <csignal>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace shardwire::perf {

/// A barrier between processes, which sleep at it. It costs no traffic on any fabric, so nothing that is measured is disturbed by it.
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

/// The same in a file of that size, which is made where there is none. Errors: throws std::system_error.
std::shared_ptr<void> shared_file_pages(const std::string& path, std::size_t bytes);

/// One process to run beside others.
struct Child {
  std::string name;            ///< for messages
  std::function<void()> body;  ///< ends with _exit or exec, or by returning; what it throws is told on stderr
  int end_signal = SIGKILL;    ///< that ends it when another one has failed
};

/// Called with each process that is about to be ended, so that what it leaves behind can be found.
using Watch = std::function<void(pid_t)>;

/// Forks all children and waits for them. When one fails, or at the deadline, the rest are ended: they would wait for it
/// at a barrier for ever.
/// Requires: this process has one thread and has not called UCX.
/// Errors: throws std::runtime_error naming the first child that failed; what it died of is on stderr.
void run_children(const std::vector<Child>& children, std::chrono::seconds deadline, const Watch& watch);

}  // namespace shardwire::perf

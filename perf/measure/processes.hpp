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

/// A barrier between processes, which sleep at it. It causes no traffic on any fabric, so it does not disturb
/// measurements. It must lie in shared memory.
class Barrier {
 public:
  /// Call it before any process waits. Errors: throws std::system_error.
  void open(int members);
  void wait();

 private:
  pthread_barrier_t barrier_;
};

/// Zeroed memory that this process shares with children that it forks later. Errors: throws std::system_error.
std::shared_ptr<void> shared_pages(std::size_t bytes);

/// The same in a file of that size, which is created if missing. Errors: throws std::system_error.
std::shared_ptr<void> shared_file_pages(const std::string& path, std::size_t bytes);

/// One of several concurrent processes.
struct Child {
  std::string name;            ///< for messages
  std::function<void()> body;  ///< ends with _exit or exec, or by returning; its exception is printed on stderr
  int end_signal = SIGKILL;    ///< sent to it when another child has failed
};

/// Called with each process about to be killed, so that the files it leaves can be found.
using Watch = std::function<void(pid_t)>;

/// Forks all children and waits for them. If one fails, or at the deadline, the others are ended: they would wait for
/// it at a barrier for ever.
/// `tick`: called about twice a second.
/// Requires: this process has one thread and has not called UCX.
/// Errors: throws std::runtime_error that names the first child that failed; its error is on stderr.
void run_children(const std::vector<Child>& children, std::chrono::seconds deadline, const Watch& watch,
                  const std::function<void()>& tick = {});

}  // namespace shardwire::perf

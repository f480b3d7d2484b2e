// SPDX-License-Identifier: Apache-2.0
#include "perf/measure/processes.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "support/stderr.hpp"

namespace shardwire::perf {

namespace {

[[noreturn]] void fail(int error, const char* what) {
  throw std::system_error(error, std::system_category(), what);
}

[[noreturn]] void be_child(const Child& child, pid_t parent) {
  // The child is killed if the parent dies; the parent may have died before this call.
  ::prctl(PR_SET_PDEATHSIG, child.end_signal);
  if (::getppid() != parent) ::_exit(1);
  int code = 0;
  try {
    child.body();
  } catch (const std::exception& error) {
    support::write_stderr("shardwire: {}: {}\n", child.name, error.what());
    code = 1;
  }
  std::fflush(nullptr);
  ::_exit(code);
}

struct Running {
  pid_t pid = 0;  // 0: already waited for
  const Child* child = nullptr;
};

constexpr auto interval = std::chrono::milliseconds(20);
constexpr auto tick_interval = std::chrono::milliseconds(500);
constexpr auto grace = std::chrono::seconds(5);  // for those that have children of their own to end

// Ends the remaining children.
struct EndOnExit {
  std::vector<Running> all;
  const Watch& watch;

  ~EndOnExit() {
    for (const Running& one : all) {
      if (one.pid == 0) continue;
      if (watch) watch(one.pid);
      ::kill(one.pid, one.child->end_signal);
    }
    const auto end = std::chrono::steady_clock::now() + grace;
    for (const Running& one : all) {
      if (one.pid == 0) continue;
      while (::waitpid(one.pid, nullptr, WNOHANG) == 0) {
        if (std::chrono::steady_clock::now() > end) ::kill(one.pid, SIGKILL);
        std::this_thread::sleep_for(interval);
      }
    }
  }
};

// The child that failed, or null.
const Child* first_failure(EndOnExit& running, std::chrono::steady_clock::time_point deadline,
                           const std::function<void()>& tick) {
  std::size_t left = running.all.size();
  std::chrono::steady_clock::time_point ticked{};
  while (left > 0) {
    for (Running& one : running.all) {
      if (one.pid == 0) continue;
      int status = 0;
      if (::waitpid(one.pid, &status, WNOHANG) <= 0) continue;
      one.pid = 0;
      --left;
      if (status != 0) return one.child;
    }
    const auto now = std::chrono::steady_clock::now();
    if (tick && now - ticked >= tick_interval) {
      tick();
      ticked = now;
    }
    if (now > deadline) throw std::runtime_error("the deadline has passed");
    std::this_thread::sleep_for(interval);
  }
  return nullptr;
}

}  // namespace

void Barrier::open(int members) {
  pthread_barrierattr_t attributes;
  pthread_barrierattr_init(&attributes);
  pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  const int error = pthread_barrier_init(&barrier_, &attributes, static_cast<unsigned>(members));
  pthread_barrierattr_destroy(&attributes);
  if (error != 0) fail(error, "make a barrier");
}

void Barrier::wait() {
  pthread_barrier_wait(&barrier_);
}

std::shared_ptr<void> shared_pages(std::size_t bytes) {
  void* const pages = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) fail(errno, "map shared pages");
  return {pages, [bytes](void* mapped) { ::munmap(mapped, bytes); }};
}

std::shared_ptr<void> shared_file_pages(const std::string& path, std::size_t bytes) {
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0) fail(errno, "open a file to share");
  void* pages = MAP_FAILED;
  if (::ftruncate(file, static_cast<off_t>(bytes)) == 0) {
    pages = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  }
  const int error = errno;
  ::close(file);
  if (pages == MAP_FAILED) fail(error, "map a file to share");
  return {pages, [bytes](void* mapped) { ::munmap(mapped, bytes); }};
}

void run_children(const std::vector<Child>& children, std::chrono::seconds deadline, const Watch& watch,
                  const std::function<void()>& tick) {
  const auto end = std::chrono::steady_clock::now() + deadline;
  const pid_t parent = ::getpid();
  std::fflush(nullptr);  // otherwise every child would print it again
  EndOnExit running{{}, watch};
  for (const Child& child : children) {
    const pid_t pid = ::fork();
    if (pid < 0) fail(errno, "fork");
    if (pid == 0) be_child(child, parent);
    running.all.push_back({pid, &child});
  }
  const Child* const failed = first_failure(running, end, tick);
  if (failed != nullptr) throw std::runtime_error(fmt::format("{} failed", failed->name));
}

}  // namespace shardwire::perf

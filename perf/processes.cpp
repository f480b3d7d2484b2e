// SPDX-License-Identifier: Apache-2.0
#include "perf/processes.hpp"

#include <fmt/core.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

namespace shardwire::perf {

namespace {

[[noreturn]] void fail(int error, const char* what) {
  throw std::system_error(error, std::system_category(), what);
}

[[noreturn]] void be_member(int member, pid_t parent, const std::function<void(int)>& body) {
  // Nobody is left behind when the parent is killed; it may have been before this call.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  int code = 0;
  try {
    body(member);
  } catch (const std::exception& error) {
    fmt::print(stderr, "member {}: {}\n", member, error.what());
    code = 1;
  }
  std::fflush(nullptr);
  ::_exit(code);
}

// The member that failed, or -1.
int first_failure(std::vector<pid_t>& running, std::chrono::steady_clock::time_point deadline) {
  std::size_t left = running.size();
  while (left > 0) {
    for (std::size_t member = 0; member < running.size(); ++member) {
      int status = 0;
      if (running[member] == 0 || ::waitpid(running[member], &status, WNOHANG) <= 0) continue;
      running[member] = 0;
      --left;
      if (status != 0) return static_cast<int>(member);
    }
    if (std::chrono::steady_clock::now() > deadline) throw std::runtime_error("the deadline has passed");
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return -1;
}

struct KillOnExit {
  std::vector<pid_t> pids;  // 0: waited for
  ~KillOnExit() {
    for (const pid_t pid : pids) {
      if (pid != 0) ::kill(pid, SIGKILL);
    }
    for (const pid_t pid : pids) {
      if (pid != 0) ::waitpid(pid, nullptr, 0);
    }
  }
};

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

void run_processes(int members, std::chrono::seconds deadline, const std::function<void(int)>& body) {
  const auto end = std::chrono::steady_clock::now() + deadline;
  const pid_t parent = ::getpid();
  std::fflush(nullptr);  // else every child would print it again
  KillOnExit children;
  for (int member = 0; member < members; ++member) {
    const pid_t pid = ::fork();
    if (pid < 0) fail(errno, "fork");
    if (pid == 0) be_member(member, parent, body);
    children.pids.push_back(pid);
  }
  const int failed = first_failure(children.pids, end);
  if (failed >= 0) throw std::runtime_error(fmt::format("member {} failed", failed));
}

std::uint16_t free_port() {
  const int descriptor = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  const bool bound = ::bind(descriptor, reinterpret_cast<const sockaddr*>(&address), length) == 0 &&
                     ::getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &length) == 0;
  const int error = errno;
  ::close(descriptor);
  if (!bound) fail(error, "find a free port");
  return ntohs(address.sin_port);
}

}  // namespace shardwire::perf

// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx/peer.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <fstream>

#include "transport/bytes.hpp"

namespace shardwire::transport::ucx {
namespace {

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string inode(const char* path) {
  struct stat info {};
  if (::stat(path, &info) != 0) return "?";
  return fmt::format("{}:{}", info.st_dev, info.st_ino);
}

// Field 22 of /proc/<pid>/stat; the name in field 2 may hold anything, so counting starts behind its bracket.
std::uint64_t start_time(std::int64_t pid, char* state = nullptr) {
  const std::string line = first_line(fmt::format("/proc/{}/stat", pid));
  std::size_t at = line.rfind(')');
  if (at == std::string::npos) return 0;
  if (state != nullptr && at + 2 < line.size()) *state = line[at + 2];
  for (int field = 2; field < 22; ++field) {
    at = line.find(' ', at + 1);
    if (at == std::string::npos) return 0;
  }
  return std::strtoull(line.c_str() + at, nullptr, 10);
}

int open_process(std::int64_t pid) {
#ifdef SYS_pidfd_open
  return static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
#else
  static_cast<void>(pid);
  return -1;
#endif
}

}  // namespace

std::uint64_t host_identity() {
  const std::string text =
      fmt::format("{} {} {} {} {}", first_line("/proc/sys/kernel/random/boot_id"), inode("/proc/self/ns/pid"),
                  inode("/proc/self/ns/ipc"), inode("/dev/shm"), ::geteuid());
  return checksum(std::as_bytes(std::span(text)));
}

ProcessId this_process() {
  return {::getpid(), start_time(::getpid())};
}

ProcessWatch::ProcessWatch(ProcessId process) : process_(process), descriptor_(open_process(process.pid)) {
}

bool ProcessWatch::gone() const {
  if (process_.pid == 0) return false;
  if (descriptor_) {
    pollfd entry{.fd = descriptor_.get(), .events = POLLIN, .revents = 0};
    return ::poll(&entry, 1, 0) > 0;
  }
  char state = '?';
  return start_time(process_.pid, &state) != process_.start_time || state == 'Z';
}

bool is_readable(const std::byte* byte) {
  // The kernel reports what a load would be killed for.
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return false;
  const support::Descriptor reader(ends[0]);
  const support::Descriptor writer(ends[1]);
  return ::write(writer.get(), byte, 1) == 1;
}

}  // namespace shardwire::transport::ucx

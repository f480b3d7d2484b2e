// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

extern char** environ;

namespace shardwire::test {

/// Sends and receives frames of bytes over a stream socket. Errors: throws when the other side has closed.
inline void write_frame(int socket, std::span<const std::byte> bytes) {
  const std::uint64_t size = bytes.size();
  if (::write(socket, &size, sizeof size) != sizeof size) throw std::runtime_error("frame: cannot write");
  while (!bytes.empty()) {
    const auto written = ::write(socket, bytes.data(), bytes.size());
    if (written <= 0) throw std::runtime_error("frame: cannot write");
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

inline void read_exactly(int socket, std::span<std::byte> into) {
  while (!into.empty()) {
    const auto got = ::read(socket, into.data(), into.size());
    if (got <= 0) throw std::runtime_error("frame: the other side has gone");
    into = into.subspan(static_cast<std::size_t>(got));
  }
}

inline std::vector<std::byte> read_frame(int socket) {
  std::uint64_t size = 0;
  read_exactly(socket, std::as_writable_bytes(std::span(&size, 1)));
  std::vector<std::byte> out(size);
  read_exactly(socket, out);
  return out;
}

/// A newly started program with a socket to it, not forked from a process that has opened a fabric. Its last argument
/// is that socket's number.
class Child {
 public:
  explicit Child(std::vector<std::string> arguments) {
    int ends[2] = {-1, -1};
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) throw std::runtime_error("socketpair");
    socket_ = ends[0];
    constexpr int inherited = 9;
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, ends[1], inherited);
    arguments.push_back(std::to_string(inherited));
    std::vector<char*> raw;
    for (std::string& argument : arguments) raw.push_back(argument.data());
    raw.push_back(nullptr);
    const int failed = ::posix_spawn(&pid_, raw.front(), &actions, nullptr, raw.data(), environ);
    ::posix_spawn_file_actions_destroy(&actions);
    ::close(ends[1]);
    if (failed != 0) throw std::runtime_error("cannot start " + arguments.front());
  }
  ~Child() {
    kill();
    reap();
    ::close(socket_);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  [[nodiscard]] int socket() const { return socket_; }
  [[nodiscard]] pid_t pid() const { return pid_; }
  /// Leaves a zombie, like a launcher that reaps late.
  void kill() const {
    if (pid_ > 0) ::kill(pid_, SIGKILL);
  }
  /// Stops the process without ending it: a peer that hangs.
  void freeze() const { ::kill(pid_, SIGSTOP); }
  int reap() {
    int status = 0;
    if (pid_ > 0) ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return status;
  }

 private:
  int socket_ = -1;
  pid_t pid_ = -1;
};

}  // namespace shardwire::test

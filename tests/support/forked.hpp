// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <exception>
#include <functional>
#include <stdexcept>

namespace shardwire::test {

/// A copy of this process that runs only `body`, with a socket to it. Requires: this process has one thread.
class Forked {
 public:
  explicit Forked(const std::function<void(int socket)>& body) {
    int ends[2] = {-1, -1};
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) throw std::runtime_error("socketpair");
    std::fflush(nullptr);
    pid_ = ::fork();
    if (pid_ < 0) throw std::runtime_error("fork");
    if (pid_ == 0) {
      ::close(ends[0]);
      ::alarm(60);  // in case the test ends without ending it
      int code = 0;
      try {
        body(ends[1]);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "forked process: %s\n", error.what());
        code = 1;
      }
      ::_exit(code);
    }
    ::close(ends[1]);
    socket_ = ends[0];
  }
  ~Forked() {
    ::close(socket_);  // ends it if this process may not kill it: it can have changed its user
    kill();
    reap();
  }
  Forked(const Forked&) = delete;
  Forked& operator=(const Forked&) = delete;

  [[nodiscard]] int socket() const { return socket_; }
  [[nodiscard]] pid_t pid() const { return pid_; }
  void kill() const {
    if (pid_ > 0) ::kill(pid_, SIGKILL);
  }
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

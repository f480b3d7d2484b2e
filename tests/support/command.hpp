// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace shardwire::test {

struct CommandResult {
  int exit_code = -1;  ///< negative signal number if a signal ended it
  bool timed_out = false;
  std::string out;
  std::string err;
};

/// A program under test with captured output. The destructor and the deadline end it.
class RunningCommand {
 public:
  /// `environment` is added to this process's own; the value "" unsets a variable.
  RunningCommand(std::vector<std::string> arguments, std::string input = {},
                 std::vector<std::pair<std::string, std::string>> environment = {})
      : input_(std::move(input)) {
    int in[2];
    int out[2];
    int err[2];
    if (::pipe2(in, O_CLOEXEC) != 0 || ::pipe2(out, O_CLOEXEC) != 0 || ::pipe2(err, O_CLOEXEC) != 0) {
      throw std::runtime_error("pipe2");
    }
    std::vector<char*> raw;
    for (std::string& argument : arguments) raw.push_back(argument.data());
    raw.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ < 0) throw std::runtime_error("fork");
    if (pid_ == 0) {
      ::dup2(in[0], 0);
      ::dup2(out[1], 1);
      ::dup2(err[1], 2);
      for (const auto& [name, value] : environment) {
        value.empty() ? ::unsetenv(name.c_str()) : ::setenv(name.c_str(), value.c_str(), 1);
      }
      ::alarm(0);
      ::execv(raw.front(), raw.data());
      ::_exit(127);
    }
    ::close(in[0]);
    ::close(out[1]);
    ::close(err[1]);
    in_ = in[1];
    out_ = out[0];
    err_ = err[0];
    ::signal(SIGPIPE, SIG_IGN);
    ::fcntl(in_, F_SETFL, O_NONBLOCK);
  }
  ~RunningCommand() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
    for (const int fd : {in_, out_, err_}) {
      if (fd >= 0) ::close(fd);
    }
  }
  RunningCommand(const RunningCommand&) = delete;
  RunningCommand& operator=(const RunningCommand&) = delete;

  [[nodiscard]] pid_t pid() const { return pid_; }
  void send(int signal) const { ::kill(pid_, signal); }

  /// Waits until the command has written `text` this many times to its standard error. False if it ends before, or if time runs out.
  bool await_error_text(std::string_view text, int times, std::chrono::seconds at_most = std::chrono::seconds(60)) {
    const auto written = [&] {
      int found = 0;
      for (std::size_t at = 0; (at = result_.err.find(text, at)) != std::string::npos; ++at) ++found;
      return found >= times;
    };
    const auto end = std::chrono::steady_clock::now() + at_most;
    while (!written()) {
      if (!talk_until(end)) return false;
    }
    return true;
  }

  CommandResult wait(std::chrono::seconds at_most = std::chrono::seconds(60)) {
    const auto end = std::chrono::steady_clock::now() + at_most;
    while (talk_until(end)) {
    }
    if (out_ >= 0 || err_ >= 0) {
      result_.timed_out = true;
      ::kill(pid_, SIGKILL);
    }
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    result_.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    return std::move(result_);
  }

 private:
  // Waits for the next piece of text. False if there is none: the command has ended, or time has run out.
  bool talk_until(std::chrono::steady_clock::time_point end) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    if ((out_ < 0 && err_ < 0) || left.count() <= 0) return false;
    pollfd fds[] = {{out_, POLLIN, 0}, {err_, POLLIN, 0}, {in_, POLLOUT, 0}};
    ::poll(fds, 3, static_cast<int>(left.count()));
    if (fds[0].revents != 0) read_some(out_, result_.out);
    if (fds[1].revents != 0) read_some(err_, result_.err);
    if (in_ >= 0) feed();
    return true;
  }
  static void read_some(int& fd, std::string& into) {
    char block[1 << 16];
    const ssize_t got = ::read(fd, block, sizeof block);
    if (got > 0) {
      into.append(block, static_cast<std::size_t>(got));
    } else {
      ::close(fd);
      fd = -1;
    }
  }
  void feed() {
    if (!input_.empty()) {
      const ssize_t written = ::write(in_, input_.data(), input_.size());
      if (written > 0) {
        input_.erase(0, static_cast<std::size_t>(written));
      } else if (errno != EAGAIN) {
        input_.clear();  // the program has closed its input
      }
    }
    if (!input_.empty()) return;
    ::close(in_);
    in_ = -1;
  }

  CommandResult result_;  // what the command has written so far
  std::string input_;
  pid_t pid_ = -1;
  int in_ = -1;
  int out_ = -1;
  int err_ = -1;
};

/// Path of the command under test, which the build passes in.
inline std::string command_path() {
  const char* path = std::getenv("COMMAND_UNDER_TEST");
  if (path == nullptr) throw std::runtime_error("COMMAND_UNDER_TEST is not set: run the tests by meson");
  return path;
}

/// Runs `shardwire arguments..` to its end.
inline CommandResult run_command(std::vector<std::string> arguments, std::string input = {},
                                 std::vector<std::pair<std::string, std::string>> environment = {},
                                 std::chrono::seconds at_most = std::chrono::seconds(60)) {
  arguments.insert(arguments.begin(), command_path());
  return RunningCommand(std::move(arguments), std::move(input), std::move(environment)).wait(at_most);
}

}  // namespace shardwire::test

// SPDX-License-Identifier: Apache-2.0
#include "cli/output.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <stdexcept>
#include <system_error>

namespace shardwire::cli {
namespace {

[[noreturn]] void refuse() {
  throw std::runtime_error(fmt::format("cannot write to standard output: {}", std::generic_category().message(errno)));
}

}  // namespace

void write_output(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) refuse();
}

void finish_output() {
  errno = EIO;  // the cause of an earlier failed write is no longer known
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) refuse();
}

void keep_standard_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(stream, F_GETFD) >= 0) continue;
    ::open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY);  // takes the lowest free number: this one
  }
  std::signal(SIGPIPE, SIG_IGN);
}

}  // namespace shardwire::cli

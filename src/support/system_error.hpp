// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cerrno>
#include <system_error>

namespace shardwire::support {

/// What errno says of a system call that has failed.
[[noreturn]] inline void throw_errno(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

}  // namespace shardwire::support

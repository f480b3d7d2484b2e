// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/core.h>

#include <cstdio>
#include <string>
#include <utility>

namespace shardwire::support {

/// Writes to standard error. Errors are ignored: a closed or full stderr leaves no place to report them.
template <typename... T>
void write_stderr(fmt::format_string<T...> format, T&&... values) {
  const std::string text = fmt::format(format, std::forward<T>(values)...);
  std::fwrite(text.data(), 1, text.size(), stderr);
}

}  // namespace shardwire::support

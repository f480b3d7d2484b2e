// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <iterator>
#include <string>
#include <utility>

namespace shardwire::simulation {

/// The events of one run, one line each. Two runs are equal if their traces are, byte for byte.
class Trace {
 public:
  explicit Trace(bool kept) : kept_(kept) {}
  /// `at_ns`: virtual time. `process`: 0 stands for the network and the schedule.
  template <typename... Values>
  void line(std::int64_t at_ns, int process, fmt::format_string<Values...> text, Values&&... values) {
    if (!kept_) return;
    const auto out = std::back_inserter(text_);
    fmt::format_to(out, "{:>13} p{} ", at_ns, process);
    fmt::format_to(out, text, std::forward<Values>(values)...);
    text_.push_back('\n');
  }
  [[nodiscard]] const std::string& text() const { return text_; }
  /// FNV-1a of the text.
  [[nodiscard]] std::uint64_t hash() const {
    std::uint64_t hash = 0xcbf29ce484222325ULL;
    for (const char one : text_) hash = (hash ^ static_cast<unsigned char>(one)) * 0x100000001b3ULL;
    return hash;
  }

 private:
  const bool kept_;
  std::string text_;
};

}  // namespace shardwire::simulation

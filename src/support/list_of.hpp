// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/ranges.h>

#include <span>
#include <string>
#include <string_view>

namespace shardwire::support {

/// "3, 4, 9 and 12 more": numbers for a message, readable even if it lists all ranks of a large job.
template <typename Number>
std::string list_of(std::span<const Number> numbers, std::size_t shown = 8) {
  if (numbers.size() <= shown) return fmt::format("{}", fmt::join(numbers, ", "));
  return fmt::format("{} and {} more", fmt::join(numbers.first(shown), ", "), numbers.size() - shown);
}

/// "1 rank", "4 ranks".
template <typename Number>
std::string counted(Number count, std::string_view what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

/// "0..3, 7 and 9 more": ascending numbers, where runs of them are common.
inline std::string runs_of(std::span<const int> numbers, std::size_t shown = 8) {
  std::string text;
  std::size_t runs = 0;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    if (runs++ == shown) return fmt::format("{} and {} more", text, numbers.size() - i);
    if (!text.empty()) text += ", ";
    text += last == i ? fmt::format("{}", numbers[i])
                      : fmt::format("{}{}{}", numbers[i], last == i + 1 ? ", " : "..", numbers[last]);
    i = last + 1;
  }
  return text;
}

template <typename List>
std::string list_of(const List& numbers) {
  return list_of(std::span<const typename List::value_type>(numbers));
}

}  // namespace shardwire::support

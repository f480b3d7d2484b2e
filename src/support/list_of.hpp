// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/ranges.h>

#include <span>
#include <string>

namespace shardwire::support {

/// "3, 4, 9 and 12 more": numbers for a message, which has to stay readable when all of a large job are meant.
template <typename Number>
std::string list_of(std::span<const Number> numbers, std::size_t shown = 8) {
  if (numbers.size() <= shown) return fmt::format("{}", fmt::join(numbers, ", "));
  return fmt::format("{} and {} more", fmt::join(numbers.first(shown), ", "), numbers.size() - shown);
}

template <typename List>
std::string list_of(const List& numbers) {
  return list_of(std::span<const typename List::value_type>(numbers));
}

}  // namespace shardwire::support

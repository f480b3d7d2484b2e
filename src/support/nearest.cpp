// SPDX-License-Identifier: Apache-2.0
#include "support/nearest.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

namespace shardwire::support {
namespace {

constexpr std::size_t max_word = 128;  // bounds the work for a text that is not a word at all

// A third of the letters may differ, and one of short words.
std::size_t tolerated(std::size_t letters) {
  return letters < 2 ? 0 : std::max<std::size_t>(1, letters / 3);
}

}  // namespace

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> two_before;
  std::vector<std::size_t> before;
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    two_before = std::exchange(before, row);
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t changed = before[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({changed, row[j - 1] + 1, before[j] + 1});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], two_before[j - 2] + 1);
    }
  }
  return row.back();
}

std::string_view nearest(std::string_view given, std::span<const std::string_view> known) {
  std::string_view found;
  std::size_t least = max_word;
  for (const std::string_view word : known) {
    if (std::ranges::any_of(word, [](unsigned char c) { return c < ' '; })) continue;  // messages are one line
    const auto [shorter, longer] = std::minmax({given.size(), word.size()});
    if (longer > max_word || longer - shorter > tolerated(longer)) continue;
    const std::size_t distance = edit_distance(given, word);
    if (distance > tolerated(longer) || distance >= least) continue;
    least = distance;
    found = word;
  }
  return found;
}

std::string suggestion(std::string_view given, std::span<const std::string_view> known) {
  const std::string_view found = nearest(given, known);
  return found.empty() ? std::string() : fmt::format(" (did you mean '{}'?)", found);
}

std::string known_words(std::string_view given, std::string_view known) {
  std::vector<std::string_view> words;
  for (std::size_t begin = 0; begin <= known.size();) {
    const std::size_t end = std::min(known.find(", ", begin), known.size());
    words.push_back(known.substr(begin, end - begin));
    begin = end + 2;
  }
  return fmt::format("{}; known are {}", suggestion(given, words), known);
}

}  // namespace shardwire::support

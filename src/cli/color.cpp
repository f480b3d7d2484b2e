// SPDX-License-Identifier: Apache-2.0
#include "cli/color.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <optional>

#include "cli/command.hpp"
#include "cli/environment.hpp"
#include "support/nearest.hpp"

namespace shardwire::cli {
namespace {

// Of --color always and never.
std::optional<bool>& chosen_color() {
  static std::optional<bool> chosen;
  return chosen;
}

bool has_colors(std::FILE* stream) {
  if (chosen_color()) return *chosen_color();
  return !environment("NO_COLOR") && environment("TERM") != "dumb" && ::isatty(::fileno(stream)) == 1;
}

int code_of(Mark mark) {
  switch (mark) {
    case Mark::failure: return 31;  // red
    case Mark::warning: return 33;  // yellow
    case Mark::success: return 32;  // green
  }
  return 0;
}

}  // namespace

void choose_color(const std::string& word) {
  if (word != "auto" && word != "always" && word != "never") {
    throw UsageError(fmt::format("--color: '{}' is unknown{}", word, support::known_words(word, color_words)));
  }
  chosen_color() = word == "auto" ? std::nullopt : std::optional(word == "always");
}

std::string marked(std::string_view text, Mark mark, std::FILE* stream) {
  return has_colors(stream) ? fmt::format("\033[{}m{}\033[0m", code_of(mark), text) : std::string(text);
}

}  // namespace shardwire::cli

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <string>
#include <string_view>

namespace shardwire::cli {

/// Words of --color.
inline constexpr std::string_view color_words = "auto, always, never";
/// Takes the word of --color, for all texts of this process. Errors: throws UsageError.
void choose_color(const std::string& word);

enum class Mark { failure, warning, success };
/// `text` in the color of `mark` where `stream`, which it is for, has colors: as --color says, else on a terminal where
/// NO_COLOR is not set.
std::string marked(std::string_view text, Mark mark, std::FILE* stream);

}  // namespace shardwire::cli

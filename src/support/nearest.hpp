// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

// For messages about words that are not known, most of which are misspelt.
namespace shardwire::support {

/// Letters to change, add, remove or swap with the next one, to turn one text into the other.
/// Cost: O(a.size() * b.size()).
std::size_t edit_distance(std::string_view a, std::string_view b);

/// The known word that `given` most likely is; empty if none is near.
std::string_view nearest(std::string_view given, std::span<const std::string_view> known);

/// " (did you mean 'bf16'?)", or nothing if no known word is near.
std::string suggestion(std::string_view given, std::span<const std::string_view> known);

/// The suggestion, and "; known are f64, f32": what follows a word that is not among `known`, a list with commas.
std::string known_words(std::string_view given, std::string_view known);

}  // namespace shardwire::support

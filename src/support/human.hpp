// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/core.h>

#include <span>
#include <string>

// Figures for people, with three digits.
namespace shardwire::support {

/// `units`: the next is a thousand of the one before.
inline std::string scaled(double value, std::span<const char* const> units) {
  std::size_t unit = 0;
  while (value >= 999.5 && unit + 1 < units.size()) {
    value /= 1000;
    ++unit;
  }
  const int digits = unit == 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  const char* const name = units[unit];
  return fmt::format("{:.{}f}{}{}", value, digits, *name == '\0' ? "" : " ", name);
}

/// "96.4 GB", "15.2 kB", "0 B": decimal units.
template <typename Bytes>
std::string human_bytes(Bytes bytes) {
  static constexpr const char* units[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
  return scaled(static_cast<double>(bytes), units);
}

/// "1.26 GB/s", "64 B/s"; "-" of no time.
template <typename Bytes>
std::string human_speed(Bytes bytes, double seconds = 1) {
  return seconds > 0 ? human_bytes(static_cast<double>(bytes) / seconds) + "/s" : "-";
}

/// "1.26 s", "12.5 ms", "0.3 us"
inline std::string human_seconds(double seconds) {
  if (seconds >= 1) return fmt::format("{:.3g} s", seconds);
  if (seconds >= 1e-3) return fmt::format("{:.3g} ms", seconds * 1e3);
  return fmt::format("{:.3g} us", seconds * 1e6);
}

}  // namespace shardwire::support

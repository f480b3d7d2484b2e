// SPDX-License-Identifier: Apache-2.0
#include "cli/text.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "cli/command.hpp"
#include "support/environment.hpp"

namespace shardwire::cli {
namespace {

std::string scaled(double value, const char* const* units, std::size_t count) {
  std::size_t unit = 0;
  while (value >= 999.5 && unit + 1 < count) {
    value /= 1000;
    ++unit;
  }
  const int digits = unit == 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  const char* const name = units[unit];
  return fmt::format("{:.{}f}{}{}", value, digits, *name == '\0' ? "" : " ", name);
}

}  // namespace

std::string human_bytes(double bytes) {
  static constexpr const char* units[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
  return scaled(bytes, units, std::size(units));
}

std::string human_seconds(double seconds) {
  if (seconds >= 1) return fmt::format("{:.3g} s", seconds);
  if (seconds >= 1e-3) return fmt::format("{:.3g} ms", seconds * 1e3);
  return fmt::format("{:.3g} us", seconds * 1e6);
}

std::string exact_bytes(ByteCount bytes) {
  for (const auto& [shift, unit] : {std::pair(30, " GiB"), {20, " MiB"}, {10, " KiB"}}) {
    if (bytes >> shift != 0 && bytes % (ByteCount{1} << shift) == 0) return fmt::format("{}{}", bytes >> shift, unit);
  }
  return fmt::format("{} B", bytes);
}

std::string human_count(double count) {
  static constexpr const char* units[] = {"", "k", "M", "G", "T"};
  return scaled(count, units, std::size(units));
}

std::string printable(const std::string& name) {
  const bool plain = std::none_of(name.begin(), name.end(), [](unsigned char c) { return c < ' ' || c == 0x7f; });
  return plain ? name : json_text(name);
}

std::string json_text(std::string_view text) {
  return nlohmann::json(std::string(text)).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string json_text(const Gap& gap) {
  return fmt::format("{{\"fqn\":{},\"state\":{},\"offset\":[{}],\"size\":[{}],\"rank\":{}}}", json_text(gap.fqn),
                     json_text(gap.state), fmt::join(gap.box.offset, ","), fmt::join(gap.box.size, ","),
                     to_int(gap.target));
}

ByteCount parse_bytes(std::string_view option, std::string_view text) {
  const auto bytes = support::parse_size(text);
  if (!bytes) throw UsageError(fmt::format("{}: '{}' is not a size; examples are 4096, 64K, 256M, 2G", option, text));
  return *bytes;
}

}  // namespace shardwire::cli

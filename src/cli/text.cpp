// SPDX-License-Identifier: Apache-2.0
#include "cli/text.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <utility>

#include "cli/command.hpp"
#include "support/environment.hpp"
#include "support/human.hpp"
#include "support/json_text.hpp"

namespace shardwire::cli {

std::string exact_bytes(ByteCount bytes) {
  for (const auto& [shift, unit] : {std::pair(30, " GiB"), {20, " MiB"}, {10, " KiB"}}) {
    if (bytes >> shift != 0 && bytes % (ByteCount{1} << shift) == 0) return fmt::format("{}{}", bytes >> shift, unit);
  }
  return fmt::format("{} B", bytes);
}

std::string human_count(double count) {
  static constexpr const char* units[] = {"", "k", "M", "G", "T"};
  return support::scaled(count, units);
}

std::string printable(const std::string& name) {
  const bool plain = std::none_of(name.begin(), name.end(), [](unsigned char c) { return c < ' ' || c == 0x7f; });
  return plain ? name : json_text(name);
}

std::string json_text(std::string_view text) {
  return support::json_text(text);
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

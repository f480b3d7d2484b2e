// SPDX-License-Identifier: Apache-2.0
#include "support/environment.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <iterator>
#include <vector>

#include "shardwire/error.hpp"
#include "support/nearest.hpp"

namespace shardwire::support {
namespace {

constexpr std::string_view known[] = {"SHARDWIRE_TRANSPORT",
                                      "SHARDWIRE_STAGING_BYTES",
                                      "SHARDWIRE_JOB_KEY_FILE",
                                      "SHARDWIRE_RUN_ID",
                                      "SHARDWIRE_PORT",
                                      "SHARDWIRE_INTERFACE",
                                      "SHARDWIRE_METHOD",
                                      "SHARDWIRE_LOG",
                                      "SHARDWIRE_LOG_FORMAT",
                                      "SHARDWIRE_CALIBRATION",
                                      "SHARDWIRE_JOIN_TIMEOUT",
                                      "SHARDWIRE_COPY_KERNEL",
                                      "SHARDWIRE_TCP_STREAMS",
                                      "SHARDWIRE_ALLOW_ATTACH",
                                      "SHARDWIRE_ALLOW_OPEN_NETWORK",
                                      "SHARDWIRE_ENCRYPT_PAYLOAD",
                                      "SHARDWIRE_KEEPER",
                                      "SHARDWIRE_KEEPER_SOCKET",
                                      "SHARDWIRE_HOST_DOMAIN",
                                      "SHARDWIRE_METRICS_FOLDER",
                                      "SHARDWIRE_METRICS_PORT",
                                      "SHARDWIRE_METRICS_ADDRESS",
                                      "SHARDWIRE_TRACE"};

constexpr std::string_view prefix = "SHARDWIRE_";

// Names are compared without the prefix, by which all are alike.
std::string meant_by(std::string_view name) {
  std::vector<std::string_view> words;
  for (const std::string_view one : known) words.push_back(one.substr(prefix.size()));
  const std::string_view found = nearest(name.substr(prefix.size()), words);
  return found.empty() ? std::string() : fmt::format(" (did you mean '{}{}'?)", prefix, found);
}

}  // namespace

std::span<const std::string_view> known_variables() {
  return known;
}

std::optional<std::string> variable(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr || *text == '\0' ? std::nullopt : std::optional<std::string>(text);
}

bool is_set(const char* name) {
  const auto text = variable(name);
  if (text && *text != "0" && *text != "1") {
    throw Error(ErrorCode::invalid_argument, fmt::format("{}={}: 0 or 1 is expected", name, *text));
  }
  return text == "1";
}

std::string unknown_variables_warning() {
  static std::atomic<bool> warned = false;
  if (warned.exchange(true)) return {};
  std::string unknown;
  std::string meant;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::string_view name = text.substr(0, text.find('='));
    if (!name.starts_with(prefix) || std::find(std::begin(known), std::end(known), name) != std::end(known)) continue;
    unknown.append(unknown.empty() ? "" : ", ").append(name);
    meant += meant_by(name);
  }
  if (unknown.empty()) return {};
  const bool one = unknown.find(',') == std::string::npos;
  return fmt::format("the environment variable{} {} {} unknown{}; known are {}", one ? "" : "s", unknown,
                     one ? "is" : "are", meant, fmt::join(known, ", "));
}

std::optional<ByteCount> parse_size(std::string_view text) {
  ByteCount value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return std::nullopt;
  const std::string_view unit = text.substr(static_cast<std::size_t>(end - text.data()));
  int shift = 0;
  if (unit == "K" || unit == "k") shift = 10;
  if (unit == "M" || unit == "m") shift = 20;
  if (unit == "G" || unit == "g") shift = 30;
  if (!unit.empty() && shift == 0) return std::nullopt;
  if (shift > 0 && value >> (63 - shift) != 0) return std::nullopt;
  return value << shift;
}

}  // namespace shardwire::support

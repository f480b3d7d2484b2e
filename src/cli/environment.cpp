// SPDX-License-Identifier: Apache-2.0
#include "cli/environment.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace shardwire::cli {
namespace {

constexpr std::string_view known[] = {"SHARDWIRE_TRANSPORT", "SHARDWIRE_STAGING_BYTES", "SHARDWIRE_JOB_KEY_FILE",
                                      "SHARDWIRE_PORT",      "SHARDWIRE_INTERFACE",     "SHARDWIRE_WAY",
                                      "SHARDWIRE_LOG",       "SHARDWIRE_CALIBRATION"};

}  // namespace

std::optional<std::string> environment(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr || *text == '\0' ? std::nullopt : std::optional<std::string>(text);
}

void report_unknown_environment() {
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::string_view name = text.substr(0, text.find('='));
    if (!name.starts_with("SHARDWIRE_") || std::find(std::begin(known), std::end(known), name) != std::end(known))
      continue;
    std::string all;
    for (const std::string_view one : known) all.append(all.empty() ? "" : ", ").append(one);
    fmt::print(stderr, "shardwire: warning: the environment variable {} is unknown; known are {}\n", name, all);
  }
}

}  // namespace shardwire::cli

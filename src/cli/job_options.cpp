// SPDX-License-Identifier: Apache-2.0
#include "cli/job_options.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "case/case.hpp"
#include "case/text_file.hpp"
#include "cli/command.hpp"
#include "cli/environment.hpp"
#include "cli/text.hpp"
#include "session/settings.hpp"
#include "shardwire/error.hpp"
#include "transport/transport.hpp"

namespace shardwire::cli {
namespace {

// A variable that makes no sense is bad usage, as an option is.
template <typename Setting>
auto from_environment(Setting setting) {
  try {
    return setting();
  } catch (const Error& error) {
    throw UsageError(error.what());
  }
}

}  // namespace

std::string chosen_transport(const std::string& option) {
  const std::string names = option.empty() ? transport_of_environment() : option;
  try {
    transport::select(names);
  } catch (const Error& error) {
    throw UsageError(fmt::format("--transport {}: {}", names, error.what()));
  }
  return names;
}

void require_host_memory(const std::string& option) {
  if (option == "cuda") throw UsageError("--memory cuda: device memory is not supported by this build");
  if (option != "host") throw UsageError(fmt::format("--memory: '{}' is unknown; known are host, cuda", option));
}

Verify parse_verify(const std::string& option) {
  if (option == "digest") return Verify::digest;
  if (option == "none") return Verify::none;
  throw UsageError(fmt::format("--verify: '{}' is unknown; known are none, digest", option));
}

ByteCount parse_rate(const std::string& option) {
  if (option.empty()) return 0;
  const ByteCount rate = parse_bytes("--rate", option);
  if (rate == 0) throw UsageError("--rate: nothing would ever arrive");
  return rate;
}

ByteCount chosen_staging(const std::string& option) {
  if (option.empty()) return from_environment(staging_of_environment);
  const ByteCount staging = parse_bytes("--staging", option);
  if (staging == 0) throw UsageError("--staging: a budget of 0 bytes moves nothing");
  return staging;
}

CostModel chosen_costs(const std::string& option) {
  if (option.empty()) return from_environment(costs_of_environment);
  try {
    return load_costs(option);
  } catch (const Error& error) {
    throw UsageError(fmt::format("--calibration: {}", error.what()));
  }
}

LogLevel chosen_log_level() {
  return from_environment(log_level_of_environment);
}

Duration chosen_join_timeout() {
  return from_environment(join_timeout_of_environment);
}

void require_key_file() {
  const auto path = environment("SHARDWIRE_JOB_KEY_FILE");
  if (!path) return;
  std::string why = *path + ": the file is empty";
  try {
    if (!read_text(*path == "-" ? "./-" : *path, 1).empty()) return;
  } catch (const CaseError& error) {
    why = error.what();
  }
  throw UsageError("SHARDWIRE_JOB_KEY_FILE: " + why);
}

Bootstrap launched_bootstrap() {
  try {
    return bootstrap_from_env();
  } catch (const Error& error) {
    throw UsageError(error.what());
  }
}

}  // namespace shardwire::cli

// SPDX-License-Identifier: Apache-2.0
#include "cli/job_options.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "cli/command.hpp"
#include "cli/environment.hpp"
#include "cli/text.hpp"
#include "shardwire/error.hpp"
#include "transport/transport.hpp"

namespace shardwire::cli {

std::string chosen_transport(const std::string& option) {
  static constexpr const char* known[] = {"auto", "ucx", "libfabric", "loopback", "nccl"};
  const std::string name = !option.empty() ? option : environment("SHARDWIRE_TRANSPORT").value_or("auto");
  if (std::find(std::begin(known), std::end(known), name) == std::end(known)) {
    throw UsageError(
        fmt::format("--transport: there is none named '{}'; known are auto, ucx, libfabric, loopback, nccl", name));
  }
  try {
    transport::choose(name);
  } catch (const Error& error) {
    throw UsageError(fmt::format("--transport {}: {}", name, error.what()));
  }
  return name;
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
  ByteCount staging = 256u << 20;
  if (!option.empty()) {
    staging = parse_bytes("--staging", option);
  } else if (const auto set = environment("SHARDWIRE_STAGING_BYTES")) {
    staging = parse_bytes("SHARDWIRE_STAGING_BYTES", *set);
  }
  if (staging == 0) throw UsageError("--staging: a budget of 0 bytes moves nothing");
  return staging;
}

CostModel chosen_costs(const std::string& option) {
  const std::string path = !option.empty() ? option : environment("SHARDWIRE_CALIBRATION").value_or("");
  if (path.empty()) return {};
  try {
    return load_costs(path);
  } catch (const Error& error) {
    throw UsageError(fmt::format("--calibration: {}", error.what()));
  }
}

}  // namespace shardwire::cli

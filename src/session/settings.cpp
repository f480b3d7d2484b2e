// SPDX-License-Identifier: Apache-2.0
#include "session/settings.hpp"

#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "memory/kernel_choice.hpp"
#include "move/tuning.hpp"
#include "shardwire/error.hpp"
#include "support/environment.hpp"
#include "support/nearest.hpp"
#include "support/processor.hpp"
#include "wire/limits.hpp"

namespace shardwire {

namespace {

using support::variable;

constexpr std::string_view level_names[] = {"debug", "info", "warning", "error"};

}  // namespace

std::string transport_of_environment() {
  return variable("SHARDWIRE_TRANSPORT").value_or("auto");
}

ByteCount staging_of_environment() {
  const auto text = variable("SHARDWIRE_STAGING_BYTES");
  if (!text) return 256u << 20;
  const auto bytes = support::parse_size(*text);
  if (!bytes || *bytes == 0) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("SHARDWIRE_STAGING_BYTES: '{}' is no size above 0; examples are 4096, 64K, 256M, 2G", *text));
  }
  return *bytes;
}

Duration join_timeout_of_environment() {
  const auto text = variable("SHARDWIRE_JOIN_TIMEOUT");
  if (!text) return std::chrono::seconds(60);
  constexpr double longest = 1e9;
  char* end = nullptr;
  const double seconds = std::strtod(text->c_str(), &end);
  if (*end != '\0' || !(seconds > 0 && seconds <= longest)) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("SHARDWIRE_JOIN_TIMEOUT: '{}' is no number of seconds above 0; examples are 90, 0.5", *text));
  }
  return Duration(std::llround(seconds * 1e9));
}

CostModel costs_of_environment() {
  const auto path = variable("SHARDWIRE_CALIBRATION");
  return path ? load_costs(*path) : CostModel();
}

void force_kernel_of_environment() {
  try {
    memory::kernel_choice().force(variable("SHARDWIRE_COPY_KERNEL").value_or(""));
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("SHARDWIRE_COPY_KERNEL: {}", error.what()));
  }
}

void begin_with_kernels_of(const CostModel& costs) {
  const FastestKernels& kernels = costs.tuning().kernels;
  if (kernels.processor.empty() || kernels.processor != support::processor_model()) return;
  for (const FastestKernels::Entry& one : kernels.entries) {
    memory::kernel_choice().begin_with(one.run_bytes_class, one.kernel);
  }
}

std::optional<Method> method_of_environment() {
  const char* name = std::getenv("SHARDWIRE_METHOD");
  if (name == nullptr || *name == '\0') return std::nullopt;
  const auto method = method_from(name);
  if (!method) {
    throw Error(ErrorCode::invalid_argument, fmt::format("SHARDWIRE_METHOD='{}' is not the name of a method", name));
  }
  return method;
}

LogLevel log_level_of_environment() {
  const auto text = variable("SHARDWIRE_LOG");
  if (!text) return LogLevel::warning;
  for (const LogLevel level : {LogLevel::debug, LogLevel::info, LogLevel::warning, LogLevel::error}) {
    if (*text == level_names[static_cast<std::size_t>(level)]) return level;
  }
  throw Error(ErrorCode::invalid_argument,
              fmt::format("SHARDWIRE_LOG='{}' is not a level{}: use {}", *text, support::suggestion(*text, level_names),
                          fmt::join(level_names, ", ")));
}

LogSink standard_error_log(LogLevel least, int member) {
  return [least, member](LogLevel level, std::string_view text) {
    if (level < least) return;
    // One write per line, so that lines of processes that share the stream stay whole.
    const std::string line =
        fmt::format("shardwire: member {}: {}: {}\n", member, level_names[static_cast<std::size_t>(level)], text);
    std::fwrite(line.data(), 1, line.size(), stderr);
  };
}

KeeperOptions with_environment(KeeperOptions keeper) {
  if (keeper.job.empty()) keeper.job = variable("SHARDWIRE_KEEPER").value_or("");
  if (keeper.socket.empty()) keeper.socket = variable("SHARDWIRE_KEEPER_SOCKET").value_or("");
  return keeper;
}

Settings resolve_settings(const SessionOptions& options, int member) {
  Settings settings{
      .transport = options.transport.empty() ? transport_of_environment() : options.transport,
      .staging_bytes = options.staging_bytes ? *options.staging_bytes : staging_of_environment(),
      .join_timeout = options.join_timeout ? *options.join_timeout : join_timeout_of_environment(),
      .copy_threads = options.copy_threads,
      .encrypt_payload = options.encrypt_payload || support::is_set("SHARDWIRE_ENCRYPT_PAYLOAD"),
      .costs = options.costs ? *options.costs : costs_of_environment(),
      .keeper = with_environment(options.keeper),
      .host_domain = options.host_domain.empty() ? variable("SHARDWIRE_HOST_DOMAIN").value_or("") : options.host_domain,
      .progress = options.progress,
      .log = options.log ? options.log : standard_error_log(log_level_of_environment(), member),
  };
  if (settings.staging_bytes == 0) throw Error(ErrorCode::invalid_argument, "the staging budget is 0 bytes");
  if (settings.host_domain.size() > wire::max_name_bytes || settings.host_domain.find('\0') != std::string::npos) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("a host domain has at most {} characters, and no NUL among them", wire::max_name_bytes));
  }
  if (settings.progress.spin < Duration::zero()) {
    throw Error(ErrorCode::invalid_argument, "progress.spin must be >= 0");
  }
  return settings;
}

}  // namespace shardwire

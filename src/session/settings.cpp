// SPDX-License-Identifier: Apache-2.0
#include "session/settings.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string_view>

#include "control/bootstrap.hpp"
#include "memory/kernel_choice.hpp"
#include "move/tuning.hpp"
#include "shardwire/error.hpp"
#include "support/environment.hpp"
#include "support/json_text.hpp"
#include "support/nearest.hpp"
#include "support/processor.hpp"
#include "wire/limits.hpp"

namespace shardwire {

namespace {

using support::variable;

// In the order of LogLevel and LogFormat.
constexpr std::string_view level_names[] = {"debug", "info", "warning", "error"};
constexpr std::string_view format_names[] = {"text", "json"};
constexpr std::string_view level_words[] = {"DEBUG", "INFO", "WARN", "ERROR"};  // in lines

// The place among `words` of what the variable says; empty if it is not set.
std::optional<std::size_t> word_of_environment(const char* name, std::string_view kind,
                                               std::span<const std::string_view> words) {
  const auto text = variable(name);
  if (!text) return std::nullopt;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (*text == words[i]) return i;
  }
  throw Error(ErrorCode::invalid_argument, fmt::format("{}='{}' is not a {}{}: use {}", name, *text, kind,
                                                       support::suggestion(*text, words), fmt::join(words, ", ")));
}

LogLevel log_level_of_environment() {
  const auto place = word_of_environment("SHARDWIRE_LOG", "level", level_names);
  return place ? static_cast<LogLevel>(*place) : LogLevel::warning;
}

LogFormat log_format_of_environment() {
  const auto place = word_of_environment("SHARDWIRE_LOG_FORMAT", "format", format_names);
  return place ? static_cast<LogFormat>(*place) : LogFormat::text;
}

// 0: nobody asked.
std::uint16_t metrics_port_of_environment() {
  const auto text = variable("SHARDWIRE_METRICS_PORT");
  if (!text) return 0;
  std::uint16_t port = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), port);
  if (error != std::errc() || *end != '\0' || port == 0) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("SHARDWIRE_METRICS_PORT='{}' is not a number from 1 to 65535", *text));
  }
  if (!variable("SHARDWIRE_METRICS_FOLDER")) {
    throw Error(ErrorCode::invalid_argument,
                "SHARDWIRE_METRICS_PORT needs SHARDWIRE_METRICS_FOLDER, whose files it serves");
  }
  return port;
}

// RFC 3339, in UTC. Not by gmtime_r(), which reads the environment at its first call, and takes a lock of the C library
// that a child of fork() inherits.
std::string utc_text(std::chrono::system_clock::time_point when) {
  const auto day = std::chrono::floor<std::chrono::days>(when);
  const std::chrono::year_month_day date(day);
  const auto microseconds = std::chrono::duration_cast<std::chrono::microseconds>(when - day).count();
  const auto seconds = microseconds / 1'000'000;
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:06}Z", static_cast<int>(date.year()),
                     static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()), seconds / 3600,
                     seconds / 60 % 60, seconds % 60, microseconds % 1'000'000);
}

// A run id as the value of a field: fields end at spaces.
std::string field_text(const std::string& run_id) {
  const bool plain = std::ranges::all_of(run_id, [](char c) { return c > ' ' && c <= '~' && c != '"' && c != '='; });
  return plain ? run_id : support::json_text(run_id);
}

std::string text_fields(const LogOrigin& origin) {
  return fmt::format("shardwire run={} member={}", origin.run_id.empty() ? "-" : field_text(origin.run_id),
                     origin.member ? std::to_string(*origin.member) : "-");
}

std::string json_fields(const LogOrigin& origin) {
  return fmt::format(R"("run":{},"member":{})", origin.run_id.empty() ? "null" : support::json_text(origin.run_id),
                     origin.member ? std::to_string(*origin.member) : "null");
}

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

LogStyle log_style_of_environment() {
  return {log_level_of_environment(), log_format_of_environment()};
}

LogOrigin log_origin(const Bootstrap& bootstrap) {
  return {bootstrap.run_id.empty() ? run_id_of_environment() : bootstrap.run_id,
          bootstrap.guest ? std::nullopt : std::optional(bootstrap.rank)};
}

LogSink standard_error_log(const LogStyle& style, const LogOrigin& origin) {
  const bool json = style.format == LogFormat::json;
  return [least = style.least, json, from = json ? json_fields(origin) : text_fields(origin)](LogLevel level,
                                                                                              std::string_view text) {
    if (level < least) return;
    const std::string now = utc_text(std::chrono::system_clock::now());
    const std::string_view word = level_words[static_cast<std::size_t>(level)];
    const std::string line = json ? fmt::format("{{\"time\":\"{}\",\"level\":\"{}\",{},\"message\":{}}}\n", now, word,
                                                from, support::json_text(text))
                                  : fmt::format("{} {:<5} {} {}\n", now, word, from, text);
    // One write per line, so that lines of processes that share the stream stay whole.
    std::fwrite(line.data(), 1, line.size(), stderr);
  };
}

KeeperOptions with_environment(KeeperOptions keeper) {
  if (keeper.job.empty()) keeper.job = variable("SHARDWIRE_KEEPER").value_or("");
  if (keeper.socket.empty()) keeper.socket = variable("SHARDWIRE_KEEPER_SOCKET").value_or("");
  return keeper;
}

Settings resolve_settings(const SessionOptions& options, const Bootstrap& bootstrap) {
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
      .log = options.log ? options.log : standard_error_log(log_style_of_environment(), log_origin(bootstrap)),
      .least_level = options.log ? LogLevel::debug : log_level_of_environment(),
      .telemetry = options.telemetry,
      .metrics_folder = variable("SHARDWIRE_METRICS_FOLDER").value_or(""),
      .metrics_port = metrics_port_of_environment(),
      .metrics_address = variable("SHARDWIRE_METRICS_ADDRESS").value_or("127.0.0.1"),
      .trace_file = variable("SHARDWIRE_TRACE").value_or(""),
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

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "shardwire/bootstrap.hpp"
#include "shardwire/options.hpp"

// Resolves settings that the options leave open. The command uses it as well, so that a variable has the same meaning
// in both.
namespace shardwire {

/// SessionOptions with every field resolved.
struct Settings {
  std::string transport;
  ByteCount staging_bytes = 0;
  Duration join_timeout{};
  unsigned copy_threads = 0;
  bool encrypt_payload = false;
  CostModel costs{};
  KeeperOptions keeper{};
  std::string host_domain;
  ProgressMode progress{};
  LogSink log;
  LogLevel least_level = LogLevel::debug;  ///< no message below it is wanted
  Telemetry telemetry{};
  std::string metrics_folder;      ///< empty: no metrics
  std::uint16_t metrics_port = 0;  ///< 0: none
  std::string metrics_address;     ///< of the port
  std::string trace_file;          ///< empty: no trace
};

/// `bootstrap`: of the session, with the run id of the environment if the caller has given none.
/// Errors: throws Error{invalid_argument} naming the invalid option or variable.
Settings resolve_settings(const SessionOptions& options, const Bootstrap& bootstrap);

/// The same keeper; variables of the environment name what it leaves open.
KeeperOptions with_environment(KeeperOptions keeper);

/// The value of each variable, else the default. Errors: as resolve_settings().
std::string transport_of_environment();
ByteCount staging_of_environment();
Duration join_timeout_of_environment();
CostModel costs_of_environment();
/// By SHARDWIRE_METHOD; empty if it is not set.
std::optional<Method> method_of_environment();
/// The method of the options, else that of the environment.
template <typename Asked>
std::optional<Method> requested_method(std::optional<Asked> of_options) {
  return of_options ? to_method(*of_options) : method_of_environment();
}

/// Sets the copy kernel named by SHARDWIRE_COPY_KERNEL, else the fastest, for all sessions of this process from now on.
/// Errors: as resolve_settings(), also for a kernel that this processor cannot run.
void force_kernel_of_environment();

/// Starts copies of this process with the kernels that were fastest when `costs` was measured, if that was on this
/// processor model. Ignores unknown kernels; measurements of this process take precedence.
void begin_with_kernels_of(const CostModel& costs);

enum class LogFormat : std::uint8_t { text, json };

/// The least level of the default log, and its format.
struct LogStyle {
  LogLevel least = LogLevel::warning;  ///< messages below it are not written
  LogFormat format = LogFormat::text;
};
/// By SHARDWIRE_LOG and SHARDWIRE_LOG_FORMAT. Errors: as resolve_settings().
LogStyle log_style_of_environment();

/// The process that logs, as each line names it.
struct LogOrigin {
  std::string run_id;         ///< empty: the job has none
  std::optional<int> member;  ///< empty: a guest, or a keeper
};
/// The member that joins with this bootstrap, with the run id of the environment if the bootstrap has none.
LogOrigin log_origin(const Bootstrap& bootstrap);

/// The default log: writes each message to standard error, as one line with the time, the level and the origin.
LogSink standard_error_log(const LogStyle& style, const LogOrigin& origin);

}  // namespace shardwire

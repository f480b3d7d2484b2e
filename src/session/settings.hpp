// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "memory/digest128.hpp"
#include "shardwire/options.hpp"

// What a session does where its options leave something open. The command asks here as well, so that a variable means the
// same in both.
namespace shardwire {

/// SessionOptions with nothing left open.
struct Settings {
  std::string transport;
  ByteCount staging_bytes = 0;
  Duration join_timeout{};
  unsigned copy_threads = 0;
  CostModel costs{};
  memory::DigestKind digest = memory::DigestKind::flat;  ///< of host memory
  ProgressMode progress{};
  LogSink log;
};

/// Errors: throws Error{invalid_argument} naming the option or the variable that makes no sense.
Settings settle(const SessionOptions& options, int member);

/// What each variable says, else the default. Errors: as settle().
std::string transport_of_environment();
ByteCount staging_of_environment();
Duration join_timeout_of_environment();
CostModel costs_of_environment();
memory::DigestKind digest_of_environment();
LogLevel log_level_of_environment();

/// The copy kernel that SHARDWIRE_COPY_KERNEL names, else the fastest, for all sessions of this process from now on.
/// Errors: as settle(), also for a kernel that this processor cannot run.
void force_kernel_of_environment();

/// Copies of this process begin with the kernels that were the fastest when `costs` was measured, if that was on a processor of
/// this model. What this version does not know is left out, and what this process has found out itself stays.
void begin_with_kernels_of(const CostModel& costs);

/// Writes lines of `least` and above to standard error.
LogSink standard_error_log(LogLevel least, int member);

}  // namespace shardwire

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

#include "shardwire/bootstrap.hpp"
#include "shardwire/session.hpp"

// Options that `run` and `perf` share: what they mean, and how a bad one is refused.
namespace shardwire::cli {

/// What `body` throws in a process of its own; empty when it ends well. Libraries of fabrics open devices when they are asked
/// what they have, and a device that was opened before a fork is of no use to the child. Errors: throws UsageError.
std::string said_by_a_child(const std::function<void()>& body);
/// --transport, else SHARDWIRE_TRANSPORT, else "auto". Errors: throws UsageError for one that is unknown, or that this
/// build or machine lacks, with the reason.
std::string chosen_transport(const std::string& option);
/// Where one of the names may be that of a collective for device memory.
struct JobTransport {
  std::string names;           ///< of the others
  bool by_collective = false;  ///< bytes go in its rounds
};
/// Errors: throws UsageError for host memory with a collective, and as chosen_transport().
JobTransport chosen_job_transport(const std::string& option, MemoryKind memory);
/// host or cuda. Errors: throws UsageError for anything else, and for device memory where there is none, with the reason.
MemoryKind parse_memory(const std::string& option);
/// Errors: throws UsageError.
Verify parse_verify(const std::string& option);
/// --rate, 0 where it is not given. Errors: throws UsageError.
ByteCount parse_rate(const std::string& option);
/// --staging, else SHARDWIRE_STAGING_BYTES, else 256 MiB. Errors: throws UsageError.
ByteCount chosen_staging(const std::string& option);
/// Costs in the file of --calibration, else of SHARDWIRE_CALIBRATION, else the built-in ones. Errors: throws UsageError.
CostModel chosen_costs(const std::string& option);
/// SHARDWIRE_LOG, else warnings. Errors: throws UsageError.
LogLevel chosen_log_level();
/// SHARDWIRE_JOIN_TIMEOUT, else a minute. Errors: throws UsageError.
Duration chosen_join_timeout();
/// Errors: throws UsageError when SHARDWIRE_JOB_KEY_FILE is set and names no file with a key in it.
void require_key_file();
/// What a launcher tells this process. Errors: throws UsageError.
Bootstrap launched_bootstrap();

}  // namespace shardwire::cli

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "session/settings.hpp"
#include "shardwire/bootstrap.hpp"
#include "shardwire/session.hpp"

namespace CLI {
class App;
}

// Options that commands share: their declaration, parsing and validation.
namespace shardwire::cli {

/// Adds --timeout, and --deadline as another name, which --help does not list.
void add_timeout(CLI::App& app, double& seconds, const std::string& help);
/// Adds --memory; its word is for parse_memory().
void add_memory(CLI::App& app, std::string& word);
/// Adds --verify; its word is for parse_verify().
void add_verify(CLI::App& app, std::string& word);
/// Adds --replicas; its word is for parse_replicas().
void add_replicas(CLI::App& app, std::string& word);

/// Runs `body` in a child process and returns the text of its exception; empty if it succeeds. Libraries of fabrics
/// open devices when queried, and a device opened before a fork is unusable in the child. Errors: throws UsageError.
std::string said_by_a_child(const std::function<void()>& body);
/// "auto", and the transports of this build that reach `least` or farther, as a list: "auto, shm, tcp".
std::string transport_names(Reach least = Reach::process);
/// --transport, else SHARDWIRE_TRANSPORT, else "auto". Errors: throws UsageError, with the reason, for an unknown
/// transport or one that this build or machine lacks.
std::string chosen_transport(const std::string& option);
/// For names that may include a collective for device memory.
struct JobTransport {
  std::string names;           ///< of the others
  bool by_collective = false;  ///< bytes move in its rounds
};
/// Errors: throws UsageError for host memory with a collective, and as chosen_transport().
JobTransport chosen_job_transport(const std::string& option, MemoryKind memory);
/// host or cuda. Errors: throws UsageError for anything else, and, with the reason, for device memory if there is none.
MemoryKind parse_memory(const std::string& option);
/// generation, also by its other name none, or digest. Errors: throws UsageError.
Verify parse_verify(const std::string& option);
/// spread or first. Errors: throws UsageError.
Replicas parse_replicas(const std::string& option);
/// --rate; 0 if not given. Errors: throws UsageError.
ByteCount parse_rate(const std::string& option);
/// Errors: throws UsageError that names `option`, unless it is a time above 0.
Duration parse_seconds(std::string_view option, double seconds);
/// --staging, else SHARDWIRE_STAGING_BYTES, else 256 MiB. Errors: throws UsageError.
ByteCount chosen_staging(const std::string& option);
/// Costs from the file of --calibration, else of SHARDWIRE_CALIBRATION, else the built-in ones. Errors: throws
/// UsageError.
CostModel chosen_costs(const std::string& option);
/// Errors: throws UsageError if the processes of such a job cannot be struck by faults.
void require_struck_processes(const JobTransport& transport);
/// SHARDWIRE_LOG and SHARDWIRE_LOG_FORMAT, else warnings as text. Errors: throws UsageError.
LogStyle chosen_log();
/// SHARDWIRE_JOIN_TIMEOUT, else a minute. Errors: throws UsageError.
Duration chosen_join_timeout();
/// Errors: throws UsageError if SHARDWIRE_JOB_KEY_FILE is set and does not name a file with a key.
void require_key_file();
/// The launcher's variables for this process. Errors: throws UsageError.
Bootstrap launched_bootstrap();

}  // namespace shardwire::cli

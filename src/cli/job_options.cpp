// SPDX-License-Identifier: Apache-2.0
#include "cli/job_options.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <iterator>
#include <string>

#include "case/case.hpp"
#include "case/text_file.hpp"
#include "cli/command.hpp"
#include "cli/completion.hpp"
#include "cli/environment.hpp"
#include "cli/run_job.hpp"
#include "cli/text.hpp"
#include "control/key_file.hpp"
#include "memory/device.hpp"
#include "session/settings.hpp"
#include "shardwire/error.hpp"
#include "support/descriptors.hpp"
#include "support/nearest.hpp"
#include "transport/collective.hpp"
#include "transport/transport.hpp"

namespace shardwire::cli {
namespace {

constexpr std::string_view known_memory = "host, cuda";
constexpr std::string_view known_checks = "generation, digest";
constexpr std::string_view known_replicas = "spread, first";

// An invalid variable is bad usage, like an invalid option.
template <typename Setting>
auto from_environment(Setting setting) {
  try {
    return setting();
  } catch (const Error& error) {
    throw UsageError(error.what());
  }
}

}  // namespace

void add_timeout(CLI::App& app, double& seconds, const std::string& help) {
  CLI::Option* const named = app.add_option("--timeout", seconds, help);
  const auto take = [named, &seconds](double value) {
    if (named->count() > 0) throw CLI::ExcludesError("--timeout", "--deadline");
    seconds = value;
  };
  app.add_option_function<double>("--deadline", take)->group("");  // excludes() would show it in the help
}

void add_memory(CLI::App& app, std::string& word) {
  app.add_option("--memory", word, "memory of the state (default: host)")->type_name(one_of(known_memory));
}

void add_verify(CLI::App& app, std::string& word) {
  app.add_option("--verify", word,
                 "generation (the source has not changed) or digest, besides the check of every element (default: "
                 "generation)")
      ->type_name(one_of(known_checks));
}

void add_replicas(CLI::App& app, std::string& word) {
  app.add_option(
         "--replicas", word,
         "source of elements that several ranks hold: spread (the own process, else evenly) or first (the lowest "
         "rank, as restores of shardwire.torch read; default: spread)")
      ->type_name(one_of(known_replicas));
}

std::string said_by_a_child(const std::function<void()>& body) {
  int ends[2] = {-1, -1};
  if (::pipe2(ends, O_CLOEXEC) != 0) throw UsageError("no pipe: " + std::string(std::strerror(errno)));
  const support::Descriptor from(ends[0]);
  support::Descriptor to(ends[1]);
  const pid_t child = ::fork();
  if (child < 0) throw UsageError("no process: " + std::string(std::strerror(errno)));
  if (child == 0) {
    std::string text;
    try {
      body();
    } catch (const std::exception& error) {
      text = error.what();
    }
    (void)!::write(to.get(), text.data(), text.size());
    ::_exit(0);
  }
  to.reset();
  std::string text;
  char part[512];
  for (ssize_t count = 0; (count = ::read(from.get(), part, sizeof part)) > 0;) {
    text.append(part, static_cast<std::size_t>(count));
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return status == 0 ? text : fmt::format("looking for it ended with wait status {}", status);
}

std::string transport_names(Reach least) {
  std::string names(transport::automatic);
  for (const transport::Transport& one : transport::registered()) {
    if (one.reach >= least) names += fmt::format(", {}", one.name);
  }
  return names;
}

std::string chosen_transport(const std::string& option) {
  const std::string names = option.empty() ? transport_of_environment() : option;
  const std::string refusal = said_by_a_child([&] { transport::select(names); });
  if (!refusal.empty()) throw UsageError(fmt::format("--transport {}: {}", names, refusal));
  return names;
}

JobTransport chosen_job_transport(const std::string& option, MemoryKind memory) {
  const std::string names = option.empty() ? transport_of_environment() : option;
  JobTransport chosen;
  for (std::size_t begin = 0; begin <= names.size();) {
    const std::size_t end = std::min(names.find(',', begin), names.size());
    const std::string name = names.substr(begin, end - begin);
    begin = end + 1;
    const auto collectives = transport::registered_collectives();
    const auto one = std::ranges::find(collectives, name, &transport::CollectiveTransport::name);
    if (one == collectives.end() || one->memory != MemoryKind::cuda) {
      chosen.names += (chosen.names.empty() ? "" : ",") + name;
      continue;
    }
    if (memory != MemoryKind::cuda) {
      throw UsageError(
          fmt::format("--transport {}: it moves device memory in exchanges of all ranks, and nothing else: say "
                      "--memory cuda",
                      name));
    }
    const std::string refusal = said_by_a_child([&] {
      const transport::Viability viability = one->probe();
      if (!viability.viable) throw Error(ErrorCode::unsupported, "it is off here: " + viability.detail);
    });
    if (!refusal.empty()) throw UsageError(fmt::format("--transport {}: {}", name, refusal));
    chosen.by_collective = true;
  }
  if (chosen.names.empty()) chosen.names = transport::automatic;
  chosen.names = chosen_transport(chosen.names);
  return chosen;
}

MemoryKind parse_memory(const std::string& option) {
  if (option == "host") return MemoryKind::host;
  if (option != "cuda") {
    throw UsageError(fmt::format("--memory: '{}' is unknown{}", option, support::known_words(option, known_memory)));
  }
  // A driver that was queried before a fork is unusable in the child.
  const std::string refusal = said_by_a_child([] {
    const memory::FoundRuntime found = memory::device_runtime();
    if (!found.runtime) throw Error(ErrorCode::unsupported, found.why_not);
    if (found.runtime->device_count() == 0) throw Error(ErrorCode::unsupported, "there is no device");
  });
  if (!refusal.empty()) throw UsageError("--memory cuda: " + refusal);
  return MemoryKind::cuda;
}

Verify parse_verify(const std::string& option) {
  if (option == "digest") return Verify::digest;
  if (option == "generation" || option == "none") return Verify::generation;
  throw UsageError(fmt::format("--verify: '{}' is unknown{}", option, support::known_words(option, known_checks)));
}

Replicas parse_replicas(const std::string& option) {
  if (option == "first") return Replicas::first;
  if (option == "spread") return Replicas::spread;
  throw UsageError(fmt::format("--replicas: '{}' is unknown{}", option, support::known_words(option, known_replicas)));
}

ByteCount parse_rate(const std::string& option) {
  if (option.empty()) return 0;
  const ByteCount rate = parse_bytes("--rate", option);
  if (rate == 0) throw UsageError("--rate: nothing would ever arrive");
  return rate;
}

void require_struck_processes(const JobTransport& transport) {
  if (transport.names == "loopback") throw UsageError("faults: with --transport loopback all ranks share a process");
  if (transport.by_collective) throw UsageError("faults: with --transport nccl an exchange loses all members together");
  if (started_by_launcher()) throw UsageError("faults: only processes that this command has started can be struck");
}

Duration parse_seconds(std::string_view option, double seconds) {
  constexpr double longest = 1e9;
  if (!(seconds > 0 && seconds <= longest)) {
    throw UsageError(fmt::format("{}: a number of seconds above 0 is expected", option));
  }
  return std::chrono::nanoseconds(std::llround(seconds * 1e9));
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

LogStyle chosen_log() {
  return from_environment(log_style_of_environment);
}

Duration chosen_join_timeout() {
  return from_environment(join_timeout_of_environment);
}

void require_key_file() {
  const auto path = environment("SHARDWIRE_JOB_KEY_FILE");
  if (!path) return;
  try {
    static_cast<void>(read_key_file(*path, "SHARDWIRE_JOB_KEY_FILE"));
  } catch (const Error& error) {
    throw UsageError(error.what());
  }
}

Bootstrap launched_bootstrap() {
  try {
    return bootstrap_from_env();
  } catch (const Error& error) {
    throw UsageError(error.what());
  }
}

}  // namespace shardwire::cli

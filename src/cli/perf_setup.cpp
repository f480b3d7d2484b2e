// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "case/text_file.hpp"
#include "cli/command.hpp"
#include "cli/environment.hpp"
#include "cli/job_options.hpp"
#include "cli/local_rendezvous.hpp"
#include "cli/perf_options.hpp"
#include "cli/run_memory.hpp"
#include "cli/run_progress.hpp"
#include "cli/run_segments.hpp"
#include "cli/text.hpp"
#include "move/traits.hpp"
#include "perf/measure/read_libraries.hpp"
#include "perf/measure/synthetic.hpp"
#include "perf/measure/tag_loop.hpp"
#include "support/nearest.hpp"
#include "support/stderr.hpp"
#include "transport/transport.hpp"

namespace shardwire::cli {
namespace {

using perf::Against;

constexpr std::size_t max_case_bytes = 64u << 20;
constexpr int max_members = 256;
constexpr ByteCount sweep_state_bytes = 1u << 30;  // of all ranks together, held and wanted
constexpr ByteCount max_wanted_bytes = 64u << 20;
constexpr ByteCount item_bytes = 4;

std::vector<Against> parse_against(const PerfWords& words, bool exchange) {
  if (words.against == std::vector<std::string>{"none"}) return {};
  if (words.starts) {
    // Turns of references between the first restores would precede some of them.
    if (!words.against.empty())
      throw UsageError("--fresh: takes no --against; it compares first restores with later ones");
    return {};
  }
  // Over TCP a plain copy is no meaningful bound.
  if (words.against.empty()) {
    if (exchange) return {Against::nccl};
    if (!words.tcp) return {Against::memcpy};
    const std::string why = perf::why_no_tag_loop();
    if (why.empty()) return {Against::ucx};
    support::write_stderr("measured without a comparison: {}\n", why);
    return {};
  }
  std::vector<Against> out;
  for (const std::string& word : words.against) {
    const Against all[] = {Against::memcpy,     Against::ucx,     Against::mpi,     Against::unverified,
                           Against::contiguous, Against::ucp_get, Against::fi_read, Against::nccl};
    const auto* const found =
        std::find_if(std::begin(all), std::end(all), [&](Against one) { return to_string(one) == word; });
    if (found == std::end(all)) {
      throw UsageError(fmt::format("--against: '{}' is unknown{}, or none alone", word,
                                   support::known_words(word, known_references)));
    }
    if (*found == Against::unverified && parse_verify(words.verify) == Verify::generation) {
      throw UsageError("--against unverified: is for restores with digests; see --verify");
    }
    if (*found == Against::nccl && !exchange) {
      throw UsageError("--against nccl: is for exchanges in rounds of NCCL; see --transport");
    }
    if (*found == Against::contiguous && exchange) {
      throw UsageError("--against contiguous: is for restores, not for exchanges in rounds");
    }
    if (std::count(out.begin(), out.end(), *found) == 0) out.push_back(*found);
  }
  return out;
}

// References for state on devices; the loops of libraries use host memory.
void use_device_copies(std::vector<Against>& against) {
  for (Against& one : against) {
    if (one == Against::memcpy) one = Against::device_memcpy;
    if (one == Against::device_memcpy || one == Against::unverified || one == Against::contiguous) continue;
    if (one == Against::nccl) continue;
    throw UsageError(fmt::format("--against {}: is for state on the host", to_string(one)));
  }
}

std::vector<std::optional<Method>> parse_methods(const std::vector<std::string>& words, bool exchange) {
  if (exchange && !words.empty()) throw UsageError("--method: exchanges in rounds of NCCL go no other");
  if (exchange) return {Method::collective};
  std::vector<std::optional<Method>> out;
  for (const std::string& word : words) {
    const auto method = method_from(word);
    if (!method || !to_restore_method(*method)) {
      throw UsageError(fmt::format("--method: '{}' is unknown{}", word, support::known_words(word, known_methods())));
    }
    out.emplace_back(method);
  }
  return out;
}

// "256,4K,..,64M": two dots continue with the factor between the two values before them.
std::vector<ByteCount> parse_runs(const std::vector<std::string>& words) {
  std::vector<ByteCount> out;
  bool dots = false;
  for (const std::string& word : words) {
    if (word == "..") {
      if (out.size() < 2 || out.back() <= out[out.size() - 2]) {
        throw UsageError("--runs: '..' goes on from two lengths, the second one longer");
      }
      dots = true;
      continue;
    }
    const ByteCount run = parse_bytes("--runs", word);
    if (run == 0 || run % item_bytes != 0)
      throw UsageError(fmt::format("--runs: {} is not a multiple of 4 bytes", word));
    if (dots) {
      const ByteCount factor = out.back() / out[out.size() - 2];
      if (factor < 2) throw UsageError("--runs: '..' needs a whole factor");
      while (out.back() < run / factor) out.push_back(out.back() * factor);
      dots = false;
    }
    out.push_back(run);
  }
  if (dots) throw UsageError("--runs: a length is missing after '..'");
  return out;
}

void require_for_case(const PerfWords& words) {
  const auto refuse = [](const char* option) {
    throw UsageError(fmt::format("{} belongs to a sweep; with a CASE, the case says it", option));
  };
  if (!words.runs.empty()) refuse("--runs");
  if (words.ranks) refuse("--ranks");
  if (words.pairs) refuse("--pairs");
  if (!words.bytes.empty()) refuse("--bytes");
}

void add_case(perf::Setup& setup, const PerfWords& words) {
  require_for_case(words);
  const std::string name = shown_name(words.path);
  try {
    std::string text = read_text(words.path, max_case_bytes);
    if (words.layers) text = perf::with_layers(text, *words.layers);
    setup.measurements.push_back(perf::measurement_of(std::move(text)));
  } catch (const CaseError& error) {
    const std::string why = error.what();
    throw CaseError(why.starts_with(name) ? why : fmt::format("{}: {}", name, why));
  }
  auto& measurement = setup.measurements.back();
  measurement.methods = parse_methods(words.methods, setup.exchange);
  if (measurement.methods.empty()) measurement.methods = {std::nullopt};
  if (measurement.job.target.layout.sections.empty()) throw UsageError(name + ": there is no tensor to move");
}

// The number of pairs grows fast, so the data about each must stay small.
constexpr int max_members_in_pairs = 32;

void add_pairs(perf::Setup& setup, int ranks, const std::vector<ByteCount>& runs, ByteCount bytes,
               const std::vector<std::optional<Method>>& methods) {
  if (ranks > max_members_in_pairs) {
    throw UsageError(
        fmt::format("--pairs: at most {} processes take part; one on each host, or one for each NIC, will do",
                    max_members_in_pairs));
  }
  for (const std::vector<perf::Pair>& pairs : perf::sets_of_pairs(ranks)) {
    const std::string who = pairs.size() == 1 ? fmt::format("{} <- {}", pairs[0].target, pairs[0].source)
                                              : fmt::format("{} pairs at once from {} <- {}", pairs.size(),
                                                            pairs[0].target, pairs[0].source);
    for (const ByteCount run : runs) {
      auto& measurement = setup.measurements.emplace_back(
          perf::measurement_of(perf::pairs_case(who, ranks, pairs, run, bytes / run * run)));
      measurement.run_bytes = run;
      measurement.pairs = pairs;
      if (!methods.empty()) measurement.methods = methods;
    }
  }
}

void add_sweep(perf::Setup& setup, const PerfWords& words, LaunchedRanks launched) {
  if (words.layers) throw UsageError("--layers belongs to a CASE with a model");
  if (setup.replicas == Replicas::first) throw UsageError("--replicas first belongs to a CASE");
  if (launched && words.ranks && *words.ranks != *launched) {
    throw UsageError(fmt::format("--ranks {}: the launcher started {} processes", *words.ranks, *launched));
  }
  const int processes = launched.value_or(words.ranks.value_or(2));
  if (processes < 2 || processes > max_members) throw UsageError("--ranks: 2 to 256 are expected");
  if (words.disjoint && processes % 2 != 0) throw UsageError("--disjoint: an even number of --ranks is expected");
  const int ranks = words.disjoint ? processes / 2 : processes;  // of each side
  ByteCount bytes = max_wanted_bytes;
  if (!words.bytes.empty()) {
    bytes = parse_bytes("--bytes", words.bytes);
  } else if (!words.pairs) {
    // A rank wants half of what another rank holds.
    while (bytes > 1 && 3 * bytes * static_cast<ByteCount>(ranks) > sweep_state_bytes) bytes /= 2;
  }
  std::vector<ByteCount> runs = parse_runs(words.runs);
  if (runs.empty() && words.pairs) runs = {bytes / item_bytes * item_bytes};
  if (runs.empty()) {
    for (ByteCount run = 256; run <= std::min<ByteCount>(bytes, 64u << 20); run *= 4) runs.push_back(run);
    if (bytes >= 64u << 20 && runs.back() != 64u << 20) runs.push_back(64u << 20);
  }
  // The rank's own data can be requested separately where that is measured.
  std::vector<std::string> asked = words.methods;
  const bool asks_for_local = std::erase(asked, to_string(Method::local)) > 0;
  if (asks_for_local && (words.disjoint || words.tcp || words.pairs || setup.exchange)) {
    throw UsageError("--method local: nothing is local between different processes");
  }
  auto methods =
      asks_for_local && asked.empty() ? std::vector<std::optional<Method>>() : parse_methods(asked, setup.exchange);
  if (words.disjoint && words.pairs)
    throw UsageError("--pairs: each process is a source and a target; it takes no --disjoint");
  for (const ByteCount run : runs) {
    if (run > bytes) {
      throw UsageError(fmt::format(
          "--runs: a run of {} bytes is longer than the {} bytes that each rank wants; see --bytes", run, bytes));
    }
  }
  if (words.pairs) return add_pairs(setup, ranks, runs, bytes, methods);
  const bool has_local = asks_for_local || (methods.empty() && !words.disjoint && !words.tcp);
  if (methods.empty() && !asks_for_local) {
    for (const auto by : {move::Carrier::mapping, move::Carrier::reads, move::Carrier::messages}) {
      move::each_method_by(by, [&](Method method) { methods.emplace_back(method); });
    }
  }
  for (const ByteCount run : runs) {
    const ByteCount whole = bytes / run * run;
    for (const bool local : {false, true}) {
      if (local ? !has_local : methods.empty()) continue;
      setup.measurements.push_back(perf::measurement_of(perf::synthetic_case(ranks, run, whole, local)));
      setup.measurements.back().run_bytes = run;
      if (!local) setup.measurements.back().methods = methods;
    }
  }
}

void require_baselines(const perf::Setup& setup, LaunchedRanks launched) {
  if (setup.has(Against::ucx)) {
    const std::string why = perf::why_no_tag_loop();
    if (!why.empty()) throw UsageError("--against ucx: " + why);
    if (setup.members() < 2) throw UsageError("--against ucx: a single process has no peer to send to");
  }
  for (const Against against : setup.measurements.front().against) {  // the same for all
    if (!perf::is_read_loop(against)) continue;
    // In a child process: it may open devices.
    const std::string why = said_by_a_child([&] { perf::open_read_loop(against, setup.tcp); });
    if (!why.empty()) throw UsageError(fmt::format("--against {}: {}", to_string(against), why));
  }
  if (!setup.has(Against::mpi)) return;
  if (launched)
    throw UsageError("--against mpi: starts processes of its own, so it is not for a job that a launcher started");
  mpi_program();
}

// Call it before any probe. Processes started here inherit it.
void keep_fabrics_to_tcp(const PerfWords& words) {
  if (words.transport.find("ucx") != std::string::npos) {
    ::setenv("UCX_TLS", "tcp,self", 1);
    ::setenv("UCX_NET_DEVICES", "lo", 0);
  }
  const bool beside = std::count(words.against.begin(), words.against.end(), to_string(Against::fi_read)) > 0;
  if (beside || words.transport.find("libfabric") != std::string::npos) {
    ::setenv("FI_PROVIDER", "tcp", 1);
    ::setenv("FI_TCP_IFACE", "lo", 0);
  }
}

std::string transport_over_tcp(const PerfWords& words) {
  keep_fabrics_to_tcp(words);
  if (words.transport.empty()) return chosen_transport("tcp");
  const std::string chosen = chosen_transport(words.transport);
  const std::string refusal = said_by_a_child([&] {
    for (const transport::Transport* one : transport::select(chosen)) {
      if (one->reach == Reach::process) throw UsageError("--tcp: loopback joins threads of one process");
      if (one->reach != Reach::network) throw UsageError(fmt::format("--tcp: {} stays within a host", one->name));
    }
  });
  if (!refusal.empty()) throw UsageError(refusal);
  return chosen;
}

bool on_path(const char* program) {
  const std::string path = environment("PATH").value_or("");
  for (std::size_t at = 0; at <= path.size();) {
    const std::size_t end = std::min(path.find(':', at), path.size());
    if (::access((path.substr(at, end - at) + "/" + program).c_str(), X_OK) == 0) return true;
    at = end + 1;
  }
  return false;
}

}  // namespace

std::string known_methods() {
  std::vector<std::string_view> names;
  for (const move::MethodTraits& one : move::method_table) {
    if (to_restore_method(one.method)) names.push_back(one.name);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

std::string mpi_program() {
  std::error_code none;
  const auto beside = std::filesystem::read_symlink("/proc/self/exe", none).parent_path() / "shardwire-mpi-alltoallw";
  if (::access(beside.c_str(), X_OK) != 0) {
    throw UsageError(
        fmt::format("--against mpi: {} is not there; it is built where Open MPI is found (Debian: "
                    "libopenmpi-dev)",
                    beside.string()));
  }
  if (!on_path("mpirun")) throw UsageError("--against mpi: there is no mpirun on the PATH (Debian: openmpi-bin)");
  return beside.string();
}

perf::Setup setup_of(const PerfWords& words, LaunchedRanks launched) {
  perf::Setup setup;
  setup.memory = parse_memory(words.memory);
  if (words.tcp) {
    setup.transport = transport_over_tcp(words);
  } else {
    JobTransport transport = chosen_job_transport(words.transport, setup.memory);
    setup.transport = std::move(transport.names);
    setup.exchange = transport.by_collective;
  }
  setup.ordinary = words.ordinary;
  if (words.starts && (*words.starts < 1 || *words.starts > 1000)) throw UsageError("--fresh: 1 to 1000 are expected");
  if (words.starts && launched) {
    throw UsageError("--fresh: starts processes itself, so it is not for a job that a launcher started");
  }
  if (launched && setup.transport == "loopback") {
    throw UsageError("--transport loopback joins threads of one process, not those that a launcher starts");
  }
  setup.verify = parse_verify(words.verify);
  setup.replicas = parse_replicas(words.replicas);
  setup.rate_bytes_per_second = parse_rate(words.rate);
  setup.staging_bytes = chosen_staging(words.staging);
  setup.costs = chosen_costs(words.calibration);
  setup.tcp = words.tcp;
  setup.disjoint = words.disjoint;
  if (words.repeats < 1 || words.repeats > 1000) throw UsageError("--repeats: 1 to 1000 are expected");
  setup.repeats = words.repeats;
  if (!(words.timeout_seconds >= 1 && words.timeout_seconds <= 1e6)) {
    throw UsageError("--timeout: a number of seconds from 1 on is expected");
  }
  setup.timeout = std::chrono::seconds(static_cast<std::int64_t>(words.timeout_seconds));
  auto against = parse_against(words, setup.exchange);
  if (setup.memory == MemoryKind::cuda) use_device_copies(against);
  words.path.empty() ? add_sweep(setup, words, launched) : add_case(setup, words);
  for (auto& measurement : setup.measurements) measurement.against = against;
  if (setup.members() > max_members) {
    throw UsageError(fmt::format("the case has {} ranks; at most {} take part", setup.members(), max_members));
  }
  if (launched && setup.members() != *launched) {
    throw UsageError(fmt::format("the launcher started {} processes, the case takes {}", *launched, setup.members()));
  }
  require_baselines(setup, launched);
  return setup;
}

nlohmann::ordered_json options_of(const PerfWords& words, const perf::Setup& setup) {
  nlohmann::ordered_json out{{"transport", setup.transport}};
  if (setup.exchange) out["exchange"] = true;
  if (setup.tcp) out["tcp"] = true;
  if (setup.memory == MemoryKind::cuda) out["memory"] = "cuda";
  if (setup.ordinary) out["ordinary"] = true;
  if (setup.disjoint) out["disjoint"] = true;
  if (words.layers) out["layers"] = *words.layers;
  if (setup.rate_bytes_per_second > 0) out["rate"] = setup.rate_bytes_per_second;
  if (setup.verify == Verify::digest) out["verify"] = "digest";
  if (setup.replicas == Replicas::first) out["replicas"] = "first";
  const std::string calibration =
      !words.calibration.empty() ? words.calibration : environment("SHARDWIRE_CALIBRATION").value_or("");
  if (!calibration.empty()) out["calibration"] = calibration;
  for (const char* name : {"SHARDWIRE_METHOD", "SHARDWIRE_COPY_KERNEL", "SHARDWIRE_TCP_STREAMS"}) {
    if (const auto value = environment(name)) out[name] = *value;
  }
  for (const char* name : {"UCX_TLS", "UCX_NET_DEVICES", "FI_PROVIDER", "FI_TCP_IFACE"}) {
    if (const auto value = environment(name); value && !setup.tcp) out[name] = *value;
  }
  for (const char* name : {"NCCL_MULTI_RANK_GPU_ENABLE", "NCCL_MAX_CTAS"}) {
    if (const auto value = environment(name); value && setup.exchange) out[name] = *value;
  }
  return out;
}

perf::Outcome run_setup(const perf::Setup& setup) {
  RunOptions like_run;
  like_run.disjoint = setup.disjoint;
  like_run.memory = setup.memory;
  for (const auto& measurement : setup.measurements) {
    require_memory(measurement.job, like_run);
  }
  const LocalRendezvous rendezvous;
  SharedSegments segments;
  const std::string program = setup.has(Against::mpi) ? mpi_program() : "";
  JobProgress progress(1, 1, perf::bytes_of_turns(setup));
  try {
    return perf::run_here(
        setup, rendezvous.bootstrap(setup.members()), program, [&](pid_t pid) { segments.note(pid); },
        [&](ByteCount done_bytes) { progress.update(0, "measure", 0, done_bytes); });
  } catch (...) {
    segments.remove();
    throw;
  }
}

}  // namespace shardwire::cli

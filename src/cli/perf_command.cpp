// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <memory>
#include <optional>

#include "cli/command.hpp"
#include "cli/completion.hpp"
#include "cli/job_options.hpp"
#include "cli/output.hpp"
#include "cli/perf_options.hpp"
#include "cli/run_job.hpp"
#include "cli/run_progress.hpp"
#include "cli/run_report.hpp"
#include "shardwire/bootstrap.hpp"
#include "shardwire/error.hpp"
#include "support/stderr.hpp"

namespace shardwire::cli {
namespace {

using JsonRows = std::vector<nlohmann::ordered_json>;

void write_text(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  file.close();
  if (!file) throw Error(ErrorCode::out_of_resources, fmt::format("{} cannot be written", path));
}

std::string rows_text(const JsonRows& rows) {
  std::string text;
  for (const auto& row : rows) text += row.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  return text;
}

// `outcomes`: one, or one for each start of the processes.
int finish(const PerfWords& words, const perf::Setup& setup, const std::vector<perf::Outcome>& outcomes) {
  const auto refusals = perf::refusals_of(setup, outcomes.back());
  for (const std::string& refusal : refusals) support::write_stderr("not measured: {}\n", refusal);
  const perf::RowHead head{words.target, options_of(words, setup)};
  const JsonRows rows =
      words.starts ? perf::first_rows_of(setup, outcomes, head) : perf::rows_of(setup, outcomes.front(), head);
  if (rows.empty() || (!words.methods.empty() && !refusals.empty() && !words.path.empty())) {
    support::write_stderr("shardwire: a method that was asked for is not possible here\n");
    return exit_failed;
  }
  // Some launchers give a process a terminal of its own.
  const bool for_people = !words.json && !started_by_launcher() && ::isatty(STDOUT_FILENO) == 1;
  if (!words.output.empty()) {
    write_text(words.output, rows_text(rows));
  } else if (!for_people) {
    write_output(rows_text(rows));
    std::fflush(stdout);  // before the table, where both go to one file
  }
  if (!words.json) print_rows(rows);
  return exit_done;
}

int run(const PerfWords& words) {
  require_key_file();
  const bool launched = started_by_launcher();
  if (words.calibrates) {
    if (launched)
      throw UsageError("--calibrate starts processes of its own, so it is not for a job that a launcher started");
    return calibrate(words);
  }
  if (words.json && !words.output.empty()) throw UsageError("--json prints the rows, --output writes them: name one");
  if (!words.output.empty()) require_writable("--output", words.output);
  if (!launched) {
    const perf::Setup setup = setup_of(words, std::nullopt);
    std::vector<perf::Outcome> outcomes;
    for (int start = 0; start < words.starts.value_or(1); ++start) outcomes.push_back(run_setup(setup));
    return finish(words, setup, outcomes);
  }
  const Bootstrap bootstrap = launched_bootstrap();
  const perf::Setup setup = setup_of(words, bootstrap.world_size);
  std::optional<JobProgress> progress;
  if (bootstrap.rank == 0) progress.emplace(1, 1, perf::bytes_of_turns(setup));
  const auto outcome = perf::run_launched(setup, bootstrap,
                                          [&](ByteCount done_bytes) { progress->update(0, "measure", 0, done_bytes); });
  progress.reset();  // ends the line of the bar before the table
  return outcome ? finish(words, setup, {*outcome}) : exit_done;
}

}  // namespace

std::function<int()> declare_perf(CLI::App& app) {
  const auto words = std::make_shared<PerfWords>();
  app.add_option("CASE", words->path, "case file, or - for standard input (default: runs of growing length)");
  app.add_option("--layers", words->layers, "keep only this many layers of the case's model")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--runs", words->runs, "lengths of runs without a CASE (default: 256,1K,..,64M)")->delimiter(',');
  app.add_option("--ranks", words->ranks, "processes without a CASE (default: 2)");
  app.add_option("--bytes", words->bytes,
                 "bytes that each rank needs without a CASE (default: 64M, less with many ranks)");
  app.add_option("--transport", words->transport,
                 "names of transports; nccl exchanges device memory in its rounds (default: SHARDWIRE_TRANSPORT or "
                 "auto; with --tcp tcp)")
      ->type_name(some_of(transport_names() + ", nccl"));
  app.add_flag("--tcp", words->tcp, "all bytes go over TCP, those of the comparisons too");
  add_memory(app, words->memory);
  app.add_flag("--ordinary", words->ordinary, "the state is in ordinary memory of its process, not in arenas");
  app.add_flag("--disjoint", words->disjoint, "source and target ranks are different processes");
  app.add_flag("--pairs", words->pairs,
               "without a CASE: each pair of processes by itself, both ways, then disjoint pairs at once (default of "
               "--runs: all in one)");
  app.add_option("--method", words->methods,
                 "transfer methods, local without a CASE only (default: as the session chooses; without a CASE all)")
      ->delimiter(',')
      ->type_name(one_of(fmt::format("{}, local", known_methods())));
  app.add_option(
         "--against", words->against,
         "measured in the same run, turn by turn; none stands alone (default: memcpy; with --tcp ucx, with --transport "
         "nccl nccl)")
      ->delimiter(',')
      ->type_name(one_of(fmt::format("{}, none", known_references)));
  app.add_option("--repeats", words->repeats, "timed repeats; one more warms up (default: 5)");
  app.add_option("--fresh", words->starts,
                 "start the processes this many times, and compare their first restores with later ones");
  add_verify(app, words->verify);
  add_replicas(app, words->replicas);
  app.add_option("--rate", words->rate, "most remote bytes into each rank per second, e.g. 500M");
  app.add_option("--staging", words->staging,
                 "staging budget of each rank, e.g. 64M (default: SHARDWIRE_STAGING_BYTES or 256M)");
  app.add_option("--calibration", words->calibration,
                 "measured costs of the methods, a file of --calibrate (default: SHARDWIRE_CALIBRATION)")
      ->type_name(file_type);
  app.add_option("--calibrate", words->calibrate,
                 "measure the costs of the methods here, into this file (default: calibration.json)")
      ->expected(0, 1)
      ->type_name(file_type);
  app.add_flag(
      "--json", words->json,
      "print the rows, one JSON text a line, and no table (default: the table, and the rows too where standard "
      "output is no terminal)");
  app.add_option("--output", words->output, "write rows to this file instead of standard output, one JSON text a line")
      ->type_name(file_type);
  app.add_option("--target", words->target, "name of the measurement, kept in its rows");
  add_timeout(app, words->timeout_seconds, "seconds after which the run is aborted (default: 1800)");
  return [words, calibrate = app.get_option("--calibrate")] {
    words->calibrates = calibrate->count() > 0;
    return run(*words);
  };
}

}  // namespace shardwire::cli

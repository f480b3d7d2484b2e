// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <memory>
#include <new>
#include <system_error>
#include <utility>

#include "cli/command.hpp"
#include "cli/completion.hpp"
#include "cli/job_options.hpp"
#include "cli/relabel.hpp"
#include "cli/run_job.hpp"
#include "cli/run_memory.hpp"
#include "cli/run_report.hpp"
#include "cli/text.hpp"
#include "support/stderr.hpp"

namespace shardwire::cli {
namespace {

struct Words {
  std::string path;
  std::string transport;
  std::string memory = "host";
  std::string verify = "generation";
  std::string replicas = "spread";
  std::string rate;
  std::string staging;
  std::string calibration;
  std::string report;
  std::vector<std::string> faults;
  double timeout_seconds = 600;
  double notice_seconds = std::chrono::duration<double>(RestoreOptions{}.notice).count();
  int repeat = 1;
  bool disjoint = false;
  bool relabel = false;
};

void warn_of_corruption(const RunOptions& options) {
  const bool corrupts =
      std::ranges::any_of(options.faults, [](const Fault& one) { return one.kind == FaultKind::corrupt; });
  if (!corrupts || options.verify == Verify::digest) return;
  support::write_stderr(
      "shardwire: without --verify digest only the check of every element finds what --fault corrupt changes\n");
}

RunOptions check(const Words& words) {
  if (words.relabel && words.disjoint) {
    throw UsageError("--relabel: with --disjoint no target rank runs in the process of a source rank");
  }
  require_key_file();
  RunOptions options;
  options.replicas = parse_replicas(words.replicas);
  if (words.relabel && options.replicas == Replicas::first) {
    throw UsageError("--replicas first: --relabel assumes that replicas are equal; leave it out");
  }
  for (const std::string& text : words.faults) options.faults.push_back(parse_fault(text));
  options.notice = parse_seconds("--notice", words.notice_seconds);
  options.memory = parse_memory(words.memory);
  JobTransport transport = chosen_job_transport(words.transport, options.memory);
  if (!options.faults.empty()) require_struck_processes(transport);
  options.transport = std::move(transport.names);
  options.exchange = transport.by_collective;
  options.verify = parse_verify(words.verify);
  options.rate_bytes_per_second = parse_rate(words.rate);
  options.staging_bytes = chosen_staging(words.staging);
  options.costs = chosen_costs(words.calibration);
  options.timeout = parse_seconds("--timeout", words.timeout_seconds);
  if (words.repeat < 1) throw UsageError("--repeat: at least 1 is expected");
  options.repeat = words.repeat;
  options.disjoint = words.disjoint;
  options.log = chosen_log();
  options.join_timeout = chosen_join_timeout();
  if (!words.report.empty()) require_writable("--report", words.report);
  return options;
}

// A result that cannot be printed is still in the report, and vice versa.
int finish(const JobReport& report, const std::string& path) {
  std::exception_ptr unwritten;
  try {
    if (!path.empty()) write_report(path, report);
  } catch (const std::exception&) {
    unwritten = std::current_exception();
  }
  report.print();
  if (unwritten) std::rethrow_exception(unwritten);
  return report.verified() ? exit_done : exit_failed;
}

// The member of each target rank. Every process of a job computes the same result.
std::vector<std::int32_t> best_processes(const Case& job, const RunOptions& options) {
  try {
    return processes_of(relabel(job).labels, members_of(job, options));
  } catch (const Error& error) {
    if (error.gaps().empty()) throw;
    return {};  // no restore can succeed; the ranks report the missing regions
  }
}

int run(const Words& words) {
  RunOptions options = check(words);
  Case job;
  JobOutcome outcome = run_job(job, options, [&](bool launched) {
    job = load_case(words.path);
    require_ranks(options.faults, job);
    warn_of_corruption(options);
    if (words.relabel) options.processes = best_processes(job, options);
    if (!launched) require_memory(job, options);
  });
  if (outcome.interrupted) return exit_interrupted;
  const bool reports = outcome.reports;
  const JobReport report(job, options, std::move(outcome));
  if (reports) return finish(report, words.report);
  report.print_errors();
  return report.verified() ? exit_done : exit_failed;
}

}  // namespace

std::function<int()> declare_run(CLI::App& app) {
  const auto words = std::make_shared<Words>();
  app.add_option("CASE", words->path, "case file, or - for standard input")->required();
  app.add_option("--transport", words->transport,
                 "names of transports; nccl exchanges device memory in rounds of all ranks (default: "
                 "SHARDWIRE_TRANSPORT or auto)")
      ->type_name(some_of(transport_names() + ", nccl"));
  add_memory(app, words->memory);
  app.add_flag("--disjoint", words->disjoint, "source and target ranks are different processes");
  app.add_flag("--relabel", words->relabel,
               "run target ranks in the processes where the fewest bytes cross, as plan --relabel shows");
  add_verify(app, words->verify);
  add_replicas(app, words->replicas);
  app.add_option("--rate", words->rate, "most remote bytes into each rank per second, e.g. 500M");
  add_timeout(app, words->timeout_seconds, "seconds that one restore may take (default: 600)");
  app.add_option("--staging", words->staging,
                 "staging budget of each rank, e.g. 64M (default: SHARDWIRE_STAGING_BYTES or 256M)");
  app.add_option(
         "--calibration", words->calibration,
         "measured costs of the methods, a file of `shardwire perf --calibrate` (default: SHARDWIRE_CALIBRATION)")
      ->type_name(file_type);
  app.add_option("--repeat", words->repeat, "how often to restore, each time with new values (default: 1)");
  app.add_option("--notice", words->notice_seconds,
                 "seconds of silence after which a source is given up for others that hold the same (default: 5)");
  app.add_option("--fault", words->faults,
                 "kind:R@P, strike source rank R once P percent of all remote payload has arrived, or, with P one of "
                 "plan, bind, move, verify, when the first target rank enters that stage. Kinds: kill (SIGKILL), stop "
                 "(SIGSTOP), cut (its connections close, no others are accepted), corrupt (a bit of a delivered box "
                 "flips before its check), slow (it sends at 1 % of its speed; what others map or read "
                 "of it is not slower), restep (it starts its next step). May "
                 "be given several times");
  app.add_option("--report", words->report, "write a JSON report to this file")->type_name(file_type);
  return [words] { return run(*words); };
}

}  // namespace shardwire::cli

// SPDX-License-Identifier: Apache-2.0
// Runs the schedules of a range of seeds, and prints a line for each that fails, which repeats it.
#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "bugs.hpp"
#include "endings.hpp"
#include "schedule.hpp"
#include "shrink.hpp"
#include "world.hpp"

namespace {

using namespace shardwire::simulation;

constexpr const char* usage =
    "usage: run [--seeds A:B] [--members N] [--keep I,J,..] [--trace] [--logs] [--shrink] [--list] [--failover] "
    "[--table]\n"
    "           [--crash M@N] [--crashes K]\n"
    "  --seeds A:B    run the schedules of seeds A to B - 1 (default 0:100)\n"
    "  --members N    jobs of N members (default: 2 to 8, by the seed)\n"
    "  --keep I,J,..  run only these actions of the schedule, as --shrink prints them\n"
    "  --trace        print the events of each run\n"
    "  --logs         the same, with the messages of the sessions\n"
    "  --shrink       print the fewest actions with which a failing schedule still fails\n"
    "  --list         print the schedules\n"
    "  --failover     a restore fails if it does not complete although each of its boxes keeps a holder\n"
    "  --table        print how many restores and exchanges completed, by what happened and by method\n"
    "  --crash M@N    kill member M after N of its events; M@N! takes its power instead\n"
    "  --crashes K    run each schedule again and again: kill each member in turn after each K-th of its events\n"
    "SIMULATION_BUG names a planted bug of the simulated machine: flipped, early, misplaced, shortened, "
    "dropped,\n"
    "lost, leaked, swapped, deaf, late, mute, asleep, unseeded.\n";

struct Asked {
  std::uint64_t first = 0;
  std::uint64_t end = 100;
  std::optional<std::vector<std::size_t>> keep;
  bool trace = false, shrinks = false, lists = false, tables = false;
  int members = 0;                // 0: drawn
  std::uint64_t crash_every = 0;  // 0: not asked
  RunOptions options;
};

std::vector<std::size_t> numbers_of(const std::string& text) {
  std::vector<std::size_t> numbers;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t used = 0;
    numbers.push_back(std::stoul(text.substr(at), &used));
    at += used + 1;
  }
  return numbers;
}

Crash crash_of(const std::string& text) {
  const std::size_t at = text.find('@');
  if (at == std::string::npos) throw std::invalid_argument(fmt::format("--crash {}: expected M@N or M@N!", text));
  return {std::stoi(text), std::stoull(text.substr(at + 1)), text.ends_with('!')};
}

Asked parse(int argc, char** argv) {
  Asked asked;
  for (int i = 1; i < argc; ++i) {
    const std::string_view option = argv[i];
    const auto value = [&]() -> std::string {
      if (++i == argc) throw std::invalid_argument(fmt::format("{} needs a value", option));
      return argv[i];
    };
    if (option == "--seeds") {
      const std::string range = value();
      const std::size_t colon = range.find(':');
      asked.first = std::stoull(range);
      asked.end = colon == std::string::npos ? asked.first + 1 : std::stoull(range.substr(colon + 1));
    } else if (option == "--keep") {
      asked.keep = numbers_of(value());
    } else if (option == "--trace") {
      asked.trace = true;
    } else if (option == "--logs") {
      asked.trace = asked.options.logs = true;
    } else if (option == "--shrink") {
      asked.shrinks = true;
    } else if (option == "--table") {
      asked.tables = true;
    } else if (option == "--failover") {
      asked.options.fails_over = true;
    } else if (option == "--members") {
      asked.members = std::stoi(value());
    } else if (option == "--crash") {
      asked.options.crash = crash_of(value());
    } else if (option == "--crashes") {
      asked.crash_every = std::max<std::uint64_t>(std::stoull(value()), 1);
    } else if (option == "--list") {
      asked.lists = true;
    } else {
      throw std::invalid_argument(fmt::format("unknown option {}", option));
    }
  }
  asked.options.traced = asked.trace;
  if (const char* name = std::getenv("SIMULATION_BUG")) {
    const auto bug = bug_of(name);
    if (!bug) throw std::invalid_argument(fmt::format("SIMULATION_BUG: there is no bug '{}'", name));
    asked.options.bug = *bug;
  }
  return asked;
}

void list(const Schedule& schedule) {
  fmt::print("seed {}: {} members on {} hosts, {} sources, {} targets, {} tensors\n", schedule.seed, schedule.members,
             schedule.hosts, schedule.sources.size(), schedule.targets.size(), schedule.tensors.size());
  for (std::size_t i = 0; i < schedule.actions.size(); ++i) {
    fmt::print("  {:>3}: {}\n", i, to_text(schedule.actions[i]));
  }
}

std::string joined(const std::vector<std::size_t>& numbers) {
  std::string text;
  for (const std::size_t number : numbers) text += fmt::format("{}{}", text.empty() ? "" : ",", number);
  return text;
}

struct Totals {
  std::uint64_t runs = 0, failed = 0, events = 0, restores = 0, avoidable = 0;
  EndingTable endings{};
};

std::string command_of(const Asked& asked, std::uint64_t seed, const RunOptions& options) {
  std::string command = fmt::format("tests/simulation/run --seeds {}:{}", seed, seed + 1);
  if (asked.members > 0) command += fmt::format(" --members {}", asked.members);
  if (asked.keep) command += " --keep " + joined(*asked.keep);
  if (options.crash) {
    command +=
        fmt::format(" --crash {}@{}{}", options.crash->member, options.crash->after, options.crash->silent ? "!" : "");
  }
  if (options.fails_over) command += " --failover";
  return command;
}

void show_fewest(const Schedule& schedule, const RunOptions& options, const std::string& command,
                 const std::string& kind) {
  const auto kept = shrink(schedule, schedule.must_complete || options.fails_over, [&](const Schedule& fewer) {
    const Findings findings = run(fewer, options);
    return !findings.failures.empty() && kind_of(findings.failures.front()) == kind;
  });
  const Schedule fewest = with_actions(schedule, kept);
  fmt::print("  {} of {} actions: {} --keep {}: {}\n", kept.size(), schedule.actions.size(), command, joined(kept),
             run(fewest, options).failures.front());
  for (const Action& action : fewest.actions) fmt::print("    {}\n", to_text(action));
}

Findings one(const Asked& asked, const Schedule& schedule, const RunOptions& options, Totals& totals) {
  const Findings findings = run(schedule, options);
  ++totals.runs;
  totals.events += findings.events;
  totals.restores += findings.restores;
  totals.avoidable += findings.avoidable;
  for (const Ending& ending : findings.endings) totals.endings.add(ending);
  if (asked.trace) {
    fmt::print("{}seed {}: {} events, trace {:016x}\n", findings.trace, schedule.seed, findings.events, findings.hash);
  }
  if (findings.failures.empty()) return findings;
  ++totals.failed;
  const std::string command = command_of(asked, schedule.seed, options);
  fmt::print("FAILED {}: {}\n", command, findings.failures.front());
  if (asked.shrinks && !asked.keep) show_fewest(schedule, options, command, kind_of(findings.failures.front()));
  std::fflush(stdout);
  return findings;
}

void all_of(const Asked& asked, std::uint64_t seed, Totals& totals) {
  Schedule schedule = draw(seed, asked.members);
  if (asked.keep) schedule = with_actions(schedule, *asked.keep);
  if (asked.lists) list(schedule);
  const Findings findings = one(asked, schedule, asked.options, totals);
  if (asked.crash_every == 0) return;
  for (int member = 0; member < schedule.members; ++member) {
    RunOptions options = asked.options;
    const std::uint64_t end = findings.events_of.at(static_cast<std::size_t>(member));
    for (std::uint64_t after = 1; after < end; after += asked.crash_every) {
      options.crash = Crash{member, after, after / asked.crash_every % 4 == 3};
      one(asked, schedule, options, totals);
    }
  }
}

// The threads of a run take turns, which costs least on one processor. Other processes of a search find their own.
void stay_on_one_processor() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  int skipped = ::getpid() % CPU_COUNT(&allowed);
  for (int processor = 0; processor < CPU_SETSIZE; ++processor) {
    if (!CPU_ISSET(processor, &allowed) || skipped-- > 0) continue;
    cpu_set_t chosen;
    CPU_ZERO(&chosen);
    CPU_SET(processor, &chosen);
    ::sched_setaffinity(0, sizeof chosen, &chosen);
    return;
  }
}

}  // namespace

int main(int argc, char** argv) try {
  const Asked asked = parse(argc, argv);
  stay_on_one_processor();
  const std::clock_t began = std::clock();
  Totals totals;
  for (std::uint64_t seed = asked.first; seed < asked.end; ++seed) all_of(asked, seed, totals);
  const double took = static_cast<double>(std::clock() - began) / CLOCKS_PER_SEC;
  fmt::print(
      "{} runs, {} failed; {} restores, {} of them failed although their boxes kept a holder; {} events; "
      "{:.0f} runs/s of processor time\n",
      totals.runs, totals.failed, totals.restores, totals.avoidable, totals.events,
      static_cast<double>(totals.runs) / took);
  if (asked.tables) fmt::print("{}", totals.endings.text());
  return totals.failed == 0 ? 0 : 1;
} catch (const std::exception& error) {
  fmt::print(stderr, "{}\n{}", error.what(), usage);
  return 2;
}

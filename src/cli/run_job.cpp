// SPDX-License-Identifier: Apache-2.0
#include "cli/run_job.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <new>
#include <nlohmann/json.hpp>
#include <system_error>
#include <thread>

#include "cli/command.hpp"
#include "cli/environment.hpp"
#include "cli/job_options.hpp"
#include "cli/local_rendezvous.hpp"
#include "cli/relabel.hpp"
#include "cli/run_pipe.hpp"
#include "cli/run_worker.hpp"
#include "support/stderr.hpp"

namespace shardwire::cli {
namespace {

using Json = nlohmann::json;

constexpr int max_members_here = 1024;

// All members' results, in rounds of bounded messages: each states whether more follow. `gaps`: with those of errors.
std::vector<MemberResult> gather_results(Session& session, const MemberResult& own, int members, Duration timeout,
                                         bool gaps) {
  constexpr std::size_t round_bytes = 64u << 20;
  const std::size_t part_bytes = std::max<std::size_t>(round_bytes / static_cast<std::size_t>(members), 4096);
  std::string text;
  write_result(own, [&](const std::string& line) { text += line + "\n"; });
  std::vector<MemberResult> results;
  std::vector<std::string> unread(static_cast<std::size_t>(members));
  ResultReader reader;
  bool more = true;
  for (std::size_t done = 0, round = 0; more; done = std::min(done + part_bytes, text.size()), ++round) {
    const std::string part = text.substr(done, part_bytes);
    const auto* bytes = reinterpret_cast<const std::byte*>(part.data());
    Bytes message(1, std::byte{done + part.size() < text.size()});
    message.insert(message.end(), bytes, bytes + part.size());
    const std::vector<Bytes> all = session.gather(fmt::format("results {}", round), message, timeout);
    more = false;
    for (std::size_t member = 0; member < all.size(); ++member) {
      more = more || all[member].at(0) != std::byte{0};
      unread[member].append(reinterpret_cast<const char*>(all[member].data()) + 1, all[member].size() - 1);
      take_lines(unread[member], [&](std::string_view line) {
        const Json json = Json::parse(line);
        if (!gaps && json.contains("gaps")) return;
        if (auto result = reader.take(json)) results.push_back(std::move(*result));
      });
    }
  }
  return results;
}

}  // namespace

int members_of(const Case& job, const RunOptions& options) {
  return options.disjoint ? job.source.ranks + job.target.ranks : std::max(job.source.ranks, job.target.ranks);
}

MemberRole role_of(const Case& job, const RunOptions& options, int member) {
  MemberRole role;
  role.member = member;
  const Rank source{member};
  role.lost = job.source.is_lost(source);
  if (member < job.source.ranks) role.source = source;
  int target = options.disjoint ? member - job.source.ranks : member;
  if (!options.processes.empty()) {
    const auto place = std::find(options.processes.begin(), options.processes.end(), member);
    target = static_cast<int>(place - options.processes.begin());  // beyond the last rank: none
  }
  if (target >= 0 && target < job.target.ranks) role.target = Rank{target};
  return role;
}

namespace {

// Payload that crosses between processes in all restores of the job; 0 if a wanted region has no holder.
ByteCount remote_bytes(const Case& job, const RunOptions& options) {
  if (!options.processes.empty()) return static_cast<ByteCount>(options.repeat) * relabel(job).remote;
  Planner planner(job.source.layout, job.target.layout, topology_of(job), options.replicas);
  const JobTotals totals = planner.tally(ranks_of(job.target.layout));
  return static_cast<ByteCount>(options.repeat) * (options.disjoint ? totals.needed : totals.remote);
}

// A source rank that cannot finish its own work is no failure of the job, unless a target rank was in its process.
void judge_struck_members(JobOutcome& outcome, const Case& job, const RunOptions& options) {
  for (const FaultOutcome& one : outcome.faults) {
    if (!one.struck_ns || !is_fatal(one.fault.kind)) continue;
    const int member = to_int(one.fault.rank);
    const auto target = role_of(job, options, member).target;
    const auto result = std::ranges::find(outcome.results, member, &MemberResult::member);
    if (result != outcome.results.end()) {
      if (target) continue;
      result->errors.clear();
      result->verified = true;
    } else if (target) {
      outcome.errors.push_back({"process_died",
                                fmt::format("target rank {} died with source rank {}: --fault {}", to_int(*target),
                                            member, to_string(one.fault)),
                                {}});
    }
  }
}

// Runs all members on this host: a process each, or the threads of one process over loopback.
JobOutcome run_here(const Case& job, const RunOptions& options) {
  const int members = members_of(job, options);
  const bool threads = options.transport == "loopback";
  if (members > max_members_here) {
    throw UsageError(
        fmt::format("the case has {} ranks; at most {} are started on one host. Start them with torchrun, "
                    "mpirun or srun instead",
                    members, max_members_here));
  }
  const LocalRendezvous rendezvous;
  const Bootstrap bootstrap = rendezvous.bootstrap(members);
  std::mutex writing;
  const auto work = [&](int member, const MemberEnds& ends) {
    MemberPipe pipe(ends.results, writing, member);
    Bootstrap own = bootstrap;
    own.rank = member;
    std::optional<FaultAgent> faults;
    if (!options.faults.empty()) faults.emplace(pipe, ends, options.faults);
    run_worker({job, options, role_of(job, options, member), own, [&](const MemberProgress& p) { pipe.progress(p); },
                [&](Session*, const MemberResult& result, Duration) { pipe.result(result); }, false,
                faults ? &*faults : nullptr, [&](std::string_view what) { pipe.awaits(what); },
                [&](std::string_view why) { pipe.failed(why); }});
  };

  std::vector<ProcessPlan> plans;
  if (threads) {
    ProcessPlan plan;
    for (int member = 0; member < members; ++member) plan.members.push_back(member);
    plan.body = [&](const MemberEnds& ends) {
      std::vector<std::jthread> pool;
      for (int member = 0; member < members; ++member) pool.emplace_back(work, member, ends);
    };
    plans.push_back(std::move(plan));
  } else {
    for (int member = 0; member < members; ++member) {
      plans.push_back({{member}, [&work, member](const MemberEnds& ends) { work(member, ends); }});
    }
  }
  JobProgress progress(members, options.repeat, needed_bytes(job), options.shows_progress);
  JobOutcome outcome = supervise(plans, options, progress, options.faults.empty() ? 0 : remote_bytes(job, options));
  judge_struck_members(outcome, job, options);
  return outcome;
}

// Every failure becomes part of the job's report, except bad usage, which has none.
void reported(JobOutcome& outcome, const std::function<void()>& body) {
  const auto add = [&](ErrorCode code, const char* why) {
    outcome.errors.push_back({std::string(to_string(code)), why, {}});
  };
  try {
    body();
  } catch (const CaseError&) {
    throw;
  } catch (const UsageError&) {
    throw;
  } catch (const Error& error) {
    add(error.code(), error.what());
  } catch (const std::bad_alloc&) {
    add(ErrorCode::out_of_resources, "out of memory");
  } catch (const std::system_error& error) {  // pipes and processes that could not be created
    add(ErrorCode::out_of_resources, error.what());
  } catch (const std::exception& error) {
    add(ErrorCode::internal, error.what());
  }
}

JobOutcome run_launched(const Case& job, const RunOptions& options, const Bootstrap& bootstrap) {
  const int members = members_of(job, options);
  if (bootstrap.world_size != members) {
    throw UsageError(
        fmt::format("the launcher started {} processes, the case takes {}", bootstrap.world_size, members));
  }
  if (options.transport == "loopback" && members > 1) {
    throw UsageError("--transport loopback joins threads of one process, not those that a launcher starts");
  }
  JobOutcome outcome;
  outcome.reports = bootstrap.rank == 0;
  std::optional<JobProgress> progress;
  if (outcome.reports) progress.emplace(members, options.repeat, needed_bytes(job)).begin_joining();
  std::mutex mutex;  // of progress: the worker's thread, the session's and the ticking one use it
  const auto on_progress = [&](const MemberProgress& p) {
    const std::lock_guard lock(mutex);
    // Only this member is visible; it represents all.
    if (progress) progress->update(0, std::string(p.phase), p.repeat, p.done_bytes * static_cast<ByteCount>(members));
  };
  std::condition_variable_any stopping;
  std::jthread ticking;  // ends before what it uses
  if (progress) {
    ticking = std::jthread([&](const std::stop_token& stop) {
      constexpr auto interval = std::chrono::milliseconds(500);
      std::unique_lock lock(mutex);
      while (!stopping.wait_for(lock, stop, interval, [&] { return stop.stop_requested(); })) progress->tick();
    });
  }
  const auto deliver = [&](Session* session, const MemberResult& result, Duration patience) {
    outcome.results.assign(1, result);
    if (session == nullptr) return;  // it never joined, so no other process can report it
    try {
      outcome.results = gather_results(*session, result, members, patience, outcome.reports);
    } catch (const Error& error) {  // often a consequence of what this member has met before
      outcome.results.front().errors.push_back({std::string(to_string(error.code())),
                                                fmt::format("there are no results of other ranks: {}", error.what()),
                                                {}});
    }
  };
  const auto awaits = [&](std::string_view what) {
    const std::lock_guard lock(mutex);
    if (progress) progress->note_awaited(0, std::string(what));
  };
  const auto failed = [&](std::string_view why) {
    const std::lock_guard lock(mutex);
    if (progress) progress->note_failure(std::string(why));
  };
  const auto joined = [&](int member) {
    const std::lock_guard lock(mutex);
    if (progress) progress->update(member, "wait", 0, 0);
  };
  run_worker({job, options, role_of(job, options, bootstrap.rank), bootstrap, on_progress, deliver, true, nullptr,
              awaits, failed, joined});
  return outcome;
}

}  // namespace

bool started_by_launcher() {
  if (environment("RANK") && environment("WORLD_SIZE")) return true;
  if (environment("OMPI_COMM_WORLD_SIZE") || (environment("PMI_RANK") && environment("PMI_SIZE"))) return true;
  if (environment("PMIX_RANK") && !environment("SLURM_NTASKS")) return true;
  // An allocation sets SLURM_NTASKS for a plain shell too; only a step of several tasks is our job.
  const auto tasks = environment("SLURM_NTASKS");
  return tasks && *tasks != "1" && environment("SLURM_PROCID") && environment("SLURM_STEP_ID");
}

JobOutcome run_job(Case& job, const RunOptions& options, const std::function<void(bool launched)>& prepare) {
  std::optional<Bootstrap> launched;
  if (started_by_launcher()) launched = launched_bootstrap();
  JobOutcome outcome;
  outcome.reports = !launched || launched->rank == 0;
  reported(outcome, [&] {
    prepare(launched.has_value());
    outcome = launched ? run_launched(job, options, *launched) : run_here(job, options);
  });
  if (outcome.interrupted) support::write_stderr("shardwire: interrupted; all ranks are ended\n");
  return outcome;
}

}  // namespace shardwire::cli

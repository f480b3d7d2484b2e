// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "cli/command.hpp"
#include "cli/completion.hpp"
#include "cli/job_options.hpp"
#include "cli/output.hpp"
#include "cli/text.hpp"
#include "control/key_file.hpp"
#include "keeper/keeper.hpp"
#include "peers/keeper_link.hpp"
#include "runtime/await.hpp"
#include "session/settings.hpp"
#include "session/surroundings.hpp"
#include "shardwire/error.hpp"

namespace shardwire::cli {
namespace {

using Json = nlohmann::json;

struct KeepOptions {
  KeeperOptions keeper;
  std::string budget;
  std::optional<double> time_to_live;
  std::string transport;
  bool status = false;
  bool json = false;
  std::optional<std::string> drop;
};

Bytes job_key() {
  const char* const path = std::getenv("SHARDWIRE_JOB_KEY_FILE");
  if (path == nullptr || *path == '\0') return {};
  try {
    return read_key_file(path, "SHARDWIRE_JOB_KEY_FILE");
  } catch (const Error& error) {
    throw UsageError(error.what());
  }
}

KeeperOptions named(const KeeperOptions& given) {
  KeeperOptions keeper = with_environment(given);
  if (keeper.job.empty()) {
    throw UsageError("--job: whose state is to be kept? (or SHARDWIRE_KEEPER, which trainers read as well)");
  }
  return keeper;
}

/// Blocks the signals that end this program, also in the threads that it starts, and waits for one.
class EndingSignal {
 public:
  EndingSignal() {
    sigemptyset(&signals_);
    for (const int one : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&signals_, one);
    sigprocmask(SIG_BLOCK, &signals_, &before_);
  }
  ~EndingSignal() { sigprocmask(SIG_SETMASK, &before_, nullptr); }
  EndingSignal(const EndingSignal&) = delete;
  EndingSignal& operator=(const EndingSignal&) = delete;
  void wait() const {
    int signal = 0;
    while (sigwait(&signals_, &signal) != 0) {
    }
  }

 private:
  sigset_t signals_{};
  sigset_t before_{};
};

int keep(const KeepOptions& options) {
  if (options.budget.empty()) throw UsageError("--budget: how much memory may snapshots take?");
  const ByteCount budget_bytes = parse_bytes("--budget", options.budget);
  keeper::Keeper::Options made;
  made.keeper = options.keeper;
  made.budget_bytes = budget_bytes;
  made.job_key = job_key();
  if (options.time_to_live) made.time_to_live = parse_seconds("--ttl", *options.time_to_live);
  made.session.transport = chosen_transport(options.transport);
  LogStyle log = chosen_log();
  log.least = std::min(log.least, LogLevel::info);
  made.log = standard_error_log(log, {.run_id = options.keeper.job, .member = {}});
  // Guests take the run id of the session that they join, also if it has none.
  for (const char* name : {"SHARDWIRE_RUN_ID", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "PMIX_NAMESPACE"})
    ::unsetenv(name);
  const EndingSignal ending;
  std::optional<keeper::Keeper> keeper;
  try {
    keeper.emplace(std::move(made));
  } catch (const PortTaken& error) {
    throw UsageError(fmt::format("job '{}' has a keeper on this host already: {}", options.keeper.job, error.what()));
  }
  write_output(fmt::format("keeps the state of job '{}' on this host, {} at most, until it is told to end\n",
                           options.keeper.job, exact_bytes(budget_bytes)));
  std::fflush(stdout);  // whoever has started it waits for the line
  ending.wait();
  return exit_done;
}

/// Asks the keeper that runs.
wire::Message ask(const KeeperOptions& options, const std::function<wire::Message(std::uint64_t)>& message_for) {
  const auto loop = detail::surroundings_of_process().loop;
  std::unique_ptr<KeeperLink> link;
  const auto end = [&] { loop->end([&] { link.reset(); }); };
  try {
    Awaited<wire::Message> answer = begin_on<wire::Message>(*loop, [&](const Answer<wire::Message>& given) {
      link = std::make_unique<KeeperLink>(*loop, options, keeper_identity(options, wire::no_member, 0, job_key()));
      link->request(message_for, [given](wire::Message* reply, const std::exception_ptr& error) {
        error ? given.fail(error) : given.give(std::move(*reply));
      });
    });
    wire::Message reply = answer.take();
    end();
    return reply;
  } catch (...) {
    end();
    throw;
  }
}

void print_status(const std::string& text) {
  const Json status = Json::parse(text);
  const auto used = status.at("used_bytes").get<ByteCount>();
  const auto budget = status.at("budget_bytes").get<ByteCount>();
  write_output(fmt::format("job '{}': {} of {} in use ({:.0f} %), {} attempt{}\n", status.at("job").get<std::string>(),
                           human_bytes(used), human_bytes(budget),
                           budget == 0 ? 0 : 100 * static_cast<double>(used) / static_cast<double>(budget),
                           status.at("attempts").get<int>(), status.at("attempts").get<int>() == 1 ? "" : "s"));
  if (status.at("kept").empty()) return write_output("nothing is kept\n");
  for (const Json& one : status.at("complete_here")) {
    write_output(fmt::format("complete here: '{}', step {}, all {} rank{}, attempt {}\n",
                             one.at("name").get<std::string>(), one.at("step").get<std::int64_t>(),
                             one.at("ranks").get<int>(), one.at("ranks").get<int>() == 1 ? "" : "s",
                             one.at("attempt").get<int>()));
  }
  if (status.at("complete_here").empty()) {
    write_output("complete here: no step; keepers of other hosts may hold the ranks that are missing\n");
  }
  write_output(fmt::format("{:<16}{:>10}{:>7}  {:<6}{:>9}{:>9}  {:<10}{:<8}{}\n", "name", "step", "rank", "copy",
                           "bytes", "attempt", "complete", "trainer", "published"));
  for (const Json& one : status.at("kept")) {
    write_output(fmt::format("{:<16}{:>10}{:>7}  {:<6}{:>9}{:>9}  {:<10}{:<8}{}\n", one.at("name").get<std::string>(),
                             one.at("step").get<std::int64_t>(), one.at("rank").get<int>(),
                             one.at("copy").get<bool>() ? "yes" : "no", human_bytes(one.at("bytes").get<ByteCount>()),
                             one.at("attempt").get<int>(), one.at("complete").get<bool>() ? "yes" : "no",
                             one.at("trainer").get<std::string>(), one.at("published").get<bool>() ? "yes" : "no"));
  }
}

}  // namespace

std::function<int()> declare_keep(CLI::App& app) {
  const auto options = std::make_shared<KeepOptions>();  // owners: the options and the run
  app.add_option("--job", options->keeper.job, "whose state is kept: trainers name the same (SHARDWIRE_KEEPER)");
  app.add_option("--socket", options->keeper.socket,
                 "local socket, a path if it begins with '/' (SHARDWIRE_KEEPER_SOCKET; default: by user and job)");
  const std::array<const CLI::Option*, 3> of_the_keeper{
      app.add_option("--budget", options->budget, "memory for snapshots, such as 64G"),
      app.add_option("--ttl", options->time_to_live, "drop snapshots so many seconds after the end of their trainers"),
      app.add_option("--transport", options->transport,
                     "how readers reach what is kept (SHARDWIRE_TRANSPORT; default: auto)")
          ->type_name(some_of(transport_names(Reach::host)))};
  app.add_flag("--status", options->status, "show what the keeper of this host holds");
  app.add_flag("--json", options->json, "with --status: as JSON");
  app.add_option("--drop", options->drop, "drop what is kept under this name, of trainers that have ended");
  return [options, of_the_keeper] {
    const bool asks = options->status || options->drop;
    for (const CLI::Option* one : of_the_keeper) {
      if (!asks || one->count() == 0) continue;
      throw UsageError(
          fmt::format("{} goes with neither --status nor --drop: they ask the keeper that runs", one->get_name()));
    }
    options->keeper = named(options->keeper);
    if (options->json && !options->status) throw UsageError("--json goes with --status");
    if (options->drop && options->drop->empty()) throw UsageError("--drop: which name?");
    if (options->drop) {
      ask(options->keeper, [&](std::uint64_t request) { return wire::KeepDrop{request, *options->drop}; });
    }
    if (options->status) {
      const wire::Message reply =
          ask(options->keeper, [](std::uint64_t request) { return wire::KeepStatusRequest{request}; });
      const auto& text = std::get<wire::KeepStatus>(reply).json;
      options->json ? write_output(text + "\n") : print_status(text);
    }
    return asks ? static_cast<int>(exit_done) : keep(*options);
  };
}

}  // namespace shardwire::cli

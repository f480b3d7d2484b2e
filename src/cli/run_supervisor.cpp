// SPDX-License-Identifier: Apache-2.0
#include "cli/run_supervisor.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

#include "cli/fault_control.hpp"
#include "cli/run_segments.hpp"
#include "support/stderr.hpp"
#include "support/system_error.hpp"

namespace shardwire::cli {
namespace {

using WallClock = std::chrono::steady_clock;
using Json = nlohmann::json;

struct Process {
  const ProcessPlan* plan = nullptr;
  pid_t pid = -1;
  int pipe = -1;
  WallClock::time_point started{};
  std::string unread;
  std::size_t results = 0;
  std::string phase = "join";
  WallClock::time_point phase_began = WallClock::now();
  WallClock::time_point last_received = WallClock::now();
  std::string ended_code;
  std::string ended_for;  // why this program killed it; empty: it did not
  bool alive = true;

  [[nodiscard]] std::string who() const {
    const std::vector<int>& members = plan->members;
    return members.size() == 1 ? fmt::format("rank {}", members.front())
                               : fmt::format("the process of ranks {} to {}", members.front(), members.back());
  }
};

std::string how_ended(int status) {
  if (!WIFSIGNALED(status)) {
    return fmt::format("ended with status {} before it had a result", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
  }
  return fmt::format("was ended by signal {} ({})", WTERMSIG(status), ::strsignal(WTERMSIG(status)));
}

class Supervisor {
 public:
  Supervisor(const std::vector<ProcessPlan>& plans, const RunOptions& options, JobProgress& progress,
             ByteCount remote_bytes)
      : options_(options), progress_(progress), faults_(options.faults, remote_bytes) {
    sigemptyset(&stopping_);
    sigaddset(&stopping_, SIGINT);
    sigaddset(&stopping_, SIGTERM);
    sigaddset(&stopping_, SIGHUP);
    sigprocmask(SIG_BLOCK, &stopping_, &mask_before_);
    signals_ = ::signalfd(-1, &stopping_, SFD_CLOEXEC | SFD_NONBLOCK);
    if (signals_ < 0) support::throw_errno("signalfd");
    processes_.resize(plans.size());
    for (std::size_t i = 0; i < plans.size(); ++i) {
      try {
        start(processes_[i], plans[i]);
      } catch (...) {
        end_all();
        throw;
      }
    }
  }
  ~Supervisor() {
    end_all();
    segments_.remove();
    ::close(signals_);
    sigprocmask(SIG_SETMASK, &mask_before_, nullptr);
  }
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  JobOutcome run() {
    while (any_alive()) {
      listen();
      progress_.tick();
      if (outcome_.interrupted) {
        end_all();
        break;
      }
      end_silent();
    }
    outcome_.faults = faults_.outcomes();
    return std::move(outcome_);
  }

 private:
  void start(Process& process, const ProcessPlan& plan) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) support::throw_errno("pipe2");
    MemberEnds of_child{.results = ends[1]};
    faults_.open(plan.members.front(), of_child);
    std::fflush(stdout);
    std::fflush(stderr);
    const pid_t parent = ::getpid();
    const pid_t pid = ::fork();
    if (pid < 0) support::throw_errno("fork");
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) ::_exit(1);  // the parent died before the line above
      // Ctrl-C signals the whole group; the parent decides which process ends when.
      ::signal(SIGINT, SIG_IGN);
      ::signal(SIGTERM, SIG_DFL);
      ::signal(SIGPIPE, SIG_IGN);
      sigprocmask(SIG_SETMASK, &mask_before_, nullptr);
      for (const Process& other : processes_) {
        if (other.pipe >= 0) ::close(other.pipe);
      }
      faults_.close_all_but(plan.members.front());
      ::close(signals_);
      ::close(ends[0]);
      ::dup2(STDERR_FILENO, STDOUT_FILENO);  // output of libraries must not mix with the command's
      int code = 1;
      try {
        plan.body(of_child);
        code = 0;
      } catch (const std::exception& error) {
        support::write_stderr("shardwire: {}\n", error.what());
      }
      std::fflush(nullptr);
      ::_exit(code);
    }
    ::close(ends[1]);
    process.plan = &plan;
    process.pid = pid;
    process.pipe = ends[0];
    process.started = WallClock::now();
    faults_.started(plan.members.front(), pid);
  }

  [[nodiscard]] static bool restores(const Process& process) {
    return process.phase == "restore" || process.phase == "bind";
  }
  [[nodiscard]] bool any_alive() const {
    return std::any_of(processes_.begin(), processes_.end(), [](const Process& p) { return p.alive; });
  }

  void listen() {
    std::vector<pollfd> fds{{signals_, POLLIN, 0}};
    std::vector<Process*> of_fd{nullptr};
    for (Process& process : processes_) {
      if (!process.alive) continue;
      fds.push_back({process.pipe, POLLIN, 0});
      of_fd.push_back(&process);
    }
    ::poll(fds.data(), fds.size(), 500);
    if (fds[0].revents != 0) {
      signalfd_siginfo taken{};  // otherwise the signal would be delivered once it is unblocked
      outcome_.interrupted = ::read(signals_, &taken, sizeof taken) == sizeof taken;
      return;
    }
    for (std::size_t i = 1; i < fds.size(); ++i) {
      if (fds[i].revents != 0) read_from(*of_fd[i]);
    }
  }

  void read_from(Process& process) {
    char block[1 << 16];
    const ssize_t got = ::read(process.pipe, block, sizeof block);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) return;
    if (got <= 0) return reap(process);
    process.last_received = WallClock::now();
    process.unread.append(block, static_cast<std::size_t>(got));
    take_lines(process.unread, [&](std::string_view line) { take(process, line); });
  }

  void take(Process& process, std::string_view line) {
    const Json json = Json::parse(line, nullptr, false);
    if (json.is_discarded()) return;  // truncated by a death
    if (faults_.take(process.plan->members.front(), json)) return;
    if (json.contains("awaits")) {
      progress_.note_awaited(json.at("member").get<int>(), json.at("awaits").get<std::string>());
      return;
    }
    if (json.contains("failed")) {
      progress_.note_failure(json.at("failed").get<std::string>());
      return;
    }
    if (!json.contains("phase")) {
      auto result = reader_.take(json);
      if (!result) return;
      if (!result->errors.empty()) cannot_begin(process, result->errors.front().code);
      outcome_.results.push_back(std::move(*result));
      ++process.results;
      if (!first_result_) first_result_ = WallClock::now();
      return;
    }
    const auto phase = json.at("phase").get<std::string>();
    if (phase != process.phase) {
      process.phase_began = WallClock::now();
      segments_.note(process.pid);
    }
    process.phase = phase;
    began_ = began_ || restores(process);  // all members have met
    progress_.update(json.at("member").get<int>(), phase, json.at("repeat").get<int>(),
                     json.at("done").get<ByteCount>());
  }

  // The pipe has ended: the process has exited, or is exiting.
  void reap(Process& process) {
    ::close(process.pipe);
    process.pipe = -1;
    process.alive = false;
    int status = 0;
    ::waitpid(process.pid, &status, 0);
    faults_.ended(process.plan->members.front());
    for (const int member : process.plan->members) progress_.leave(member);
    if (!first_result_) first_result_ = WallClock::now();
    if (process.results == process.plan->members.size()) return;
    if (!process.ended_for.empty()) {
      outcome_.errors.push_back({process.ended_code, process.who() + " " + process.ended_for, {}});
      return;
    }
    if (faults_.fatal_of(process.plan->members.front()) != nullptr) return;  // as the caller asked
    const char* const when = process.phase == "join" ? " before it had joined" : "";
    outcome_.errors.push_back({"peer_lost", process.who() + " " + how_ended(status) + when, {}});
    cannot_begin(process, "peer_lost");
  }

  // Before the first restore all members wait for each other: if one is missing, they would wait in vain. A member that
  // timed out or stopped for another one is not the missing one.
  void cannot_begin(const Process& process, const std::string& code) {
    if (began_ || vain_) return;
    const bool waited = code == "timed_out" || code == "cancelled";
    vain_ = {WallClock::now(),
             waited ? process.who() + " has given up" : "the job cannot begin without " + process.who()};
  }

  // A running member fails by itself at the join timeout, so the process of this one is stopped or hangs. Of many processes
  // the last may start long after the first.
  [[nodiscard]] bool join_overdue(const Process& process, WallClock::time_point now) const {
    return !began_ && process.phase == "join" && process.results == 0 &&
           now - process.started > options_.join_timeout + vain_wait;
  }

  // Kills a hanging member when the others, which observe the deadline themselves, must long have finished with it.
  void end_silent() {
    const auto now = WallClock::now();
    const Duration limit = options_.timeout + 3 * grace;
    // First, since the others are told which one is missing.
    for (Process& process : processes_) {
      if (!process.alive || !process.ended_for.empty() || !join_overdue(process, now)) continue;
      vain_ = {vain_ ? vain_->since : now, fmt::format("the job cannot begin without {}", process.who())};
      end(process, "timed_out",
          fmt::format("did not join within {} s and was ended",
                      std::chrono::duration<double>(options_.join_timeout).count()));
    }
    for (Process& process : processes_) {
      if (!process.alive || !process.ended_for.empty()) continue;
      const bool restoring_too_long = restores(process) && now - process.phase_began > limit;
      const bool last_and_silent = first_result_ && now - std::max(*first_result_, process.last_received) > limit;
      if (vain_ && !began_ && now - vain_->since > vain_wait) {
        end(process, "cancelled", fmt::format("was ended, since {}", vain_->why));
      } else if (restoring_too_long || last_and_silent || now - process.last_received > idle_limit + limit) {
        end(process, "timed_out", "gave no sign of life and was ended");
      }
    }
  }

  void end(Process& process, const char* code, std::string why) {
    process.ended_code = code;
    process.ended_for = std::move(why);
    segments_.note(process.pid);
    ::kill(process.pid, SIGKILL);
  }

  void end_all() {
    for (const Process& process : processes_) {
      if (!process.alive || process.pid <= 0) continue;
      segments_.note(process.pid);
      ::kill(process.pid, SIGKILL);
    }
    for (Process& process : processes_) {
      if (!process.alive || process.pid <= 0) continue;
      ::waitpid(process.pid, nullptr, 0);
      ::close(process.pipe);
      process.alive = false;
    }
  }

  const RunOptions& options_;
  JobProgress& progress_;
  sigset_t stopping_{};
  sigset_t mask_before_{};
  int signals_ = -1;
  std::vector<Process> processes_;
  std::optional<WallClock::time_point> first_result_;
  bool began_ = false;  // a member restores
  struct Vain {
    WallClock::time_point since;
    std::string why;
  };
  std::optional<Vain> vain_;
  ResultReader reader_;
  SharedSegments segments_;
  FaultControl faults_;
  JobOutcome outcome_;
};

}  // namespace

JobOutcome supervise(const std::vector<ProcessPlan>& plans, const RunOptions& options, JobProgress& progress,
                     ByteCount remote_bytes) {
  return Supervisor(plans, options, progress, remote_bytes).run();
}

}  // namespace shardwire::cli

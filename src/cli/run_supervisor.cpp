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
#include <system_error>

#include "cli/run_segments.hpp"

namespace shardwire::cli {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::json;

[[noreturn]] void fail(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

struct Process {
  const ProcessPlan* plan = nullptr;
  pid_t pid = -1;
  int pipe = -1;
  std::string unread;
  std::size_t results = 0;
  std::string phase = "join";
  Clock::time_point phase_began = Clock::now();
  Clock::time_point heard = Clock::now();
  bool killed_for_silence = false;
  bool alive = true;
};

class Supervisor {
 public:
  Supervisor(const std::vector<ProcessPlan>& plans, const RunOptions& options, JobProgress& progress)
      : options_(options), progress_(progress) {
    sigemptyset(&stopping_);
    sigaddset(&stopping_, SIGINT);
    sigaddset(&stopping_, SIGTERM);
    sigaddset(&stopping_, SIGHUP);
    sigprocmask(SIG_BLOCK, &stopping_, &mask_before_);
    signals_ = ::signalfd(-1, &stopping_, SFD_CLOEXEC | SFD_NONBLOCK);
    if (signals_ < 0) fail("signalfd");
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
      if (outcome_.interrupted) {
        end_all();
        break;
      }
      end_silent();
    }
    return std::move(outcome_);
  }

 private:
  void start(Process& process, const ProcessPlan& plan) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) fail("pipe2");
    std::fflush(stdout);
    std::fflush(stderr);
    const pid_t parent = ::getpid();
    const pid_t pid = ::fork();
    if (pid < 0) fail("fork");
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) ::_exit(1);  // it died before the line above
      // Ctrl-C reaches the whole group; who ends when is for the parent to say.
      ::signal(SIGINT, SIG_IGN);
      ::signal(SIGTERM, SIG_DFL);
      ::signal(SIGPIPE, SIG_IGN);
      sigprocmask(SIG_SETMASK, &mask_before_, nullptr);
      for (const Process& other : processes_) {
        if (other.pipe >= 0) ::close(other.pipe);
      }
      ::close(signals_);
      ::close(ends[0]);
      ::dup2(STDERR_FILENO, STDOUT_FILENO);  // libraries that print must not spoil the command's output
      int code = 1;
      try {
        plan.body(ends[1]);
        code = 0;
      } catch (const std::exception& error) {
        fmt::print(stderr, "shardwire: {}\n", error.what());
      }
      std::fflush(nullptr);
      ::_exit(code);
    }
    ::close(ends[1]);
    process.plan = &plan;
    process.pid = pid;
    process.pipe = ends[0];
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
      signalfd_siginfo taken{};  // else it would strike once it is no longer blocked
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
    process.heard = Clock::now();
    process.unread.append(block, static_cast<std::size_t>(got));
    std::size_t begin = 0;
    for (std::size_t end; (end = process.unread.find('\n', begin)) != std::string::npos; begin = end + 1) {
      take(process, std::string_view(process.unread).substr(begin, end - begin));
    }
    process.unread.erase(0, begin);
  }

  void take(Process& process, std::string_view line) {
    const Json json = Json::parse(line, nullptr, false);
    if (json.is_discarded()) return;  // cut off by a death
    if (const auto result = json.find("result"); result != json.end()) {
      outcome_.results.push_back(member_result_from(*result));
      const bool joined = process.phase != "join";
      if (!joined && !outcome_.results.back().errors.empty() && !join_failed_) join_failed_ = Clock::now();
      ++process.results;
      if (!first_result_) first_result_ = Clock::now();
      return;
    }
    const auto phase = json.at("phase").get<std::string>();
    if (phase != process.phase) {
      process.phase_began = Clock::now();
      segments_.note(process.pid);
    }
    process.phase = phase;
    progress_.update(json.at("member").get<int>(), phase, json.at("repeat").get<int>(),
                     json.at("done").get<ByteCount>());
  }

  // The pipe has ended: the process has, or does so now.
  void reap(Process& process) {
    ::close(process.pipe);
    process.pipe = -1;
    process.alive = false;
    int status = 0;
    ::waitpid(process.pid, &status, 0);
    if (!first_result_) first_result_ = Clock::now();
    if (process.results == process.plan->members.size()) return;
    std::string how =
        fmt::format("ended with status {} before it had a result", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
    if (WIFSIGNALED(status)) {
      how = fmt::format("was ended by signal {} ({})", WTERMSIG(status), ::strsignal(WTERMSIG(status)));
    }
    if (process.killed_for_silence) {
      how = join_failed_ ? "was ended, since not all ranks could join" : "gave no sign of life and was ended";
    }
    const std::vector<int>& members = process.plan->members;
    const std::string who = members.size() == 1
                                ? fmt::format("rank {}", members.front())
                                : fmt::format("the process of ranks {} to {}", members.front(), members.back());
    outcome_.errors.push_back({process.killed_for_silence ? "timed_out" : "peer_lost", fmt::format("{} {}", who, how)});
  }

  // A member that hangs is ended when the others, who keep to the deadline themselves, must long be done with it. Where
  // one could not join, the others wait for it in vain.
  void end_silent() {
    const auto now = Clock::now();
    const Duration limit = options_.deadline + 3 * grace;
    for (Process& process : processes_) {
      if (!process.alive || process.killed_for_silence) continue;
      const bool restoring_too_long = process.phase == "restore" && now - process.phase_began > limit;
      const bool last_and_silent = first_result_ && now - std::max(*first_result_, process.heard) > limit;
      const bool waits_in_vain = join_failed_ && now - *join_failed_ > grace;
      if (!restoring_too_long && !last_and_silent && !waits_in_vain && now - process.heard < idle_limit + limit)
        continue;
      process.killed_for_silence = true;
      segments_.note(process.pid);
      ::kill(process.pid, SIGKILL);
    }
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
  std::optional<Clock::time_point> first_result_;
  std::optional<Clock::time_point> join_failed_;  // a member ended before it had joined
  SharedSegments segments_;
  JobOutcome outcome_;
};

}  // namespace

JobOutcome supervise(const std::vector<ProcessPlan>& plans, const RunOptions& options, JobProgress& progress) {
  return Supervisor(plans, options, progress).run();
}

}  // namespace shardwire::cli

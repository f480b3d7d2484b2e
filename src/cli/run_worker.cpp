// SPDX-License-Identifier: Apache-2.0
#include "cli/run_worker.hpp"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <memory>

#include "cli/run_buffers.hpp"

namespace shardwire::cli {
namespace {

using namespace std::chrono_literals;

ByteCount peak_rss_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<ByteCount>(usage.ru_maxrss) * 1024;
}

// `leaving`: members leave in any order, which is nothing to warn about.
LogSink log_sink(LogLevel least, int member, std::shared_ptr<const std::atomic<bool>> leaving) {
  return [least, member, leaving = std::move(leaving)](LogLevel level, std::string_view text) {
    if (level < least || (*leaving && level == LogLevel::warning && least == LogLevel::warning)) return;
    static constexpr const char* names[] = {"debug", "info", "warning", "error"};
    fmt::print(stderr, "shardwire: member {}: {}: {}\n", member, names[static_cast<std::size_t>(level)], text);
  };
}

class Worker {
 public:
  explicit Worker(const WorkerConfig& config) : config_(config) {
    result_.member = config.role.member;
    result_.target = config.role.target;
  }

  MemberResult run() {
    guarded([&] {
      say("join");
      session_.emplace(Session::join(config_.bootstrap, session_options()));
      say("fill");
      const auto alive = [this] { say(phase_); };
      if (config_.role.source && !config_.role.lost)
        held_.emplace(*session_, config_.job, config_.job.source, *config_.role.source, alive);
      if (config_.role.target) wanted_.emplace(*session_, config_.job, config_.job.target, *config_.role.target, alive);
      for (repeat_ = 0; repeat_ < config_.options.repeat && together_ && result_.errors.empty(); ++repeat_) run_once();
    });
    if (result_.errors.empty() && config_.role.target && verified_repeats_ < config_.options.repeat) {
      fail("cancelled", fmt::format("{}: stopped after {} of {} restores, since another member failed or was lost",
                                    who(), verified_repeats_, config_.options.repeat));
    }
    if (!config_.role.target && session_) {
      guarded([&] {  // a restore's report says this of its own session
        const SessionUsage usage = session_->usage();
        result_.report.staging_peak = usage.serving_peak;
        result_.report.registered_bytes = usage.registered_bytes;
        result_.report.registration_seconds = usage.registration_seconds;
      });
    }
    result_.verified = result_.errors.empty();
    result_.peak_rss_bytes = peak_rss_bytes();
    config_.deliver(session_ ? &*session_ : nullptr, result_);
    guarded([&] { close(); });
    return result_;
  }

 private:
  using Body = std::function<void()>;

  SessionOptions session_options() const {
    SessionOptions options;
    options.transport = config_.options.transport;
    options.staging_bytes = staging_half();
    options.costs = config_.options.costs;
    options.log = log_sink(config_.options.log, config_.role.member, leaving_);
    return options;
  }

  // The budget of a rank is for both of its sides.
  ByteCount staging_half() const { return std::max<ByteCount>(1, config_.options.staging_bytes / 2); }

  void say(std::string_view phase, ByteCount done = 0, ByteCount total = 0) {
    if (phase != "restore") phase_ = phase;  // progress of a restore comes from the session's thread
    config_.progress({phase, repeat_, done, total});
  }

  void fail(std::string code, std::string message) { result_.errors.push_back({std::move(code), std::move(message)}); }

  bool guarded(const Body& body) {
    try {
      body();
      return true;
    } catch (const Error& error) {
      fail(std::string(to_string(error.code())), fmt::format("{}: {}", who(), error.what()));
    } catch (const std::bad_alloc&) {
      fail("out_of_resources", fmt::format("{}: out of memory", who()));
    } catch (const std::exception& error) {
      fail("internal", fmt::format("{}: {}", who(), error.what()));
    }
    return false;
  }

  std::string who() const {
    if (config_.role.target) return fmt::format("target rank {}", to_int(*config_.role.target));
    if (config_.role.source) return fmt::format("source rank {}", to_int(*config_.role.source));
    return fmt::format("member {}", config_.role.member);
  }

  // All members meet; false when one of them says that it failed. A member that is gone is no error of this one: its
  // death is told by whoever started it, and others may hold what it held. There is no next repeat in either case.
  bool meet(const char* name, Duration timeout, bool fine) {
    say("wait");
    try {
      const Bytes mine(1, fine ? std::byte{1} : std::byte{0});
      for (const Bytes& one : session_->gather(fmt::format("{} {}", name, repeat_), mine, timeout)) {
        if (one != Bytes(1, std::byte{1})) return together_ = false;
      }
    } catch (const Error&) {
      together_ = false;
    }
    return true;
  }

  void run_once() {
    const auto generation = static_cast<std::uint64_t>(repeat_);
    Publication publication;
    const bool ready = guarded([&] {
      say("fill");
      if (wanted_) wanted_->fill(generation, true);
      if (held_) held_->fill(generation, false);
      if (config_.role.source) publication = session_->publish(held(generation), {.name = "state", .step = repeat_});
    });
    if (meet("ready", idle_limit + config_.options.deadline, ready)) {
      const bool restored = guarded([&] {
        if (wanted_) restore(generation);
      });
      // Nobody checks while others still move: that would slow them down. And all sources stay until all have moved.
      meet("restored", config_.options.deadline + grace, restored);
      if (restored && wanted_) guarded([&] { check(generation); });
    }
    if (ready && config_.role.source) guarded([&] { publication.retire(10s); });
  }

  // A lost rank says that it holds nothing; targets then need not wait for it.
  [[nodiscard]] Catalog held(std::uint64_t generation) const {
    return held_ ? held_->catalog(generation) : Catalog(*config_.role.source, config_.job.source.ranks);
  }

  void restore(std::uint64_t generation) {
    RestoreOptions options;
    options.deadline = config_.options.deadline;
    options.staging_bytes = staging_half();
    options.settle = Duration::zero();  // all that will publish have, since the members met
    options.verify = config_.options.verify;
    options.ingress_bytes_per_second = config_.options.rate_bytes_per_second;
    const Catalog wanted = wanted_->catalog(generation);
    say("restore");
    Restore running = session_->restore(wanted, options);
    running.on_progress(
        [this](const Progress& progress) { say("restore", progress.done_bytes, progress.total_bytes); });
    try {
      running.wait();
    } catch (...) {
      keep(running.report());
      throw;
    }
    keep(running.report());
    say("restore", result_.report.needed, result_.report.needed);
    for (const auto& [name, value] : config_.job.scalars) {
      if (running.value({"", name}) == scalar_value(value, generation)) continue;
      fail("wrong_value", fmt::format("{}: scalar '{}' did not arrive as it was published", who(), name));
    }
  }

  void keep(const RestoreReport& report) {
    result_.report = report;
    result_.walls.push_back(report.seconds.wall);
  }

  void check(std::uint64_t generation) {
    say("check");
    ValueCheck elements;
    ValueCheck values;
    wanted_->check(generation, elements, values);
    result_.elements = elements.elements;
    if (elements.wrong + values.wrong == 0) ++verified_repeats_;
    for (const ValueCheck* one : {&elements, &values}) {
      if (one->wrong == 0) continue;
      fail("wrong_element", fmt::format("{}: {} of {} elements are wrong, first {}", who(), one->wrong, one->elements,
                                        to_string(*one->first)));
    }
  }

  void close() {
    if (!session_) return;
    // Member 0 serves the rendezvous, so all leave together. Whoever is gone is not waited for.
    *leaving_ = true;
    meet("end", grace, true);
    held_.reset();
    wanted_.reset();
    session_->close(10s);
  }

  const WorkerConfig& config_;
  MemberResult result_;
  int repeat_ = 0;
  int verified_repeats_ = 0;
  std::string_view phase_ = "join";
  std::shared_ptr<std::atomic<bool>> leaving_ =
      std::make_shared<std::atomic<bool>>(false);  // owners: this, the log sink
  bool together_ = true;                           // all members are there and well
  std::optional<Session> session_;
  std::optional<SideBuffers> held_;  // after session_: arenas go first
  std::optional<SideBuffers> wanted_;
};

}  // namespace

MemberResult run_worker(const WorkerConfig& config) {
  return Worker(config).run();
}

}  // namespace shardwire::cli

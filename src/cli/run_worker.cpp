// SPDX-License-Identifier: Apache-2.0
#include "cli/run_worker.hpp"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>

#include "cli/fault_agent.hpp"
#include "cli/run_buffers.hpp"
#include "cli/run_progress.hpp"
#include "geometry/overlap.hpp"
#include "handles/session_state.hpp"
#include "session/settings.hpp"
#include "support/list_of.hpp"
#include "support/stderr.hpp"

namespace shardwire::cli {
namespace {

using namespace std::chrono_literals;

ByteCount peak_rss_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<ByteCount>(usage.ru_maxrss) * 1024;
}

// Members that have joined. The session's thread adds them.
class JoinedMembers {
 public:
  void add(int member) {
    const std::lock_guard lock(mutex_);
    members_.insert(member);
  }
  [[nodiscard]] std::set<int> all() const {
    const std::lock_guard lock(mutex_);
    return members_;
  }

 private:
  mutable std::mutex mutex_;
  std::set<int> members_;
};

// `leaving`: members leave in any order, which is no reason for a warning. `joined`: gets the members that lines of
// member 0 name; others log only themselves.
LogSink log_sink(const WorkerConfig& config, std::shared_ptr<const std::atomic<bool>> leaving,
                 std::shared_ptr<JoinedMembers> joined) {
  return
      [least = config.options.log.least, print = standard_error_log(config.options.log, log_origin(config.bootstrap)),
       leaving = std::move(leaving), joined = std::move(joined), awaits = config.awaits, on_joined = config.joined,
       is_first = config.bootstrap.rank == 0](LogLevel level, std::string_view text) {
        if (const std::string_view what = awaited_of(text); awaits && !what.empty()) awaits(what);
        if (const auto member = is_first ? joined_of(text) : std::nullopt) {
          joined->add(*member);
          if (on_joined) on_joined(*member);
        }
        if (*leaving && level == LogLevel::warning && least == LogLevel::warning) return;
        print(level, text);
      };
}

class Worker {
 public:
  explicit Worker(const WorkerConfig& config) : config_(config) {
    result_.member = config.role.member;
    result_.target = config.role.target;
  }

  MemberResult run() {
    const bool joined = guarded([&] { join(); });
    if (config_.awaits_members && joined && !guarded([&] { await_members(); })) {
      config_.deliver(nullptr, result_, {});  // the other members would not exchange results either
      guarded([&] { close(vain_wait); });
      return result_;
    }
    // No member makes values before all have their memory: a failed allocation ends the job at once for all.
    const bool prepared = joined && guarded([&] { allocate(); });
    if (joined) guarded([&] { meet("prepared", idle_limit, prepared); });
    while (repeat_ < config_.options.repeat && together_ && result_.errors.empty()) {
      guarded([&] { run_once(); });
      ++repeat_;
    }
    if (result_.errors.empty() && config_.role.target && verified_repeats_ < config_.options.repeat) {
      fail("cancelled", fmt::format("{}: stopped after {} of {} restores, since another member failed or was lost",
                                    who(), verified_repeats_, config_.options.repeat));
    }
    if (!config_.role.target && session_) {
      guarded([&] {  // target members have these figures in their restore's report
        const SessionUsage usage = session_->usage();
        result_.report.staging_peak_bytes = usage.serving_peak_bytes;
        result_.report.registered_bytes = usage.registered_bytes;
        result_.report.registration_seconds = usage.registration_seconds;
      });
    }
    result_.verified = result_.errors.empty();
    result_.peak_rss_bytes = peak_rss_bytes();
    result_.ports = perf::port_bytes(result_.report.peers);
    if (config_.options.finds_links) result_.links = find_links(result_.report.peers, own_processors());
    config_.deliver(session_ ? &*session_ : nullptr, result_, patience_.to_deliver());
    guarded([&] { close(patience_.to_leave()); });
    return result_;
  }

 private:
  using Body = std::function<void()>;
  using WallClock = std::chrono::steady_clock;

  void join() {
    say("join");
    if (config_.faults == nullptr) return void(session_.emplace(Session::join(config_.bootstrap, session_options())));
    session_.emplace(detail::SessionState::join_in([this] { return config_.faults->surroundings(); }, config_.bootstrap,
                                                   session_options()));
  }

  // All processes were started together, so all give up together, and member 0 reports the missing ones to each.
  void await_members() {
    const auto left = config_.options.join_timeout - (WallClock::now() - started_);
    try {
      const auto hosts = session_->gather("joined", perf::host_identity(), std::max<Duration>(left, 1s));
      number_on_host_ = perf::number_on_host(hosts, config_.role.member);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::timed_out) throw;
      std::vector<int> missing;
      for (const Rank rank : error.ranks()) missing.push_back(to_int(rank));
      throw Error(error.code(),
                  absence_text(config_.options.join_timeout, missing, joined_->all(), config_.bootstrap.world_size),
                  error.ranks());
    }
  }

  void allocate() {
    say("allocate");
    const auto alive = [this] { say(phase_); };
    const auto make = [&](std::optional<SideBuffers>& buffers, const CaseSide& side, Rank rank) {
      buffers.emplace(*session_, config_.job, side, rank, perf::place_of(config_.options.memory, number_on_host_),
                      alive);
    };
    if (config_.role.source && !config_.role.lost) make(held_, config_.job.source, *config_.role.source);
    if (config_.role.target) make(wanted_, config_.job.target, *config_.role.target);
  }

  SessionOptions session_options() const {
    SessionOptions options;
    options.transport = config_.options.transport;
    options.staging_bytes = staging_half();
    options.costs = config_.options.costs;
    options.join_timeout = config_.options.join_timeout;
    options.log = log_sink(config_, leaving_, joined_);
    return options;
  }

  // A rank's budget covers both of its sides.
  ByteCount staging_half() const { return std::max<ByteCount>(1, config_.options.staging_bytes / 2); }

  void say(const char* phase, ByteCount done = 0, ByteCount total = 0) {
    if (std::string_view(phase) != restoring()) phase_ = phase;  // the session's thread reports progress of a restore
    config_.progress({phase, repeat_, done, total});
  }

  [[nodiscard]] const char* restoring() const { return config_.options.bind_only ? "bind" : "restore"; }

  void fail(std::string code, std::string message, std::vector<Gap> gaps = {}) {
    result_.errors.push_back({std::move(code), std::move(message), std::move(gaps)});
  }

  bool guarded(const Body& body) {
    try {
      body();
      return true;
    } catch (const Error& error) {
      fail(std::string(to_string(error.code())), fmt::format("{}: {}", who(), error.what()), without_holder(error));
    } catch (const std::bad_alloc&) {
      fail("out_of_resources", fmt::format("{}: out of memory", who()));
    } catch (const std::exception& error) {
      fail("internal", fmt::format("{}: {}", who(), error.what()));
    }
    return false;
  }

  // An exchange ends with the first lost source: other ranks may hold most of what did not arrive. A drill checks the boxes
  // of the library.
  [[nodiscard]] std::vector<Gap> without_holder(const Error& error) const {
    if (error.code() == ErrorCode::layout_mismatch || config_.faults != nullptr) return error.gaps();
    if (error.code() != ErrorCode::peer_lost || error.gaps().empty() || !config_.role.target) return {};
    Planner planner(config_.job.source.layout.without(error.ranks()), config_.job.target.layout);
    std::map<TensorKey, std::vector<Box>> gone;
    for (const Gap& gap : planner.plan(*config_.role.target).gaps) gone[{gap.fqn, gap.state}].push_back(gap.box);
    std::map<TensorKey, OverlapIndex> indices;
    for (const auto& [key, boxes] : gone) indices.emplace(key, OverlapIndex(boxes));
    const std::vector<Gap> values = value_gaps(config_.job, *config_.role.target, error.ranks());
    std::vector<Gap> gaps;
    std::vector<std::uint32_t> found;
    for (const Gap& missing : error.gaps()) {
      if (std::ranges::find(values, missing) != values.end()) gaps.push_back(missing);
      const auto index = indices.find({missing.fqn, missing.state});
      if (index == indices.end()) continue;
      index->second.find(missing.box, found);
      for (const std::uint32_t i : found) {
        gaps.push_back({missing.fqn, missing.state, *intersect(missing.box, gone[index->first][i]), missing.target});
      }
    }
    return gaps;
  }

  std::string who() const {
    if (config_.role.target) return fmt::format("target rank {}", to_int(*config_.role.target));
    if (config_.role.source) return fmt::format("source rank {}", to_int(*config_.role.source));
    return fmt::format("member {}", config_.role.member);
  }

  // All members meet; false if one of them reports a failure. A missing member is no error of this one: the process
  // that started it reports the death, and other members may hold its data. There is no next repeat in either case.
  bool meet(const char* name, Duration timeout, bool fine) {
    say("wait");
    try {
      const Bytes mine(1, fine ? std::byte{1} : std::byte{0});
      for (const Bytes& one : session_->gather(fmt::format("{} {}", name, repeat_), mine, timeout)) {
        if (one != Bytes(1, std::byte{1})) return together_ = false;
      }
    } catch (const Error& error) {
      together_ = false;
      patience_.unanswered = patience_.unanswered || error.code() == ErrorCode::timed_out;
    }
    return true;
  }

  void run_once() {
    const auto generation = static_cast<std::uint64_t>(repeat_);
    const bool ready = guarded([&] {
      if (!config_.options.bind_only) fill(generation);
      if (config_.role.source && !config_.options.exchange) publish(repeat_);
    });
    if (meet("ready", idle_limit + config_.options.timeout, ready)) {
      const auto began = WallClock::now();
      if (config_.faults != nullptr) config_.faults->begin(repeat_, [this] { start_next_step(); });
      const bool restored = guarded([&] {
        if (config_.options.exchange) return exchange(generation);
        if (wanted_) restore(generation);
      });
      if (!restored && config_.failed) config_.failed(result_.errors.back().message);
      // No member checks while others still move: that would slow them down. And all sources stay until all have moved.
      // A death would end a meeting early.
      say("wait");
      if (config_.faults != nullptr) {
        config_.faults->end();
      } else {
        meet("restored", patience_.to_meet(WallClock::now() - began), restored);
      }
      if (restored && wanted_) guarded([&] { check(generation); });
    }
    if (publication_.valid()) guarded([&] { publication_.retire(patience_.to_retire()); });
    publication_ = {};
  }

  // A step has the values of its generation.
  void publish(int step) {
    publication_ = session_->publish(held(static_cast<std::uint64_t>(step)), {.name = "state", .step = step});
  }

  // As a trainer that waits for no reader. On the thread of faults, while this one restores or waits.
  void start_next_step() {
    if (!publication_.valid()) return;
    try {
      publication_.retire(Duration::zero());
    } catch (const Error&) {  // readers have lost their leases
    }
    try {
      if (held_) held_->fill(static_cast<std::uint64_t>(repeat_) + 1, false);
      publish(repeat_ + 1);
    } catch (const std::exception& error) {
      support::write_stderr("shardwire: {}: the next step was not published: {}\n", who(), error.what());
    }
  }

  void fill(std::uint64_t generation) {
    say("fill");
    if (wanted_) wanted_->fill(generation, true);
    if (held_) held_->fill(generation, false);
  }

  // A lost rank publishes an empty catalog; targets then need not wait for it.
  [[nodiscard]] Catalog held(std::uint64_t generation) const {
    return held_ ? held_->catalog(generation) : Catalog(*config_.role.source, config_.job.source.ranks);
  }

  void restore(std::uint64_t generation) {
    RestoreOptions options;
    options.timeout = config_.options.timeout;
    options.staging_bytes = staging_half();
    options.discovery_grace = Duration::zero();  // all publishers have published, since the members met
    options.verify = config_.options.verify;
    options.replicas = config_.options.replicas;
    options.bind_only = config_.options.bind_only;
    options.ingress_bytes_per_second = config_.options.rate_bytes_per_second;
    options.notice = config_.options.notice;
    if (config_.faults != nullptr) options.step = repeat_;  // a source may be at its next step
    const Catalog wanted = wanted_->catalog(generation);
    say(restoring());
    const auto began = WallClock::now();
    Restore running = session_->restore(wanted, options);
    running.on_progress(
        [this](const Progress& progress) { say(restoring(), progress.done_bytes, progress.total_bytes); });
    try {
      running.wait();
    } catch (...) {
      keep(running.report());
      keep_losses(began);
      throw;
    }
    keep(running.report());
    keep_losses(began);
    say(restoring(), result_.report.needed_bytes, result_.report.needed_bytes);
    check_scalars(generation, [&](const TensorKey& key) { return running.value(key); });
  }

  // All members take part, including those that hold or want nothing.
  void exchange(std::uint64_t generation) {
    const Catalog has = config_.role.source ? held(generation) : Catalog(Rank{0}, config_.job.source.ranks);
    const Catalog wants = wanted_ ? wanted_->catalog(generation) : Catalog(Rank{0}, config_.job.target.ranks);
    say(restoring());
    const ExchangeResult result = session_->exchange(has, wants,
                                                     {.timeout = config_.options.timeout,
                                                      .staging_bytes = staging_half(),
                                                      .verify = config_.options.verify,
                                                      .ingress_bytes_per_second = config_.options.rate_bytes_per_second,
                                                      .replicas = config_.options.replicas,
                                                      .method = ExchangeMethod::collective});
    if (!wanted_) return;
    keep(result.report);
    check_scalars(generation, [&](const TensorKey& key) { return result.values.at(key); });
  }

  template <typename ValueOf>
  void check_scalars(std::uint64_t generation, ValueOf value_of) {
    for (const auto& [name, value] : config_.job.scalars) {
      if (value_of(TensorKey{"", name}) == scalar_value(value, generation)) continue;
      fail("wrong_value", fmt::format("{}: scalar '{}' did not arrive as it was published", who(), name));
    }
  }

  void keep(const RestoreReport& report) {
    result_.report = report;
    result_.walls.push_back(report.seconds.wall);
  }

  void keep_losses(WallClock::time_point began) {
    for (const LostSource& one : result_.report.lost) {
      const auto at = began.time_since_epoch() + std::chrono::duration<double>(one.after_seconds);
      result_.losses.push_back({one, std::chrono::duration_cast<std::chrono::nanoseconds>(at).count()});
    }
  }

  void check(std::uint64_t generation) {
    if (config_.options.bind_only) return void(++verified_repeats_);  // there is nothing to check
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

  void close(Duration patience) {
    if (!session_) return;
    // Member 0 serves the rendezvous, so all leave together. Members that have gone are not waited for.
    *leaving_ = true;
    meet("end", patience, true);
    held_.reset();
    wanted_.reset();
    session_->close(10s);
  }

  const WorkerConfig& config_;
  const WallClock::time_point started_ = WallClock::now();
  MemberResult result_;
  int number_on_host_ = config_.role.member;  // if one process starts them all
  int repeat_ = 0;
  int verified_repeats_ = 0;
  std::atomic<const char*> phase_ = "join";  // a fault's thread fills memory too
  std::shared_ptr<std::atomic<bool>> leaving_ =
      std::make_shared<std::atomic<bool>>(false);                              // owners: this, the log sink
  std::shared_ptr<JoinedMembers> joined_ = std::make_shared<JoinedMembers>();  // owners: as of leaving_
  bool together_ = true;                                                       // all members are present and healthy
  Patience patience_{.timeout = config_.options.timeout};
  std::optional<Session> session_;
  Publication publication_;
  std::optional<SideBuffers> held_;  // after session_: arenas are destroyed first
  std::optional<SideBuffers> wanted_;
};

}  // namespace

Duration Patience::to_meet(Duration since_begin) const {
  return std::max<Duration>(timeout + grace - since_begin, 1s);
}

Duration Patience::to_retire() const {
  return unanswered ? Duration::zero() : 10s;
}

Duration Patience::to_deliver() const {
  return unanswered ? grace : timeout + grace;
}

Duration Patience::to_leave() const {
  return unanswered ? vain_wait : grace;
}

std::string absence_text(Duration waited, const std::vector<int>& missing, const std::set<int>& joined, int members) {
  const auto named = [&](const std::vector<int>& some) {
    return fmt::format("member{} {} of {}", some.size() == 1 ? "" : "s", support::runs_of(some), members);
  };
  const std::string begin = fmt::format("waited {} s for ", std::chrono::duration<double>(waited).count());
  if (joined.empty()) return begin + named(missing) + " to join or answer";
  std::vector<int> away;
  std::vector<int> silent;
  for (const int member : missing) (joined.contains(member) ? silent : away).push_back(member);
  const std::string joins = away.empty() ? "" : named(away) + " to join";
  if (silent.empty()) return begin + joins;
  return fmt::format("{}{}{}{}, which {} joined, to answer", begin, joins, joins.empty() ? "" : ", and for ",
                     named(silent), silent.size() == 1 ? "has" : "have");
}

MemberResult run_worker(const WorkerConfig& config) {
  return Worker(config).run();
}

}  // namespace shardwire::cli

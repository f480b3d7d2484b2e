// SPDX-License-Identifier: Apache-2.0
#include "keeper/keeper.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>

#include "peers/keeper_link.hpp"
#include "session/surroundings.hpp"
#include "shardwire/error.hpp"

namespace shardwire::keeper {

namespace {

constexpr std::chrono::seconds sweep_interval(1);
constexpr unsigned sweeps_before_retry = 10;
constexpr std::size_t max_trainers = 4096;
constexpr unsigned max_takers = 8;  // as many as trainers of a host, in most jobs

std::shared_ptr<memory::SharedMemory> allocate(ByteCount bytes, int numa_node) {
  const memory::PagePlacement placement{.node = numa_node, .huge = memory::huge_pages_by_advice()};
  return std::make_shared<memory::SharedMemory>(bytes, memory::SharedMemory::Pages::at_once, placement);
}

Identity identity_of(const Keeper::Options& options) {
  return keeper_identity(options.keeper, 0, 0, options.job_key);
}

}  // namespace

Keeper::Keeper(Options options)
    : options_(std::move(options)),
      identity_(identity_of(options_)),
      loop_(detail::surroundings_of_process().loop),
      states_(options_.keeper.job, options_.budget_bytes),
      publications_(std::make_unique<KeptPublications>(options_.session, options_.job_key, options_.log)),
      takers_(max_takers, [this, loop = loop_, alive = std::weak_ptr<bool>(alive_)] {
        loop->post([this, alive] {
          if (!alive.expired()) takers_.poll();
        });
      }) {
  if (!options_.allocate) options_.allocate = allocate;
  try {
    loop_->call([this] {
      listener_ =
          loop_->listen_local(keeper_socket(options_.keeper), [this](const AcceptedStream& open) { accept(open); });
      sweep_timer_ = std::make_unique<Timer>(*loop_);
      sweep();
    });
  } catch (...) {
    loop_->end();
    throw;
  }
}

Keeper::~Keeper() {
  loop_->end([this] {
    alive_.reset();
    for (const auto& [id, trainer] : trainers_) trainer.connection->leave();
    trainers_.clear();
    sweep_timer_.reset();
    listener_.reset();
  });
  publications_.reset();
}

void Keeper::accept(const AcceptedStream& open) {
  Connection::Events events;
  events.message = [this](Connection& connection, wire::Message& message) { serve(connection, message); };
  events.closed = [this](Connection& connection, const Error&, bool) { closed(connection); };
  try {
    const auto connection = Connection::accept(*loop_, open, identity_, std::move(events));
    if (trainers_.size() >= max_trainers) return connection->drop();
    trainers_[connection->id()] = {.connection = connection};
  } catch (const Error& error) {
    log(LogLevel::warning, fmt::format("a connection could not be accepted: {}", error.what()));
  }
}

void Keeper::serve(Connection& connection, const wire::Message& message) {
  const std::uint64_t request = wire::request_of(message).value_or(0);
  try {
    if (const auto* job = std::get_if<wire::KeepJob>(&message)) {
      take(connection, *job);
    } else if (const auto* begin = std::get_if<wire::KeepBegin>(&message)) {
      take(connection, *begin);
    } else if (const auto* done = std::get_if<wire::KeepDone>(&message)) {
      if (const auto written = states_.all().find(done->buffer);
          written != states_.all().end() && written->second.memory) {
        written->second.memory->require_sealed();  // so that nobody else writes it
      }
      const Snapshot& one = states_.done(connection.id(), *done);
      drop_superseded();
      // A step that is replaced after a member was lost.
      if (states_.to_publish().size() > states_.without_trainer().size() && lacks_publications()) publish_anew();
      log(LogLevel::debug,
          fmt::format("holds '{}', step {}, rank {}: {} bytes", one.name, one.step, one.layout_rank, one.bytes));
      connection.send(wire::Kept{request});
    } else if (const auto* quit = std::get_if<wire::KeepQuit>(&message)) {
      states_.quit(connection.id(), quit->buffer, quit->forget);
    } else if (const auto* lost = std::get_if<wire::KeepMembersLost>(&message)) {
      for (const std::uint64_t copy : lost->copies) states_.orphan(connection.id(), copy, loop_->now());
      if (trainers_.at(connection.id()).session == states_.newest_session()) states_.member_lost();
      if (lacks_publications()) publish_anew();
    } else if (const auto* raised = std::get_if<wire::AttemptRaised>(&message)) {
      const std::uint64_t session = trainers_.at(connection.id()).session;
      if (session != 0 && session == states_.newest_session()) {
        states_.attempt(session, Clock::Time::max(), raised->attempt);  // when it began is known
      }
    } else if (std::holds_alternative<wire::KeepStatusRequest>(message)) {
      connection.send(wire::KeepStatus{request, status()});
    } else if (const auto* drop = std::get_if<wire::KeepDrop>(&message)) {
      states_.drop(drop->publication);
      drop_superseded();
      connection.send(wire::Kept{request});
    } else {
      throw Error(ErrorCode::invalid_argument, "a keeper does not serve that");
    }
  } catch (...) {
    refuse(connection, request, std::current_exception());
  }
}

void Keeper::refuse(Connection& connection, std::uint64_t request, const std::exception_ptr& why) {
  try {
    std::rethrow_exception(why);
  } catch (const Error& error) {
    const bool first = refused_.emplace(connection.peer().incarnation, error.code()).second;
    log(first ? LogLevel::warning : LogLevel::debug,
        fmt::format("refused member {}: {}", connection.peer().rank, error.what()));
    connection.send(wire::Failure{request, error.code(), error.what()});
  } catch (const std::exception& error) {
    connection.send(wire::Failure{request, ErrorCode::out_of_resources, error.what()});
  }
}

void Keeper::take(Connection& connection, const wire::KeepJob& job) {
  const std::uint64_t before = job_ ? job_->session : 0;
  // No session begins later than the keeper hears of it, whatever the clock of a container says.
  const Clock::Time began = std::min(Clock::Time(std::chrono::nanoseconds(job.began_ns)), loop_->now());
  const std::uint32_t attempt = states_.attempt(job.session, began, job.attempt);
  Trainer& trainer = trainers_.at(connection.id());
  trainer.session = job.session;
  job_ = job;  // of a member that is there
  if (job.session != before) {
    published_in_ = 0;
    log(LogLevel::info, fmt::format("attempt {} of job '{}' has begun, with {} members at {} port {}", attempt,
                                    options_.keeper.job, job.world_size, job.address, job.port));
    dismiss_older(attempt);
  }
  if (published_in_ == job.session) return connection.send(wire::KeepJoined{job.request, attempt});
  trainer.awaits_joined = job.request;
  publish_left();
}

// A trainer that is stopped would hold what it has kept, and room, and write again once it runs.
void Keeper::dismiss_older(std::uint32_t attempt) {
  std::vector<std::shared_ptr<Connection>> older;
  for (const auto& [id, trainer] : trainers_) {
    const bool is_older = trainer.session != 0 && trainer.session != states_.newest_session();
    if (is_older) older.push_back(trainer.connection);
  }
  for (const auto& one : older) {
    one->dismiss(
        Error(ErrorCode::cancelled, fmt::format("attempt {} of job '{}' has begun", attempt, options_.keeper.job)));
  }
}

// Answers once the publications of earlier sessions are there, so that a restore that follows sees them.
void Keeper::publish_left() {
  if (!job_) return;
  publications_->publish(
      *job_, states_,
      [this, loop = loop_, session = job_->session, alive = std::weak_ptr<bool>(alive_)](std::size_t failed) {
        loop->post([this, session, failed, alive] {
          if (!alive.expired()) published(session, failed);
        });
      });
}

void Keeper::publish_anew() {
  published_in_ = 0;
  publish_left();
}

bool Keeper::lacks_publications() const {
  const std::set<std::uint64_t> published = publications_->published();
  return std::ranges::any_of(states_.to_publish(),
                             [&](const Snapshot* one) { return !published.contains(one->buffer); });
}

void Keeper::published(std::uint64_t session, std::size_t failed) {
  if (!job_ || session != job_->session) return;  // the newest session may be one that was refused
  if (failed == 0) published_in_ = session;
  for (auto& [id, trainer] : trainers_) {
    if (trainer.session != session || !trainer.awaits_joined) continue;
    trainer.connection->send(wire::KeepJoined{*std::exchange(trainer.awaits_joined, std::nullopt),
                                              states_.attempt_of(session), static_cast<std::uint32_t>(failed)});
  }
}

void Keeper::take(Connection& connection, const wire::KeepBegin& begin) {
  const std::uint64_t session = trainers_.at(connection.id()).session;
  if (session == 0) throw Error(ErrorCode::invalid_argument, "a member has to name its session first");
  const auto given = states_.begin(connection.id(), session, begin);
  drop_superseded();
  wire::KeepBuffer answer{
      .request = begin.request, .buffer = given.snapshot->buffer, .size_bytes = 0, .released = given.released};
  if (given.fresh) return take_memory(connection.id(), begin, std::move(answer));
  answer.size_bytes = given.snapshot->memory->bytes();
  connection.send(answer);
}

// Gigabytes of pages take seconds.
void Keeper::take_memory(std::uint64_t trainer, const wire::KeepBegin& begin, wire::KeepBuffer answer) {
  const auto memory = std::make_shared<std::shared_ptr<memory::SharedMemory>>();  // owners: the job and its end
  const std::uint64_t buffer = answer.buffer;
  try {
    takers_.submit(
        [this, memory, bytes = begin.size_bytes, node = begin.numa_node] { *memory = options_.allocate(bytes, node); },
        [this, memory, trainer, answer = std::move(answer)](const std::exception_ptr& error) {
          if (error) states_.quit(trainer, answer.buffer, true);
          const bool wanted = !error && states_.provide(answer.buffer, *memory) != nullptr;
          const auto there = trainers_.find(trainer);
          if (there == trainers_.end()) return;
          const std::shared_ptr<Connection> connection = there->second.connection;
          try {
            if (error) std::rethrow_exception(error);
            if (!wanted) throw Error(ErrorCode::cancelled, "the snapshot was begun anew, or taken back, meanwhile");
            give(*connection, answer, std::move(*memory));
          } catch (...) {
            refuse(*connection, answer.request, std::current_exception());
          }
        });
  } catch (...) {
    states_.quit(trainer, buffer, true);
    throw;
  }
}

void Keeper::give(Connection& connection, wire::KeepBuffer answer, std::shared_ptr<memory::SharedMemory> memory) {
  if (const std::string& why = memory->misplaced(); !why.empty()) log(LogLevel::debug, why);
  const std::vector<int> descriptors = memory->descriptors();
  answer.size_bytes = memory->bytes();
  answer.descriptors = static_cast<std::uint8_t>(descriptors.size());
  if (!descriptors.empty()) connection.send(wire::Descriptors{answer.request, answer.descriptors}, descriptors);
  connection.send(answer);
}

void Keeper::closed(const Connection& connection) {
  const auto gone = trainers_.extract(connection.id());
  if (gone.empty()) return;
  const std::size_t before = states_.without_trainer().size();
  states_.ended(connection.id(), loop_->now());
  const std::size_t left = states_.without_trainer().size() - before;
  if (left == 0) return;
  log(LogLevel::info, fmt::format("the trainer that was member {} has ended; {} snapshot{} of it stay{}",
                                  connection.peer().rank, left, left == 1 ? "" : "s", left == 1 ? "s" : ""));
  if (gone.mapped().session != states_.newest_session()) return;  // published when a member of the newest names it
  published_in_ = 0;
  publish_left();
}

void Keeper::drop_superseded() {
  std::set<std::uint64_t> left;
  for (const Snapshot* one : states_.to_publish()) left.insert(one->buffer);
  publications_->keep_only(std::move(left));
}

void Keeper::sweep() {
  if (options_.time_to_live) {
    const std::size_t before = states_.without_trainer().size();
    states_.drop_old(loop_->now() - *options_.time_to_live);
    if (states_.without_trainer().size() != before) drop_superseded();
  }
  // Snapshots that could not be published when their trainer ended.
  const bool lives = std::ranges::any_of(trainers_, [&](const auto& one) {
    return one.second.session != 0 && one.second.session == states_.newest_session();
  });
  if (++sweeps_ % sweeps_before_retry == 0 && lives && lacks_publications()) publish_left();
  sweep_timer_->start(sweep_interval, [this] { sweep(); });
}

std::string Keeper::status() const {
  using Json = nlohmann::ordered_json;
  const std::set<std::uint64_t> published = publications_->published();
  Json kept = Json::array();
  for (const auto& [buffer, one] : states_.all()) {
    kept.push_back({{"name", one.name},
                    {"step", one.step},
                    {"rank", one.layout_rank},
                    {"copy", one.is_copy},
                    {"bytes", one.bytes},
                    {"attempt", states_.attempt_of(one.session)},
                    {"complete", one.complete},
                    {"trainer", one.trainer == 0 ? "ended" : "alive"},
                    {"published", published.contains(buffer)}});
  }
  Json complete = Json::array();
  for (const KeptStates::CompleteStep& one : states_.complete_here()) {
    complete.push_back(
        {{"name", one.name}, {"step", one.step}, {"ranks", one.ranks}, {"attempt", states_.attempt_of(one.session)}});
  }
  return Json{{"job", options_.keeper.job},
              {"socket", keeper_socket(options_.keeper)},
              {"attempts", states_.attempts()},
              {"budget_bytes", states_.budget_bytes()},
              {"used_bytes", states_.used_bytes()},
              {"complete_here", complete},
              {"kept", kept}}
      .dump();
}

}  // namespace shardwire::keeper

// SPDX-License-Identifier: Apache-2.0
#include "session/core.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "move/sizing.hpp"
#include "support/descriptors.hpp"

namespace shardwire {

namespace {

std::string note_on_managed(std::size_t count) {
  if (count == 0) return {};
  return fmt::format("; {} in managed memory, which is moved as memory of its device", count);
}

std::string summary_of(const detail::PublicationState& publication) {
  ByteCount bytes = 0;
  std::size_t managed = 0;
  for (const auto& tensor : publication.tensors) {
    bytes += tensor.bytes;
    managed += tensor.place && tensor.place->managed ? 1 : 0;
  }
  return fmt::format("'{}', step {}: {} tensors, {} bytes here, as layout rank {}{}", publication.name,
                     publication.step, publication.tensors.size(), bytes, to_int(publication.layout_rank),
                     note_on_managed(managed));
}

// Staging for copies between devices and pageable host memory: split into parts, a few of which keep both sides busy.
constexpr ByteCount max_pinned_bytes = 8u << 20;

// Descriptors, and fabrics that depend on them, travel over local sockets only.
bool lives_on_local_sockets(const Fabrics& fabrics) {
  bool lives = false;
  for (std::size_t i = 0; i < fabrics.size(); ++i) {
    lives = lives || fabrics[i].sockets().kind == transport::SocketNeeds::Kind::local;
  }
  return lives;
}

unsigned copy_threads(const Core::Setup& setup) {
  if (setup.options.copy_threads != 0) return setup.options.copy_threads;
  const auto colocated = static_cast<unsigned>(
      std::max(1, setup.bootstrap.local_size > 0 ? setup.bootstrap.local_size : setup.bootstrap.world_size));
  return std::clamp(std::thread::hardware_concurrency() / colocated, 1u, 4u);
}

}  // namespace

Core::Core(Loop& loop, Setup setup)
    : loop_(loop),
      setup_(std::move(setup)),
      acceptor_(
          loop, setup_.identity,
          {setup_.bootstrap.rank, setup_.bootstrap.world_size, lives_on_local_sockets(*setup_.fabrics)},
          {.request = [this](Connection& connection, const wire::Message& message) { serve(connection, message); },
           .closed =
               [this](const Connection& connection, bool orderly) {
                 publisher_->serving().reader_closed(connection.id());
                 membership_.closed(connection, orderly);
               },
           .log = [this](LogLevel level, const std::string& text) { log(level, text); },
           .rejected =
               [this](telemetry::Rejection why) {
                 if (setup_.metrics) setup_.metrics->rejected(why);
               }}),
      membership_(loop, *this, acceptor_, setup_.bootstrap, setup_.identity),
      fabric_table_(table_of(*setup_.fabrics)),
      attached_(loop),
      links_(loop, *setup_.fabrics, fabric_table_, membership_, setup_.identity,
             [this](std::function<void()> task) { defer(std::move(task)); }),
      sweep_timer_(loop) {
  if (!setup_.options.keeper.job.empty() && !setup_.bootstrap.guest) {
    keeper_ =
        std::make_unique<KeeperLink>(loop_, setup_.options.keeper,
                                     keeper_identity(setup_.options.keeper, setup_.bootstrap.rank,
                                                     setup_.identity.hello.incarnation, setup_.bootstrap.job_key));
  }
  const auto poll_later = [this] { defer([this] { poll_copies(); }); };
  copier_ = std::make_unique<memory::Copier>(loop_.copy_threads(copy_threads(setup_)), poll_later);
  copies_ = std::make_unique<memory::DeviceCopies>(*copier_, poll_later,
                                                   std::min(setup_.options.staging_bytes, max_pinned_bytes));
  publisher_ = std::make_unique<Publisher>(
      loop_, *setup_.fabrics, *setup_.memory, attached_, *copies_,
      Serving::Staging{setup_.options.staging_bytes, move::slot_bytes_for(setup_.options.costs)},
      Readers::Own{setup_.identity.hello.host, setup_.identity.encrypt_payload});
  std::vector<transport::Fabric*> driven;
  for (std::size_t i = 0; i < setup_.fabrics->size(); ++i) {
    transport::Fabric& fabric = (*setup_.fabrics)[i];
    fabric.on_message([this](transport::Incoming& incoming) { payloads_.arrived(incoming); });
    driven.push_back(&fabric);
  }
  driver_ = std::make_unique<FabricDriver>(loop_, std::move(driven), setup_.options.progress.spin,
                                           [this](const Error& error) {
                                             log(LogLevel::error, error.what());
                                             for (const auto& operation : operations_)
                                               operation->fabric_broke(std::make_exception_ptr(error));
                                           });
  context_.emplace(
      restore::Context{{.clock = loop_,
                        .first_request = [this] { return (loop_.random_number() >> 1) | 1; },
                        .fabrics = fabric_table_,
                        .log = [this](LogLevel level, const std::string& text) { log(level, text); },
                        .member = setup_.bootstrap.rank,
                        .link = [this](const wire::PublicationRecord& record) { return links_.link(record); },
                        .own_publication = [this](const std::string& name) { return publisher_->live(name); },
                        .lease_own = [this](auto& publication) { return publisher_->lease_own(publication); },
                        .release_own = [this](std::uint64_t lease) { return publisher_->release_own(lease); },
                        .trace = trace_,
                        .least_level = setup_.options.least_level},
                       [this](std::function<void()> task) { defer(std::move(task)); },
                       membership_,
                       directory(),
                       metadata_,
                       restore_cache_,
                       *copier_,
                       *copies_,
                       payloads_,
                       setup_.options.costs,
                       [this] { return facts(); },
                       [this](Operation& operation) { finished(operation); },
                       setup_.probe,
                       keeper_ != nullptr,
                       [this](std::span<const wire::PublicationRecord> records) { links_.look_ahead(records); },
                       [this](const std::string& topic, const std::string& text) { warn_once(topic, text); }});
}

void Core::end() {
  if (!publisher_) return;  // it has ended
  for (const auto& operation : operations_) operation->stop_writing();
  publisher_->serving().stop_packing();  // otherwise a completed send would start the next waiting packing
  copies_->stop();
  copier_.reset();  // ends the running slices
  // Nothing writes into destination memory from here on.
  end_receives([this] { return std::ranges::all_of(operations_, [](const auto& one) { return one->written(); }); });
  for (const auto& operation : operations_) operation->abandon();
  for (std::size_t i = 0; i < setup_.fabrics->size(); ++i) {
    (*setup_.fabrics)[i].on_message([](transport::Incoming& incoming) { incoming.discard(); });
  }
  operations_.clear();
  restore_cache_.clear();
  publisher_.reset();
}

restore::SessionFacts Core::facts() const {
  const auto registration = setup_.memory->registration();
  const move::StagingPool& staging = publisher_->serving().staging();
  return {.transports = setup_.fabrics->versions(),
          .registered_bytes = registration.bytes,
          .registration_seconds = registration.seconds,
          .staging_budget = staging.budget_bytes(),
          .staging_peak = staging.peak_bytes()};
}

void Core::poll_copies() {
  if (std::exchange(polling_copies_, true)) return;
  copies_->poll();
  polling_copies_ = false;
}

void Core::stop_writing(Operation& operation) {
  operation.stop_writing();
  end_receives([&] {
    if (copier_) poll_copies();
    return operation.written();
  });
}

void Core::end_receives(const std::function<bool()>& written) {
  // Real time: no clock of a loop advances while this runs.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  try {
    while (!written() && std::chrono::steady_clock::now() < deadline) {
      if (driver_->is_driving()) continue;  // a callback of that fabric has led here
      for (std::size_t i = 0; i < setup_.fabrics->size(); ++i) (*setup_.fabrics)[i].progress();
    }
  } catch (const std::exception& error) {
    log(LogLevel::error, error.what());
  }
}

void Core::defer(std::function<void()> task) {
  loop_.post([alive = std::weak_ptr<bool>(alive_), task = std::move(task)] {
    if (!alive.expired()) task();
  });
}

void Core::log(LogLevel level, const std::string& text) {
  try {
    setup_.options.log(level, text);
  } catch (...) {
    log_failure_ = std::current_exception();
    defer([this] { report_log_failure(); });
  }
}

void Core::warn_once(const std::string& topic, const std::string& text) {
  if (warned_.insert(topic).second) log(LogLevel::warning, text);
}

// An exception of the caller's sink comes out of wait(): of the running restores, else of the next one.
void Core::report_log_failure() {
  if (!log_failure_) return;
  const std::exception_ptr failure = std::exchange(log_failure_, nullptr);
  bool taken = false;
  for (const auto& operation : operations_) taken = operation->caller_failed(failure) || taken;
  if (!taken && !log_failure_) log_failure_ = failure;  // for the next one
}

// A keeper that is there again after its end has to hear of the session again.
void Core::meet_keeper(std::function<void(const std::exception_ptr& error)> met) {
  if (!keeper_) {
    return met(std::make_exception_ptr(
        Error(ErrorCode::invalid_argument, "no keeper was named (SessionOptions::keeper, SHARDWIRE_KEEPER)")));
  }
  if (met_in_connection_ != 0 && met_in_connection_ == keeper_->connections() && keeper_->connected()) {
    return met(nullptr);
  }
  const SocketAddress at = membership_.contact();
  const bool own_key = setup_.bootstrap.job_key.empty();
  keeper_->request(
      [&](std::uint64_t request) {
        return wire::KeepJob{.request = request,
                             .session = session_number_,
                             .address = at.host,
                             .port = at.port,
                             .run_id = setup_.bootstrap.run_id,
                             .world_size = setup_.bootstrap.world_size,
                             .job_key = own_key ? setup_.identity.job_key : Bytes(),
                             .attempt = attempt_,
                             .began_ns = std::chrono::nanoseconds(began_.time_since_epoch()).count()};
      },
      [this, met = std::move(met)](wire::Message* answer, const std::exception_ptr& error) {
        if (const auto* joined = answer != nullptr ? std::get_if<wire::KeepJoined>(answer) : nullptr) {
          met_in_connection_ = keeper_->connections();
          log(LogLevel::info,
              fmt::format("the keeper of this host counts this session as attempt {}", joined->attempt));
          if (joined->attempt > attempt_) {
            attempt_ = joined->attempt;
            membership_.send(wire::AttemptRaised{attempt_});
          } else if (joined->attempt < attempt_) {  // raised meanwhile
            keeper_->notify(wire::AttemptRaised{attempt_});
          }
          if (joined->unpublished > 0) {
            log(LogLevel::warning,
                fmt::format("the keeper of this host holds {} snapshots that it could not publish here",
                            joined->unpublished));
          }
        }
        met(error);
      });
}

void Core::report_losses() {
  if (!keeper_) return;
  const std::size_t losses = directory().losses();
  wire::KeepMembersLost lost{copies_of_others_.take_orphans(directory(), keeper_->connections())};
  if (std::exchange(losses_told_, losses) != losses || !lost.copies.empty()) keeper_->notify(lost);
}

void Core::attempt_raised(std::uint32_t attempt) {
  if (attempt <= attempt_) return;
  attempt_ = attempt;
  if (keeper_) keeper_->notify(wire::AttemptRaised{attempt_});
}

void Core::seated(const wire::Joined& as, Clock::Time began) {
  session_number_ = as.session;
  began_ = began;
  attempt_ = as.attempt;
  setup_.bootstrap.rank = setup_.identity.hello.rank = as.member;
  setup_.bootstrap.world_size = setup_.identity.hello.world_size = as.world_size;
}

void Core::leave() {
  log_warnings();
  if (keeper_) keeper_->leave();
  links_.leave();
  membership_.leave();
  acceptor_.leave();
}

// --- serving ---

void Core::serve(Connection& connection, const wire::Message& message) {
  if (const auto* one = std::get_if<wire::Attach>(&message)) {
    attach(connection, *one);
  } else if (setup_.identity.encrypt_payload && !connection.encrypted() && !connection.is_local()) {
    throw Error(
        ErrorCode::unsupported,
        fmt::format("member {} asks for encryption (SessionOptions::encrypt_payload), and member {} has no OpenSSL 3",
                    setup_.bootstrap.rank, connection.peer().rank));
  } else if (Rendezvous::serves(message)) {
    membership_.serve(connection, message);
  } else {
    publisher_->serving().serve(connection, message);
  }
}

// Reads nothing after sending the answer: the following bytes on the socket belong to the fabric.
void Core::attach(Connection& connection, const wire::Attach& attach) {
  const auto keep = connection.shared_from_this();
  const wire::Hello reader = connection.peer();
  attached_.check(reader, attach);
  connection.send(wire::Attached{});
  attached_.add(reader, attach, acceptor_.release(connection));
}

void Core::publish(std::shared_ptr<detail::PublicationState> publication) {
  publisher_->add(publication);
  metadata_.manifests.emplace(publication->described.manifest_digest, publication->described.manifest);
  try {
    announce(*publication, true);
  } catch (...) {
    publisher_->retire(publication, Duration::zero(), [](const std::vector<int>&) {});  // the name stays free
    throw;
  }
  log(LogLevel::info, fmt::format("member {} published {}", setup_.bootstrap.rank, summary_of(*publication)));
}

void Core::withdraw(const std::shared_ptr<detail::PublicationState>& publication, Duration timeout,
                    std::function<void(std::vector<int>)> done) {
  if (publication->withdrawn) return done({});
  announce(*publication, false);
  log(LogLevel::info,
      fmt::format("member {} withdrew '{}', step {}", setup_.bootstrap.rank, publication->name, publication->step));
  publisher_->retire(publication, timeout, std::move(done));
  log_warnings();
}

void Core::replace(const std::shared_ptr<detail::PublicationState>& old,
                   std::shared_ptr<detail::PublicationState> fresh, Duration timeout,
                   std::function<void(std::vector<int>)> done) {
  metadata_.manifests.emplace(fresh->described.manifest_digest, fresh->described.manifest);
  publisher_->replace(old, fresh, timeout, std::move(done));
  announce(*fresh, true);  // replaces the record: readers see the old or the new one
}

void Core::announce(const detail::PublicationState& publication, bool live) {
  const wire::PublicationRecord record{.member = setup_.bootstrap.rank,
                                       .origin = publication.origin,
                                       .layout_rank = to_int(publication.layout_rank),
                                       .step = publication.step,
                                       .generation = publication.generation,
                                       .live = live,
                                       .manifest = publication.described.manifest_digest,
                                       .values = publication.described.values_digest,
                                       .attempt = publication.attempt};
  membership_.send(wire::Publish{publication.name, record});
}

// --- restores ---

void Core::start(std::unique_ptr<Operation> operation) {
  Operation& fresh = *operations_.emplace_back(std::move(operation));
  // Before it begins: one that finds all in this process ends at once.
  const std::exception_ptr failure = std::exchange(log_failure_, nullptr);
  if (failure && fresh.caller_failed(failure)) return;
  if (failure) log_failure_ = failure;
  fresh.start();
}

void Core::finished(Operation& operation) {
  // Deferred: the operation is still on the call stack.
  defer([this, &operation] {
    std::erase_if(operations_, [&](const auto& one) { return one.get() == &operation; });
    if (operations_.empty()) metadata_.trim(directory());
    sweep();
    log_warnings();
  });
}

void Core::log_warnings() {
  for (std::size_t i = 0; i < setup_.fabrics->size(); ++i) {
    transport::Fabric& fabric = (*setup_.fabrics)[i];
    const std::string warning = fabric.take_warning();
    if (!warning.empty()) log(LogLevel::warning, fmt::format("{}: {}", fabric.name(), warning));
  }
}

Kept Core::kept() const {
  Kept kept{.restores = operations_.size(),
            .leases = publisher_->leases().count(),
            .reads = publisher_->leases().reads(),
            .names = membership_.needed_names(),
            .gathers = membership_.waiting_gathers(),
            .slots = publisher_->serving().staging().used_slots()};
  links_.each([&](const Link& link) {
    kept.requests += link.requests();
    kept.watchers += link.watchers();
  });
  return kept;
}

void Core::sweep() {
  const auto now = loop_.now();
  const auto [gone, due] = links_.sweep(now);
  for (const LinkTable::Gone& one : gone) {
    if (one.publication.empty()) {
      restore_cache_.forget(one.link);
    } else {
      restore_cache_.unbind(one.link, one.publication);
    }
  }
  if (due) sweep_timer_.start(*due - now, [this] { sweep(); });
}

void Core::addresses_came(const wire::Addresses& addresses) {
  links_.receive(addresses);
  for (const auto& operation : operations_) operation->addresses_came();
}

void Core::directory_changed() {
  for (const auto& operation : operations_) operation->directory_changed();
  report_losses();
  if (directory_changed_) directory_changed_();
  sweep();
}

}  // namespace shardwire

// SPDX-License-Identifier: Apache-2.0
#include "session/core.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <thread>

#include "move/sizing.hpp"
#include "support/descriptors.hpp"

namespace shardwire {

namespace {

constexpr unsigned max_logged_refusals = 16;  // of one connection
// Strangers can open connections without proving anything; what they can hold is bounded.
constexpr std::size_t max_accepted = 65536;
// What a member needs to prove itself is some milliseconds.
constexpr std::chrono::milliseconds unhurried(500);
// Members of one host may all come at once.
std::size_t max_unproven_per_address(int world_size) {
  return std::max<std::size_t>(64, static_cast<std::size_t>(world_size));
}

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

// By way of which host memory that devices cannot reach is copied: part by part, and a few parts keep both sides busy.
constexpr ByteCount max_pinned_bytes = 8u << 20;

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
      membership_(loop, *this, setup_.bootstrap, setup_.identity),
      attached_(loop),
      links_(loop, *setup_.fabrics, membership_, setup_.identity,
             [this](std::function<void()> task) { defer(std::move(task)); }),
      unproven_(max_unproven_per_address(setup_.bootstrap.world_size)),
      sweep_timer_(loop) {
  const auto poll_later = [this] { defer([this] { copies_->poll(); }); };
  copier_ = std::make_unique<memory::Copier>(copy_threads(setup_), poll_later);
  copies_ = std::make_unique<memory::DeviceCopies>(*copier_, poll_later,
                                                   std::min(setup_.options.staging_bytes, max_pinned_bytes));
  publisher_ = std::make_unique<Publisher>(
      *setup_.fabrics, *setup_.memory, attached_, *copies_,
      Publisher::Staging{setup_.options.staging_bytes, move::slot_bytes_for(setup_.options.costs)},
      setup_.identity.hello.host);
  std::vector<transport::Fabric*> driven;
  for (std::size_t i = 0; i < setup_.fabrics->size(); ++i) {
    transport::Fabric& fabric = (*setup_.fabrics)[i];
    const transport::Transport& row = setup_.fabrics->row(i);
    traits_.push_back({{std::string(fabric.name()), fabric.domain()}, row.reach, row.preference});
    fabric.on_message([this](transport::Incoming& incoming) { payload_arrived(incoming); });
    driven.push_back(&fabric);
  }
  driver_ = std::make_unique<FabricDriver>(loop_, std::move(driven), setup_.options.progress.spin,
                                           [this](const Error& error) {
                                             log(LogLevel::error, error.what());
                                             for (const auto& restore : restores_)
                                               restore->fabric_broke(std::make_exception_ptr(error));
                                           });
}

Core::~Core() {
  for (const auto& restore : restores_) restore->stop_writing();
  publisher_->stop_packing();  // when something has been sent, what waits for its slot would be the next to be copied
  copies_->stop();
  copier_.reset();  // ends the running slices
  end_receives();   // from here on nothing writes into anybody's memory
  for (const auto& restore : restores_) restore->abandon();
  for (std::size_t i = 0; i < setup_.fabrics->size(); ++i) {
    (*setup_.fabrics)[i].on_message([](transport::Incoming& incoming) { incoming.discard(); });
  }
  restores_.clear();
  restore_cache_.clear();
  publisher_.reset();
  for (const auto& [id, connection] : accepted_) connection->drop();
}

void Core::end_receives() {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  const auto written = [](const auto& restore) { return restore->written(); };
  try {
    while (!std::all_of(restores_.begin(), restores_.end(), written) && std::chrono::steady_clock::now() < deadline) {
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

// What the caller's sink has thrown comes out of a wait(): of the restores that run, else of the next one.
void Core::report_log_failure() {
  if (!log_failure_ || restores_.empty()) return;
  const std::exception_ptr failure = std::exchange(log_failure_, nullptr);
  for (const auto& restore : restores_) restore->caller_failed(failure);
}

void Core::leave() {
  log_warnings();
  links_.leave();
  membership_.leave();
  for (const auto& [id, connection] : accepted_) connection->leave();
  accepted_.clear();
}

// --- serving ---

std::uint16_t Core::listen(const SocketAddress& at) {
  auto& listener = listeners_[at.host];
  listener = std::make_unique<Listener>(loop_, at, [this](support::Descriptor socket) { accept(std::move(socket)); });
  return listener->address().port;
}

// Descriptors travel over local sockets only, and so does what lives on one.
std::string Core::listen_locally() {
  const auto needs = [&](std::size_t i) {
    return (*setup_.fabrics)[i].sockets().kind == transport::Sockets::Kind::local;
  };
  bool needed = false;
  for (std::size_t i = 0; i < setup_.fabrics->size(); ++i) needed = needed || needs(i);
  if (!needed) return {};
  const std::string name = fmt::format("shardwire-{:016x}", setup_.identity.hello.incarnation);
  try {
    local_listener_ =
        std::make_unique<Listener>(loop_, name, [this](support::Descriptor socket) { accept(std::move(socket)); });
  } catch (const Error& error) {
    log(LogLevel::warning,
        fmt::format("peers of this host cannot share memory with member {}: {}", setup_.bootstrap.rank, error.what()));
    return {};
  }
  return name;
}

void Core::accept(support::Descriptor socket) {
  Connection::Events events;
  events.ready = [this](Connection& connection) { unproven_.remove(connection.id()); };
  events.message = [this](Connection& connection, wire::Message& message) { serve(connection, message); };
  events.closed = [this](Connection& connection, const Error& reason, bool orderly) {
    const bool fault = reason.code() == ErrorCode::out_of_resources;
    log(fault ? LogLevel::warning : LogLevel::debug,
        fmt::format("member {} disconnected: {}", connection.peer().rank, reason.what()));
    unproven_.remove(connection.id());
    publisher_->reader_closed(connection.id());
    accepted_.erase(connection.id());
    refusals_.erase(connection.id());
    membership_.closed(connection, orderly);
  };
  try {
    make_room_for_connection();
    const auto connection = Connection::accept(loop_, std::move(socket), setup_.identity, std::move(events));
    if (accepted_.size() >= max_accepted) return connection->drop();
    accepted_.emplace(connection->id(), connection);
    if (const auto oldest = unproven_.add(connection->id(), connection->remote_host())) drop_unproven(*oldest);
  } catch (const Error& error) {
    log(LogLevel::warning, fmt::format("a connection could not be accepted: {}", error.what()));
  }
}

// Only who takes his time gives way: members that come at the same time would cut off each other.
void Core::make_room_for_connection() {
  while (!support::descriptors_left(Connection::descriptors_per_peer)) {
    const auto oldest = unproven_.oldest(Unproven::Clock::now() - unhurried);
    if (!oldest) return;
    unproven_.remove(*oldest);
    drop_unproven(*oldest);
  }
}

void Core::drop_unproven(Unproven::Id id) {
  const auto dropped = accepted_.extract(id);
  if (dropped.empty()) return;
  log(LogLevel::debug, fmt::format("too many connections from {} have proven nothing; the oldest is closed",
                                   dropped.mapped()->remote_host()));
  dropped.mapped()->drop();
}

void Core::send_to(Rendezvous::ClientId client, const Bytes& encoded) {
  if (const auto found = accepted_.find(client); found != accepted_.end()) found->second->send_encoded(encoded);
}

void Core::notify(Rendezvous::ClientId client, const Bytes& encoded) {
  if (const auto found = accepted_.find(client); found != accepted_.end()) found->second->notify(encoded);
}

void Core::check_alive(Rendezvous::ClientId client, Connection::Verdict verdict) {
  const auto found = accepted_.find(client);
  if (found == accepted_.end()) return verdict(false);
  found->second->check_alive(std::move(verdict));
}

void Core::dismiss(Rendezvous::ClientId client, const Error& why) {
  const auto found = accepted_.find(client);
  if (found == accepted_.end()) return;
  const auto connection = found->second;  // which leaves the table meanwhile
  connection->dismiss(why);
}

void Core::serve_later(Rendezvous::ClientId client, const std::function<void()>& task) {
  const auto found = accepted_.find(client);
  if (found == accepted_.end()) return;
  const auto connection = found->second;
  answer(*connection, 0, task);
}

void Core::log_refusal(const Connection& connection, const std::string& text) {
  unsigned& count = refusals_[connection.id()];
  if (count == max_logged_refusals) return;
  ++count;
  const bool last = count == max_logged_refusals;
  log(LogLevel::warning, last ? text + " (what this connection is refused from here on is not logged)" : text);
}

template <typename Task>
void Core::answer(Connection& connection, std::uint64_t request, Task task) {
  try {
    task();
  } catch (const Error& error) {
    log_refusal(connection, fmt::format("refused member {}: {}", connection.peer().rank, error.what()));
    connection.send(failure_for(connection, request, error));
  } catch (const std::exception& error) {  // no memory, no thread
    log_refusal(connection, fmt::format("could not serve member {}: {}", connection.peer().rank, error.what()));
    connection.send(wire::Failure{request, ErrorCode::out_of_resources, error.what()});
  }
}

void Core::serve(Connection& connection, const wire::Message& message) {
  std::uint64_t request = 0;
  std::visit(
      [&](const auto& value) {
        if constexpr (requires { value.request; }) request = value.request;
      },
      message);
  answer(connection, request, [&] {
    if (const auto* one = std::get_if<wire::Attach>(&message)) {
      attach(connection, *one);
    } else if (Rendezvous::serves(message)) {
      membership_.serve(connection, message);
    } else {
      publisher_->serve(connection, message);
    }
  });
}

// Nothing is read any more once the answer has left: what follows on the socket is the fabric's.
void Core::attach(Connection& connection, const wire::Attach& attach) {
  const auto keep = connection.shared_from_this();
  const wire::Hello reader = connection.peer();
  attached_.check(reader, attach);
  connection.send(wire::Attached{});
  attached_.add(reader, attach, connection.release());
  accepted_.erase(connection.id());
  refusals_.erase(connection.id());
}

void Core::payload_arrived(transport::Incoming& incoming) {
  const wire::PayloadHeader header = wire::decode_header(incoming.header());
  for (const auto& restore : restores_) {
    if (restore->payload(header, incoming)) return;
  }
  incoming.discard();
}

void Core::publish(std::shared_ptr<detail::PublicationState> publication) {
  publisher_->add(publication);
  metadata_.manifests.emplace(publication->described.manifest_digest, publication->described.manifest);
  announce(*publication, true);
  log(LogLevel::info, fmt::format("member {} published {}", setup_.bootstrap.rank, summary_of(*publication)));
}

void Core::withdraw(const std::shared_ptr<detail::PublicationState>& publication, Duration timeout,
                    std::function<void(std::vector<int>)> done) {
  if (publication->withdrawn) return done({});
  announce(*publication, false);
  log(LogLevel::info,
      fmt::format("member {} withdrew '{}', step {}", setup_.bootstrap.rank, publication->name, publication->step));
  publisher_->retire(publication, loop_, timeout, std::move(done));
  log_warnings();
}

void Core::replace(const std::shared_ptr<detail::PublicationState>& old,
                   std::shared_ptr<detail::PublicationState> fresh, Duration timeout,
                   std::function<void(std::vector<int>)> done) {
  metadata_.manifests.emplace(fresh->described.manifest_digest, fresh->described.manifest);
  publisher_->replace(old, fresh, loop_, timeout, std::move(done));
  announce(*fresh, true);  // takes the record's place: readers see the one or the other
}

void Core::announce(const detail::PublicationState& publication, bool live) {
  const wire::PublicationRecord record{.member = setup_.bootstrap.rank,
                                       .layout_rank = to_int(publication.layout_rank),
                                       .step = publication.step,
                                       .generation = publication.generation,
                                       .live = live,
                                       .manifest = publication.described.manifest_digest,
                                       .values = publication.described.values_digest};
  membership_.send(wire::Publish{publication.name, record});
}

// --- restores ---

void Core::start(std::unique_ptr<RunningRestore> restore) {
  restores_.push_back(std::move(restore));
  restores_.back()->start();
  report_log_failure();
}

void Core::finished(RunningRestore& restore) {
  // Not at once: the restore is still on the call stack.
  defer([this, &restore] {
    std::erase_if(restores_, [&](const auto& one) { return one.get() == &restore; });
    if (restores_.empty()) metadata_.trim(directory());
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

void Core::sweep() {
  const auto now = LinkTable::Clock::now();
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

void Core::directory_changed() {
  for (const auto& restore : restores_) restore->directory_changed();
  sweep();
}

}  // namespace shardwire

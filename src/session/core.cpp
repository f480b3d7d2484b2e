// SPDX-License-Identifier: Apache-2.0
#include "session/core.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <thread>

#include "session/restore_run.hpp"

namespace shardwire {

namespace {

// Strangers can open connections without proving anything; what they can hold is bounded.
constexpr std::size_t most_accepted = 65536;

unsigned copy_threads(const Core::Setup& setup) {
  if (setup.options.copy_threads != 0) return setup.options.copy_threads;
  const auto beside = static_cast<unsigned>(
      std::max(1, setup.bootstrap.local_size > 0 ? setup.bootstrap.local_size : setup.bootstrap.world_size));
  return std::clamp(std::thread::hardware_concurrency() / beside, 1u, 4u);
}

}  // namespace

Core::Core(Loop& loop, Setup setup) : loop_(loop), setup_(std::move(setup)), directory_(setup_.bootstrap.world_size) {
  copier_ = std::make_unique<memory::Copier>(copy_threads(setup_), [this] { defer([this] { copier_->poll(); }); });
  driver_ =
      std::make_unique<FabricDriver>(loop_, *setup_.fabric, setup_.options.progress.spin, [this](const Error& error) {
        log(LogLevel::error, error.what());
        for (const auto& run : restores_) run->fabric_broke(std::make_exception_ptr(error));
      });
  publisher_ = std::make_unique<Publisher>(
      *setup_.fabric, *copier_,
      Publisher::Staging{setup_.options.staging_bytes, move::slot_bytes_for(setup_.options.costs)},
      setup_.identity.hello.host);
  setup_.fabric->on_message([this](transport::Incoming& incoming) { payload_arrived(incoming); });
}

Core::~Core() {
  for (const auto& run : restores_) run->stop_writing();
  copier_.reset();  // ends the running slices
  end_receives();   // from here on nothing writes into anybody's memory
  for (const auto& run : restores_) run->abandon();
  setup_.fabric->on_message([](transport::Incoming& incoming) { incoming.discard(); });
  restores_.clear();
  kept_.clear();
  end_all_gathers(Error(ErrorCode::cancelled, "the session was closed"));
  publisher_.reset();
  links_.clear();
  if (store_) store_->drop();
  for (const auto& [id, connection] : accepted_) connection->drop();
}

void Core::end_receives() {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  const auto written = [](const auto& run) { return run->written(); };
  try {
    while (!std::all_of(restores_.begin(), restores_.end(), written) && std::chrono::steady_clock::now() < deadline) {
      setup_.fabric->progress();
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

void Core::log(LogLevel level, const std::string& text) const {
  if (setup_.options.log) setup_.options.log(level, text);
}

// --- serving ---

void Core::listen(const SocketAddress& at) {
  listener_ = std::make_unique<Listener>(loop_, at, [this](uv_stream_t* listener) { accept(listener); });
}

void Core::accept(uv_stream_t* listener) {
  Connection::Events events;
  events.message = [this](Connection& connection, wire::Message& message) { serve(connection, message); };
  events.closed = [this](Connection& connection, const Error& reason, bool orderly) {
    log(LogLevel::debug, fmt::format("member {} disconnected: {}", connection.peer().rank, reason.what()));
    publisher_->reader_closed(connection.id());
    accepted_.erase(connection.id());
    if (!rendezvous_) return;
    rendezvous_->closed(connection.id(), orderly);
    flush_rendezvous();
  };
  try {
    const auto connection = Connection::accept(loop_, listener, setup_.identity, std::move(events));
    if (accepted_.size() >= most_accepted) return connection->drop();
    accepted_.emplace(connection->id(), connection);
  } catch (const Error& error) {
    log(LogLevel::warning, fmt::format("a connection could not be accepted: {}", error.what()));
  }
}

void Core::serve(Connection& connection, const wire::Message& message) {
  std::uint64_t request = 0;
  std::visit(
      [&](const auto& value) {
        if constexpr (requires { value.request; }) request = value.request;
      },
      message);
  try {
    if (Rendezvous::serves(message)) {
      if (!rendezvous_) throw Error(ErrorCode::invalid_argument, "this member does not serve the rendezvous");
      rendezvous_->take(connection.id(), connection.peer(), message);
      flush_rendezvous();
    } else {
      publisher_->serve(connection, message);
    }
  } catch (const Error& error) {
    log(LogLevel::warning, fmt::format("refused member {}: {}", connection.peer().rank, error.what()));
    connection.send(wire::Failure{request, error.code(), error.what()});
  } catch (const std::exception& error) {  // no memory, no thread
    log(LogLevel::warning, fmt::format("could not serve member {}: {}", connection.peer().rank, error.what()));
    connection.send(wire::Failure{request, ErrorCode::out_of_resources, error.what()});
  }
}

void Core::payload_arrived(transport::Incoming& incoming) {
  const wire::PayloadHeader header = wire::decode_header(incoming.header());
  for (const auto& run : restores_) {
    if (run->payload(header, incoming)) return;
  }
  incoming.discard();
}

void Core::publish(std::shared_ptr<detail::PublicationState> publication) {
  publisher_->add(publication);
  manifests.emplace(publication->described.manifest_digest, publication->described.manifest);
  announce(*publication, true);
}

void Core::withdraw(const std::shared_ptr<detail::PublicationState>& publication, Duration timeout,
                    std::function<void(std::vector<int>)> done) {
  if (publication->withdrawn) return done({});
  announce(*publication, false);
  publisher_->retire(publication, loop_, timeout, std::move(done));
}

void Core::announce(const detail::PublicationState& publication, bool live) {
  const wire::PublicationRecord record{.member = setup_.bootstrap.rank,
                                       .place = to_int(publication.place),
                                       .step = publication.step,
                                       .generation = publication.generation,
                                       .live = live,
                                       .manifest = publication.described.manifest_digest,
                                       .values = publication.described.values_digest};
  tell_rendezvous(wire::Publish{publication.name, record});
}

// --- restores ---

void Core::start(std::unique_ptr<RestoreRun> run) {
  restores_.push_back(std::move(run));
  restores_.back()->start();
}

void Core::finished(RestoreRun& run) {
  // Not at once: the run is still on the call stack.
  defer([this, &run] { std::erase_if(restores_, [&](const auto& one) { return one.get() == &run; }); });
}

std::unique_ptr<KeptRestore> Core::take_kept(const std::string& from, const Catalog& wanted) {
  const auto found = std::find_if(kept_.begin(), kept_.end(),
                                  [&](const auto& kept) { return kept->from == from && alike(kept->wanted, wanted); });
  if (found == kept_.end()) return nullptr;
  auto taken = std::move(*found);
  kept_.erase(found);
  return taken;
}

void Core::keep(std::unique_ptr<KeptRestore> kept) {
  // A trainer restores one catalog, or two in turn. More would hold on to memory that peers have long given back.
  constexpr std::size_t most_kept = 2;
  // Enough for the next restore to begin without page faults; the rest goes back to the trainer.
  constexpr ByteCount most_staging_kept = 64u << 20;
  if (kept_.size() >= most_kept) kept_.erase(kept_.begin());
  for (const auto& older : kept_) older->staging.reset();
  if (kept->staging) kept->staging->trim(most_staging_kept);
  kept_.push_back(std::move(kept));
}

std::shared_ptr<Link> Core::link(const wire::PublicationRecord& record) {
  auto& link = links_[{record.member, record.turn}];
  if (link && !link->broken()) return link;
  if (directory_.presence(record.member) != wire::Presence::there) {
    throw Error(ErrorCode::peer_lost, fmt::format("member {} is not in the session any more", record.member),
                std::vector<Rank>{Rank{record.member}});
  }
  const wire::MemberRecord* address = directory_.address(record.member, record.turn);
  if (address == nullptr) require_rendezvous(fmt::format("the address of member {}", record.member));
  auto fresh = std::make_shared<Link>(*setup_.fabric, record.member);
  if (address != nullptr) {
    fresh->connect(loop_, *address, setup_.identity);  // throws: nothing is kept, the next one tries again
  } else {
    look_up(record, fresh);
  }
  // A broken link may be on the call stack: it goes on a later turn.
  defer([old = std::exchange(link, fresh)] {});
  return fresh;
}

}  // namespace shardwire

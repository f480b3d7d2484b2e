// SPDX-License-Identifier: Apache-2.0
// Outline: ports, memory, messages; operations; incoming messages; endpoints; fabrics; the network of fabrics.
#include "fabric.hpp"

#include <algorithm>
#include <cstring>
#include <deque>
#include <limits>
#include <new>
#include <string>
#include <utility>

#include "transport/bytes.hpp"
#include "transport/read_check.hpp"

namespace shardwire::simulation {

using transport::ByteView;
using transport::Completion;
using transport::ConstMemory;
using transport::Fault;
using transport::Memory;
using transport::Outcome;

namespace {

constexpr std::size_t max_ranges = 64;
constexpr int max_reads = 8;
// Network cards give up a peer that does not answer; kernels later.
constexpr std::chrono::seconds card_limit(4);

bool sends_messages(FabricKind kind) {
  return kind == FabricKind::network || kind == FabricKind::streams;
}

struct PortAddress {
  std::uint64_t magic = 0x51aabb01;
  std::uint64_t port = 0;
};
struct RegionAddress {
  std::uint64_t magic = 0x51aabb02;
  std::uint64_t backing = 0;
  std::uint64_t bytes = 0;
};

Fault lost() {
  return {ErrorCode::peer_lost, "the peer's fabric is closed"};
}

}  // namespace

// --- ports, memory, messages ---

struct Port {
  std::uint64_t id = 0;
  Process* process = nullptr;
  SimulatedFabric* fabric = nullptr;  // null: closed
};

struct Backing {
  struct Free {
    void operator()(std::byte* bytes) const { ::operator delete(bytes, std::align_val_t(64)); }
  };
  std::unique_ptr<std::byte[], Free> owned;
  Memory memory;
  int host = 0;
  bool withdrawn = false;
};

/// A message under way; its payload is the sender's memory until its operation has completed.
struct Message {
  std::shared_ptr<Port> sender;  // owners: its fabric, endpoints to it, messages
  std::uint64_t operation = 0;
  Bytes header;
  std::vector<ConstMemory> payload;
  ByteCount payload_bytes = 0;
  bool abandoned = false;
};

struct Operation {
  std::uint64_t endpoint = 0;  // 0: a receive
  std::uint64_t peer = 0;      // port
  Completion done;
  std::shared_ptr<Message> message{};   // of a send. Owners: this and the receiver
  std::function<Outcome()> work{};      // writes the bytes, just before the completion
  std::shared_ptr<Message> received{};  // of a receive. Owners: this and the sender
};

class SimulatedEndpoint;

class SimulatedFabric final : public transport::Fabric {
 public:
  SimulatedFabric(FabricNetwork& all, FabricKind kind, std::shared_ptr<Port> port);
  ~SimulatedFabric() override;
  SimulatedFabric(const SimulatedFabric&) = delete;
  SimulatedFabric& operator=(const SimulatedFabric&) = delete;

  [[nodiscard]] std::string_view name() const override { return FabricNetwork::row(kind_).name; }
  [[nodiscard]] std::string version() const override { return std::string(name()) + " 1"; }
  [[nodiscard]] std::string domain() const override {
    return kind_ == FabricKind::host ? "host " + std::to_string(port_->process->host()) : "all";
  }
  [[nodiscard]] Bytes address() const override {
    Bytes out;
    transport::append(out, PortAddress{.port = port_->id});
    return out;
  }
  [[nodiscard]] transport::SocketNeeds sockets() const override {
    if (kind_ != FabricKind::streams) return {};
    return {.kind = transport::SocketNeeds::Kind::network, .count = 1, .max_count = 1};
  }
  using Fabric::allocate;
  std::unique_ptr<transport::Region> allocate(ByteCount bytes, const transport::MemoryPlace& place) override;
  std::unique_ptr<transport::Region> adopt(const Memory& memory) override;
  std::unique_ptr<transport::Endpoint> connect(transport::PeerAddress peer) override;
  void on_message(transport::MessageHandler handler) override { handler_ = std::move(handler); }
  bool progress() override;
  [[nodiscard]] int event_descriptor() const override { return 0; }  // events wake the process
  bool arm() override { return messages_.empty() && finished_.empty(); }

  // --- for endpoints and messages ---
  std::uint64_t add(Operation operation);
  /// Ends the operation by an event of its own.
  void finish_later(Duration delay, std::uint64_t operation, Outcome outcome);
  void finish(std::uint64_t operation, Outcome outcome) { finished_.emplace_back(operation, std::move(outcome)); }
  template <typename Selected>
  void fault(Selected selected, const Fault& fault);
  template <typename Selected>
  void abandon(Selected selected);
  void arrived(std::shared_ptr<Message> message) { messages_.push_back(std::move(message)); }
  void peer_closed(std::uint64_t port);
  /// Tells the senders of what is being received from this port that it will not be.
  void refuse_payload(const Port& from);

  [[nodiscard]] FabricNetwork& all() { return all_; }
  [[nodiscard]] FabricKind kind() const { return kind_; }
  [[nodiscard]] const std::shared_ptr<Port>& port() const { return port_; }
  [[nodiscard]] int host() const { return port_->process->host(); }

 private:
  friend class SimulatedEndpoint;
  std::unique_ptr<transport::Region> region(std::shared_ptr<Backing> backing);

  FabricNetwork& all_;
  FabricKind kind_;
  std::shared_ptr<Port> port_;  // owners: see Message
  transport::MessageHandler handler_;
  std::map<std::uint64_t, Operation> operations_;
  std::deque<std::pair<std::uint64_t, Outcome>> finished_;
  std::deque<std::shared_ptr<Message>> messages_;
  std::map<std::uint64_t, SimulatedEndpoint*> endpoints_;
  std::uint64_t next_ = 1;
};

class SimulatedRegion final : public transport::Region {
 public:
  SimulatedRegion(FabricNetwork& all, std::uint64_t id, std::shared_ptr<Backing> backing, bool shown)
      : all_(all), id_(id), backing_(std::move(backing)), shown_(shown) {}
  ~SimulatedRegion() override {
    backing_->withdrawn = true;
    if (all_.bug() != Bug::leaked) all_.backings_.erase(id_);
  }
  SimulatedRegion(const SimulatedRegion&) = delete;
  SimulatedRegion& operator=(const SimulatedRegion&) = delete;
  [[nodiscard]] Memory memory() const override { return backing_->memory; }
  [[nodiscard]] Bytes key() const override {
    Bytes out;
    if (shown_) transport::append(out, RegionAddress{.backing = id_, .bytes = backing_->memory.bytes});
    return out;
  }

 private:
  FabricNetwork& all_;
  std::uint64_t id_;
  std::shared_ptr<Backing> backing_;  // owners: see FabricNetwork
  bool shown_;
};

struct SimulatedRemote final : transport::RemoteRegion {
  SimulatedRemote(std::shared_ptr<Backing> of, ByteCount announced_bytes, bool maps)
      : backing(std::move(of)), bytes(announced_bytes), mappable(maps && backing->owned) {}
  [[nodiscard]] ConstMemory mapped() const override {
    return mappable ? ConstMemory(backing->memory).part(0, bytes) : ConstMemory();
  }

  std::shared_ptr<Backing> backing;  // owners: see FabricNetwork
  ByteCount bytes;
  bool mappable;
};

// --- operations ---

std::uint64_t SimulatedFabric::add(Operation operation) {
  const std::uint64_t id = next_++;
  operations_.emplace(id, std::move(operation));
  return id;
}

void SimulatedFabric::finish_later(Duration delay, std::uint64_t operation, Outcome outcome) {
  if (all_.bug() == Bug::lost && operation % 7 == 0) return;
  all_.events().after(delay, port_->process, "completion", [port = port_, operation, outcome = std::move(outcome)] {
    if (port->fabric != nullptr) port->fabric->finish(operation, outcome);
  });
}

template <typename Selected>
void SimulatedFabric::fault(Selected selected, const Fault& fault) {
  for (auto& [id, operation] : operations_) {
    if (!selected(operation)) continue;
    if (operation.message) operation.message->abandoned = true;
    if (all_.bug() != Bug::lost || id % 7 != 0) finish(id, fault);
  }
  all_.events().after({}, port_->process, "faults", [] {});
}

template <typename Selected>
void SimulatedFabric::abandon(Selected selected) {
  std::erase_if(operations_, [&](const auto& entry) {
    if (!selected(entry.second)) return false;
    if (entry.second.message) entry.second.message->abandoned = true;
    return true;
  });
}

// --- incoming messages ---

class SimulatedIncoming final : public transport::Incoming {
 public:
  SimulatedIncoming(SimulatedFabric& fabric, std::shared_ptr<Message> message)
      : fabric_(fabric), message_(std::move(message)) {}
  ~SimulatedIncoming() override {
    if (!answered_) discard();
  }
  SimulatedIncoming(const SimulatedIncoming&) = delete;
  SimulatedIncoming& operator=(const SimulatedIncoming&) = delete;

  [[nodiscard]] ByteView header() const override { return message_->header; }
  [[nodiscard]] ByteCount payload_bytes() const override { return message_->payload_bytes; }
  using Incoming::receive;
  // The payload arrives later than the header, and is written only then.
  void receive(std::span<const Memory> into, Completion done) override {
    if (total_bytes(into) != message_->payload_bytes || into.size() > max_ranges) {
      throw Error(ErrorCode::invalid_argument, "receive() into memory of another size");
    }
    answered_ = true;
    const std::uint64_t id = fabric_.add(
        {.peer = message_->sender->id,
         .done = std::move(done),
         .work = [&all = fabric_.all(), message = message_, list = std::vector(into.begin(), into.end())]() -> Outcome {
           return copy(all, *message, list);
         },
         .received = message_});
    fabric_.finish_later(fabric_.all().events().random().spread(std::chrono::microseconds(1), max_payload_time), id,
                         std::nullopt);
  }
  void discard() override {
    answered_ = true;
    release(fabric_.all(), *message_);
  }
  // Sessions are tested with messages of both kinds.
  [[nodiscard]] bool is_copied() const override { return fabric_.kind() == FabricKind::streams; }

 private:
  static constexpr std::chrono::milliseconds max_payload_time{2};

  // The sender learns that its memory is free.
  static void release(FabricNetwork& all, Message& message) {
    if (!message.abandoned && message.sender->fabric != nullptr) {
      message.sender->fabric->finish_later(all.events().random().between(Duration(1000), Duration(100'000)),
                                           message.operation, std::nullopt);
    }
  }
  static Outcome copy(FabricNetwork& all, Message& message, const std::vector<Memory>& into) {
    if (message.abandoned || message.sender->fabric == nullptr) {
      return Fault{ErrorCode::peer_lost, "the sender ended before its payload had arrived"};
    }
    std::size_t range = 0;
    ByteCount filled = 0;
    for (ConstMemory from : message.payload) {
      while (!from.empty()) {
        for (; filled == into[range].bytes; filled = 0) ++range;
        const ByteCount bytes = std::min(from.bytes, into[range].bytes - filled);
        const bool shortened = all.bug() == Bug::shortened && bytes >= 4 && all.events().random().percent(5);
        std::memcpy(into[range].address + filled, from.address, bytes - (shortened ? 4 : 0));
        filled += bytes;
        from = from.part(bytes, from.bytes - bytes);
      }
    }
    if (!into.empty()) all.garble(message.sender->process->host(), into.back());
    release(all, message);
    return std::nullopt;
  }

  SimulatedFabric& fabric_;
  std::shared_ptr<Message> message_;  // owners: see Operation
  bool answered_ = false;
};

// --- endpoints ---

class SimulatedEndpoint final : public transport::Endpoint {
 public:
  SimulatedEndpoint(SimulatedFabric& fabric, std::shared_ptr<Port> peer)
      : fabric_(fabric), peer_(std::move(peer)), id_(fabric.next_++) {
    fabric_.endpoints_.emplace(id_, this);
  }
  ~SimulatedEndpoint() override {
    fabric_.endpoints_.erase(id_);
    fabric_.abandon([this](const Operation& operation) { return operation.endpoint == id_; });
  }
  SimulatedEndpoint(const SimulatedEndpoint&) = delete;
  SimulatedEndpoint& operator=(const SimulatedEndpoint&) = delete;

  using Endpoint::send;
  void send(ByteView header, std::span<const ConstMemory> payload, Completion done) override {
    if (!sends_messages(fabric_.kind())) throw Error(ErrorCode::unsupported, "this fabric has no messages");
    if (header.size() > transport::max_header_bytes || payload.size() > max_ranges) {
      throw Error(ErrorCode::invalid_argument, "send() of too long a header, or too many ranges");
    }
    auto message = std::make_shared<Message>();
    message->sender = fabric_.port();
    message->header.assign(header.begin(), header.end());
    message->payload.assign(payload.begin(), payload.end());
    message->payload_bytes = total_bytes(payload);
    message->operation = fabric_.add({.endpoint = id_, .peer = peer_->id, .done = std::move(done), .message = message});
    if (failed_) return fabric_.finish_later({}, message->operation, lost());
    lane_->push_back(message);
    deliver_later();
  }
  std::unique_ptr<transport::RemoteRegion> import_region(transport::RegionKey key, ByteCount bytes) override;
  void read(const transport::RemoteRegion& region, std::span<const transport::ReadRange> ranges,
            Completion done) override;
  [[nodiscard]] bool failed() const override { return failed_; }
  [[nodiscard]] transport::Path path(const transport::MemoryPlace& place) const override;
  void abort() override {
    failed_ = true;
    end_operations({ErrorCode::cancelled, "the connection was aborted from this side"});
  }

  [[nodiscard]] const Port& peer() const { return *peer_; }
  // An end of a connection that has failed answers what the other end goes on sending with a reset.
  void peer_closed() {
    failed_ = true;
    fabric_.refuse_payload(*peer_);
    end_operations(lost());
  }

 private:
  void end_operations(const Fault& why) {
    fabric_.fault(
        [this](const Operation& operation) {
          return operation.endpoint == id_ || (operation.endpoint == 0 && operation.peer == peer_->id);
        },
        why);
  }
  // In the order of the sends: each event takes the first one.
  void deliver_later() {
    *last_arrival_ = std::max(*last_arrival_, fabric_.all().arrival(fabric_.host(), peer_->process->host()));
    fabric_.all().events().at(
        *last_arrival_, peer_->process, "message",
        [&all = fabric_.all(), peer = peer_, lane = lane_, sender = fabric_.port()] {
          const auto message = std::move(lane->front());
          lane->pop_front();
          if (message->abandoned) return;
          if (all.bug() == Bug::dropped && sender->fabric != nullptr && all.events().random().percent(5)) {
            return sender->fabric->finish_later({}, message->operation, std::nullopt);
          }
          if (peer->fabric != nullptr) return peer->fabric->arrived(message);
          if (sender->fabric != nullptr) sender->fabric->finish_later(card_limit, message->operation, lost());
        });
  }
  void answer_read(std::uint64_t operation);

  SimulatedFabric& fabric_;
  std::shared_ptr<Port> peer_;  // owners: see Message
  std::uint64_t id_;
  bool failed_ = false;
  using Lane = std::deque<std::shared_ptr<Message>>;
  std::shared_ptr<Lane> lane_ = std::make_shared<Lane>();  // owners: this and its events
  std::shared_ptr<Clock::Time> last_arrival_ = std::make_shared<Clock::Time>(Events::start);  // likewise
};

std::unique_ptr<transport::RemoteRegion> SimulatedEndpoint::import_region(transport::RegionKey key, ByteCount bytes) {
  ByteView rest = key.bytes;
  const auto record = transport::take<RegionAddress>(rest);
  if (!record || record->magic != RegionAddress().magic || !rest.empty()) {
    throw Error(ErrorCode::transport_failed, "not a region key of a simulated fabric");
  }
  const auto found = fabric_.all().backings_.find(record->backing);
  if (found == fabric_.all().backings_.end() || bytes > record->bytes) {
    throw Error(ErrorCode::transport_failed, "the region key names memory that is not there (any more)");
  }
  return std::make_unique<SimulatedRemote>(found->second, bytes, fabric_.kind() == FabricKind::host);
}

namespace {

const std::byte* read_from(FabricNetwork& all, const Backing& backing, const transport::ReadRange& range) {
  const ByteCount beside = range.offset_bytes + range.into.bytes + 4;
  if (all.bug() == Bug::misplaced && beside <= backing.memory.bytes && all.events().random().percent(20)) {
    return backing.memory.address + range.offset_bytes + 4;
  }
  return backing.memory.address + range.offset_bytes;
}

}  // namespace

void SimulatedEndpoint::read(const transport::RemoteRegion& region, std::span<const transport::ReadRange> ranges,
                             Completion done) {
  const auto& remote = transport::own_region<SimulatedRemote>(region);
  transport::check_ranges(ranges, max_ranges, remote.bytes);
  if (fabric_.kind() != FabricKind::rdma) throw Error(ErrorCode::unsupported, "this fabric does not read");
  auto copy = [&all = fabric_.all(), backing = remote.backing, peer = peer_,
               list = std::vector(ranges.begin(), ranges.end())] {
    if (peer->process->ended()) return Outcome(lost());
    if (backing->withdrawn) return Outcome(Fault{ErrorCode::withdrawn, "the peer has withdrawn this memory"});
    const std::size_t count = all.bug() == Bug::early ? list.size() - 1 : list.size();
    for (std::size_t i = 0; i < count; ++i) {
      const Memory& into = list[i].into;
      if (!into.empty()) std::memcpy(into.address, read_from(all, *backing, list[i]), into.bytes);
      if (!into.empty()) all.garble(backing->host, into);
    }
    return Outcome();
  };
  const std::uint64_t id =
      fabric_.add({.endpoint = id_, .peer = peer_->id, .done = std::move(done), .work = std::move(copy)});
  if (failed_) return fabric_.finish_later({}, id, lost());
  answer_read(id);
}

// The network card of the peer answers, also for a process that is stopped.
void SimulatedEndpoint::answer_read(std::uint64_t operation) {
  FabricNetwork& all = fabric_.all();
  const Clock::Time until = all.events().now() + card_limit;
  const int peer_host = peer_->process->host();
  const Clock::Time arrives = all.arrival(fabric_.host(), peer_host);
  const bool answers = arrives < until && !peer_->process->ended();
  const Duration after = answers ? 2 * (arrives - all.events().now()) : Duration(until - all.events().now());
  fabric_.finish_later(after, operation, answers ? Outcome() : Outcome(lost()));
}

transport::Path SimulatedEndpoint::path(const transport::MemoryPlace& place) const {
  if (place.kind != MemoryKind::host)
    return {.carrier = "simulated", .why_not = {FallbackReason::no_device, "there are no simulated devices"}};
  const FabricKind kind = fabric_.kind();
  return {.carrier = std::string(fabric_.name()),
          .reach = kind == FabricKind::host ? Reach::host : Reach::network,
          .map = kind == FabricKind::host,
          .read = kind == FabricKind::rdma,
          .message = sends_messages(kind),
          .max_message_ranges = max_ranges,
          .max_read_ranges = max_ranges,
          .max_read_bytes = 1u << 20,
          .max_reads = max_reads};
}

// --- fabrics ---

SimulatedFabric::SimulatedFabric(FabricNetwork& all, FabricKind kind, std::shared_ptr<Port> port)
    : all_(all), kind_(kind), port_(std::move(port)) {
  port_->fabric = this;
}

SimulatedFabric::~SimulatedFabric() {
  port_->fabric = nullptr;
  all_.ports_.erase(port_->id);
  abandon([](const Operation&) { return true; });
  if (!port_->process->ended()) all_.announce_end(port_);  // else the end of the process was announced, or is not seen
}

std::unique_ptr<transport::Region> SimulatedFabric::allocate(ByteCount bytes, const transport::MemoryPlace& place) {
  if (place.kind != MemoryKind::host) throw Error(ErrorCode::unsupported, "there are no simulated devices");
  auto backing = std::make_shared<Backing>();
  backing->owned.reset(static_cast<std::byte*>(::operator new(std::max<ByteCount>(bytes, 1), std::align_val_t(64))));
  backing->memory = {backing->owned.get(), bytes, {}};
  std::memset(backing->memory.address, 0, bytes);
  return region(std::move(backing));
}

std::unique_ptr<transport::Region> SimulatedFabric::adopt(const Memory& memory) {
  auto backing = std::make_shared<Backing>();
  backing->memory = memory;
  return region(std::move(backing));
}

std::unique_ptr<transport::Region> SimulatedFabric::region(std::shared_ptr<Backing> backing) {
  backing->host = host();
  const std::uint64_t id = all_.next_id_++;
  all_.backings_.emplace(id, backing);
  const bool shown = kind_ == FabricKind::rdma || (kind_ == FabricKind::host && backing->owned);
  return std::make_unique<SimulatedRegion>(all_, id, std::move(backing), shown);
}

std::unique_ptr<transport::Endpoint> SimulatedFabric::connect(transport::PeerAddress peer) {
  ByteView rest = peer.address;
  const auto record = transport::take<PortAddress>(rest);
  if (!record || record->magic != PortAddress().magic || !rest.empty()) {
    throw Error(ErrorCode::transport_failed, "not an address of a simulated fabric");
  }
  const auto found = all_.ports_.find(record->port);
  if (found == all_.ports_.end()) throw Error(ErrorCode::peer_lost, "the fabric at this address is closed");
  return std::make_unique<SimulatedEndpoint>(*this, found->second);
}

bool SimulatedFabric::progress() {
  const bool any = !messages_.empty() || !finished_.empty();
  for (std::size_t left = messages_.size(); left > 0; --left) {
    const auto message = std::move(messages_.front());
    messages_.pop_front();
    if (message->abandoned) continue;
    SimulatedIncoming incoming(*this, message);
    if (handler_) handler_(incoming);
  }
  for (std::size_t left = finished_.size(); left > 0; --left) {
    const auto [id, given] = std::move(finished_.front());
    finished_.pop_front();
    auto found = operations_.extract(id);
    if (found.empty()) continue;  // its endpoint is gone, or it has ended in another way
    Outcome outcome = given;
    if (!outcome && found.mapped().work) outcome = found.mapped().work();
    if (found.mapped().done) found.mapped().done(outcome);
  }
  return any;
}

void SimulatedFabric::peer_closed(std::uint64_t port) {
  for (const auto& [id, endpoint] : endpoints_) {
    if (endpoint->peer().id == port) endpoint->peer_closed();
  }
}

void SimulatedFabric::refuse_payload(const Port& from) {
  for (const auto& [id, operation] : operations_) {
    if (!operation.received || operation.peer != from.id || from.fabric == nullptr) continue;
    const Duration delay = all_.arrival(host(), from.process->host()) - all_.events().now();
    from.fabric->finish_later(delay, operation.received->operation, lost());
  }
}

// --- the network of fabrics ---

namespace {

transport::Viability by_simulations_only(transport::Asked) {
  return {false, "simulations only"};
}
std::unique_ptr<transport::Fabric> cannot_open() {
  throw Error(ErrorCode::unsupported, "simulations only");
}
constexpr transport::Transport rows[] = {
    {"simulated_host", Reach::process, {.map = 1}, {}, by_simulations_only, cannot_open},
    {"simulated_rdma", Reach::network, {.read = 2}, {}, by_simulations_only, cannot_open},
    {"simulated_network", Reach::network, {.message = 3}, {}, by_simulations_only, cannot_open},
    {"simulated_streams", Reach::network, {.message = 3}, {}, by_simulations_only, cannot_open},
};

}  // namespace

const transport::Transport& FabricNetwork::row(FabricKind kind) {
  return rows[static_cast<std::size_t>(kind)];
}

std::unique_ptr<transport::Fabric> FabricNetwork::open(Process& process, FabricKind kind) {
  auto port = std::make_shared<Port>(Port{.id = next_id_++, .process = &process});
  ports_.emplace(port->id, port);
  return std::make_unique<SimulatedFabric>(*this, kind, std::move(port));
}

void FabricNetwork::ended(Process& process, bool silent) {
  if (bug_ == Bug::deaf) return;
  for (const auto& [id, port] : std::map(ports_)) {
    if (port->process != &process) continue;
    if (!silent) {
      announce_end(port);
    } else {
      events().after(Network::unanswered_limit, nullptr, "unanswered", [this, port = port] { announce_end(port); });
    }
  }
}

void FabricNetwork::reset(Process& one, Process& other) {
  for (const auto& [first, a] : ports_) {
    for (const auto& [second, b] : ports_) {
      const bool between = (a->process == &one && b->process == &other) || (a->process == &other && b->process == &one);
      if (!between || a->fabric == nullptr || a->fabric->kind() == FabricKind::host) continue;
      events().at(network_.arrival(b->process->host(), a->process->host()), a->process, "connection reset",
                  [port = a, ended = second] {
                    if (port->fabric != nullptr) port->fabric->peer_closed(ended);
                  });
    }
  }
}

void FabricNetwork::announce_end(const std::shared_ptr<Port>& port) {
  for (const auto& [id, other] : ports_) {
    if (other->process == port->process || other->fabric == nullptr) continue;
    events().at(network_.arrival(port->process->host(), other->process->host()), other->process, "peer closed",
                [other = other, closed = port->id] {
                  if (other->fabric != nullptr) other->fabric->peer_closed(closed);
                });
  }
}

Clock::Time FabricNetwork::arrival(int from, int to) {
  const Clock::Time arrives = network_.arrival(from, to);
  const auto hole = holes_.find(std::minmax(from, to));
  return hole == holes_.end() || hole->second <= events().now() ? arrives : hole->second + (arrives - events().now());
}

void FabricNetwork::garble(int host, Memory into) {
  const auto until = corrupt_.find(host);
  const bool corrupts = until != corrupt_.end() && until->second > events().now() && events().random().percent(30);
  const bool flips = bug_ == Bug::flipped && events().random().percent(5);
  if (!corrupts && !flips) return;
  const std::uint64_t at = events().random().below(into.bytes);
  into.address[at] ^= std::byte{1};
  events().trace().line(events().now_ns(), 0, "garbled a byte from host {}", host);
}

}  // namespace shardwire::simulation

// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <limits>
#include <map>
#include <string>
#include <utility>

#include "transport/bytes.hpp"
#include "transport/device_use.hpp"
#include "transport/loopback/handles.hpp"
#include "transport/read_check.hpp"

namespace shardwire::transport::loopback {
namespace {

// Long lists gain nothing here; the limit exists so that callers meet one.
constexpr std::size_t max_ranges = 4096;
constexpr int max_reads = 64;
constexpr const char* carrier = "threads of one process";

constexpr std::uint64_t address_magic = 0x646461706f6f6cULL;

struct Address {
  std::uint64_t magic = address_magic;
  std::uint64_t port = 0;
  std::array<char, 64> domain{};
};

/// The operations of a fabric, known only to its own thread. Owners: the fabric and its endpoints, destroyed in any
/// order.
struct Operations {
  struct Pending {
    std::uint64_t endpoint = 0;  ///< 0: belongs to the fabric
    Completion done{};
    std::shared_ptr<Message> message{};
    std::function<Outcome()> work{};  ///< runs just before the completion and returns the outcome
  };

  std::shared_ptr<Port> port = open_port();
  OperationId next = 1;
  std::map<OperationId, Pending> pending;

  OperationId add(Pending operation) {
    const OperationId id = next++;
    pending.emplace(id, std::move(operation));
    return id;
  }
  /// Posts an operation that involves no peer: it completes in the next progress().
  void post(Pending operation, Outcome outcome = std::nullopt) {
    port->finish(add(std::move(operation)), std::move(outcome));
  }
  void complete(const Port::Finished& finished) {
    auto found = pending.extract(finished.operation);
    if (found.empty()) return;  // its endpoint is gone
    Outcome outcome = finished.outcome;
    if (!outcome && found.mapped().work) outcome = found.mapped().work();
    if (found.mapped().done) found.mapped().done(outcome);
  }
  /// Ends the operations that `selected` names with a fault; their memory is not read after this returns.
  template <typename Predicate>
  void fault(Predicate selected) {
    for (auto& [id, operation] : pending) {
      if (!selected(operation)) continue;
      if (Message* message = operation.message.get()) {
        const std::lock_guard lock(message->mutex);
        message->abandoned = true;
        message->payload.clear();
      }
      port->finish(id, Fault{ErrorCode::cancelled, "the connection was aborted from this side"});
    }
  }
  /// Abandons the operations that `selected` names; their memory is not read after this returns.
  template <typename Predicate>
  void abandon(Predicate selected) {
    std::erase_if(pending, [&](const auto& entry) {
      if (!selected(entry.second)) return false;
      if (Message* message = entry.second.message.get()) {
        const std::lock_guard lock(message->mutex);
        message->abandoned = true;
        message->payload.clear();
      }
      return true;
    });
  }
};

class LoopbackIncoming final : public Incoming {
 public:
  LoopbackIncoming(Operations& operations, Message& message) : operations_(operations), message_(message) {}
  ~LoopbackIncoming() override {
    if (!answered_) discard();
  }
  LoopbackIncoming(const LoopbackIncoming&) = delete;
  LoopbackIncoming& operator=(const LoopbackIncoming&) = delete;

  [[nodiscard]] ByteView header() const override { return message_.header; }
  [[nodiscard]] ByteCount payload_bytes() const override { return message_.payload_bytes; }

  using Incoming::receive;
  void receive(std::span<const Memory> into, Completion done) override {
    if (total_bytes(into) != message_.payload_bytes) {
      throw Error(ErrorCode::invalid_argument, "receive() needs memory of exactly the payload's size");
    }
    if (into.size() > max_ranges) throw Error(ErrorCode::invalid_argument, "receive() into too many ranges");
    answered_ = true;
    Outcome outcome = copy(into);
    if (!outcome) message_.sender->finish(message_.operation, std::nullopt);
    operations_.post({.done = std::move(done)}, std::move(outcome));
  }
  void discard() override {
    answered_ = true;
    message_.sender->finish(message_.operation, std::nullopt);
  }

 private:
  Outcome copy(std::span<const Memory> into) {
    const std::lock_guard lock(message_.mutex);
    if (message_.abandoned) return Fault{ErrorCode::peer_lost, "the sender cancelled before its payload was received"};
    std::size_t range = 0;
    ByteCount filled = 0;
    for (ConstMemory from : message_.payload) {
      while (!from.empty()) {
        for (; filled == into[range].bytes; filled = 0) ++range;
        const ByteCount bytes = std::min(from.bytes, into[range].bytes - filled);
        std::memcpy(into[range].address + filled, from.address, bytes);
        filled += bytes;
        from = from.part(bytes, from.bytes - bytes);
      }
    }
    return std::nullopt;
  }

  Operations& operations_;
  Message& message_;
  bool answered_ = false;
};

class LoopbackEndpoint final : public Endpoint {
 public:
  LoopbackEndpoint(std::shared_ptr<Operations> operations, std::shared_ptr<Port> peer)
      : operations_(std::move(operations)), peer_(std::move(peer)), id_(operations_->next++) {}
  ~LoopbackEndpoint() override {
    operations_->abandon([this](const Operations::Pending& operation) { return operation.endpoint == id_; });
  }
  LoopbackEndpoint(const LoopbackEndpoint&) = delete;
  LoopbackEndpoint& operator=(const LoopbackEndpoint&) = delete;

  using Endpoint::send;
  void send(ByteView header, std::span<const ConstMemory> payload, Completion done) override {
    if (header.size() > max_header_bytes) throw Error(ErrorCode::invalid_argument, "message header is too long");
    if (payload.size() > max_ranges) throw Error(ErrorCode::invalid_argument, "send() of too many ranges");
    auto message = std::make_shared<Message>();
    message->sender = operations_->port;
    message->header.assign(header.begin(), header.end());
    message->payload.assign(payload.begin(), payload.end());
    message->payload_bytes = total_bytes(payload);
    message->operation = operations_->add({.endpoint = id_, .done = std::move(done), .message = message});
    const OperationId operation = message->operation;
    if (!peer_->deliver(std::move(message))) {
      operations_->port->finish(operation, Fault{ErrorCode::peer_lost, "the peer's fabric is closed"});
    }
  }

  std::unique_ptr<RemoteRegion> import_region(RegionKey key, ByteCount size_bytes) override {
    return import_backing(key.bytes, size_bytes);
  }

  void read(const RemoteRegion& region, std::span<const ReadRange> ranges, Completion done) override {
    const auto& remote = own_region<LoopbackRemote>(region);
    check_ranges(ranges, max_ranges, remote.size_bytes);
    const auto on_host = [](const ReadRange& range) { return range.into.place.kind == MemoryKind::host; };
    if (remote.backing->on_device() || !std::ranges::all_of(ranges, on_host)) {
      throw Error(ErrorCode::unsupported, "the loopback transport reads host memory only: that of devices is mapped");
    }
    if (failed()) {
      return operations_->post({.endpoint = id_, .done = std::move(done)},
                               Fault{ErrorCode::peer_lost, "the peer is gone"});
    }
    auto copy = [backing = remote.backing, list = std::vector(ranges.begin(), ranges.end())]() -> Outcome {
      if (backing->read(list)) return std::nullopt;
      return Fault{ErrorCode::withdrawn, "the peer has withdrawn this memory"};
    };
    operations_->post({.endpoint = id_, .done = std::move(done), .work = std::move(copy)});
  }

  [[nodiscard]] bool failed() const override { return peer_->closed(); }
  [[nodiscard]] Path path(const MemoryPlace& place) const override {
    if (place.kind == MemoryKind::cuda) {
      support::Fallback why_not = why_no_device_memory();
      const bool maps = why_not.empty();
      return {.carrier = carrier, .reach = Reach::host, .map = maps, .gpu_direct = maps, .why_not = std::move(why_not)};
    }
    return {.carrier = carrier,
            .reach = Reach::host,
            .map = true,
            .read = true,
            .message = true,
            .max_message_ranges = max_ranges,
            .max_read_ranges = max_ranges,
            .max_read_bytes = std::numeric_limits<ByteCount>::max(),
            .max_reads = max_reads};
  }
  void abort() override {  // receives and reads always end before they can be observed
    operations_->fault([this](const Operations::Pending& operation) { return operation.endpoint == id_; });
  }

 private:
  std::shared_ptr<Operations> operations_;
  std::shared_ptr<Port> peer_;
  std::uint64_t id_;
};

class LoopbackFabric final : public Fabric {
 public:
  LoopbackFabric() = default;
  ~LoopbackFabric() override {
    close_port(*operations_->port);
    for (const auto& message : messages_) {
      message->sender->finish(message->operation, Fault{ErrorCode::peer_lost, "the receiving fabric was closed"});
    }
    operations_->abandon([](const Operations::Pending&) { return true; });
  }
  LoopbackFabric(const LoopbackFabric&) = delete;
  LoopbackFabric& operator=(const LoopbackFabric&) = delete;

  [[nodiscard]] std::string_view name() const override { return "loopback"; }
  [[nodiscard]] std::string version() const override { return "loopback 1"; }
  [[nodiscard]] std::string domain() const override { return loopback::domain(); }

  [[nodiscard]] Bytes address() const override {
    Address record{.port = operations_->port->id()};
    loopback::domain().copy(record.domain.data(), record.domain.size() - 1);
    Bytes out;
    append(out, record);
    return out;
  }

  using Fabric::allocate;
  std::unique_ptr<Region> allocate(ByteCount size_bytes, const MemoryPlace& place) override {
    if (place.kind != MemoryKind::host) {
      throw Error(ErrorCode::unsupported, "the loopback transport allocates host memory only");
    }
    return make_region(std::make_shared<Backing>(size_bytes));
  }
  std::unique_ptr<Region> adopt(const Memory& memory) override {
    return make_region(std::make_shared<Backing>(memory));
  }
  [[nodiscard]] bool adopts_unasked(const MemoryPlace& place) const override { return place.kind == MemoryKind::cuda; }

  std::unique_ptr<Endpoint> connect(PeerAddress at) override {
    ByteView address = at.address;
    auto record = take<Address>(address);
    if (!record || record->magic != address_magic || record->domain.back() != '\0' || !address.empty()) {
      throw Error(ErrorCode::transport_failed, "not an address of the loopback transport");
    }
    if (record->domain.data() != loopback::domain()) {
      throw Error(ErrorCode::unsupported, "the loopback transport reaches threads of its own process only");
    }
    auto peer = find_port(record->port);
    if (!peer) throw Error(ErrorCode::peer_lost, "the fabric at this address is closed");
    return std::make_unique<LoopbackEndpoint>(operations_, std::move(peer));
  }

  void on_message(MessageHandler handler) override { handler_ = std::move(handler); }

  bool progress() override {
    take_arrivals();
    const bool any = !messages_.empty() || !finished_.empty();
    // One by one, out of the member: a handler that throws loses only its own message.
    for (std::size_t left = messages_.size(); left > 0; --left) handle(*take_front(messages_));
    for (std::size_t left = finished_.size(); left > 0; --left) operations_->complete(take_front(finished_));
    return any;
  }

  [[nodiscard]] int event_descriptor() const override { return operations_->port->descriptor(); }
  bool arm() override { return messages_.empty() && finished_.empty() && operations_->port->arm(); }

 private:
  template <typename T>
  static T take_front(std::deque<T>& queue) {
    T front = std::move(queue.front());
    queue.pop_front();
    return front;
  }
  void take_arrivals() {
    Port::Batch batch = operations_->port->drain();
    for (auto& message : batch.messages) messages_.push_back(std::move(message));
    for (auto& finished : batch.finished) finished_.push_back(std::move(finished));
  }
  void handle(Message& message) {
    LoopbackIncoming incoming(*operations_, message);
    if (handler_) handler_(incoming);
  }

  std::shared_ptr<Operations> operations_ = std::make_shared<Operations>();
  MessageHandler handler_;
  std::deque<std::shared_ptr<Message>> messages_;
  std::deque<Port::Finished> finished_;
};

}  // namespace

std::unique_ptr<Fabric> open() {
  return std::make_unique<LoopbackFabric>();
}

}  // namespace shardwire::transport::loopback

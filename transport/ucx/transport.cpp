// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <new>
#include <random>
#include <utility>

#include "support/descriptors.hpp"
#include "transport/bytes.hpp"
#include "transport/ucx/endpoint.hpp"

namespace shardwire::transport::ucx {
namespace {

// What a dead peer had sent may still be in our queues; only then are receives from it hopeless.
constexpr auto receive_grace = std::chrono::milliseconds(200);
constexpr auto watch_interval = std::chrono::milliseconds(5);

// UCX ends the process when it cannot open a file at the wrong moment, so there must be some left before it is called.
constexpr int descriptors_to_open = 24;    // two contexts, two workers, one thread of its own; more with many devices
constexpr int descriptors_to_connect = 8;  // sockets of both directions, a process to watch, files read in passing
constexpr std::size_t max_descriptors_kept = 64;

Fault peer_is_gone() {
  return {ErrorCode::peer_lost, "the peer is gone"};
}

void on_received(void* request, ucs_status_t status, std::size_t size, void* user_data) noexcept {
  auto* const operation = static_cast<Operation*>(user_data);
  if (status == UCS_OK && size != operation->expected_bytes) status = UCS_ERR_MESSAGE_TRUNCATED;
  operation->worker->finish(operation, status);
  ucp_request_free(request);
}

class UcxIncoming final : public Incoming {
 public:
  UcxIncoming(Worker& worker, Arrival arrival) : worker_(worker), arrival_(std::move(arrival)) {}
  ~UcxIncoming() override { worker_.release(arrival_); }
  UcxIncoming(const UcxIncoming&) = delete;
  UcxIncoming& operator=(const UcxIncoming&) = delete;

  [[nodiscard]] ByteView header() const override {
    return ByteView(arrival_.header).first(arrival_.header_bytes).subspan(sizeof(std::uint64_t));
  }
  [[nodiscard]] ByteCount payload_bytes() const override { return arrival_.payload_bytes; }

  using Incoming::receive;
  void receive(std::span<const Memory> ranges, Completion done) override {
    if (ranges.size() > 1) throw Error(ErrorCode::invalid_argument, "the ucx transport receives into one range");
    if (total_bytes(ranges) != arrival_.payload_bytes) {
      throw Error(ErrorCode::invalid_argument, "receive() needs memory of exactly the payload's size");
    }
    const std::span<std::byte> into = ranges.empty() ? std::span<std::byte>() : ranges.front().span();
    Operation operation;
    ByteView sender = arrival_.header;
    operation.peer = *take<std::uint64_t>(sender);
    operation.name = "receive a message";
    operation.expected_bytes = into.size();
    operation.done = std::move(done);
    Operation* const posted = worker_.add(std::move(operation));
    if (!arrival_.rendezvous) {
      const void* const from = arrival_.held ? arrival_.data : arrival_.copy.data();
      if (!into.empty()) std::memcpy(into.data(), from, into.size());
      return worker_.finish(posted, UCS_OK);
    }
    posted->reply = arrival_.reply;
    arrival_.held = false;  // UCX takes the descriptor back
    ucp_request_param_t params{};
    params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    params.cb.recv_am = on_received;
    params.user_data = posted;
    worker_.posted(posted, ucp_am_recv_data_nbx(worker_.handle(), arrival_.data, into.data(), into.size(), &params));
  }
  /// UCX then tells the sender that its message is done.
  void discard() override { worker_.release(arrival_); }

 private:
  Worker& worker_;
  Arrival arrival_;
};

class UcxEndpoint final : public Endpoint {
 public:
  UcxEndpoint(std::shared_ptr<OpenEndpoint> connection, std::shared_ptr<OpenEndpoints> all, std::string no_map_reason)
      : connection_(std::move(connection)), all_(std::move(all)), no_map_reason_(std::move(no_map_reason)) {}
  ~UcxEndpoint() override {
    connection_->close();
    std::erase(*all_, connection_);
  }
  UcxEndpoint(const UcxEndpoint&) = delete;
  UcxEndpoint& operator=(const UcxEndpoint&) = delete;

  using Endpoint::send;
  void send(ByteView header, std::span<const ConstMemory> payload, Completion done) override {
    connection_->send(header, payload, std::move(done));
  }
  std::unique_ptr<RemoteRegion> import_region(RegionKey key, ByteCount size_bytes) override {
    return connection_->import_region(key.bytes, size_bytes);
  }
  void read(const RemoteRegion&, std::span<const ReadRange>, Completion) override {
    throw Error(ErrorCode::unsupported, "the ucx transport has no one-sided reads yet");
  }
  [[nodiscard]] bool failed() const override { return connection_->failed(); }
  [[nodiscard]] Path path(const MemoryPlace& place) const override;
  void abort() override {
    if (connection_->link() == nullptr) return;
    abort_receives_from(connection_->peer_fabric(), Clock::time_point::max(),
                        {ErrorCode::cancelled, "the connection was cut from this side"}, connection_->link()->worker(),
                        *all_);
    connection_->link()->abort();
  }

 private:
  std::shared_ptr<OpenEndpoint> connection_;
  std::shared_ptr<OpenEndpoints> all_;  // the fabric's list; owners: the fabric and its endpoints
  std::string no_map_reason_;           // the fabric's; empty where it maps
};

Path UcxEndpoint::path(const MemoryPlace& place) const {
  const bool host = place.kind == MemoryKind::host;
  Path path;
  path.carrier = connection_->carrier();
  path.reach = connection_->on_host() ? Reach::host : Reach::network;
  path.map = host && connection_->on_host();
  path.message = host;
  if (!host) {
    path.why_not = "the ucx transport moves host memory only";
  } else if (!no_map_reason_.empty()) {
    path.why_not = "this fabric does not map: " + no_map_reason_;
  } else if (!path.map) {
    path.why_not = "its memory cannot be mapped from here";
  }
  return path;
}

class UcxFabric final : public Fabric {
 public:
  UcxFabric();
  ~UcxFabric() override;
  UcxFabric(const UcxFabric&) = delete;
  UcxFabric& operator=(const UcxFabric&) = delete;

  [[nodiscard]] std::string_view name() const override { return "ucx"; }
  [[nodiscard]] std::string version() const override { return library_version(); }
  [[nodiscard]] std::string domain() const override { return domain_; }
  [[nodiscard]] Bytes address() const override;
  using Fabric::allocate;
  std::unique_ptr<Region> allocate(ByteCount size_bytes, const MemoryPlace& place) override {
    require_host(place);
    return allocate_region(host_ ? host_->shared_context() : nullptr, size_bytes);
  }
  std::unique_ptr<Region> adopt(const Memory& memory) override {
    require_host(memory.place);
    return adopt_region(memory);
  }
  std::unique_ptr<Endpoint> connect(PeerAddress at) override;
  void on_message(MessageHandler handler) override { handler_ = std::move(handler); }
  bool progress() override;
  [[nodiscard]] int event_descriptor() const override { return events_.get(); }
  bool arm() override;

 private:
  struct Departure {
    std::uint64_t fabric = 0;
    Clock::time_point receives_end;
    Clock::time_point latest;  // to have begun; later ones belong to a new connection
    bool cut = false;
  };

  static void require_host(const MemoryPlace& place) {
    if (place.kind == MemoryKind::host) return;
    throw Error(ErrorCode::unsupported, "the ucx transport moves host memory only");
  }
  void open_workers();
  void notice_departures(Clock::time_point now);
  void abort_receives(Departure& departure, Clock::time_point now);
  void end_departures(std::uint64_t fabric);
  std::shared_ptr<OpenEndpoint> connect_on_host(const Address& peer);
  void watch_peers();
  bool run(Worker& worker);
  void listen(int descriptor) const;
  [[nodiscard]] std::array<Worker*, 2> workers() const { return {host_.get(), network_.get()}; }

  std::uint64_t id_ = 0;
  std::string domain_;
  support::Descriptor events_;
  std::shared_ptr<Worker> host_;     // null: no shared memory
  std::string no_map_reason_;        // with that
  std::shared_ptr<Worker> network_;  // null: shared memory only
  std::unique_ptr<Region> beacon_region_;
  Beacon* beacon_ = nullptr;
  MessageHandler handler_;
  std::shared_ptr<OpenEndpoints> connections_ = std::make_shared<OpenEndpoints>();
  std::vector<Departure> departures_;
  std::uint64_t next_connection_ = 1;
  Clock::time_point next_watch_{};
};

void UcxFabric::open_workers() {
  const TransportChoice choice = choose_transports();
  std::string trouble;
  if (choice.shared_memory.empty()) {
    no_map_reason_ = "UCX_TLS leaves shared memory out";
  } else {
    try {
      host_ = std::make_shared<Worker>(std::make_shared<Context>(choice.shared_memory, true));
      beacon_region_ = allocate_region(host_->shared_context(), sizeof(Beacon));
    } catch (const Error& error) {
      host_.reset();  // the network will do; Path says so
      trouble = error.what();
      no_map_reason_ = trouble;
    }
  }
  if (!choice.network.empty()) {
    try {
      network_ = std::make_shared<Worker>(std::make_shared<Context>(choice.network, false));
    } catch (const Error& error) {
      trouble.append(trouble.empty() ? "" : "; ").append(error.what());
    }
  }
  if (!host_ && !network_) throw Error(ErrorCode::unsupported, "UCX opens no transport: " + trouble);
}

UcxFabric::UcxFabric() : events_(::epoll_create1(EPOLL_CLOEXEC)) {
  const ScopedLogSuppression no_log;
  support::require_descriptors(descriptors_to_open, "opening UCX");
  if (!events_) throw Error(ErrorCode::out_of_resources, "cannot create an event descriptor (epoll)");
  std::random_device random;
  id_ = (std::uint64_t{random()} << 32) | random();
  // UCX promises nothing between versions on the wire before 1.16.
  const std::string version = library_version();
  const char* const segment = std::getenv("UCX_TCP_RX_SEG_SIZE");
  domain_ = fmt::format("{} active messages, TCP segments of {}", version.substr(0, version.rfind('.')),
                        segment == nullptr ? tcp_segment : segment);
  open_workers();
  if (beacon_region_) {
    beacon_ = new (beacon_region_->memory().address) Beacon;
    beacon_->fabric = id_;
  }
  for (const Worker* worker : workers()) {
    if (worker != nullptr) listen(worker->descriptor());
  }
}

UcxFabric::~UcxFabric() {
  const ScopedLogSuppression no_log;
  if (beacon_ != nullptr) beacon_->open.store(0, std::memory_order_release);
  for (const auto& connection : *connections_) connection->close();
  for (Worker* worker : workers()) {
    if (worker == nullptr) continue;
    worker->give_up([](const Operation&) { return true; });
    worker->finished.clear();
    for (Arrival& arrival : worker->arrivals) worker->release(arrival);
    worker->arrivals.clear();
  }
}

void UcxFabric::listen(int descriptor) const {
  if (descriptor < 0) return;
  epoll_event event{};
  event.events = EPOLLIN;
  if (::epoll_ctl(events_.get(), EPOLL_CTL_ADD, descriptor, &event) != 0) {
    throw Error(ErrorCode::out_of_resources, "cannot watch a descriptor (epoll)");
  }
}

Bytes UcxFabric::address() const {
  const ScopedLogSuppression no_log;
  Address out;
  out.fabric = id_;
  out.host = host_identity();
  out.process = this_process();
  if (host_) out.host_worker = host_->address();
  if (network_) out.network_worker = network_->address();
  if (beacon_region_) out.beacon_key = beacon_region_->key();
  return encode(out);
}

std::shared_ptr<OpenEndpoint> UcxFabric::connect_on_host(const Address& peer) {
  try {
    auto link = std::make_unique<UcpEndpoint>(host_, peer.host_worker);
    auto region = import_region(host_, link->handle(), peer.beacon_key, sizeof(Beacon));
    const auto* beacon = reinterpret_cast<const Beacon*>(region->mapped().address);
    if (beacon == nullptr || beacon->magic != Beacon::expected_magic || beacon->fabric != peer.fabric) return nullptr;
    return std::make_shared<OpenEndpoint>(next_connection_++, id_, peer, std::move(link), std::move(region));
  } catch (const Error&) {
    return nullptr;  // as with a peer that hides its /proc: the network is left
  }
}

std::unique_ptr<Endpoint> UcxFabric::connect(PeerAddress at) {
  const ScopedLogSuppression no_log;
  // Each of those there are may still be given another socket, when its peer calls back.
  const auto sockets = static_cast<int>(std::min<std::size_t>(connections_->size(), max_descriptors_kept));
  support::require_descriptors(descriptors_to_connect + sockets, "connecting to a peer by UCX");
  Address peer = decode_address(at.address);
  end_departures(peer.fabric);
  std::shared_ptr<OpenEndpoint> connection;
  if (at.same_host && host_ && !peer.host_worker.empty() && peer.host == host_identity()) {
    connection = connect_on_host(peer);
  }
  if (!connection) {
    if (!network_ || peer.network_worker.empty()) {
      throw Error(ErrorCode::unsupported, "no transport of UCX reaches the peer (see UCX_TLS and UCX_NET_DEVICES)");
    }
    auto link = std::make_unique<UcpEndpoint>(network_, peer.network_worker);
    connection = std::make_shared<OpenEndpoint>(next_connection_++, id_, std::move(peer), std::move(link), nullptr);
  }
  listen(connection->watched());
  connections_->push_back(connection);
  return std::make_unique<UcxEndpoint>(std::move(connection), connections_, no_map_reason_);
}

void UcxFabric::notice_departures(Clock::time_point now) {
  for (const auto& connection : *connections_) {
    if (connection->departure_seen || !connection->failed()) continue;
    connection->departure_seen = true;
    if (connection->watched() >= 0) ::epoll_ctl(events_.get(), EPOLL_CTL_DEL, connection->watched(), nullptr);
    for (Worker* worker : workers()) {
      if (worker == nullptr) continue;
      worker->fault([&](const Operation& operation) { return operation.endpoint == connection->id(); }, peer_is_gone());
    }
    departures_.push_back({connection->peer_fabric(), now + receive_grace, connection->replaced});
  }
}

// First UCX itself lets go of the buffers; only what it cannot end is given up on a while later.
void UcxFabric::abort_receives(Departure& departure, Clock::time_point now) {
  departure.cut = true;
  departure.receives_end = now + receive_grace;
  for (Worker* worker : workers()) {
    if (worker != nullptr)
      abort_receives_from(departure.fabric, departure.latest, peer_is_gone(), *worker, *connections_);
  }
}

void UcxFabric::watch_peers() {
  const auto now = Clock::now();
  if (now < next_watch_) return;
  next_watch_ = now + watch_interval;
  notice_departures(now);
  std::erase_if(departures_, [&](Departure& departure) {
    if (now < departure.receives_end) return false;
    if (!departure.cut) {
      abort_receives(departure, now);
      return false;
    }
    for (Worker* worker : workers()) {
      if (worker == nullptr) continue;
      worker->fault(
          [&](const Operation& operation) {
            return operation.peer == departure.fabric && operation.began <= departure.latest;
          },
          peer_is_gone());
    }
    return true;
  });
}

// Before there is a new connection to a peer that was given up: what ends with the old one is what there is now.
void UcxFabric::end_departures(std::uint64_t fabric) {
  const auto now = Clock::now();
  notice_departures(now);
  bool any = false;
  for (Departure& departure : departures_) {
    if (departure.fabric != fabric) continue;
    any = true;
    departure.latest = std::min(departure.latest, now);
    if (!departure.cut) abort_receives(departure, now);
  }
  if (!any) return;
  // Another one to the same peer may fail yet, as one that its receives came on.
  for (const auto& connection : *connections_) {
    if (connection->peer_fabric() == fabric) connection->replaced = std::min(connection->replaced, now);
  }
}

bool UcxFabric::run(Worker& worker) {
  const bool any = !worker.arrivals.empty() || !worker.finished.empty();
  // As many as are there now: handlers post, and what completes at once is for the next call.
  for (std::size_t left = worker.arrivals.size(); left > 0; --left) {
    Arrival arrival = std::move(worker.arrivals.front());
    worker.arrivals.pop_front();
    const bool ours = arrival.header_bytes >= sizeof(std::uint64_t);
    UcxIncoming incoming(worker, std::move(arrival));
    if (ours && handler_) handler_(incoming);
  }
  for (std::size_t left = worker.finished.size(); left > 0; --left) {
    const auto operation = std::move(worker.finished.front());
    worker.finished.pop_front();
    if (operation->done) operation->done(operation->outcome);
  }
  return any;
}

bool UcxFabric::progress() {
  const ScopedLogSuppression no_log;
  bool any = false;
  for (Worker* worker : workers()) {
    if (worker != nullptr) any = worker->progress() || any;
  }
  watch_peers();
  for (Worker* worker : workers()) {
    if (worker != nullptr) any = run(*worker) || any;
  }
  return any;
}

bool UcxFabric::arm() {
  const ScopedLogSuppression no_log;
  if (!departures_.empty()) return false;  // their receives end by the clock
  next_watch_ = {};                        // whatever wakes the caller, it may be a peer that died
  for (Worker* worker : workers()) {
    if (worker != nullptr && !worker->arm()) return false;
  }
  return true;
}

}  // namespace

std::unique_ptr<Fabric> open() {
  return std::make_unique<UcxFabric>();
}

}  // namespace shardwire::transport::ucx

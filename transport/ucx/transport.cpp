// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <random>
#include <utility>

#include "support/descriptors.hpp"
#include "transport/bytes.hpp"
#include "transport/gpu_direct.hpp"
#include "transport/module.hpp"
#include "transport/ucx/endpoint.hpp"
#include "transport/ucx/lifeline.hpp"
#include "transport/ucx/registration.hpp"

namespace shardwire::transport::ucx {
namespace {

// Data of a dead peer may still be in our queues; receives from it are hopeless only after this time.
constexpr auto receive_grace = std::chrono::milliseconds(200);
constexpr auto watch_interval = std::chrono::milliseconds(5);

// UCX ends the process if it cannot open a file at certain moments, so enough descriptors must be left before the call.
constexpr int descriptors_to_open = 24;    // a context, a worker, one thread of its own; more with many devices
constexpr int descriptors_to_connect = 8;  // sockets of both directions, a lifeline, files read temporarily
constexpr std::size_t max_descriptors_kept = 64;

Fault gone_fault() {
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
    arrival_.held = false;  // UCX takes the data descriptor back
    ucp_request_param_t params{};
    params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    params.cb.recv_am = on_received;
    params.user_data = posted;
    worker_.posted(posted, ucp_am_recv_data_nbx(worker_.handle(), arrival_.data, into.data(), into.size(), &params));
  }
  /// UCX then reports to the sender that its message is complete.
  void discard() override { worker_.release(arrival_); }

 private:
  Worker& worker_;
  Arrival arrival_;
};

std::uint64_t random_id() {
  std::random_device random;
  return (std::uint64_t{random()} << 32) | random();
}

class UcxFabric final : public Fabric {
 public:
  explicit UcxFabric(FindDevices find_devices);
  ~UcxFabric() override;
  UcxFabric(const UcxFabric&) = delete;
  UcxFabric& operator=(const UcxFabric&) = delete;

  [[nodiscard]] std::string_view name() const override { return "ucx"; }
  [[nodiscard]] std::string version() const override { return library_version(); }
  [[nodiscard]] std::string domain() const override { return domain_; }
  [[nodiscard]] Bytes address() const override {
    const ScopedLogSuppression no_log;
    return encode(Address{id_, worker_->address(), reading_->possible()});
  }
  using Fabric::allocate;
  std::unique_ptr<Region> allocate(ByteCount size_bytes, const MemoryPlace& place) override {
    return allocate_region(worker_, reading_->possible(), size_bytes, place);
  }
  std::unique_ptr<Region> adopt(const Memory& memory) override {
    return adopt_region(worker_, reading_->possible(), memory, *gpus_);
  }
  std::unique_ptr<Endpoint> connect(PeerAddress at) override;
  void on_message(MessageHandler handler) override { handler_ = std::move(handler); }
  bool progress() override;
  [[nodiscard]] int event_descriptor() const override { return events_.get(); }
  bool arm() override;

 private:
  struct Departure {
    std::uint64_t fabric = 0;
    WallClock::time_point receives_end;
    WallClock::time_point latest;  // latest start; later operations belong to a new connection
    bool aborted = false;
  };

  void notice_departures(WallClock::time_point now);
  void abort_receives(Departure& departure, WallClock::time_point now);
  void end_departures(std::uint64_t fabric);
  void watch_peers();
  bool run_handlers();
  [[nodiscard]] GpuDirect::Setup gpu_setup(FindDevices find_devices) const;
  void listen(int descriptor) const;

  std::uint64_t id_ = random_id();
  std::string domain_;
  support::Descriptor events_;
  std::shared_ptr<Worker> worker_;          // owners: the fabric, its endpoints and regions
  std::shared_ptr<GpuDirect> gpus_;         // owners: the fabric, its endpoints and their readers
  std::shared_ptr<const Reading> reading_;  // owners: the fabric and its endpoints
  Lifeline lifeline_{id_};
  MessageHandler handler_;
  std::shared_ptr<Endpoints> endpoints_ = std::make_shared<Endpoints>();  // owners: the fabric and its endpoints
  std::vector<Departure> departures_;
  WallClock::time_point next_watch_{};
};

// A UCX with GPU support inspects every pointer it is given, so it is opened without where there is no driver.
bool may_have_gpus() {
  static const bool driver = peer_memory().nvidia;
  return driver;
}

std::shared_ptr<Worker> open_worker() {
  const ScopedLogSuppression no_log;
  support::require_descriptors(descriptors_to_open, "opening UCX");
  auto worker = std::make_shared<Worker>(open_serving_context(may_have_gpus()));
  worker->accept_messages();
  return worker;
}

GpuDirect::Setup UcxFabric::gpu_setup(FindDevices find_devices) const {
  const Version version = version_of_library();
  return {.find_devices = find_devices,
          .why_never = why_no_gpus_in_ucx(version.major, version.minor, knows_cuda(worker_->context())),
          .takes_chunks = ucx_takes_chunks(version.major, version.minor),
          .try_with = [this](const Memory& memory) {
            const MappedMemory served(worker_, memory);
            for (const ReadingDevice& device : reading_->devices()) {
              const MappedMemory read_into(device.worker, memory);
            }
          }};
}

UcxFabric::UcxFabric(FindDevices find_devices)
    : events_(::epoll_create1(EPOLL_CLOEXEC)),
      worker_(open_worker()),
      gpus_(std::make_shared<GpuDirect>(gpu_setup(find_devices))),
      reading_(std::make_shared<Reading>(worker_, may_have_gpus(), gpus_)) {
  // Before 1.16 UCX guarantees no wire compatibility between versions.
  const std::string version = library_version();
  const char* const segment = std::getenv("UCX_TCP_RX_SEG_SIZE");
  domain_ = fmt::format("{} active messages, TCP segments of {}", version.substr(0, version.rfind('.')),
                        segment == nullptr ? tcp_segment : segment);
  listen(worker_->descriptor());
  for (const ReadingDevice& device : reading_->devices()) listen(device.worker->descriptor());
}

UcxFabric::~UcxFabric() {
  const ScopedLogSuppression no_log;
  for (UcxEndpoint* const endpoint : *endpoints_) endpoint->close();
  worker_->drop_completions([](const Operation&) { return true; });
  worker_->finished.clear();
  worker_->release_all();
}

void UcxFabric::listen(int descriptor) const {
  epoll_event event{};
  event.events = EPOLLIN;
  if (::epoll_ctl(events_.get(), EPOLL_CTL_ADD, descriptor, &event) != 0) {
    throw Error(ErrorCode::out_of_resources, "cannot watch a descriptor (epoll)");
  }
}

std::unique_ptr<Endpoint> UcxFabric::connect(PeerAddress at) {
  const ScopedLogSuppression no_log;
  // Each endpoint may still get another socket, when its peer connects back.
  const auto sockets = static_cast<int>(std::min<std::size_t>(endpoints_->size(), max_descriptors_kept));
  support::require_descriptors(descriptors_to_connect + sockets, "connecting to a peer by UCX");
  const Address peer = decode_address(at.address);
  end_departures(peer.fabric);
  support::Descriptor lifeline = at.same_host ? hold_lifeline(peer.fabric) : support::Descriptor();
  auto endpoint = std::make_unique<UcxEndpoint>(id_, peer, std::move(lifeline), worker_, reading_, gpus_, endpoints_);
  if (endpoint->lifeline()) listen(endpoint->lifeline().get());
  return endpoint;
}

void UcxFabric::notice_departures(WallClock::time_point now) {
  for (UcxEndpoint* const endpoint : *endpoints_) {
    if (endpoint->departure_seen || !endpoint->peer_is_gone()) continue;
    endpoint->departure_seen = true;
    if (endpoint->lifeline()) ::epoll_ctl(events_.get(), EPOLL_CTL_DEL, endpoint->lifeline().get(), nullptr);
    worker_->fault([&](const Operation& operation) { return operation.endpoint == endpoint; }, gone_fault());
    endpoint->abort_reads(gone_fault());
    departures_.push_back({endpoint->peer_fabric(), now + receive_grace, endpoint->replaced});
  }
}

// UCX first releases the buffers itself; operations that it cannot end are abandoned later.
void UcxFabric::abort_receives(Departure& departure, WallClock::time_point now) {
  departure.aborted = true;
  departure.receives_end = now + receive_grace;
  abort_receives_from(departure.fabric, departure.latest, gone_fault(), *worker_, *endpoints_);
}

void UcxFabric::watch_peers() {
  const auto now = WallClock::now();
  if (now < next_watch_) return;
  next_watch_ = now + watch_interval;
  notice_departures(now);
  std::erase_if(departures_, [&](Departure& departure) {
    if (now < departure.receives_end) return false;
    if (!departure.aborted) {
      abort_receives(departure, now);
      return false;
    }
    worker_->fault(
        [&](const Operation& operation) {
          return operation.peer == departure.fabric && operation.began <= departure.latest;
        },
        gone_fault());
    return true;
  });
}

// Runs before a new connection to an abandoned peer: only operations under way now end with the old one.
void UcxFabric::end_departures(std::uint64_t fabric) {
  const auto now = WallClock::now();
  notice_departures(now);
  bool any = false;
  for (Departure& departure : departures_) {
    if (departure.fabric != fabric) continue;
    any = true;
    departure.latest = std::min(departure.latest, now);
    if (!departure.aborted) abort_receives(departure, now);
  }
  if (!any) return;
  // Another endpoint to the same peer may still fail, such as one on which its receives arrived.
  for (UcxEndpoint* const endpoint : *endpoints_) {
    if (endpoint->peer_fabric() == fabric) endpoint->replaced = std::min(endpoint->replaced, now);
  }
}

bool UcxFabric::run_handlers() {
  const bool arrived = !worker_->arrivals.empty();
  // Only those present now: handlers may post.
  for (std::size_t left = worker_->arrivals.size(); left > 0; --left) {
    Arrival arrival = std::move(worker_->arrivals.front());
    worker_->arrivals.pop_front();
    const bool ours = arrival.header_bytes >= sizeof(std::uint64_t);
    UcxIncoming incoming(*worker_, std::move(arrival));
    if (ours && handler_) handler_(incoming);
  }
  bool any = worker_->complete() || arrived;
  for (const ReadingDevice& device : reading_->devices()) any = device.worker->complete() || any;
  return any;
}

bool UcxFabric::progress() {
  const ScopedLogSuppression no_log;
  bool advanced = worker_->progress();
  for (const ReadingDevice& device : reading_->devices()) advanced = device.worker->progress() || advanced;
  for (UcxEndpoint* const endpoint : *endpoints_) endpoint->post();
  watch_peers();
  return run_handlers() || advanced;
}

bool UcxFabric::arm() {
  const ScopedLogSuppression no_log;
  if (!departures_.empty()) return false;  // their receives end by the clock
  next_watch_ = {};                        // the wake-up may mean that a peer died
  if (std::ranges::any_of(*endpoints_, [](const auto* endpoint) { return endpoint->may_post(); })) return false;
  return worker_->arm() &&
         std::ranges::all_of(reading_->devices(), [](const ReadingDevice& device) { return device.worker->arm(); });
}

}  // namespace

std::unique_ptr<Fabric> open(FindDevices find_devices) {
  return std::make_unique<UcxFabric>(find_devices);
}

}  // namespace shardwire::transport::ucx

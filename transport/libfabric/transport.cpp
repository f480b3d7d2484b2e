// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_errno.h>

#include <algorithm>
#include <array>
#include <utility>

#include "transport/libfabric/endpoint.hpp"
#include "transport/module.hpp"

namespace shardwire::transport::libfabric {
namespace {

constexpr auto watch_interval = std::chrono::milliseconds(5);
constexpr int descriptors_to_open = 24;
constexpr std::size_t serving_entries = 64;  // none of our operations ends there
constexpr std::size_t max_name_bytes = 1024;

std::uint64_t random_id() {
  std::random_device random;
  return (std::uint64_t{random()} << 32) | random();
}

std::string why_no_gpus(const Rules& rules) {
  if (rules.device_memory) return {};
  if (!rules.hardware) return "reads by software go into host memory only";
  return fmt::format("{} of this libfabric does not take memory of GPUs (FI_HMEM), or there is no driver",
                     rules.provider);
}

std::shared_ptr<FabricState> open_state() {
  support::require_descriptors(descriptors_to_open, "opening libfabric");
  return std::make_shared<FabricState>(FabricState{.domain = std::make_shared<Domain>(find_provider(Asked::by_name))});
}

Bytes name_of(fid_ep* endpoint) {
  Bytes name(max_name_bytes);
  std::size_t bytes = name.size();
  check(fi_getname(&endpoint->fid, name.data(), &bytes), "ask an endpoint for its address");
  name.resize(bytes);
  return name;
}

class LibfabricFabric final : public Fabric {
 public:
  explicit LibfabricFabric(FindDevices find_devices);
  ~LibfabricFabric() override;
  LibfabricFabric(const LibfabricFabric&) = delete;
  LibfabricFabric& operator=(const LibfabricFabric&) = delete;

  [[nodiscard]] std::string_view name() const override { return "libfabric"; }
  [[nodiscard]] std::string version() const override { return library_version(); }
  [[nodiscard]] std::string domain() const override { return protocol_of(state_->domain->rules()); }
  [[nodiscard]] Bytes address() const override { return encode(address_); }
  [[nodiscard]] SocketNeeds sockets() const override {
    return {.kind = SocketNeeds::Kind::network, .count = 1, .max_count = 1};
  }
  using Fabric::allocate;
  std::unique_ptr<Region> allocate(ByteCount size_bytes, const MemoryPlace& place) override {
    return allocate_region(state_->domain, serving_.endpoint.get(), address_.fabric, size_bytes, place);
  }
  std::unique_ptr<Region> adopt(const Memory& memory) override {
    return adopt_region(state_->domain, serving_.endpoint.get(), address_.fabric, memory, *state_->gpus);
  }
  std::unique_ptr<Endpoint> connect(PeerAddress at) override;
  void on_message(MessageHandler /*handler*/) override {}  // no message ever arrives
  bool progress() override;
  [[nodiscard]] int event_descriptor() const override {
    return serving_.descriptor < 0 ? -1 : state_->wake.descriptor();
  }
  bool arm() override;
  [[nodiscard]] std::string take_warning() override;

 private:
  bool serve();

  std::shared_ptr<FabricState> state_ = open_state();  // owners: the fabric and its endpoints
  OpenEndpoint serving_ = state_->domain->open_endpoint(serving_entries);
  Address address_{.fabric = random_id(),
                   .format = state_->domain->rules().address_format,
                   .name = name_of(serving_.endpoint.get())};
  std::shared_ptr<Endpoints> endpoints_ = std::make_shared<Endpoints>();  // owners: the fabric and its endpoints
  WallClock::time_point next_watch_{};
  std::vector<fid*> queues_;  // for arm(), which a session calls each time before it sleeps
  std::string warning_ = state_->domain->warning();
};

LibfabricFabric::LibfabricFabric(FindDevices find_devices) {
  const auto try_with = [domain = state_->domain.get(), serving = serving_.endpoint.get()](const Memory& memory) {
    static_cast<void>(domain->register_memory(memory, FI_REMOTE_READ | FI_READ, serving));
  };
  state_->gpus = std::make_shared<GpuDirect>(GpuDirect::Setup{.find_devices = find_devices,
                                                              .why_never = why_no_gpus(state_->domain->rules()),
                                                              .takes_chunks = true,
                                                              .try_with = try_with});
  if (state_->domain->rules().provider == "efa" && emulates_reads(*serving_.endpoint).value_or(false)) {
    throw Error(
        ErrorCode::unsupported,
        "the libfabric transport is off: this EFA has no RDMA reads (FI_EFA_USE_DEVICE_RDMA=1 asks for them), and "
        "messages are tcp's");
  }
  state_->wake.listen(serving_.descriptor);
}

LibfabricFabric::~LibfabricFabric() {
  for (LibfabricEndpoint* const endpoint : *endpoints_) endpoint->close();
  state_->wake.unlisten(serving_.descriptor);
}

std::unique_ptr<Endpoint> LibfabricFabric::connect(PeerAddress at) {
  Address peer = decode_address(at.address, address_);
  if (at.sockets.size() != 1) {
    throw Error(
        ErrorCode::unsupported,
        fmt::format("the libfabric transport needs one connected socket to its peer and got {}", at.sockets.size()));
  }
  if (at.sockets.front().encryption) throw Error(ErrorCode::unsupported, "the libfabric transport does not encrypt");
  return std::make_unique<LibfabricEndpoint>(state_, endpoints_, std::move(peer),
                                             std::move(at.sockets.front().descriptor));
}

// Answers reads if the provider answers them in software. The only completions here are failed connections.
bool LibfabricFabric::serve() {
  std::array<fi_cq_entry, serving_entries> entries;
  const ssize_t count = fi_cq_read(serving_.queue.get(), entries.data(), entries.size());
  if (count == -FI_EAGAIN || count == 0) return false;
  if (count == -FI_EAVAIL) {
    fi_cq_err_entry error{};
    (void)fi_cq_readerr(serving_.queue.get(), &error, 0);
  } else if (count < 0) {
    check(static_cast<int>(count), "answer reads");
  }
  return true;
}

bool LibfabricFabric::progress() {
  bool advanced = serve();
  for (LibfabricEndpoint* const endpoint : *endpoints_) advanced = endpoint->progress() || advanced;
  if (const auto now = WallClock::now(); now >= next_watch_) {
    next_watch_ = now + watch_interval;
    for (LibfabricEndpoint* const endpoint : *endpoints_) advanced = endpoint->watch() || advanced;
  }
  return state_->finished.run() || advanced;
}

bool LibfabricFabric::arm() {
  next_watch_ = {};  // the wake-up may mean that a peer died
  if (!state_->finished.empty()) return false;
  queues_.assign(1, &serving_.queue->fid);
  for (const LibfabricEndpoint* const endpoint : *endpoints_) {
    const ReadChannel* const channel = endpoint->channel();
    if (channel == nullptr) continue;
    if (channel->must_poll()) return false;
    if (fid* const queue = channel->queue()) queues_.push_back(queue);
  }
  return state_->domain->arm(queues_);
}

std::string LibfabricFabric::take_warning() {
  std::string warning = std::exchange(warning_, {});
  const std::string unclosed = take_unclosed();
  if (!warning.empty() && !unclosed.empty()) warning += "; ";
  return warning + unclosed;
}

}  // namespace

std::unique_ptr<Fabric> open(FindDevices find_devices) {
  return std::make_unique<LibfabricFabric>(find_devices);
}

}  // namespace shardwire::transport::libfabric

// SPDX-License-Identifier: Apache-2.0
// The module libshardwire-perf-ucx-get: the part of `shardwire perf` that calls ucp_get_nbx itself.
#include <sched.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "perf/measure/read_loop.hpp"
#include "support/module_build.hpp"
#include "transport/ucx/handles.hpp"

namespace shardwire::perf {

using transport::ucx::check;
using transport::ucx::Config;
using transport::ucx::ContextHandle;
using transport::ucx::WorkerHandle;

namespace {

// Before its key, if it has any memory, and its worker's address.
struct PeerRecord {
  std::uint64_t begin = 0;
  std::uint64_t key_bytes = 0;
  std::uint64_t address_bytes = 0;
};

void append(std::vector<std::byte>& out, const void* data, std::size_t bytes) {
  const auto* const first = static_cast<const std::byte*>(data);
  out.insert(out.end(), first, first + bytes);
}

struct KeyDeleter {
  void operator()(ucp_rkey* key) const { ucp_rkey_destroy(key); }
};
using KeyHandle = std::unique_ptr<ucp_rkey, KeyDeleter>;

// A context with one worker.
struct Side {
  explicit Side(bool tcp);

  ContextHandle context;
  WorkerHandle worker;
};

// One thread per side, since not every UCX is built for more: who serves has a context of its own, as a session does. It may
// be written to as well, since only so does UCX emulate reads, where there is no hardware.
Side::Side(bool tcp) {
  ucp_config_t* read = nullptr;
  check(ucp_config_read(nullptr, nullptr, &read), "read the configuration of UCX");
  const Config config(read);
  if (tcp) {
    check(ucp_config_modify(config.get(), "TLS", "tcp,self"), "choose the transports of UCX");
    if (std::getenv("UCX_NET_DEVICES") == nullptr) {  // a job on several hosts names them
      check(ucp_config_modify(config.get(), "NET_DEVICES", "lo"), "choose the devices of UCX");
    }
  } else if (std::getenv("UCX_TLS") == nullptr) {
    check(ucp_config_modify(config.get(), "TLS", "ib"), "choose the transports of UCX");
  }
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_RMA | UCP_FEATURE_WAKEUP;
  ucp_context_h opened = nullptr;
  check(ucp_init(&params, config.get(), &opened), "open a UCX context");
  context.reset(opened);
  const ucp_worker_params_t worker_params{};
  ucp_worker_h created = nullptr;
  check(ucp_worker_create(opened, &worker_params, &created), "create a UCX worker");
  worker.reset(created);
}

// A peer, and the list that is read from it now.
struct Peer {
  ucp_ep* endpoint = nullptr;
  KeyHandle key;
  std::uint64_t begin = 0;
  const ReadList* list = nullptr;
  std::size_t next = 0;
  int under_way = 0;
  ucs_status_t status = UCS_OK;
};

void on_read(void* request, ucs_status_t status, void* user_data) noexcept {
  auto* const peer = static_cast<Peer*>(user_data);
  --peer->under_way;
  if (status != UCS_OK) peer->status = status;
  ucp_request_free(request);
}

class UcxReadLoop final : public ReadLoop {
 public:
  explicit UcxReadLoop(bool tcp) : serving_(tcp), reading_(tcp) {}
  ~UcxReadLoop() override;
  UcxReadLoop(const UcxReadLoop&) = delete;
  UcxReadLoop& operator=(const UcxReadLoop&) = delete;

  std::vector<std::byte> expose(std::span<std::byte> memory) override;
  void connect(std::span<const std::byte> peer) override;
  void read(std::span<const ReadList> lists, Idle idle) override;

 private:
  void serve();
  static void post(Peer& peer);

  Side serving_;
  Side reading_;
  ucp_mem_h memory_ = nullptr;
  std::vector<std::unique_ptr<Peer>> peers_;  // UCX points at them
  std::atomic<bool> stop_ = false;
  std::thread server_;
};

UcxReadLoop::~UcxReadLoop() {
  for (const auto& peer : peers_) {
    peer->key.reset();
    ucp_request_param_t params{};
    params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    params.flags = UCP_EP_CLOSE_FLAG_FORCE;
    ucs_status_ptr_t const request = ucp_ep_close_nbx(peer->endpoint, &params);
    if (!UCS_PTR_IS_PTR(request)) continue;
    while (ucp_request_check_status(request) == UCS_INPROGRESS) ucp_worker_progress(reading_.worker.get());
    ucp_request_free(request);
  }
  if (server_.joinable()) {
    stop_ = true;
    ucp_worker_signal(serving_.worker.get());
    server_.join();
  }
  if (memory_ != nullptr) ucp_mem_unmap(serving_.context.get(), memory_);
}

std::vector<std::byte> UcxReadLoop::expose(std::span<std::byte> memory) {
  PeerRecord record{.begin = reinterpret_cast<std::uintptr_t>(memory.data())};
  std::vector<std::byte> key;
  if (!memory.empty()) {
    ucp_mem_map_params_t params{};
    params.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH;
    params.address = memory.data();
    params.length = memory.size();
    check(ucp_mem_map(serving_.context.get(), &params, &memory_), "register memory that is read");
    void* packed = nullptr;
    std::size_t bytes = 0;
    check(ucp_rkey_pack(serving_.context.get(), memory_, &packed, &bytes), "pack the key of memory that is read");
    append(key, packed, bytes);
    ucp_rkey_buffer_release(packed);
  }
  ucp_address_t* address = nullptr;
  std::size_t address_bytes = 0;
  check(ucp_worker_get_address(serving_.worker.get(), &address, &address_bytes), "get the address of a UCX worker");
  record.key_bytes = key.size();
  record.address_bytes = address_bytes;
  std::vector<std::byte> out;
  append(out, &record, sizeof(record));
  append(out, key.data(), key.size());
  append(out, address, address_bytes);
  ucp_worker_release_address(serving_.worker.get(), address);
  server_ = std::thread([this] { serve(); });
  return out;
}

// Connections are made by both sides, whatever reads afterwards.
void UcxReadLoop::serve() {
  while (!stop_) {
    while (ucp_worker_progress(serving_.worker.get()) != 0) {
    }
    if (ucp_worker_wait(serving_.worker.get()) != UCS_OK) ::sched_yield();
  }
}

void UcxReadLoop::connect(std::span<const std::byte> bytes) {
  PeerRecord record;
  if (bytes.size() < sizeof(record)) throw Error(ErrorCode::transport_failed, "a peer's address is too short");
  std::memcpy(&record, bytes.data(), sizeof(record));
  bytes = bytes.subspan(sizeof(record));
  if (record.key_bytes > bytes.size() || record.address_bytes != bytes.size() - record.key_bytes) {
    throw Error(ErrorCode::transport_failed, "a peer's address has another length than it says");
  }
  auto peer = std::make_unique<Peer>();
  peer->begin = record.begin;
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
  params.address = reinterpret_cast<const ucp_address_t*>(bytes.data() + record.key_bytes);
  check(ucp_ep_create(reading_.worker.get(), &params, &peer->endpoint), "make a UCX endpoint");
  peers_.push_back(std::move(peer));
  if (record.key_bytes > 0) {
    ucp_rkey_h key = nullptr;
    check(ucp_ep_rkey_unpack(peers_.back()->endpoint, bytes.data(), &key), "read the key of a peer's memory");
    peers_.back()->key.reset(key);
  }
}

void UcxReadLoop::post(Peer& peer) {
  const ReadList::Range& range = peer.list->ranges[peer.next++];
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FLAG_MULTI_SEND;
  params.cb.send = on_read;
  params.user_data = &peer;
  const ucs_status_ptr_t request = ucp_get_nbx(peer.endpoint, range.into.data(), range.into.size(),
                                               peer.begin + range.offset_bytes, peer.key.get(), &params);
  if (UCS_PTR_IS_ERR(request)) check(UCS_PTR_STATUS(request), "read a peer's memory");
  if (UCS_PTR_IS_PTR(request)) ++peer.under_way;  // what ends at once is not called back for
}

void UcxReadLoop::read(std::span<const ReadList> lists, Idle idle) {
  std::vector<Peer*> busy;
  for (const ReadList& list : lists) {
    Peer& peer = *peers_.at(list.peer);
    if (!list.ranges.empty() && !peer.key) throw Error(ErrorCode::transport_failed, "a peer has nothing to read");
    peer.list = &list;
    peer.next = 0;
    busy.push_back(&peer);
  }
  ucp_worker* const worker = reading_.worker.get();
  while (true) {
    bool done = true;
    for (Peer* const peer : busy) {
      while (peer->next < peer->list->ranges.size() && peer->under_way < max_under_way) post(*peer);
      check(peer->status, "read a peer's memory");
      done = done && peer->next == peer->list->ranges.size() && peer->under_way == 0;
    }
    if (done) return;
    if (ucp_worker_progress(worker) != 0) continue;
    if (idle == Idle::yield) {
      ::sched_yield();
    } else {
      check(ucp_worker_wait(worker), "wait for a UCX worker");
    }
  }
}

std::unique_ptr<ReadLoop> open(bool tcp) {
  return std::make_unique<UcxReadLoop>(tcp);
}

std::string version() {
  return std::string("ucx ") + ucp_get_version_string();
}

}  // namespace
}  // namespace shardwire::perf

extern "C" {

[[gnu::visibility("default")]] const char* shardwire_module_build() {
  return shardwire::support::module_build;
}

[[gnu::visibility("default")]] const void* shardwire_module_table() {
  static constexpr shardwire::perf::ReadModule table{shardwire::perf::open, shardwire::perf::version};
  return &table;
}

}  // extern "C"

// SPDX-License-Identifier: Apache-2.0
// The module libshardwire-perf-ucx-get: the part of `shardwire perf` that calls ucp_get_nbx directly.
#include <sched.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "perf/measure/read_loop.hpp"
#include "perf/measure/ucx_side.hpp"
#include "support/module_build.hpp"

namespace shardwire::perf {

using transport::ucx::check;

namespace {

constexpr std::uint64_t features = UCP_FEATURE_RMA | UCP_FEATURE_WAKEUP;
constexpr const char* hardware = "ib";

// Followed by its key, if it has any memory, and its worker's address.
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

// A peer, and the list being read from it.
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

// One thread per side, since not every UCX build supports more: the serving side has its own context, as in a session.
// Exposed memory is also writable by peers, because only then does UCX emulate reads without hardware.
class UcxReadLoop final : public ReadLoop {
 public:
  explicit UcxReadLoop(bool tcp) : serving_(tcp, features, hardware), reading_(tcp, features, hardware) {}
  ~UcxReadLoop() override;
  UcxReadLoop(const UcxReadLoop&) = delete;
  UcxReadLoop& operator=(const UcxReadLoop&) = delete;

  std::vector<std::byte> expose(std::span<std::byte> memory) override;
  void connect(std::span<const std::byte> peer) override;
  void read(std::span<const ReadList> lists, Idle idle) override;

 private:
  void serve();
  static void post(Peer& peer);

  UcxSide serving_;
  UcxSide reading_;
  ucp_mem_h memory_ = nullptr;
  std::vector<std::unique_ptr<Peer>> peers_;  // UCX points at them
  std::atomic<bool> stop_ = false;
  std::thread server_;
};

UcxReadLoop::~UcxReadLoop() {
  for (const auto& peer : peers_) peer->key.reset();
  reading_.close_endpoints();  // while the peers that UCX calls back for exist
  if (server_.joinable()) {
    stop_ = true;
    ucp_worker_signal(serving_.worker());
    server_.join();
  }
  if (memory_ != nullptr) ucp_mem_unmap(serving_.context(), memory_);
}

std::vector<std::byte> UcxReadLoop::expose(std::span<std::byte> memory) {
  PeerRecord record{.begin = reinterpret_cast<std::uintptr_t>(memory.data())};
  std::vector<std::byte> key;
  if (!memory.empty()) {
    ucp_mem_map_params_t params{};
    params.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH;
    params.address = memory.data();
    params.length = memory.size();
    check(ucp_mem_map(serving_.context(), &params, &memory_), "register memory that is read");
    void* packed = nullptr;
    std::size_t bytes = 0;
    check(ucp_rkey_pack(serving_.context(), memory_, &packed, &bytes), "pack the key of memory that is read");
    append(key, packed, bytes);
    ucp_rkey_buffer_release(packed);
  }
  const std::vector<std::byte> address = serving_.address();
  record.key_bytes = key.size();
  record.address_bytes = address.size();
  std::vector<std::byte> out;
  append(out, &record, sizeof(record));
  append(out, key.data(), key.size());
  append(out, address.data(), address.size());
  server_ = std::thread([this] { serve(); });
  return out;
}

// Both sides must progress to connect, whichever reads afterwards.
void UcxReadLoop::serve() {
  while (!stop_) {
    while (ucp_worker_progress(serving_.worker()) != 0) {
    }
    if (ucp_worker_wait(serving_.worker()) != UCS_OK) ::sched_yield();
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
  peer->endpoint = reading_.connect(bytes.subspan(record.key_bytes));
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
  if (UCS_PTR_IS_PTR(request)) ++peer.under_way;  // an operation that ends at once gets no callback
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
  ucp_worker* const worker = reading_.worker();
  while (true) {
    bool done = true;
    for (Peer* const peer : busy) {
      while (peer->next < peer->list->ranges.size() && peer->under_way < max_under_way) post(*peer);
      check(peer->status, "read a peer's memory");
      done = done && peer->next == peer->list->ranges.size() && peer->under_way == 0;
    }
    if (done) return;
    if (ucp_worker_progress(worker) == 0) reading_.wait(idle);
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

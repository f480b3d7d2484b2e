// SPDX-License-Identifier: Apache-2.0
// The module libshardwire-perf-libfabric: the part of `shardwire perf` that calls fi_read directly.
#include <poll.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "perf/measure/read_loop.hpp"
#include "support/module_build.hpp"
#include "support/wake_event.hpp"
#include "transport/libfabric/domain.hpp"

namespace shardwire::perf {

using transport::Memory;
using transport::libfabric::check;
using transport::libfabric::Domain;
using transport::libfabric::fault_of;
using transport::libfabric::OpenEndpoint;
using transport::libfabric::protocol_of;
using transport::libfabric::Provider;
using transport::libfabric::ProviderRegistration;

namespace {

constexpr std::string_view over_tcp = "tcp;ofi_rxm";
constexpr std::size_t serving_entries = 64;  // nothing that is waited for ends there
constexpr std::size_t max_name_bytes = 1024;

// Followed by the name of the serving endpoint, and the domain's protocol.
struct PeerRecord {
  std::uint64_t memory_bytes = 0;
  std::uint64_t begin = 0;
  std::uint64_t key = 0;
  std::uint64_t name_bytes = 0;
};

void append(std::vector<std::byte>& out, const void* data, std::size_t bytes) {
  const auto* const first = static_cast<const std::byte*>(data);
  out.insert(out.end(), first, first + bytes);
}

// The provider that the transport libfabric of a session would use.
Provider found_provider(bool tcp) {
  Provider found = transport::libfabric::find_provider(transport::Asked::by_name);
  if (!found.info) throw Error(ErrorCode::unsupported, transport::libfabric::library_version() + ": " + found.why_not);
  if (tcp && found.rules.provider != over_tcp) {
    throw Error(ErrorCode::unsupported,
                "libfabric would use " + found.rules.provider + "; FI_PROVIDER=tcp keeps it to TCP");
  }
  return found;
}

// Waits until one of the queues has an entry or `descriptor` is readable. Returns at once if this cannot be detected.
void sleep_on(const Domain& domain, std::span<const OpenEndpoint* const> endpoints, int descriptor) {
  std::vector<fid*> queues;
  std::vector<pollfd> waited;
  if (descriptor >= 0) waited.push_back({descriptor, POLLIN, 0});
  for (const OpenEndpoint* const one : endpoints) {
    if (one->descriptor < 0) {
      ::sched_yield();
      return;
    }
    queues.push_back(&one->queue->fid);
    waited.push_back({one->descriptor, POLLIN, 0});
  }
  if (domain.arm(queues)) ::poll(waited.data(), waited.size(), -1);
}

// Keeps an endpoint that must not be closed while it reads: it is no longer polled.
void leave_behind(OpenEndpoint opened) {
  static auto& left = *new std::vector<OpenEndpoint>;
  left.push_back(std::move(opened));
}

// A peer, and the list being read from it. It has its own endpoint, since libfabric limits operations under way per
// endpoint.
class Peer {
 public:
  Peer(Domain& domain, std::span<const std::byte> address);
  ~Peer();
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  void begin(const ReadList& list);
  /// Returns whether anything advanced.
  bool advance();
  [[nodiscard]] bool done() const { return next_ == list_->ranges.size() && idle(); }
  /// No descriptor reports when to continue: a first read is refused until there is a connection, which only polling
  /// advances.
  [[nodiscard]] bool must_be_looked_at() const { return idle(); }
  [[nodiscard]] const OpenEndpoint& opened() const { return opened_; }

 private:
  [[nodiscard]] bool idle() const { return free_.size() == operations_.size(); }
  void register_target();
  bool post();
  bool complete();

  Domain& domain_;
  PeerRecord record_;
  std::vector<fi_context2> operations_;  // libfabric writes into them
  std::vector<fi_context2*> free_;
  std::shared_ptr<const ProviderRegistration> target_;  // owner: this; null if libfabric requires none
  OpenEndpoint opened_;
  fi_addr_t address_ = FI_ADDR_UNSPEC;
  const ReadList* list_ = nullptr;
  std::size_t next_ = 0;          // index of the range
  std::size_t posted_bytes_ = 0;  // of this range
};

Peer::Peer(Domain& domain, std::span<const std::byte> address)
    : domain_(domain),
      operations_(std::min<std::size_t>(ReadLoop::max_under_way, domain.rules().window)),
      opened_(domain.open_endpoint(operations_.size())) {
  for (fi_context2& one : operations_) free_.push_back(&one);
  if (address.size() < sizeof(record_)) throw Error(ErrorCode::transport_failed, "a peer's address is too short");
  std::memcpy(&record_, address.data(), sizeof(record_));
  address = address.subspan(sizeof(record_));
  if (record_.name_bytes > address.size()) {
    throw Error(ErrorCode::transport_failed, "a peer's address has another length than it says");
  }
  const auto protocol = address.subspan(record_.name_bytes);
  const std::string theirs(reinterpret_cast<const char*>(protocol.data()), protocol.size());
  if (theirs != protocol_of(domain.rules())) {
    throw Error(ErrorCode::unsupported,
                "a peer has libfabric use " + theirs + ", and here it is " + protocol_of(domain.rules()));
  }
  if (fi_av_insert(opened_.addresses.get(), address.data(), 1, &address_, 0, nullptr) != 1) {
    throw Error(ErrorCode::transport_failed, "the provider does not take the peer's address");
  }
}

Peer::~Peer() {
  if (!idle() && !domain_.rules().close_ends_reads) leave_behind(std::move(opened_));
}

void Peer::begin(const ReadList& list) {
  if (!list.ranges.empty() && record_.memory_bytes == 0) {
    throw Error(ErrorCode::transport_failed, "a peer has nothing to read");
  }
  list_ = &list;
  next_ = 0;
  posted_bytes_ = 0;
  if (!list.ranges.empty() && domain_.rules().local_registration) register_target();
}

// Registers the range from the first to the last target of the list, including the gaps.
void Peer::register_target() {
  std::byte* first = list_->ranges.front().into.data();
  std::byte* last = first;
  for (const ReadList::Range& range : list_->ranges) {
    first = std::min(first, range.into.data());
    last = std::max(last, range.into.data() + range.into.size());
  }
  const Memory all{first, static_cast<ByteCount>(last - first), {}};
  if (target_ && target_->covers(all)) return;
  target_ = domain_.register_memory(all, FI_READ, opened_.endpoint.get());
}

bool Peer::advance() {
  const bool completed = complete();
  bool posted = false;
  while (next_ < list_->ranges.size() && !free_.empty() && post()) posted = true;
  return completed || posted;
}

// False: cannot be posted now.
bool Peer::post() {
  const ReadList::Range& range = list_->ranges[next_];
  const std::size_t bytes = std::min<std::size_t>(range.into.size() - posted_bytes_,
                                                  static_cast<std::size_t>(domain_.rules().max_read_bytes));
  const ssize_t status = fi_read(opened_.endpoint.get(), range.into.data() + posted_bytes_, bytes,
                                 target_ ? fi_mr_desc(target_->handle.get()) : nullptr, address_,
                                 record_.begin + range.offset_bytes + posted_bytes_, record_.key, free_.back());
  if (status == -FI_EAGAIN) return false;
  check(static_cast<int>(status), "read a peer's memory");
  free_.pop_back();
  posted_bytes_ += bytes;
  if (posted_bytes_ == range.into.size()) {
    ++next_;
    posted_bytes_ = 0;
  }
  return true;
}

bool Peer::complete() {
  std::array<fi_cq_entry, ReadLoop::max_under_way> entries;
  const ssize_t count = fi_cq_read(opened_.queue.get(), entries.data(), entries.size());
  if (count == -FI_EAGAIN) return false;
  if (count == -FI_EAVAIL) {
    fi_cq_err_entry error{};
    (void)fi_cq_readerr(opened_.queue.get(), &error, 0);
    const auto fault = fault_of(std::abs(error.err), "read a peer's memory");  // one provider negates it
    throw Error(fault.code, fault.message);
  }
  if (count < 0) check(static_cast<int>(count), "look for reads that have ended");
  for (ssize_t i = 0; i < count; ++i) {
    free_.push_back(static_cast<fi_context2*>(entries[static_cast<std::size_t>(i)].op_context));
  }
  return count > 0;
}

// One thread and one domain per side, so that the sides do not wait for each other's locks.
class FiReadLoop final : public ReadLoop {
 public:
  explicit FiReadLoop(bool tcp) : serving_domain_(found_provider(tcp)), reading_domain_(found_provider(tcp)) {}
  ~FiReadLoop() override;
  FiReadLoop(const FiReadLoop&) = delete;
  FiReadLoop& operator=(const FiReadLoop&) = delete;

  std::vector<std::byte> expose(std::span<std::byte> memory) override;
  void connect(std::span<const std::byte> peer) override {
    peers_.push_back(std::make_unique<Peer>(reading_domain_, peer));
  }
  void read(std::span<const ReadList> lists, Idle idle) override;

 private:
  void serve();
  [[nodiscard]] std::vector<std::byte> name() const;

  Domain serving_domain_;
  Domain reading_domain_;
  OpenEndpoint serving_ = serving_domain_.open_endpoint(serving_entries);
  std::shared_ptr<const ProviderRegistration> exposed_;  // owner: this
  std::vector<std::unique_ptr<Peer>> peers_;
  support::WakeEvent wake_;
  std::atomic<bool> stop_ = false;
  std::thread server_;
};

FiReadLoop::~FiReadLoop() {
  if (!server_.joinable()) return;
  stop_ = true;
  wake_.signal();
  server_.join();
}

std::vector<std::byte> FiReadLoop::name() const {
  std::vector<std::byte> out(max_name_bytes);
  std::size_t bytes = out.size();
  check(fi_getname(&serving_.endpoint->fid, out.data(), &bytes), "ask an endpoint for its address");
  out.resize(bytes);
  return out;
}

std::vector<std::byte> FiReadLoop::expose(std::span<std::byte> memory) {
  PeerRecord record{.memory_bytes = memory.size()};
  if (!memory.empty()) {
    exposed_ = serving_domain_.register_memory(transport::host_memory(memory), FI_REMOTE_READ, serving_.endpoint.get());
    record.key = fi_mr_key(exposed_->handle.get());
    if (record.key == FI_KEY_NOTAVAIL) {
      throw Error(ErrorCode::unsupported, "the provider's keys are longer than 8 bytes");
    }
    if (serving_domain_.rules().virtual_addresses) record.begin = reinterpret_cast<std::uintptr_t>(memory.data());
  }
  const std::vector<std::byte> address = name();
  const std::string protocol = protocol_of(serving_domain_.rules());
  record.name_bytes = address.size();
  std::vector<std::byte> out;
  append(out, &record, sizeof(record));
  append(out, address.data(), address.size());
  append(out, protocol.data(), protocol.size());
  server_ = std::thread([this] { serve(); });
  return out;
}

// Both sides must progress to connect, and software providers need the serving side to answer reads. The only
// completions here are failed connections.
void FiReadLoop::serve() {
  const std::array all{static_cast<const OpenEndpoint*>(&serving_)};
  std::array<fi_cq_entry, serving_entries> entries;
  while (!stop_) {
    const ssize_t count = fi_cq_read(serving_.queue.get(), entries.data(), entries.size());
    if (count > 0) continue;
    if (count == -FI_EAVAIL) {
      fi_cq_err_entry error{};
      (void)fi_cq_readerr(serving_.queue.get(), &error, 0);
      continue;
    }
    sleep_on(serving_domain_, all, wake_.descriptor());
  }
}

void FiReadLoop::read(std::span<const ReadList> lists, Idle idle) {
  std::vector<Peer*> busy;
  for (const ReadList& list : lists) {
    busy.push_back(peers_.at(list.peer).get());
    busy.back()->begin(list);
  }
  while (true) {
    bool moved = false;
    for (Peer* const peer : busy) moved = peer->advance() || moved;
    std::erase_if(busy, [](const Peer* peer) { return peer->done(); });
    if (busy.empty()) return;
    if (moved) continue;
    if (idle == Idle::yield || std::ranges::any_of(busy, [](const Peer* peer) { return peer->must_be_looked_at(); })) {
      ::sched_yield();
      continue;
    }
    std::vector<const OpenEndpoint*> endpoints(busy.size());
    std::ranges::transform(busy, endpoints.begin(), [](const Peer* peer) { return &peer->opened(); });
    sleep_on(reading_domain_, endpoints, -1);
  }
}

std::unique_ptr<ReadLoop> open(bool tcp) {
  return std::make_unique<FiReadLoop>(tcp);
}

}  // namespace
}  // namespace shardwire::perf

extern "C" {

[[gnu::visibility("default")]] const char* shardwire_module_build() {
  return shardwire::support::module_build;
}

[[gnu::visibility("default")]] const void* shardwire_module_table() {
  static constexpr shardwire::perf::ReadModule table{shardwire::perf::open,
                                                     shardwire::transport::libfabric::library_version};
  return &table;
}

}  // extern "C"

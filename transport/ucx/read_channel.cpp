// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx/read_channel.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "transport/bytes.hpp"
#include "transport/read_check.hpp"
#include "transport/ucx/lanes.hpp"

namespace shardwire::transport::ucx {
namespace {

// A NIC processes about 16 reads of a queue pair at a time; further posted reads queue in it.
constexpr int max_under_way = 64;
constexpr auto drain_time = std::chrono::milliseconds(500);

constexpr std::uint64_t key_magic = 0x72646b6579756378ULL;
struct KeyRecord {
  std::uint64_t magic = key_magic;
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;
};

// UCX parses a key without its length: up to 64 memory domains, each with a part whose length is one byte.
constexpr std::size_t max_bytes_that_ucx_reads = 64 * 512;

// The peer's NIC has refused: the key no longer opens this memory. From then on it refuses everything on the same queue
// pair.
Fault fault_of_channel(ucs_status_t status) {
  if (status != UCS_ERR_CONNECTION_RESET) return fault_of(status, "read a peer's memory");
  return {ErrorCode::withdrawn, "the peer's NIC refuses to read there: the memory is not registered any more"};
}

bool all_posted(const ReadList& list) {
  return list.next == list.ranges.size();
}

void on_read(void* request, ucs_status_t status, void* user_data) noexcept {
  auto* const operation = static_cast<Operation*>(user_data);
  ReadList& list = operation->reads;
  --list.under_way;
  --list.window->under_way;
  if (status != UCS_OK && list.status == UCS_OK) list.status = status;
  if (all_posted(list) && list.under_way == 0) {
    if (list.status == UCS_OK || list.window->abandoned) {
      operation->worker->finish(operation, list.status);
    } else {
      list.window->failed.push_back(operation);
    }
  }
  ucp_request_free(request);
}

}  // namespace

Bytes encode_key(const MappedMemory* mapped, const Memory& memory) {
  Bytes out;
  append(out, KeyRecord{.begin = reinterpret_cast<std::uintptr_t>(memory.address), .bytes = memory.bytes});
  if (mapped != nullptr) append_bytes(out, mapped->packed_key());
  seal(out);
  return out;
}

ReadChannel::ReadChannel(ReadingDevice device, ByteView peer, const void* owner)
    : device_(std::move(device)), owner_(owner), connection_(*worker_, peer) {
  const std::vector<Lane>& lanes = connection_.lanes();
  const auto reads = [](const Lane& lane) { return lane.name.starts_with("rc_") || lane.name.starts_with("dc_"); };
  const auto foreign = [&](const Lane& lane) { return !reads(lane) && lane.name.find("ud_") == std::string::npos; };
  const auto reading = std::ranges::find_if(lanes, reads);
  if (reading != lanes.end() && std::ranges::none_of(lanes, foreign)) {
    carrier_ = reading->name;
    peer_domain_ = reading->peer_domain;
    return;
  }
  throw Error(ErrorCode::unsupported, "UCX has found no way to read from the peer by hardware");
}

ReadChannel::~ReadChannel() {
  const ScopedLogSuppression no_log;
  worker_->drop_completions([this](const Operation& operation) { return operation.endpoint == owner_; });
  abort({ErrorCode::cancelled, "the endpoint to the peer was closed"});
  const auto deadline = WallClock::now() + drain_time;
  while (window_->under_way > 0 && WallClock::now() < deadline) ucp_worker_progress(worker_->handle());
  end_failed();
  window_->abandoned = true;
  worker_->forget(owner_);  // their keys hold the worker
}

bool ReadChannel::failed() const {
  if (connection_.error() != UCS_OK && !window_->verdict) window_->verdict = fault_of_channel(connection_.error());
  return window_->verdict.has_value();
}

std::shared_ptr<const RemoteKey> ReadChannel::import_key(ByteView key, ByteCount size_bytes) {
  auto body = unseal(key);
  const auto record = body ? take<KeyRecord>(*body) : std::nullopt;
  // Begins with the bit mask of its memory domains. A key for none of the NIC's domains would be read in software,
  // which no peer answers.
  ByteView rest = body.value_or(ByteView());
  const auto domains = record ? take<std::uint64_t>(rest) : std::nullopt;
  const std::uint64_t wanted =
      peer_domain_ && *peer_domain_ < 64 ? std::uint64_t{1} << *peer_domain_ : ~std::uint64_t{0};
  const bool usable =
      record && record->magic == key_magic && ((domains.value_or(0) & wanted) != 0 || record->bytes == 0);
  if (!usable || size_bytes > record->bytes) {
    throw Error(ErrorCode::transport_failed, "not a key of the ucx transport, or a garbled one, or of another region");
  }
  if (record->bytes == 0) return std::make_shared<RemoteKey>(worker_, window_, nullptr, 0);
  if (failed()) throw Error(ErrorCode::peer_lost, "the connection for reads has ended");
  Bytes padded(body->size() + max_bytes_that_ucx_reads);
  std::ranges::copy(*body, padded.begin());
  ucp_rkey_h handle = nullptr;
  check(ucp_ep_rkey_unpack(connection_.handle(), padded.data(), &handle), "read the key of a peer's region");
  return std::make_shared<RemoteKey>(worker_, window_, handle, record->begin);
}

void ReadChannel::read(std::shared_ptr<const RemoteKey> key, std::span<const ReadRange> ranges, Completion done) {
  Operation operation;
  operation.endpoint = owner_;
  operation.done = std::move(done);
  operation.reads.key = std::move(key);
  operation.reads.window = window_;
  operation.reads.ranges.reserve(ranges.size());
  std::ranges::copy_if(ranges, std::back_inserter(operation.reads.ranges),
                       [](const ReadRange& range) { return !range.into.empty(); });
  Outcome unregistered = register_targets(operation.reads);
  Operation* const list = worker_->add(std::move(operation));
  if (unregistered) return worker_->finish(list, std::move(unregistered));
  if (list->reads.ranges.empty()) return worker_->finish(list, Outcome());
  if (list->reads.key->window() != window_.get()) {
    return worker_->finish(list, Outcome(Fault{ErrorCode::peer_lost, "the connection that knew the region has ended"}));
  }
  waiting_.push_back(list);
  post();
}

Outcome ReadChannel::register_targets(ReadList& list) const {
  const auto on_device = [](const ReadRange& range) { return range.into.place.kind == MemoryKind::cuda; };
  if (std::ranges::none_of(list.ranges, on_device)) return {};
  list.into.resize(list.ranges.size());
  try {
    for (std::size_t i = 0; i < list.ranges.size(); ++i) {
      if (on_device(list.ranges[i])) list.into[i] = device_.targets->around(list.ranges[i].into);
    }
  } catch (const Error& error) {
    return fault_of_target(error);
  }
  return {};
}

bool ReadChannel::may_post() const {
  if (!window_->failed.empty()) return true;
  return !waiting_.empty() && (failed() || (connection_.ready() && window_->under_way < max_under_way));
}

// UCX may report the end of the connection after it reports a read that was lost with it.
void ReadChannel::end_failed() {
  if (window_->failed.empty()) return;
  const bool known = failed();
  std::erase_if(window_->failed, [&](Operation* list) {
    if (!known && list->reads.status == UCS_ERR_CANCELED) return false;
    finish(list);
    return true;
  });
}

void ReadChannel::finish(Operation* list) {
  const ucs_status_t status = list->reads.status;
  if (status == UCS_OK) return worker_->finish(list, Outcome());
  worker_->finish(list, failed() ? window_->verdict : Outcome(fault_of_channel(status)));
}

void ReadChannel::post() {
  end_failed();
  if (waiting_.empty() || !(connection_.ready() || failed())) return;
  const ScopedLogSuppression no_log;
  while (!waiting_.empty()) {
    Operation& operation = *waiting_.front();
    ReadList& list = operation.reads;
    if (failed() && list.status == UCS_OK) list.status = UCS_ERR_CONNECTION_RESET;
    while (list.status == UCS_OK && !all_posted(list)) {
      if (window_->under_way >= max_under_way) return;
      post(operation);
    }
    list.next = list.ranges.size();
    waiting_.pop_front();
    if (list.under_way == 0) finish(&operation);
  }
}

void ReadChannel::post(Operation& operation) {
  ReadList& list = operation.reads;
  const ReadRange& range = list.ranges[list.next];
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FLAG_MULTI_SEND;
  params.cb.send = on_read;
  params.user_data = &operation;
  if (!list.into.empty() && list.into[list.next]) {
    params.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMORY_TYPE | UCP_OP_ATTR_FIELD_MEMH;
    params.memory_type = UCS_MEMORY_TYPE_CUDA;
    params.memh = list.into[list.next]->handle();
  }
  const ucs_status_ptr_t request =
      ucp_get_nbx(connection_.handle(), range.into.address, static_cast<std::size_t>(range.into.bytes),
                  list.key->begin() + range.offset_bytes, list.key->handle(), &params);
  ++list.next;
  if (UCS_PTR_IS_PTR(request)) {  // an operation that ends at once gets no callback
    ++list.under_way;
    ++window_->under_way;
  } else if (UCS_PTR_STATUS(request) != UCS_OK) {
    list.status = UCS_PTR_STATUS(request);
  }
}

void ReadChannel::abort(const Fault& why) {
  if (!window_->verdict) window_->verdict = why;
  connection_.close();
  post();
}

}  // namespace shardwire::transport::ucx

// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx/endpoint.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "transport/bytes.hpp"
#include "transport/read_check.hpp"
#include "transport/ucx/lifeline.hpp"

namespace shardwire::transport::ucx {
namespace {

// From here on the receiver chooses the payload's target; below, a copy is cheaper than a round trip.
constexpr std::size_t rendezvous_bytes = 64 * 1024;
constexpr auto parting_time = std::chrono::milliseconds(100);
constexpr std::size_t max_read_ranges = 4096;
constexpr int max_reads = 8;

/// A peer's region. The key is null if the peer cannot be read.
struct UcxRemote final : RemoteRegion {
  UcxRemote(std::shared_ptr<const RemoteKey> its_key, ByteCount bytes) : key(std::move(its_key)), size_bytes(bytes) {}
  [[nodiscard]] ConstMemory mapped() const override { return {}; }

  std::shared_ptr<const RemoteKey> key;
  ByteCount size_bytes;
};

void on_sent(void* request, ucs_status_t status, void* user_data) noexcept {
  auto* const operation = static_cast<Operation*>(user_data);
  operation->worker->finish(operation, status);
  ucp_request_free(request);
}

void await(Worker& worker, ucs_status_ptr_t request) {
  if (!UCS_PTR_IS_PTR(request)) return;
  const auto deadline = WallClock::now() + parting_time;
  while (ucp_request_check_status(request) == UCS_INPROGRESS && WallClock::now() < deadline) {
    ucp_worker_progress(worker.handle());
  }
  ucp_request_free(request);
}

}  // namespace

UcxEndpoint::UcxEndpoint(std::uint64_t own_fabric, Address peer, support::Descriptor lifeline,
                         std::shared_ptr<Worker> worker, std::shared_ptr<const Reading> reading,
                         std::shared_ptr<GpuDirect> gpus, std::shared_ptr<Endpoints> all)
    : own_fabric_(own_fabric),
      peer_(std::move(peer)),
      lifeline_(std::move(lifeline)),
      worker_(std::move(worker)),
      reading_(std::move(reading)),
      gpus_(std::move(gpus)),
      all_(std::move(all)) {
  all_->reserve(all_->size() + 1);  // nothing may fail once there is a connection
  connection_ = std::make_unique<PeerConnection>(*worker_, peer_.worker);
  all_->push_back(this);
}

UcxEndpoint::~UcxEndpoint() {
  close();
  std::erase(*all_, this);
}

void UcxEndpoint::close() {
  const ScopedLogSuppression no_log;
  reads_.reset();
  worker_->drop_completions([this](const Operation& operation) { return operation.endpoint == this; });
  if (!peer_is_gone()) {
    const auto deadline = WallClock::now() + parting_time;
    while (!connection_->ready() && WallClock::now() < deadline) ucp_worker_progress(worker_->handle());
    post();
    const ucp_request_param_t params{};
    if (connection_->ready()) await(*worker_, ucp_ep_flush_nbx(connection_->handle(), &params));
  }
  force_close();
  connection_->await_close();
  lifeline_.reset();
}

void UcxEndpoint::force_close() {
  force_closed_ = true;
  connection_->close();
  post();
}

void UcxEndpoint::abort_reads(const Fault& why) {
  if (reads_) reads_->abort(why);
}

// Posts operations that waited for the handshake, or ends them if the handshake has failed.
void UcxEndpoint::post() {
  if (reads_) reads_->post();
  if (waiting_.empty() || !(has_ended() || connection_->ready())) return;
  for (Operation* const operation : std::exchange(waiting_, {})) post(operation);
}

void UcxEndpoint::abort() {
  const Fault why{ErrorCode::cancelled, "the connection was aborted from this side"};
  abort_receives_from(peer_.fabric, replaced, why, *worker_, *all_);
  abort_reads(why);
  force_close();
}

bool UcxEndpoint::failed() const {
  return peer_is_gone() || (reads_ && reads_->failed());
}

bool UcxEndpoint::peer_is_gone() const {
  return has_ended() || is_broken(lifeline_);
}

bool UcxEndpoint::may_post() const {
  return (reads_ && reads_->may_post()) || (!waiting_.empty() && (has_ended() || connection_->ready()));
}

void UcxEndpoint::send(ByteView header, std::span<const ConstMemory> payload, Completion done) {
  if (header.size() > max_header_bytes) throw Error(ErrorCode::invalid_argument, "message header is too long");
  if (payload.size() > 1) throw Error(ErrorCode::invalid_argument, "the ucx transport sends one range at a time");
  const ConstMemory range = payload.empty() ? ConstMemory() : payload.front();
  Operation operation;
  operation.endpoint = this;
  operation.name = "send a message";
  append(operation.header, own_fabric_);
  append_bytes(operation.header, header);
  operation.done = std::move(done);
  operation.payload = range;
  Operation* const posted = worker_->add(std::move(operation));
  if (peer_is_gone()) return worker_->finish(posted, Outcome(Fault{ErrorCode::peer_lost, "the peer is gone"}));
  if (!connection_->ready()) return waiting_.push_back(posted);
  post(posted);
}

void UcxEndpoint::post(Operation* operation) {
  if (has_ended()) return worker_->finish(operation, UCS_ERR_CANCELED);
  const ScopedLogSuppression no_log;
  const ConstMemory& payload = operation->payload;
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  params.cb.send = on_sent;
  params.user_data = operation;
  params.flags = payload.bytes >= rendezvous_bytes ? UCP_AM_SEND_FLAG_RNDV | UCP_AM_SEND_FLAG_REPLY : 0;
  worker_->posted(operation,
                  ucp_am_send_nbx(connection_->handle(), message_id, operation->header.data(), operation->header.size(),
                                  payload.address, static_cast<std::size_t>(payload.bytes), &params));
}

bool UcxEndpoint::has_ended() const {
  return force_closed_ || connection_->error() != UCS_OK;
}

void UcxEndpoint::open_reads() {
  if (reads_ || !why_no_reads_.empty()) return;
  if (!peer_.serves_reads) {
    throw Error(ErrorCode::transport_failed, "a key from a peer that says it is not read by hardware");
  }
  if (!reading_->possible()) return;  // messages still work
  const ScopedLogSuppression no_log;
  std::string why_not;
  for (const ReadingDevice& device : reading_->devices_for_peer()) {
    try {
      reads_ = std::make_unique<ReadChannel>(device, peer_.worker, this);
      return;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::unsupported) throw;
      why_not = error.what();
    }
  }
  why_no_reads_ = {FallbackReason::failed, why_not};
}

std::unique_ptr<RemoteRegion> UcxEndpoint::import_region(RegionKey key, ByteCount size_bytes) {
  open_reads();
  return std::make_unique<UcxRemote>(reads_ ? reads_->import_key(key.bytes, size_bytes) : nullptr, size_bytes);
}

void UcxEndpoint::read(const RemoteRegion& region, std::span<const ReadRange> ranges, Completion done) {
  if (!reads_) throw Error(ErrorCode::unsupported, "the peer cannot be read: " + path({}).why_not.detail);
  const auto& remote = own_region<UcxRemote>(region);
  check_ranges(ranges, max_read_ranges, remote.size_bytes);
  if (peer_is_gone()) reads_->abort({ErrorCode::peer_lost, "the peer is gone"});
  reads_->read(remote.key, ranges, std::move(done));
}

Path UcxEndpoint::path(const MemoryPlace& place) const {
  std::vector<std::string> all;
  for (const Lane& lane : connection_->lanes()) all.push_back(lane.name);
  const auto in_memory = [](const std::string& lane) { return lane.ends_with("/memory"); };  // as UCX names it
  const bool host = place.kind == MemoryKind::host;
  Path path{.carrier = fmt::format("{}", fmt::join(all, ", ")),
            .reach = !all.empty() && std::all_of(all.begin(), all.end(), in_memory) ? Reach::host : Reach::network,
            .message = host};
  if (reads_) path.carrier += fmt::format(", reads by {}", reads_->carrier());
  if (!reading_->possible()) {
    path.why_not = reading_->why_not();
  } else if (!peer_.serves_reads) {
    path.why_not = {FallbackReason::peer_without, "the peer does not let itself be read by hardware"};
  } else if (!why_no_reads_.empty()) {
    path.why_not = why_no_reads_;
  } else if (const std::string no_gpu = host ? std::string() : gpus_->why_not(place.device); !no_gpu.empty()) {
    path.why_not = {FallbackReason::no_gpu_direct, no_gpu};
  } else {
    path.read = true;
    path.gpu_direct = !host;
    path.max_read_ranges = max_read_ranges;
    path.max_read_bytes = std::numeric_limits<ByteCount>::max();
    path.max_reads = max_reads;
    constexpr const char* design = "a NIC reads memory and does not map it";
    const support::Fallback& left_out = reading_->why_not();
    path.why_not = left_out.empty() ? support::Fallback{FallbackReason::by_design, design}
                                    : std::string(design) + "; rejected: " + left_out;
  }
  return path;
}

void abort_receives_from(std::uint64_t fabric, WallClock::time_point latest, const Fault& why, Worker& worker,
                         const Endpoints& all) {
  for (ucp_ep* const reply : worker.replies_of(fabric, latest, why)) {
    // UCX may have merged the sender's connection with one of our endpoints, which then owns it.
    const auto owner = std::find_if(all.begin(), all.end(), [&](const auto* one) { return one->handle() == reply; });
    if (owner != all.end()) {
      (*owner)->force_close();
    } else {
      worker.close(reply);
    }
  }
}

}  // namespace shardwire::transport::ucx

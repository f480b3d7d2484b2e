// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx/endpoint.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "transport/bytes.hpp"
#include "transport/ucx/lifeline.hpp"

namespace shardwire::transport::ucx {
namespace {

// From here on the receiver chooses where the payload goes; below, a copy is cheaper than asking.
constexpr std::size_t rendezvous_bytes = 64 * 1024;
constexpr auto parting_time = std::chrono::milliseconds(100);

void on_sent(void* request, ucs_status_t status, void* user_data) noexcept {
  auto* const operation = static_cast<Operation*>(user_data);
  operation->worker->finish(operation, status);
  ucp_request_free(request);
}

void await(Worker& worker, ucs_status_ptr_t request) {
  if (!UCS_PTR_IS_PTR(request)) return;
  const auto deadline = Clock::now() + parting_time;
  while (ucp_request_check_status(request) == UCS_INPROGRESS && Clock::now() < deadline) {
    ucp_worker_progress(worker.handle());
  }
  ucp_request_free(request);
}

}  // namespace

UcxEndpoint::UcxEndpoint(std::uint64_t own_fabric, const Address& peer, support::Descriptor lifeline,
                         std::shared_ptr<Worker> worker, std::shared_ptr<Endpoints> all)
    : own_fabric_(own_fabric),
      peer_fabric_(peer.fabric),
      lifeline_(std::move(lifeline)),
      worker_(std::move(worker)),
      all_(std::move(all)) {
  ucp_ep_params_t params{};
  params.field_mask =
      UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(peer.worker.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = {.cb = on_error, .arg = this};
  all_->reserve(all_->size() + 1);  // nothing may fail once there is an endpoint
  check(ucp_ep_create(worker_->handle(), &params, &handle_), "connect to a peer");
  all_->push_back(this);
}

UcxEndpoint::~UcxEndpoint() {
  close();
  std::erase(*all_, this);
}

void UcxEndpoint::close() {
  const ScopedLogSuppression no_log;
  worker_->give_up([this](const Operation& operation) { return operation.endpoint == this; });
  if (handle_ != nullptr && !failed()) {
    const ucp_request_param_t params{};
    await(*worker_, ucp_ep_flush_nbx(handle_, &params));
  }
  cut();
  await(*worker_, std::exchange(closing_, nullptr));
  lifeline_.reset();
}

void UcxEndpoint::cut() {
  failed_ = true;
  if (handle_ == nullptr) return;
  const ScopedLogSuppression no_log;
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  params.flags = UCP_EP_CLOSE_FLAG_FORCE;
  closing_ = ucp_ep_close_nbx(std::exchange(handle_, nullptr), &params);
}

void UcxEndpoint::abort() {
  abort_receives_from(peer_fabric_, Clock::time_point::max(),
                      {ErrorCode::cancelled, "the connection was cut from this side"}, *worker_, *all_);
  cut();
}

void UcxEndpoint::on_error(void* self, ucp_ep_h, ucs_status_t) {
  static_cast<UcxEndpoint*>(self)->failed_ = true;
}

bool UcxEndpoint::failed() const {
  return failed_ || is_cut(lifeline_);
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
  Operation* const posted = worker_->add(std::move(operation));
  if (failed()) return worker_->finish(posted, Outcome(Fault{ErrorCode::peer_lost, "the peer is gone"}));

  const ScopedLogSuppression no_log;
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  params.cb.send = on_sent;
  params.user_data = posted;
  params.flags = range.bytes >= rendezvous_bytes ? UCP_AM_SEND_FLAG_RNDV | UCP_AM_SEND_FLAG_REPLY : 0;
  worker_->posted(posted, ucp_am_send_nbx(handle_, message_id, posted->header.data(), posted->header.size(),
                                          range.address, static_cast<std::size_t>(range.bytes), &params));
}

std::unique_ptr<RemoteRegion> UcxEndpoint::import_region(RegionKey, ByteCount) {
  throw Error(ErrorCode::transport_failed, "the ucx transport has no region keys");
}

void UcxEndpoint::read(const RemoteRegion&, std::span<const ReadRange>, Completion) {
  throw Error(ErrorCode::unsupported, "the ucx transport has no one-sided reads yet");
}

std::vector<std::string> UcxEndpoint::lanes() const {
  if (failed_) return last_lanes_;
  const ScopedLogSuppression no_log;
  char* text = nullptr;
  std::size_t size = 0;
  std::FILE* const stream = open_memstream(&text, &size);
  if (stream == nullptr) return last_lanes_;
  ucp_ep_print_info(handle_, stream);
  std::fclose(stream);
  const std::string printed(text, size);
  std::free(text);

  // "#  lane[0]:  3:tcp/lo.0 md[1] -> ...": the word behind the index names transport and device.
  std::vector<std::string> out;
  for (std::size_t at = printed.find("lane["); at != std::string::npos; at = printed.find("lane[", at + 1)) {
    const std::size_t index = printed.find(':', at);
    const std::size_t first = printed.find(':', index + 1);
    const std::size_t line_end = std::min(printed.find('\n', at), printed.size());
    if (first == std::string::npos || first > line_end) continue;
    std::string lane = printed.substr(first + 1, printed.find_first_of(" \n", first + 1) - first - 1);
    if (const std::size_t path = lane.rfind('.'); path != std::string::npos) lane.resize(path);
    if (std::find(out.begin(), out.end(), lane) == out.end()) out.push_back(std::move(lane));
  }
  last_lanes_ = out;
  return out;
}

Path UcxEndpoint::path(const MemoryPlace& place) const {
  const std::vector<std::string> all = lanes();
  const auto in_memory = [](const std::string& lane) { return lane.ends_with("/memory"); };  // as UCX calls the device
  const bool host = place.kind == MemoryKind::host;
  return {
      .carrier = fmt::format("{}", fmt::join(all, ", ")),
      .reach = !all.empty() && std::all_of(all.begin(), all.end(), in_memory) ? Reach::host : Reach::network,
      .message = host,
      .why_not = host ? "the ucx transport has no one-sided reads yet" : "the ucx transport knows host memory only"};
}

void abort_receives_from(std::uint64_t fabric, Clock::time_point latest, const Fault& why, Worker& worker,
                         const Endpoints& all) {
  for (ucp_ep* const reply : worker.replies_of(fabric, latest, why)) {
    // UCX may have joined what arrives with an endpoint of ours, which has an owner then.
    const auto owner = std::find_if(all.begin(), all.end(), [&](const auto* one) { return one->handle() == reply; });
    if (owner != all.end()) {
      (*owner)->cut();
    } else {
      worker.close(reply);
    }
  }
}

}  // namespace shardwire::transport::ucx

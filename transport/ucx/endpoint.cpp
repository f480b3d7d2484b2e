// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx/endpoint.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "transport/bytes.hpp"

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

void await(Worker& worker, ucs_status_ptr_t request, Clock::duration at_most) {
  if (!UCS_PTR_IS_PTR(request)) return;
  const auto deadline = Clock::now() + at_most;
  while (ucp_request_check_status(request) == UCS_INPROGRESS && Clock::now() < deadline) {
    ucp_worker_progress(worker.handle());
  }
  ucp_request_free(request);
}

}  // namespace

UcpEndpoint::UcpEndpoint(std::shared_ptr<Worker> worker, const Bytes& address) : worker_(std::move(worker)) {
  const ScopedLogSuppression no_log;
  ucp_ep_params_t params{};
  params.field_mask =
      UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = {.cb = on_error, .arg = this};
  check(ucp_ep_create(worker_->handle(), &params, &handle_), "connect to a peer");
}

void UcpEndpoint::abort() {
  if (handle_ == nullptr) return;
  const ScopedLogSuppression no_log;
  failed_ = true;
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  params.flags = UCP_EP_CLOSE_FLAG_FORCE;
  closing_ = ucp_ep_close_nbx(std::exchange(handle_, nullptr), &params);
}

UcpEndpoint::~UcpEndpoint() {
  const ScopedLogSuppression no_log;
  if (handle_ == nullptr) {
    await(*worker_, closing_, parting_time);
    return;
  }
  ucp_request_param_t params{};
  if (!failed_) await(*worker_, ucp_ep_flush_nbx(handle_, &params), parting_time);
  params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  params.flags = UCP_EP_CLOSE_FLAG_FORCE;
  await(*worker_, ucp_ep_close_nbx(handle_, &params), parting_time);
}

void UcpEndpoint::on_error(void* self, ucp_ep_h, ucs_status_t) {
  static_cast<UcpEndpoint*>(self)->failed_ = true;
}

std::string UcpEndpoint::lanes() const {
  if (handle_ == nullptr) return {};
  const ScopedLogSuppression no_log;
  char* text = nullptr;
  std::size_t size = 0;
  std::FILE* const stream = open_memstream(&text, &size);
  if (stream == nullptr) return {};
  ucp_ep_print_info(handle_, stream);
  std::fclose(stream);
  const std::string printed(text, size);
  std::free(text);

  // "#  lane[0]:  3:tcp/lo.0 md[1] -> ...": the word behind the index names transport and device.
  std::string out;
  for (std::size_t at = printed.find("lane["); at != std::string::npos; at = printed.find("lane[", at + 1)) {
    const std::size_t index = printed.find(':', at);
    const std::size_t first = printed.find(':', index + 1);
    const std::size_t line_end = std::min(printed.find('\n', at), printed.size());
    if (first == std::string::npos || first > line_end) continue;
    std::string lane = printed.substr(first + 1, printed.find_first_of(" \n", first + 1) - first - 1);
    if (const std::size_t path = lane.rfind('.'); path != std::string::npos) lane.resize(path);
    if (out.find(lane) == std::string::npos) out.append(out.empty() ? "" : ", ").append(lane);
  }
  return out;
}

void abort_receives_from(std::uint64_t fabric, Clock::time_point latest, const Fault& why, Worker& worker,
                         const OpenEndpoints& all) {
  for (ucp_ep* const reply : worker.replies_of(fabric, latest, why)) {
    // UCX may have joined what arrives with an endpoint of ours, which has an owner then.
    const auto owner = std::find_if(all.begin(), all.end(), [&](const auto& connection) {
      return connection->link() != nullptr && connection->link()->handle() == reply;
    });
    if (owner != all.end()) {
      (*owner)->link()->abort();
    } else {
      worker.close(reply);
    }
  }
}

OpenEndpoint::OpenEndpoint(std::uint64_t id, std::uint64_t own_fabric, Address peer, std::unique_ptr<UcpEndpoint> link,
                           std::unique_ptr<RemoteRegion> beacon)
    : id_(id),
      own_fabric_(own_fabric),
      peer_(std::move(peer)),
      worker_(link->shared_worker()),
      link_(std::move(link)),
      beacon_(std::move(beacon)) {
  if (beacon_) watch_ = ProcessWatch(peer_.process);
}

bool OpenEndpoint::failed() {
  if (gone_ || !link_ || link_->failed()) return true;
  if (!beacon_) return false;
  const auto* beacon = reinterpret_cast<const Beacon*>(beacon_->mapped().address);
  gone_ = beacon->open.load(std::memory_order_acquire) == 0 || watch_.gone();
  if (gone_) link_->fail();
  return gone_;
}

void OpenEndpoint::send(ByteView header, std::span<const ConstMemory> payload, Completion done) {
  if (header.size() > max_header_bytes) throw Error(ErrorCode::invalid_argument, "message header is too long");
  if (payload.size() > 1) throw Error(ErrorCode::invalid_argument, "the ucx transport sends one range at a time");
  const ConstMemory range = payload.empty() ? ConstMemory() : payload.front();
  Operation operation;
  operation.endpoint = id_;
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
  worker_->posted(posted, ucp_am_send_nbx(link_->handle(), message_id, posted->header.data(), posted->header.size(),
                                          range.address, static_cast<std::size_t>(range.bytes), &params));
}

std::unique_ptr<RemoteRegion> OpenEndpoint::import_region(ByteView key, ByteCount size_bytes) {
  return ucx::import_region(worker_, on_host() && link_ ? link_->handle() : nullptr, key, size_bytes);
}

std::string OpenEndpoint::carrier() {
  if (link_ && !link_->failed()) {
    const std::string lanes = link_->lanes();
    carrier_ = on_host() ? fmt::format("shared memory ({})", lanes) : lanes;
  }
  return carrier_;
}

void OpenEndpoint::close() {
  worker_->give_up([this](const Operation& operation) { return operation.endpoint == id_; });
  beacon_.reset();
  link_.reset();
  watch_ = {};
}

}  // namespace shardwire::transport::ucx

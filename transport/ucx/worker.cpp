// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx/worker.hpp"

#include <algorithm>
#include <cstring>
#include <mutex>

namespace shardwire::transport::ucx {
namespace {

WorkerHandle open_worker(ucp_context* context) {
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;  // one thread at a time, not always the one that opened it
  ucp_worker_h worker = nullptr;
  check(ucp_worker_create(context, &params, &worker), "create a UCX worker");
  return WorkerHandle(worker);
}

// UCX asserts, and so ends the process, if a worker is destroyed during a handshake or a receive. Nothing runs in a
// worker that is not progressed, so a worker that cannot be drained in time is leaked instead.
void leave_behind(ContextHandle context, WorkerHandle worker) {
  static auto& mutex = *new std::mutex;
  static auto& left = *new std::vector<std::pair<ContextHandle, WorkerHandle>>;
  const std::lock_guard lock(mutex);
  left.emplace_back(std::move(context), std::move(worker));
}

}  // namespace

ucs_status_ptr_t close_by_force(ucp_ep* endpoint) {
  const ScopedLogSuppression no_log;
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  params.flags = UCP_EP_CLOSE_FLAG_FORCE;
  return ucp_ep_close_nbx(endpoint, &params);
}

Worker::Worker(ContextHandle context) : context_(std::move(context)), handle_(open_worker(context_.get())) {
  check(ucp_worker_get_efd(handle(), &descriptor_), "get the event descriptor of a UCX worker");
}

void Worker::accept_messages() {
  ucp_am_handler_param_t params{};
  params.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS | UCP_AM_HANDLER_PARAM_FIELD_CB |
                      UCP_AM_HANDLER_PARAM_FIELD_ARG;
  params.id = message_id;
  params.flags = UCP_AM_FLAG_WHOLE_MSG | UCP_AM_FLAG_PERSISTENT_DATA;
  params.cb = on_active_message;
  params.arg = this;
  check(ucp_worker_set_am_recv_handler(handle(), &params), "install the message handler");
}

Worker::~Worker() {
  const ScopedLogSuppression no_log;
  release_all();
  abort_receives();
  if (under_way_.empty() && handshakes_.empty() && drain()) return;
  leave_behind(std::move(context_), std::move(handle_));
}

bool Worker::drain() {
  // Drained when a flush completes at once: progress() for an earlier flush may have started another handshake.
  const auto deadline = WallClock::now() + std::chrono::milliseconds(200);
  const ucp_request_param_t params{};
  while (true) {
    const ucs_status_ptr_t request = ucp_worker_flush_nbx(handle(), &params);
    if (!UCS_PTR_IS_PTR(request)) return true;
    while (ucp_request_check_status(request) == UCS_INPROGRESS && WallClock::now() < deadline) {
      ucp_worker_progress(handle());
    }
    const bool finished_in_time = ucp_request_check_status(request) != UCS_INPROGRESS;
    ucp_request_free(request);
    release_all();
    if (!finished_in_time) return false;
  }
}

// Endpoints that UCX created for peers to which we never connected. They exist as long as the receive that names them.
std::vector<ucp_ep*> Worker::replies_of(std::uint64_t fabric, WallClock::time_point latest, const Fault& why) {
  std::vector<ucp_ep*> replies;
  for (const auto& [key, operation] : under_way_) {
    if (operation->peer != fabric || operation->began > latest || operation->reply == nullptr) continue;
    operation->verdict = why;
    ucp_ep* const reply = std::exchange(operation->reply, nullptr);
    if (std::find(replies.begin(), replies.end(), reply) == replies.end()) replies.push_back(reply);
  }
  return replies;
}

void Worker::close(ucp_ep* reply) {
  const ucs_status_ptr_t request = close_by_force(reply);
  if (UCS_PTR_IS_PTR(request)) ucp_request_free(request);
}

void Worker::end_handshakes() {
  std::erase_if(handshakes_, [this](const auto& handshake) {
    if (!handshake->over) return false;
    if (handshake->abandoned) close(handshake->endpoint);
    return true;
  });
}

void Worker::abort_receives() {
  std::vector<std::uint64_t> peers;
  for (const auto& [key, operation] : under_way_) {
    if (operation->reply != nullptr) peers.push_back(operation->peer);
  }
  for (const std::uint64_t peer : peers) {
    for (ucp_ep* const reply :
         replies_of(peer, WallClock::time_point::max(), {ErrorCode::cancelled, "the fabric is closed"}))
      close(reply);
  }
  const auto deadline = WallClock::now() + std::chrono::milliseconds(200);
  while (!(under_way_.empty() && handshakes_.empty()) && WallClock::now() < deadline) {
    ucp_worker_progress(handle());
    end_handshakes();
  }
  release_all();
}

Bytes Worker::address() const {
  ucp_address_t* address = nullptr;
  std::size_t size = 0;
  check(ucp_worker_get_address(handle(), &address, &size), "get the address of a UCX worker");
  const auto* first = reinterpret_cast<const std::byte*>(address);
  Bytes out(first, first + size);
  ucp_worker_release_address(handle(), address);
  return out;
}

bool Worker::progress() {
  // Bounded, so that a stream of messages cannot keep the caller here.
  unsigned steps = 0;
  while (steps < 64 && ucp_worker_progress(handle()) != 0) ++steps;
  if (!handshakes_.empty()) end_handshakes();
  if (trouble_) std::rethrow_exception(std::exchange(trouble_, nullptr));
  return steps > 0;
}

bool Worker::arm() {
  if (!arrivals.empty() || !finished.empty()) return false;
  const ucs_status_t status = ucp_worker_arm(handle());
  if (status == UCS_ERR_BUSY) return false;
  check(status, "arm the event descriptor of a UCX worker");
  return true;
}

Operation* Worker::add(Operation operation) {
  operation.worker = this;
  operation.began = WallClock::now();
  auto owned = std::make_unique<Operation>(std::move(operation));
  Operation* const key = owned.get();
  under_way_.emplace(key, std::move(owned));
  return key;
}

void Worker::finish(Operation* operation, Outcome outcome) {
  auto found = under_way_.extract(operation);
  if (found.empty()) return;
  operation->outcome = std::move(outcome);
  finished.push_back(std::move(found.mapped()));
}

void Worker::finish(Operation* operation, ucs_status_t status) {
  if (status == UCS_OK) return finish(operation, Outcome());
  finish(operation, operation->verdict ? operation->verdict : Outcome(fault_of(status, operation->name)));
}

void Worker::posted(Operation* operation, ucs_status_ptr_t request) {
  if (!UCS_PTR_IS_PTR(request)) finish(operation, UCS_PTR_STATUS(request));
}

bool Worker::complete() {
  const bool any = !finished.empty();
  // Only those present now: operations that complete meanwhile are for the next call.
  for (std::size_t left = finished.size(); left > 0 && !finished.empty(); --left) {
    const auto operation = std::move(finished.front());
    finished.pop_front();
    if (operation->done) operation->done(operation->outcome);
  }
  return any;
}

void Worker::release(Arrival& arrival) {
  if (arrival.held) ucp_am_data_release(handle(), arrival.data);
  arrival.held = false;
}

void Worker::release_all() {
  for (Arrival& arrival : arrivals) release(arrival);
  arrivals.clear();
}

ucs_status_t Worker::on_active_message(void* self, const void* header, std::size_t header_bytes, void* data,
                                       std::size_t payload_bytes, const ucp_am_recv_param_t* param) {
  Worker& worker = *static_cast<Worker*>(self);
  try {
    Arrival arrival;
    if (header_bytes > arrival.header.size()) return UCS_OK;  // not our message format: dropped
    if (header_bytes > 0) std::memcpy(arrival.header.data(), header, header_bytes);
    arrival.header_bytes = header_bytes;
    arrival.data = data;
    arrival.payload_bytes = payload_bytes;
    arrival.rendezvous = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
    if ((param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) != 0) arrival.reply = param->reply_ep;
    arrival.held = arrival.rendezvous || (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_DATA) != 0;
    if (!arrival.held && payload_bytes > 0) {
      const auto* first = static_cast<const std::byte*>(data);
      arrival.copy.assign(first, first + payload_bytes);
    }
    const bool held = arrival.held;
    worker.arrivals.push_back(std::move(arrival));
    return held ? UCS_INPROGRESS : UCS_OK;
  } catch (...) {
    worker.trouble_ = std::current_exception();
    return UCS_OK;
  }
}

}  // namespace shardwire::transport::ucx

// SPDX-License-Identifier: Apache-2.0
#include "perf/tag_loop.hpp"

#include <sched.h>

#include <algorithm>
#include <deque>

namespace shardwire::perf {

using transport::ucx::check;

namespace {

constexpr std::size_t most_in_flight = 4;
constexpr ucp_tag_t tag = 1;

// With more processes than cores a peer has to get the core before there can be progress.
void progress(ucp_worker* worker) {
  if (ucp_worker_progress(worker) == 0) ::sched_yield();
}

void finish(ucp_worker* worker, ucs_status_ptr_t request, const char* operation) {
  if (request == nullptr) return;
  if (UCS_PTR_IS_ERR(request)) check(UCS_PTR_STATUS(request), operation);
  ucs_status_t status = UCS_INPROGRESS;
  while ((status = ucp_request_check_status(request)) == UCS_INPROGRESS) progress(worker);
  ucp_request_free(request);
  check(status, operation);
}

}  // namespace

struct TagLoop::Window {
  ucp_worker* worker;
  const char* operation;
  std::deque<ucs_status_ptr_t> requests{};

  void add(ucs_status_ptr_t request) {
    requests.push_back(request);
    if (requests.size() == most_in_flight) finish_oldest();
  }
  void finish_oldest() {
    finish(worker, requests.front(), operation);
    requests.pop_front();
  }
  void finish_all() {
    while (!requests.empty()) finish_oldest();
  }
};

TagLoop::TagLoop() {
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_TAG;
  ucp_context_h context = nullptr;
  check(ucp_init(&params, nullptr, &context), "open a UCX context");
  context_.reset(context);
  const ucp_worker_params_t worker_params{};
  ucp_worker_h worker = nullptr;
  check(ucp_worker_create(context, &worker_params, &worker), "create a UCX worker");
  worker_.reset(worker);
}

TagLoop::~TagLoop() {
  if (endpoint_ == nullptr) return;
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  params.flags = UCP_EP_CLOSE_FLAG_FORCE;
  ucs_status_ptr_t const request = ucp_ep_close_nbx(endpoint_, &params);
  if (!UCS_PTR_IS_PTR(request)) return;
  while (ucp_request_check_status(request) == UCS_INPROGRESS) progress(worker_.get());
  ucp_request_free(request);
}

std::vector<std::byte> TagLoop::address() const {
  ucp_address_t* address = nullptr;
  std::size_t size = 0;
  check(ucp_worker_get_address(worker_.get(), &address, &size), "get the address of a UCX worker");
  const auto* const first = reinterpret_cast<const std::byte*>(address);
  std::vector<std::byte> out(first, first + size);
  ucp_worker_release_address(worker_.get(), address);
  return out;
}

void TagLoop::connect(std::span<const std::byte> peer) {
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
  params.address = reinterpret_cast<const ucp_address_t*>(peer.data());
  check(ucp_ep_create(worker_.get(), &params, &endpoint_), "make a UCX endpoint");
}

void TagLoop::send(std::span<const std::byte> buffer, std::size_t message_bytes) {
  Window window{worker_.get(), "send a tagged message"};
  const ucp_request_param_t params{};
  while (!buffer.empty()) {
    const auto message = buffer.first(std::min(message_bytes, buffer.size()));
    window.add(ucp_tag_send_nbx(endpoint_, message.data(), message.size(), tag, &params));
    buffer = buffer.subspan(message.size());
  }
  window.finish_all();
}

void TagLoop::receive(std::span<std::byte> buffer, std::size_t message_bytes) {
  Window window{worker_.get(), "receive a tagged message"};
  const ucp_request_param_t params{};
  while (!buffer.empty()) {
    const auto message = buffer.first(std::min(message_bytes, buffer.size()));
    window.add(ucp_tag_recv_nbx(worker_.get(), message.data(), message.size(), tag, ~ucp_tag_t{0}, &params));
    buffer = buffer.subspan(message.size());
  }
  window.finish_all();
}

}  // namespace shardwire::perf

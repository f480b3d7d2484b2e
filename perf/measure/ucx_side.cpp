// SPDX-License-Identifier: Apache-2.0
#include "perf/measure/ucx_side.hpp"

#include <sched.h>

#include <cstdlib>
#include <utility>

namespace shardwire::perf {

using transport::ucx::check;

UcxSide::UcxSide(bool tcp, std::uint64_t features, const char* transports) {
  ucp_config_t* read = nullptr;
  check(ucp_config_read(nullptr, nullptr, &read), "read the configuration of UCX");
  const transport::ucx::Config config(read);
  if (tcp) {
    check(ucp_config_modify(config.get(), "TLS", "tcp,self"), "choose the transports of UCX");
    if (std::getenv("UCX_NET_DEVICES") == nullptr) {  // a job on several hosts names them
      check(ucp_config_modify(config.get(), "NET_DEVICES", "lo"), "choose the devices of UCX");
    }
  } else if (transports != nullptr && std::getenv("UCX_TLS") == nullptr) {
    check(ucp_config_modify(config.get(), "TLS", transports), "choose the transports of UCX");
  }
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = features;
  ucp_context_h context = nullptr;
  check(ucp_init(&params, config.get(), &context), "open a UCX context");
  context_.reset(context);
  const ucp_worker_params_t worker_params{};
  ucp_worker_h worker = nullptr;
  check(ucp_worker_create(context, &worker_params, &worker), "create a UCX worker");
  worker_.reset(worker);
}

UcxSide::~UcxSide() {
  close_endpoints();
}

std::vector<std::byte> UcxSide::address() const {
  ucp_address_t* address = nullptr;
  std::size_t size = 0;
  check(ucp_worker_get_address(worker(), &address, &size), "get the address of a UCX worker");
  const auto* const first = reinterpret_cast<const std::byte*>(address);
  std::vector<std::byte> out(first, first + size);
  ucp_worker_release_address(worker(), address);
  return out;
}

ucp_ep* UcxSide::connect(std::span<const std::byte> peer) {
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
  params.address = reinterpret_cast<const ucp_address_t*>(peer.data());
  ucp_ep* endpoint = nullptr;
  check(ucp_ep_create(worker(), &params, &endpoint), "make a UCX endpoint");
  endpoints_.push_back(endpoint);
  return endpoint;
}

void UcxSide::wait(Idle idle) const {
  if (idle == Idle::yield) {
    ::sched_yield();
  } else {
    check(ucp_worker_wait(worker()), "wait for a UCX worker");
  }
}

void UcxSide::close_endpoints() {
  for (ucp_ep* const endpoint : std::exchange(endpoints_, {})) {
    ucp_request_param_t params{};
    params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    params.flags = UCP_EP_CLOSE_FLAG_FORCE;
    ucs_status_ptr_t const request = ucp_ep_close_nbx(endpoint, &params);
    if (!UCS_PTR_IS_PTR(request)) continue;
    while (ucp_request_check_status(request) == UCS_INPROGRESS) ucp_worker_progress(worker());
    ucp_request_free(request);
  }
}

}  // namespace shardwire::perf

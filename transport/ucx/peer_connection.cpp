// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx/peer_connection.hpp"

#include <algorithm>
#include <utility>

namespace shardwire::transport::ucx {
namespace {

constexpr auto closing_time = std::chrono::milliseconds(100);

void on_error(void* handshake, ucp_ep_h, ucs_status_t status) {
  static_cast<Handshake*>(handshake)->error = status;
}

void on_flushed(void* request, ucs_status_t, void* handshake) noexcept {
  static_cast<Handshake*>(handshake)->over = true;
  ucp_request_free(request);
}

}  // namespace

PeerConnection::PeerConnection(Worker& worker, ByteView address)
    : worker_(worker), handshake_(std::make_shared<Handshake>()) {
  const ScopedLogSuppression no_log;
  ucp_ep_params_t params{};
  params.field_mask =
      UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = {.cb = on_error, .arg = handshake_.get()};
  check(ucp_ep_create(worker_.handle(), &params, &handshake_->endpoint), "connect to a peer");
  lanes_ = lanes_of(handshake_->endpoint);
  // "ud_verbs/..", or inside a lane that waits for it: "wireup{ud_verbs/..}".
  const bool over_ud =
      std::ranges::any_of(lanes_, [](const Lane& lane) { return lane.name.find("ud_") != std::string::npos; });
  if (!over_ud) {
    handshake_->over = true;
    return;
  }
  worker_.watch(handshake_);
  ucp_request_param_t flush{};
  flush.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  flush.cb.send = on_flushed;
  flush.user_data = handshake_.get();
  if (!UCS_PTR_IS_PTR(ucp_ep_flush_nbx(handshake_->endpoint, &flush))) handshake_->over = true;
}

PeerConnection::~PeerConnection() {
  close();
  await_close();
}

void PeerConnection::await_close() {
  if (!UCS_PTR_IS_PTR(closing_)) return;
  const ScopedLogSuppression no_log;
  const auto deadline = WallClock::now() + closing_time;
  while (ucp_request_check_status(closing_) == UCS_INPROGRESS && WallClock::now() < deadline) {
    ucp_worker_progress(worker_.handle());
  }
  ucp_request_free(std::exchange(closing_, nullptr));
}

const std::vector<Lane>& PeerConnection::lanes() const {
  if (handshake_ && handshake_->error == UCS_OK) {
    auto now = lanes_of(handshake_->endpoint);
    if (!now.empty()) lanes_ = std::move(now);
  }
  return lanes_;
}

void PeerConnection::close() {
  if (!handshake_) return;
  error_ = handshake_->error;
  const auto ended = std::exchange(handshake_, nullptr);
  if (!ended->over) {
    ended->abandoned = true;
  } else {
    closing_ = close_by_force(ended->endpoint);
  }
}

}  // namespace shardwire::transport::ucx

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "transport/ucx/lanes.hpp"
#include "transport/ucx/worker.hpp"

namespace shardwire::transport::ucx {

/// A UCX endpoint, from its handshake to its end. Always made so that it can be cut off at once (peer error handling).
///
/// Where the handshake travels over UD, UCX asserts, and so ends the process, when an endpoint is closed by force before it is
/// over. So such an endpoint is handed to the worker then, which closes it afterwards; nothing must have been posted to it.
class PeerConnection {
 public:
  /// `worker` has to outlive it. Errors: throws Error{unsupported} when no transport of the worker reaches the address.
  PeerConnection(Worker& worker, ByteView address);
  /// As close() and await_close().
  ~PeerConnection();
  PeerConnection(const PeerConnection&) = delete;
  PeerConnection& operator=(const PeerConnection&) = delete;

  /// Null once closed.
  [[nodiscard]] ucp_ep* handle() const { return handshake_ ? handshake_->endpoint : nullptr; }
  /// It may be posted to.
  [[nodiscard]] bool ready() const { return handshake_ && handshake_->over; }
  /// What UCX has said of it, if it has failed.
  [[nodiscard]] ucs_status_t error() const { return handshake_ ? handshake_->error : error_; }
  /// As they were last, once it is closed.
  [[nodiscard]] const std::vector<Lane>& lanes() const;
  /// By force: what was posted ends soon.
  void close();
  /// Gives the worker a moment to finish. Requires: it is closed.
  void await_close();

 private:
  Worker& worker_;
  std::shared_ptr<Handshake> handshake_;  // owners: this, and the worker until it is over
  ucs_status_t error_ = UCS_OK;           // once closed
  mutable std::vector<Lane> lanes_;
  ucs_status_ptr_t closing_ = nullptr;
};

}  // namespace shardwire::transport::ucx

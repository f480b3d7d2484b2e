// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "transport/ucx/lanes.hpp"
#include "transport/ucx/worker.hpp"

namespace shardwire::transport::ucx {

/// A UCX endpoint, from its handshake to its end. Always created so that it can be closed by force (peer error
/// handling).
///
/// If the handshake runs over UD, UCX asserts, and so ends the process, when an endpoint is closed by force before the
/// handshake is over. Such an endpoint is handed to the worker, which closes it afterwards; nothing may have been
/// posted to it.
class PeerConnection {
 public:
  /// `worker` must outlive it. Errors: throws Error{unsupported} if no transport of the worker reaches the address.
  PeerConnection(Worker& worker, ByteView address);
  /// Same as close() and await_close().
  ~PeerConnection();
  PeerConnection(const PeerConnection&) = delete;
  PeerConnection& operator=(const PeerConnection&) = delete;

  /// Null once closed.
  [[nodiscard]] ucp_ep* handle() const { return handshake_ ? handshake_->endpoint : nullptr; }
  /// Operations may be posted.
  [[nodiscard]] bool ready() const { return handshake_ && handshake_->over; }
  /// UCX's status for it, if it has failed.
  [[nodiscard]] ucs_status_t error() const { return handshake_ ? handshake_->error : error_; }
  /// The last known lanes, also after it is closed.
  [[nodiscard]] const std::vector<Lane>& lanes() const;
  /// Closes by force: posted operations end soon.
  void close();
  /// Gives the worker a moment to finish. Requires: it is closed.
  void await_close();

 private:
  Worker& worker_;
  std::shared_ptr<Handshake> handshake_;  // owners: this, and the worker until the handshake is over
  ucs_status_t error_ = UCS_OK;           // set once closed
  mutable std::vector<Lane> lanes_;
  ucs_status_ptr_t closing_ = nullptr;
};

}  // namespace shardwire::transport::ucx

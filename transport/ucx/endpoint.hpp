// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>

#include "transport/ucx/peer.hpp"
#include "transport/ucx/registration.hpp"

namespace shardwire::transport::ucx {

/// What a fabric tells its peers; decoded form of Fabric::address().
struct Address {
  std::uint64_t fabric = 0;
  std::uint64_t host = 0;
  ProcessId process;
  Bytes host_worker;     ///< empty: no shared memory
  Bytes network_worker;  ///< empty: nothing else
  Bytes beacon_key;
};
Bytes encode(const Address& address);
/// Errors: throws Error{transport_failed}.
Address decode_address(ByteView bytes);

/// One UCX endpoint. Always made so that it can be cut off at once (peer error handling), and never through a context
/// in which a transport without that could be chosen.
class UcpEndpoint {
 public:
  /// Errors: throws Error{unsupported} when no transport of the worker reaches the address.
  UcpEndpoint(std::shared_ptr<Worker> worker, const Bytes& address);
  /// Bounded: gives what was sent a moment to leave, then cuts.
  ~UcpEndpoint();
  UcpEndpoint(const UcpEndpoint&) = delete;
  UcpEndpoint& operator=(const UcpEndpoint&) = delete;

  [[nodiscard]] ucp_ep* handle() const { return handle_; }
  [[nodiscard]] Worker& worker() const { return *worker_; }
  [[nodiscard]] const std::shared_ptr<Worker>& shared_worker() const { return worker_; }
  [[nodiscard]] bool failed() const { return failed_; }
  void fail() { failed_ = true; }
  /// Ends it at once; what is posted ends with a fault.
  void abort();
  /// Transports and devices of the lanes, as UCX lists them, e.g. "tcp/lo".
  [[nodiscard]] std::string lanes() const;

 private:
  static void on_error(void* self, ucp_ep_h endpoint, ucs_status_t status);

  std::shared_ptr<Worker> worker_;      // owners: the fabric, its links and its remote regions
  ucp_ep_h handle_ = nullptr;           // null once cut
  ucs_status_ptr_t closing_ = nullptr;  // of abort()
  bool failed_ = false;
};

class OpenEndpoint;
using OpenEndpoints = std::vector<std::shared_ptr<OpenEndpoint>>;
/// Ends all receives from a fabric that began until `latest`, for `why`: whatever endpoints they arrive on are cut, those
/// of `all` among them.
void abort_receives_from(std::uint64_t fabric, Clock::time_point latest, const Fault& why, Worker& worker,
                         const OpenEndpoints& all);

/// An endpoint as the fabric sees it; the fabric and the caller's Endpoint own it together.
class OpenEndpoint {
 public:
  OpenEndpoint(std::uint64_t id, std::uint64_t own_fabric, Address peer, std::unique_ptr<UcpEndpoint> link,
               std::unique_ptr<RemoteRegion> beacon);

  [[nodiscard]] std::uint64_t id() const { return id_; }
  [[nodiscard]] std::uint64_t peer_fabric() const { return peer_.fabric; }
  [[nodiscard]] UcpEndpoint* link() const { return link_.get(); }
  [[nodiscard]] bool on_host() const { return beacon_ != nullptr; }
  [[nodiscard]] int watched() const { return watch_.descriptor(); }
  /// Looks at the process and at the beacon.
  [[nodiscard]] bool failed();
  void send(ByteView header, std::span<const ConstMemory> payload, Completion done);
  std::unique_ptr<RemoteRegion> import_region(ByteView key, ByteCount size_bytes);
  /// What carries the bytes, for people.
  [[nodiscard]] std::string carrier();
  /// Ends it from this side.
  void close();

  bool departure_seen = false;  ///< the fabric's note that it has dealt with the peer's death
  /// When the peer was connected to again, after an endpoint to it had failed. What began later has nothing to do with this.
  Clock::time_point replaced = Clock::time_point::max();

 private:
  std::uint64_t id_;
  std::uint64_t own_fabric_;
  Address peer_;
  std::shared_ptr<Worker> worker_;
  std::unique_ptr<UcpEndpoint> link_;     // null once closed
  std::unique_ptr<RemoteRegion> beacon_;  // null for a peer on the network
  ProcessWatch watch_;
  bool gone_ = false;
  std::string carrier_;
};

}  // namespace shardwire::transport::ucx

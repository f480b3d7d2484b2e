// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "support/descriptors.hpp"
#include "transport/ucx/peer_connection.hpp"
#include "transport/ucx/read_channel.hpp"
#include "transport/ucx/reading.hpp"

namespace shardwire::transport::ucx {

/// The data that a fabric gives its peers; decoded form of Fabric::address().
struct Address {
  std::uint64_t fabric = 0;
  Bytes worker;
  bool serves_reads = false;  ///< by hardware
};
Bytes encode(const Address& address);
/// Errors: throws Error{transport_failed}.
Address decode_address(ByteView bytes);

class UcxEndpoint;
/// The endpoints of a fabric.
using Endpoints = std::vector<UcxEndpoint*>;

/// A peer: messages over one connection, reads over another.
class UcxEndpoint final : public Endpoint {
 public:
  /// `lifeline` may be empty. Errors: throws Error{unsupported} if no transport of the worker reaches the address.
  UcxEndpoint(std::uint64_t own_fabric, Address peer, support::Descriptor lifeline, std::shared_ptr<Worker> worker,
              std::shared_ptr<const Reading> reading, std::shared_ptr<GpuDirect> gpus, std::shared_ptr<Endpoints> all);
  /// Bounded: flushes sent data for a moment, then closes by force.
  ~UcxEndpoint() override;
  UcxEndpoint(const UcxEndpoint&) = delete;
  UcxEndpoint& operator=(const UcxEndpoint&) = delete;

  using Endpoint::send;
  void send(ByteView header, std::span<const ConstMemory> payload, Completion done) override;
  std::unique_ptr<RemoteRegion> import_region(RegionKey key, ByteCount size_bytes) override;
  void read(const RemoteRegion& region, std::span<const ReadRange> ranges, Completion done) override;
  [[nodiscard]] bool failed() const override;
  [[nodiscard]] Path path(const MemoryPlace& place) const override;
  [[nodiscard]] std::string why_not_into(const memory::DeviceAllocation& allocation) const override {
    return gpus_->why_refused(allocation);
  }
  void abort() override;

  [[nodiscard]] std::uint64_t peer_fabric() const { return peer_.fabric; }
  [[nodiscard]] ucp_ep* handle() const { return connection_->handle(); }
  /// Readable when the peer is gone; empty where this cannot be detected.
  [[nodiscard]] const support::Descriptor& lifeline() const { return lifeline_; }
  /// Closes only the message connection; operations posted to it end with a fault.
  void force_close();
  /// The same for its reads, which end with `why`.
  void abort_reads(const Fault& why);
  /// Posts the waiting operations.
  void post();
  /// Whether post() would do anything.
  [[nodiscard]] bool may_post() const;
  /// True also if it was closed by force here. A connection for reads may fail while that for messages lives.
  [[nodiscard]] bool peer_is_gone() const;
  /// Same as the destructor.
  void close();

  bool departure_seen = false;  ///< set by the fabric after it has handled the peer's death
  /// When a new endpoint replaced this one, after it had failed. Operations that began later do not belong to this one.
  WallClock::time_point replaced = WallClock::time_point::max();

 private:
  [[nodiscard]] bool has_ended() const;
  void post(Operation* operation);
  void open_reads();

  std::uint64_t own_fabric_;
  Address peer_;
  support::Descriptor lifeline_;
  std::shared_ptr<Worker> worker_;          // owners: the fabric and its endpoints
  std::shared_ptr<const Reading> reading_;  // owners: the fabric and its endpoints
  std::shared_ptr<GpuDirect> gpus_;         // owners: the fabric and its endpoints
  std::shared_ptr<Endpoints> all_;          // owners: the fabric and its endpoints
  std::unique_ptr<PeerConnection> connection_;
  bool force_closed_ = false;
  std::vector<Operation*> waiting_;     // for the handshake
  std::unique_ptr<ReadChannel> reads_;  // exists once a region has been imported
  support::Fallback why_no_reads_;
};

/// Ends all receives from a fabric that began until `latest` with `why`: every endpoint on which they arrive is closed
/// by force, including those in `all`.
void abort_receives_from(std::uint64_t fabric, WallClock::time_point latest, const Fault& why, Worker& worker,
                         const Endpoints& all);

}  // namespace shardwire::transport::ucx

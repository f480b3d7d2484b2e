// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "support/descriptors.hpp"
#include "transport/ucx/peer_connection.hpp"
#include "transport/ucx/read_channel.hpp"
#include "transport/ucx/reading.hpp"

namespace shardwire::transport::ucx {

/// What a fabric tells its peers; decoded form of Fabric::address().
struct Address {
  std::uint64_t fabric = 0;
  Bytes worker;
  bool serves_reads = false;  ///< by hardware
};
Bytes encode(const Address& address);
/// Errors: throws Error{transport_failed}.
Address decode_address(ByteView bytes);

class UcxEndpoint;
/// Those of a fabric that there are.
using Endpoints = std::vector<UcxEndpoint*>;

/// A peer: messages over one connection, reads over another.
class UcxEndpoint final : public Endpoint {
 public:
  /// `lifeline` may be none. Errors: throws Error{unsupported} when no transport of the worker reaches the address.
  UcxEndpoint(std::uint64_t own_fabric, Address peer, support::Descriptor lifeline, std::shared_ptr<Worker> worker,
              std::shared_ptr<const Reading> reading, std::shared_ptr<GpuDirect> gpus, std::shared_ptr<Endpoints> all);
  /// Bounded: gives what was sent a moment to leave, then cuts.
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
  /// Readable when the peer is gone; none where that is not told.
  [[nodiscard]] const support::Descriptor& lifeline() const { return lifeline_; }
  /// Cuts it, and nothing else; what is posted to it ends with a fault.
  void cut();
  /// The same for its reads, which end for `why`.
  void cut_reads(const Fault& why);
  /// Posts what has had to wait.
  void post();
  /// There is something that post() would do.
  [[nodiscard]] bool may_post() const;
  /// Or cut off from here. A connection for reads may fail beside one for messages that lives.
  [[nodiscard]] bool peer_is_gone() const;
  /// Ends it as the destructor does.
  void close();

  bool departure_seen = false;  ///< the fabric's note that it has dealt with the peer's death
  /// When the peer was connected to again, after an endpoint to it had failed. What began later has nothing to do with this.
  Clock::time_point replaced = Clock::time_point::max();

 private:
  [[nodiscard]] bool has_ended() const;
  void post(Operation* operation);
  void open_reads();

  std::uint64_t own_fabric_;
  Address peer_;
  support::Descriptor lifeline_;
  std::shared_ptr<Worker> worker_;          // owners: the fabric and its endpoints
  std::shared_ptr<const Reading> reading_;  // owners: the same
  std::shared_ptr<GpuDirect> gpus_;         // the same
  std::shared_ptr<Endpoints> all_;          // owners: the fabric and its endpoints
  std::unique_ptr<PeerConnection> connection_;
  bool cut_ = false;
  std::vector<Operation*> waiting_;     // for the handshake
  std::unique_ptr<ReadChannel> reads_;  // once a region was imported
  std::string why_no_reads_;
};

/// Ends all receives from a fabric that began until `latest`, for `why`: whatever endpoints they arrive on are cut, those
/// of `all` among them.
void abort_receives_from(std::uint64_t fabric, Clock::time_point latest, const Fault& why, Worker& worker,
                         const Endpoints& all);

}  // namespace shardwire::transport::ucx

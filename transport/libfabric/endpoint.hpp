// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "support/fork.hpp"
#include "transport/libfabric/read_channel.hpp"

namespace shardwire::transport::libfabric {

/// The data that a fabric gives its peers; decoded form of Fabric::address().
struct Address {
  std::uint64_t fabric = 0;
  std::uint32_t format = 0;
  Bytes name;  ///< of the serving endpoint
};
Bytes encode(const Address& address);
/// `own`: an address whose format the peer's must match. Errors: throws Error{transport_failed}.
Address decode_address(ByteView bytes, const Address& own);

/// A silent socket that the fabric's descriptor watches: providers do not report the end of an idle peer.
class WatchedSocket {
 public:
  /// Borrows `wake`. Errors: throws Error{out_of_resources}.
  WatchedSocket(support::Descriptor socket, const WakeDescriptor& wake);
  ~WatchedSocket();
  WatchedSocket(const WatchedSocket&) = delete;
  WatchedSocket& operator=(const WatchedSocket&) = delete;
  [[nodiscard]] int descriptor() const { return socket_.get(); }

 private:
  const WakeDescriptor& wake_;
  support::Descriptor socket_;
  support::ClosedOnFork closed_on_fork_{socket_.get()};
};

class LibfabricEndpoint;
/// The endpoints of a fabric.
using Endpoints = std::vector<LibfabricEndpoint*>;

class LibfabricEndpoint final : public Endpoint {
 public:
  LibfabricEndpoint(std::shared_ptr<FabricState> state, std::shared_ptr<Endpoints> all, Address peer,
                    support::Descriptor socket);
  ~LibfabricEndpoint() override;
  LibfabricEndpoint(const LibfabricEndpoint&) = delete;
  LibfabricEndpoint& operator=(const LibfabricEndpoint&) = delete;

  using Endpoint::send;
  void send(ByteView header, std::span<const ConstMemory> payload, Completion done) override;
  std::unique_ptr<RemoteRegion> import_region(RegionKey key, ByteCount size_bytes) override;
  void read(const RemoteRegion& region, std::span<const ReadRange> ranges, Completion done) override;
  [[nodiscard]] bool failed() const override { return gone_ || (channel_ && channel_->failed()); }
  [[nodiscard]] Path path(const MemoryPlace& place) const override;
  [[nodiscard]] std::string why_not_into(const memory::DeviceAllocation& allocation) const override {
    return state_->gpus->why_refused(allocation);
  }
  void abort() override;

  /// Returns whether anything advanced.
  bool progress() { return channel_ && channel_->progress(); }
  /// Checks whether the peer is alive; true when this detects that it is gone.
  bool watch();
  [[nodiscard]] const ReadChannel* channel() const { return channel_.get(); }
  /// Same as the destructor.
  void close();

 private:
  void end(const Fault& why);

  std::shared_ptr<FabricState> state_;  // owners: the fabric and its endpoints
  std::shared_ptr<Endpoints> all_;      // owners: the fabric and its endpoints
  Address peer_;
  std::unique_ptr<WatchedSocket> socket_;
  std::optional<Fault> gone_;             // the reason
  std::unique_ptr<ReadChannel> channel_;  // exists once a region has been imported
};

}  // namespace shardwire::transport::libfabric

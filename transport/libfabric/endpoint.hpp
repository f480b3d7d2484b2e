// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "support/fork.hpp"
#include "transport/libfabric/read_channel.hpp"

namespace shardwire::transport::libfabric {

/// What a fabric tells its peers; decoded form of Fabric::address().
struct Address {
  std::uint64_t fabric = 0;
  std::uint32_t format = 0;
  Bytes name;  ///< of the endpoint that serves
};
Bytes encode(const Address& address);
/// `own`: what a peer's looks like. Errors: throws Error{transport_failed}.
Address decode_address(ByteView bytes, const Address& own);

/// A silent socket that a fabric's descriptor tells of: providers say nothing of the end of a peer that is idle.
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
/// Those of a fabric that there are.
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

  /// Whether anything has moved.
  bool progress() { return channel_ && channel_->progress(); }
  /// Looks whether the peer is still there; true when it has found it gone.
  bool watch();
  [[nodiscard]] const ReadChannel* channel() const { return channel_.get(); }
  /// As the destructor.
  void close();

 private:
  void end(const Fault& why);

  std::shared_ptr<FabricState> state_;  // owners: the fabric and its endpoints
  std::shared_ptr<Endpoints> all_;      // the same
  Address peer_;
  std::unique_ptr<WatchedSocket> socket_;
  std::optional<Fault> gone_;             // why
  std::unique_ptr<ReadChannel> channel_;  // once a region was imported
};

}  // namespace shardwire::transport::libfabric

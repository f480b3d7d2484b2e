// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "support/fork.hpp"
#include "transport/shm/readers.hpp"
#include "transport/shm/registration.hpp"

namespace shardwire::transport::shm {

/// The local stream socket to one peer's fabric. It carries no data: it identifies the peer and reports its end.
class PeerSocket {
 public:
  /// Errors: throws Error{unsupported} unless it is such a socket.
  explicit PeerSocket(support::Descriptor socket);
  [[nodiscard]] const PeerProcess& peer() const { return peer_; }
  [[nodiscard]] int descriptor() const { return socket_.get(); }

 private:
  support::Descriptor socket_;
  PeerProcess peer_;
  support::ClosedOnFork closed_on_fork_{socket_.get()};  // children of this process must not keep it open
};

/// Descriptors to wait on, each with a number. Level-triggered: an unhandled event wakes again.
class EventQueue {
 public:
  EventQueue();
  void add(int descriptor, std::uint64_t number);
  void remove(int descriptor);
  [[nodiscard]] std::vector<std::uint64_t> ready() const;
  [[nodiscard]] int descriptor() const { return epoll_.get(); }

 private:
  support::Descriptor epoll_;
};

class ShmEndpoint;

/// State shared by a fabric and its endpoints; for their thread only. Owners: the fabric and its endpoints, destroyed
/// in any order.
class Operations {
 public:
  Operations() { events_.add(readers_.descriptor(), readers_number); }
  std::uint64_t add(ShmEndpoint& endpoint, int descriptor);
  void unwatch(int descriptor) { events_.remove(descriptor); }
  /// Completions of the endpoint never run; its memory is not written after this returns.
  void remove(std::uint64_t endpoint);
  void post(std::shared_ptr<Read> read, Completion done);
  /// Posts a read that has already failed: it completes in the next progress().
  void post_fault(std::shared_ptr<Read> read, Fault fault, Completion done);
  /// Ends the reads of an endpoint soon, with this fault.
  void fault(std::uint64_t endpoint, const Fault& fault);
  /// The fabric is gone: its endpoints become unusable.
  void close();

  bool progress();
  bool arm();
  [[nodiscard]] int descriptor() const { return events_.descriptor(); }

 private:
  static constexpr std::uint64_t readers_number = 0;
  struct Pending {
    std::uint64_t endpoint = 0;
    Completion done{};
    Outcome fault{};  // overrides any other outcome
  };
  std::uint64_t add(Pending pending);

  EventQueue events_;
  Readers readers_;
  std::uint64_t last_number_ = readers_number;
  std::map<std::uint64_t, ShmEndpoint*> endpoints_;
  std::map<std::uint64_t, Pending> pending_;
  std::deque<std::shared_ptr<Read>> finished_;
};

class ShmEndpoint final : public Endpoint {
 public:
  /// `why_no_attach` empty: memory outside arenas can be read.
  ShmEndpoint(std::shared_ptr<Operations> operations, std::unique_ptr<PeerSocket> socket,
              support::Fallback why_no_attach);
  ~ShmEndpoint() override;
  ShmEndpoint(const ShmEndpoint&) = delete;
  ShmEndpoint& operator=(const ShmEndpoint&) = delete;

  using Endpoint::send;
  void send(ByteView header, std::span<const ConstMemory> payload, Completion done) override;
  std::unique_ptr<RemoteRegion> import_region(RegionKey key, ByteCount size_bytes) override;
  void read(const RemoteRegion& region, std::span<const ReadRange> ranges, Completion done) override;
  [[nodiscard]] bool failed() const override { return failure_.has_value(); }
  [[nodiscard]] Path path(const MemoryPlace& place) const override;
  void abort() override;

  /// Checks the socket.
  void watch();
  void fail(Fault why);

 private:
  std::shared_ptr<Operations> operations_;
  std::unique_ptr<PeerSocket> socket_;  // until it has failed
  pid_t peer_;
  support::Fallback why_no_attach_;
  Outcome failure_;
  std::uint64_t number_;
};

}  // namespace shardwire::transport::shm

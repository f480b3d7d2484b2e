// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "transport/transport.hpp"

// What fabrics of one process share. Everything else belongs to one fabric and thereby to one thread.
namespace shardwire::transport::loopback {

using OperationId = std::uint64_t;

/// The memory behind a region. Owners: the Region and every RemoteRegion, as with a shared-memory segment that stays
/// mapped after its creator is gone.
class Backing {
 public:
  /// Whole pages of zeros. Errors: throws Error{out_of_resources}.
  explicit Backing(ByteCount size_bytes);
  /// Somebody else's memory, there until withdraw(). Errors: throws Error{invalid_argument} for what is said to be a device's and
  /// is not.
  explicit Backing(const Memory& memory);
  ~Backing();
  Backing(const Backing&) = delete;
  Backing& operator=(const Backing&) = delete;

  [[nodiscard]] const Memory& memory() const { return memory_; }
  /// What peers may keep addressing when the region is gone: not what belongs to somebody else, unless it is a device's, where a
  /// copy of what is no longer there is an error, and nobody's end.
  [[nodiscard]] ConstMemory mappable() const { return adopted_ && !on_device() ? ConstMemory() : ConstMemory(memory_); }
  [[nodiscard]] bool has_peer_access() const { return peer_access_; }
  [[nodiscard]] bool on_device() const { return memory_.place.kind == MemoryKind::cuda; }
  /// Why memory of a device is not the allocation any more that was adopted; empty: it is.
  [[nodiscard]] std::string why_gone() const;
  /// Copies out of it; false when the memory has gone back to its owner. Any thread.
  bool read(std::span<const ReadRange> ranges);
  /// No read is under way any more when this returns, and none begins.
  void withdraw();

  std::uint64_t id = 0;

 private:
  Memory memory_;  // a null address when there are no bytes
  bool adopted_ = false;
  std::uint64_t allocation_ = 0;  // of a device: see memory::DeviceAllocation::number
  bool peer_access_ = true;       // the same
  std::mutex mutex_;
  bool withdrawn_ = false;  // guarded by mutex_
};

class Port;

/// A message on its way. Owners: the sender's list of pending operations and the receiver's inbox.
struct Message {
  std::shared_ptr<Port> sender;  // owners: the sending fabric, the directory's users, and messages under way
  OperationId operation = 0;
  Bytes header;
  ByteCount payload_bytes = 0;

  // The payload is the sender's memory: the receiver copies under the lock, and a sender that gives up clears it.
  std::mutex mutex;
  bool abandoned = false;
  std::vector<ConstMemory> payload;
};

/// Where other threads leave things for a fabric. Every member may be called by any thread.
class Port {
 public:
  struct Finished {
    OperationId operation = 0;
    Outcome outcome;
  };
  struct Batch {  // vectors: an empty one allocates nothing, and most polls find nothing
    std::vector<std::shared_ptr<Message>> messages;
    std::vector<Finished> finished;
  };

  explicit Port(std::uint64_t id);
  ~Port();
  Port(const Port&) = delete;
  Port& operator=(const Port&) = delete;

  [[nodiscard]] std::uint64_t id() const { return id_; }
  [[nodiscard]] int descriptor() const { return descriptor_; }
  [[nodiscard]] bool closed() const { return closed_.load(std::memory_order_acquire); }
  /// False when the port is closed: the message will not be seen by anyone.
  bool deliver(std::shared_ptr<Message> message);
  void finish(OperationId operation, Outcome outcome);
  Batch drain();
  /// Clears the descriptor; false when something is waiting.
  bool arm();
  /// Nothing is accepted from here on; what waits is faulted back to its senders.
  void close();

 private:
  void signal() const;

  const std::uint64_t id_;
  const int descriptor_;
  std::atomic<bool> closed_ = false;
  std::mutex mutex_;
  Batch waiting_;
};

/// Names of this process's open ports and regions.
std::string domain();
std::shared_ptr<Port> open_port();
void close_port(Port& port);
std::shared_ptr<Port> find_port(std::uint64_t id);

std::unique_ptr<Region> make_region(std::shared_ptr<Backing> backing);
std::unique_ptr<RemoteRegion> import_backing(ByteView key, ByteCount size_bytes);

struct LoopbackRemote final : RemoteRegion {
  LoopbackRemote(std::shared_ptr<Backing> owner, ByteCount announced_bytes)
      : backing(std::move(owner)), size_bytes(announced_bytes), why_gone(backing->why_gone()) {}
  [[nodiscard]] ConstMemory mapped() const override {
    const ConstMemory all = backing->mappable();
    return all.empty() || !why_gone.empty() ? ConstMemory() : all.part(0, size_bytes);
  }
  [[nodiscard]] std::string why_not_mapped() const override { return why_gone; }
  [[nodiscard]] bool has_peer_access() const override { return backing->has_peer_access(); }

  std::shared_ptr<Backing> backing;
  ByteCount size_bytes;
  std::string why_gone;  // when it was imported
};

}  // namespace shardwire::transport::loopback

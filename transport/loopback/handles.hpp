// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "support/wake_event.hpp"
#include "transport/transport.hpp"

// State shared by the fabrics of one process. Everything else belongs to one fabric and thereby to one thread.
namespace shardwire::transport::loopback {

using OperationId = std::uint64_t;

/// The memory behind a region. Owners: the Region and every RemoteRegion, like a shared-memory segment that stays
/// mapped after its creator has gone.
class Backing {
 public:
  /// Allocates whole pages of zeros. Errors: throws Error{out_of_resources}.
  explicit Backing(ByteCount size_bytes);
  /// Adopts the caller's memory until withdraw(). Errors: throws Error{invalid_argument} for memory declared to be a
  /// device's that is not.
  explicit Backing(const Memory& memory);
  ~Backing();
  Backing(const Backing&) = delete;
  Backing& operator=(const Backing&) = delete;

  [[nodiscard]] const Memory& memory() const { return memory_; }
  /// Memory that peers may address after the region is gone. Empty for adopted host memory; adopted device memory is
  /// safe, because a copy from freed device memory fails with an error instead of a crash.
  [[nodiscard]] ConstMemory mappable() const { return adopted_ && !on_device() ? ConstMemory() : ConstMemory(memory_); }
  [[nodiscard]] bool has_peer_access() const { return peer_access_; }
  [[nodiscard]] bool on_device() const { return memory_.place.kind == MemoryKind::cuda; }
  /// Why the adopted device allocation no longer exists. Empty: it does.
  [[nodiscard]] std::string why_gone() const;
  /// Copies out of the memory; false if it has been returned to its owner. Any thread.
  bool read(std::span<const ReadRange> ranges);
  /// After it returns, no read is under way and none begins.
  void withdraw();

  std::uint64_t id = 0;

 private:
  Memory memory_;  // a null address if there are no bytes
  bool adopted_ = false;
  std::uint64_t allocation_ = 0;  // device memory: see memory::DeviceAllocation::number
  bool peer_access_ = true;       // device memory: see memory::DeviceAllocation::peer_access
  std::mutex mutex_;
  bool withdrawn_ = false;  // guarded by mutex_
};

class Port;

/// A message under way. Owners: the sender's list of pending operations and the receiver's inbox.
struct Message {
  std::shared_ptr<Port> sender;  // owners: the sending fabric, the directory's users, and messages under way
  OperationId operation = 0;
  Bytes header;
  ByteCount payload_bytes = 0;

  // The payload is the sender's memory: the receiver copies under the lock; a sender that abandons the message clears
  // it.
  std::mutex mutex;
  bool abandoned = false;
  std::vector<ConstMemory> payload;
};

/// Inbox in which other threads leave messages for a fabric. Any thread may call every member.
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
  Port(const Port&) = delete;
  Port& operator=(const Port&) = delete;

  [[nodiscard]] std::uint64_t id() const { return id_; }
  [[nodiscard]] int descriptor() const { return event_.descriptor(); }
  [[nodiscard]] bool closed() const { return closed_.load(std::memory_order_acquire); }
  /// False if the port is closed: the message is not received.
  bool deliver(std::shared_ptr<Message> message);
  void finish(OperationId operation, Outcome outcome);
  Batch drain();
  /// Clears the descriptor; false if something is waiting.
  bool arm();
  /// Accepts nothing from here on; waiting messages return to their senders with a fault.
  void close();

 private:
  const std::uint64_t id_;
  const support::WakeEvent event_;
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
  std::string why_gone;  // at the time of the import
};

}  // namespace shardwire::transport::loopback

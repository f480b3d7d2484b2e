// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <deque>
#include <mutex>
#include <utility>

#include "transport/transport.hpp"

// What fabrics of one process share. Everything else belongs to one fabric and thereby to one thread.
namespace shardwire::transport::loopback {

using OperationId = std::uint64_t;

/// The memory behind a region. Owners: the Region and every RemoteRegion, as with a shared-memory segment that stays
/// mapped after its creator is gone.
struct Memory {
  /// Whole pages of zeros. Errors: throws Error{out_of_resources}.
  explicit Memory(ByteCount size_bytes);
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  std::uint64_t id = 0;
  std::byte* data = nullptr;  // null when there are no bytes
  std::size_t size_bytes = 0;
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
  ByteView payload;
};

/// Where other threads leave things for a fabric. Every member may be called by any thread.
class Port {
 public:
  struct Finished {
    OperationId operation = 0;
    Outcome outcome;
  };
  struct Batch {
    std::deque<std::shared_ptr<Message>> messages;
    std::deque<Finished> finished;
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

/// Names of this process's open ports and memories.
std::string domain();
std::shared_ptr<Port> open_port();
void close_port(Port& port);
std::shared_ptr<Port> find_port(std::uint64_t id);
std::shared_ptr<Memory> find_memory(std::uint64_t id);

std::unique_ptr<Region> allocate_region(ByteCount size_bytes);
std::unique_ptr<RemoteRegion> import_memory(ByteView key, ByteCount size_bytes);

struct LoopbackRemote final : RemoteRegion {
  LoopbackRemote(std::shared_ptr<Memory> owner, std::size_t size_bytes)
      : memory(std::move(owner)), bytes(memory->data, size_bytes) {}
  [[nodiscard]] std::span<const std::byte> mapped() const override { return bytes; }

  std::shared_ptr<Memory> memory;
  std::span<const std::byte> bytes;
};

}  // namespace shardwire::transport::loopback

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "memory/device.hpp"
#include "session/fabrics.hpp"
#include "session/tensor_places.hpp"
#include "shardwire/memory.hpp"
#include "support/fork.hpp"
#include "transport/transport.hpp"

namespace shardwire {

namespace detail {

/// One range of memory that the session's fabrics may know: an arena of theirs or of a device, or memory that the caller has
/// registered.
/// Keeps the fabrics alive: regions have to go first.
/// Threads: any.
class SHARDWIRE_LOCAL RegisteredMemory {
 public:
  using Regions = std::vector<std::shared_ptr<transport::Region>>;  // by fabric; null: that fabric does not know it

  enum class Owner : std::uint8_t { session, caller };
  /// `place`: of memory of a device, as it was found.
  RegisteredMemory(std::shared_ptr<Fabrics> fabrics, Regions regions, const transport::Memory& memory, Owner owner,
                   TensorPlace place = {});
  /// An arena on a device.
  RegisteredMemory(std::shared_ptr<Fabrics> fabrics, Regions regions, const transport::Memory& memory,
                   std::unique_ptr<memory::DeviceMemory> owned);
  ~RegisteredMemory();
  RegisteredMemory(const RegisteredMemory&) = delete;
  RegisteredMemory& operator=(const RegisteredMemory&) = delete;

  [[nodiscard]] const transport::Memory& memory() const { return memory_; }
  [[nodiscard]] bool is_arena() const { return memory_owner_ == Owner::session; }
  /// As the fabric knows it; null when it does not, or not any more. Owners: this, and the caller as long as it looks at it.
  [[nodiscard]] std::shared_ptr<const transport::Region> region(std::size_t fabric) const;
  /// As Region::discard() of an arena, where no fabric has pinned it.
  ByteCount discard(ByteCount offset_bytes, ByteCount bytes);
  [[nodiscard]] bool holds(ByteCount offset_bytes, ByteCount bytes) const;
  /// No fabric knows it from here on: keys are not shown any more, and those that peers have do not work.
  void withdraw();
  [[nodiscard]] bool withdrawn() const;
  /// False for memory of a device that the caller has freed: its address may be another allocation's.
  [[nodiscard]] bool is_there() const { return !place_ || is_still_there(*place_, memory_.address); }

 private:
  std::shared_ptr<Fabrics> fabrics_;                 // owners: the session and all of its memory
  std::unique_ptr<memory::DeviceMemory> on_device_;  // of an arena there; before the regions in it
  mutable std::mutex mutex_;
  Regions regions_;         // guarded by mutex_, as is the next
  bool withdrawn_ = false;  // no fabric may know it from the start
  transport::Memory memory_;
  Owner memory_owner_;
  TensorPlace place_{};
  support::OwningProcess owner_;
};

/// Handles that the caller has of registered memory; the last one withdraws it, unless it lies in an arena.
class SHARDWIRE_LOCAL RegistrationState {
 public:
  explicit RegistrationState(std::shared_ptr<RegisteredMemory> memory) : memory_(std::move(memory)) {}
  ~RegistrationState() {
    if (!memory_->is_arena()) memory_->withdraw();
  }
  RegistrationState(const RegistrationState&) = delete;
  RegistrationState& operator=(const RegistrationState&) = delete;
  [[nodiscard]] const std::shared_ptr<RegisteredMemory>& memory() const { return memory_; }

 private:
  std::shared_ptr<RegisteredMemory> memory_;  // owners: this, and publications that lie in it
};

}  // namespace detail

/// All memory of one session that its fabrics know, by address.
/// Threads: any.
class MemoryTable {
 public:
  explicit MemoryTable(std::shared_ptr<Fabrics> fabrics) : fabrics_(std::move(fabrics)) {}

  /// An arena: of the first fabric that lets peers map it, made known to the others.
  std::shared_ptr<detail::RegisteredMemory> allocate(ByteCount bytes);
  /// An arena on a device, of its runtime; known to the fabrics that know such memory. Blocks until it is zeros.
  std::shared_ptr<detail::RegisteredMemory> allocate_on_device(ByteCount bytes, int device);
  /// The same for the session's own use: it is neither counted nor found.
  [[nodiscard]] std::shared_ptr<detail::RegisteredMemory> allocate_unlisted(ByteCount bytes) const;
  /// Memory of the caller; what an arena or an earlier registration holds all of is not registered again.
  std::shared_ptr<detail::RegistrationState> add(const transport::Memory& memory, const TensorPlace& place = {});
  /// What is published unasked, for fabrics that take it at no cost; null where there is none.
  std::shared_ptr<detail::RegisteredMemory> adopt_unasked(const transport::Memory& memory);
  /// The arena or registration that holds all of [data, data + bytes), if there is one, and is still what it was.
  [[nodiscard]] std::shared_ptr<detail::RegisteredMemory> find(const void* data, ByteCount bytes) const;

  struct Registration {
    ByteCount bytes = 0;
    double seconds = 0;
  };
  /// All that was allocated and registered in this session so far.
  [[nodiscard]] Registration registration() const;

 private:
  struct Known {
    ByteCount bytes = 0;
    std::weak_ptr<detail::RegisteredMemory> memory;
    std::weak_ptr<detail::RegistrationState> registration;  // of memory of the caller
  };
  template <typename Make>
  auto timed(ByteCount bytes, Make make);
  // With the lock, both.
  void insert(const std::shared_ptr<detail::RegisteredMemory>& memory, std::weak_ptr<detail::RegistrationState> handle);
  [[nodiscard]] const Known* around(const void* data, ByteCount bytes) const;

  std::shared_ptr<Fabrics> fabrics_;  // owners: see RegisteredMemory
  mutable std::mutex mutex_;
  std::multimap<const std::byte*, Known> by_address_;  // they may lie in each other; guarded by mutex_
  ByteCount longest_bytes_ = 0;                        // of any that was ever there; guarded by mutex_
  Registration registration_;                          // guarded by mutex_
};

}  // namespace shardwire

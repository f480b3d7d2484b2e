// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "catalog/tensor_places.hpp"
#include "memory/device.hpp"
#include "memory/shared_memory.hpp"
#include "paths/fabrics.hpp"
#include "shardwire/memory.hpp"
#include "support/fork.hpp"
#include "transport/transport.hpp"

namespace shardwire {

namespace detail {

/// One range of memory that the session's fabrics may know: an arena of a fabric or a device, or memory that the caller
/// has registered. Keeps the fabrics alive, because regions have to be destroyed before them.
/// Threads: any.
class SHARDWIRE_LOCAL RegisteredMemory {
 public:
  using Regions = std::vector<std::shared_ptr<transport::Region>>;  // by fabric; null: unknown to that fabric

  enum class Owner : std::uint8_t { session, caller };
  /// `place`: of device memory, as found.
  RegisteredMemory(std::shared_ptr<Fabrics> fabrics, Regions regions, const transport::Memory& memory, Owner owner,
                   TensorPlace place = {});
  /// Memory that other processes have mapped, or may. Treated as an arena.
  RegisteredMemory(std::shared_ptr<Fabrics> fabrics, Regions regions, std::shared_ptr<memory::SharedMemory> shared);
  /// An arena on a device.
  RegisteredMemory(std::shared_ptr<Fabrics> fabrics, Regions regions, const transport::Memory& memory,
                   std::unique_ptr<memory::DeviceMemory> owned);
  ~RegisteredMemory();
  RegisteredMemory(const RegisteredMemory&) = delete;
  RegisteredMemory& operator=(const RegisteredMemory&) = delete;

  [[nodiscard]] const transport::Memory& memory() const { return memory_; }
  [[nodiscard]] bool is_arena() const { return memory_owner_ == Owner::session; }
  /// The fabric's region; null if the fabric does not know the memory, or not any more. Owners: this, and the caller
  /// while it uses it.
  [[nodiscard]] std::shared_ptr<const transport::Region> region(std::size_t fabric) const;
  /// As Region::discard() of an arena, if no fabric has pinned it.
  ByteCount discard(ByteCount offset_bytes, ByteCount bytes);
  [[nodiscard]] bool holds(ByteCount offset_bytes, ByteCount bytes) const;
  /// Withdraws the memory from all fabrics: no further keys are given out, and existing keys stop working.
  void withdraw();
  [[nodiscard]] bool withdrawn() const;
  /// False for device memory that the caller has freed: its address may belong to another allocation.
  [[nodiscard]] bool is_there() const { return !place_ || is_still_there(*place_, memory_.address); }

 private:
  std::shared_ptr<Fabrics> fabrics_;                 // owners: the session and all of its memory
  std::unique_ptr<memory::DeviceMemory> on_device_;  // of a device arena; outlives the regions in it
  std::shared_ptr<memory::SharedMemory> shared_;     // likewise; owners: this, its regions and whoever gave it
  mutable std::mutex mutex_;
  Regions regions_;         // guarded by mutex_, as is the next
  bool withdrawn_ = false;  // if so, no fabric may adopt it
  transport::Memory memory_;
  Owner memory_owner_;
  TensorPlace place_{};
  support::OwningProcess owner_;
};

/// The caller's handles of registered memory. The last one withdraws it, unless it lies in an arena.
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
  std::shared_ptr<RegisteredMemory> memory_;  // owners: this, and publications in that memory
};

}  // namespace detail

/// All memory of one session that its fabrics know, by address.
/// Threads: any.
class MemoryTable {
 public:
  explicit MemoryTable(std::shared_ptr<Fabrics> fabrics) : fabrics_(std::move(fabrics)) {}

  /// Allocates an arena of the first fabric whose memory peers can map; the other fabrics adopt it.
  std::shared_ptr<detail::RegisteredMemory> allocate(ByteCount bytes);
  /// Allocates an arena on a device by the device's runtime; fabrics that support such memory adopt it. Blocks until it
  /// is zeroed.
  std::shared_ptr<detail::RegisteredMemory> allocate_on_device(ByteCount bytes, int device);
  /// As allocate(), for the session's own use: neither counted nor found.
  [[nodiscard]] std::shared_ptr<detail::RegisteredMemory> allocate_unlisted(ByteCount bytes) const;
  /// Shows shared memory to all fabrics; unlisted, as above.
  [[nodiscard]] std::shared_ptr<detail::RegisteredMemory> adopt_shared(
      std::shared_ptr<memory::SharedMemory> shared) const;
  /// Registers memory of the caller; a range inside an arena or an earlier registration is not registered again.
  std::shared_ptr<detail::RegistrationState> add(const transport::Memory& memory, const TensorPlace& place = {});
  /// Adopts unregistered published memory into fabrics that do so at no cost; null if there is none.
  std::shared_ptr<detail::RegisteredMemory> adopt_unasked(const transport::Memory& memory);
  /// The arena or registration that contains [data, data + bytes), if there is one and its memory still exists.
  [[nodiscard]] std::shared_ptr<detail::RegisteredMemory> find(const void* data, ByteCount bytes) const;

  struct Registration {
    ByteCount bytes = 0;
    double seconds = 0;
  };
  /// Total allocated and registered in this session so far.
  [[nodiscard]] Registration registration() const;

 private:
  struct Known {
    ByteCount bytes = 0;
    std::weak_ptr<detail::RegisteredMemory> memory;
    std::weak_ptr<detail::RegistrationState> registration;  // for memory of the caller
  };
  template <typename Make>
  auto timed(ByteCount bytes, Make make);
  // Requires: the caller holds the lock.
  void insert(const std::shared_ptr<detail::RegisteredMemory>& memory, std::weak_ptr<detail::RegistrationState> handle);
  [[nodiscard]] const Known* around(const void* data, ByteCount bytes) const;

  std::shared_ptr<Fabrics> fabrics_;  // owners: see RegisteredMemory
  mutable std::mutex mutex_;
  std::multimap<const std::byte*, Known> by_address_;  // ranges may be nested; guarded by mutex_
  ByteCount longest_bytes_ = 0;                        // of all ranges so far; guarded by mutex_
  Registration registration_;                          // guarded by mutex_
};

}  // namespace shardwire

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "memory/device.hpp"
#include "shardwire/session.hpp"
#include "shardwire/types.hpp"

namespace shardwire::perf {

/// Where state lies.
struct StatePlace {
  int device = memory::on_host;  ///< its ordinal
  bool ordinary = false;         ///< on the host: in memory of the process alone, not in an arena
};

/// What tells this host from others: its name, and what its kernel calls the time since it was started.
Bytes host_identity();
/// How many members before this one are on its host. `hosts`: identities, by member.
int number_on_host(const std::vector<Bytes>& hosts, int member);
/// Devices are taken in turn by the members of a host. Asks the runtime where `kind` is a device's.
StatePlace place_of(MemoryKind kind, int number_on_host, bool ordinary = false);

/// Waits for what is queued. Errors: throws what it ends with.
void await(memory::DeviceStream& stream);
/// All of `bytes`, as they lie. Borrows both.
memory::DeviceCopy plain_copy(const std::byte* from, std::byte* to, ByteCount bytes);

/// Memory for one side of a member's state. Values are made and checked on the device where its runtime does that, else in a mirror on
/// the host.
class StateBlock {
 public:
  /// Zeros, or on a device anything. Errors: as Session::allocate() and memory::DeviceRuntime.
  StateBlock(Session& session, ByteCount bytes, const StatePlace& place);

  /// On the host.
  [[nodiscard]] std::span<std::byte> bytes() const { return bytes_; }
  /// What a catalog says of the memory behind a place in bytes(); null stays null.
  [[nodiscard]] View view_of(const std::byte* place) const;
  /// Where the first byte lies on the device; null on the host, and where there is none.
  [[nodiscard]] std::byte* device_address() const { return memory_ ? memory_->address() : nullptr; }
  [[nodiscard]] bool on_device() const { return runtime_ != nullptr; }
  /// Fills or checks the boxes, whose places are in bytes(), where they really lie; waits. False, nothing: this is for the mirror, or the host.
  [[nodiscard]] bool fill(std::vector<memory::ValueBox> boxes) const;
  [[nodiscard]] std::optional<std::uint64_t> count_wrong(std::vector<memory::ValueBox> boxes) const;
  /// Makes the state what bytes() is; nothing to do on the host.
  void store() const { transfer(true); }
  /// Makes bytes() what the state is.
  void load() const { transfer(false); }
  /// Fills the first `bytes` of `target` from the start of this one, begun again where it is shorter, as its device copies plainly; waits.
  /// Requires: both on one device.
  void copy_on_device(const StateBlock& target, ByteCount bytes) const;

 private:
  void transfer(bool to_device) const;
  void move_to_device(std::vector<memory::ValueBox>& boxes) const;

  int device_;
  Arena arena_;
  std::shared_ptr<std::byte> pages_;  // owner: this
  std::span<std::byte> bytes_;
  std::shared_ptr<memory::DeviceRuntime> runtime_;  // owners: the process, and this; null on the host
  std::unique_ptr<memory::DeviceMemory> memory_;
  std::unique_ptr<memory::DeviceStream> stream_;
};

}  // namespace shardwire::perf

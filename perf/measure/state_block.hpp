// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "memory/device.hpp"
#include "memory/device_check.hpp"
#include "shardwire/session.hpp"
#include "shardwire/types.hpp"

namespace shardwire::perf {

/// The place of state.
struct StatePlace {
  int device = memory::on_host;  ///< its ordinal
  bool ordinary = false;         ///< on the host: private memory of the process, not an arena
};

/// Distinguishes this host from others: its name, and its kernel's boot id.
Bytes host_identity();
/// Number of members before this one on its host. `hosts`: identities, by member.
int number_on_host(const std::vector<Bytes>& hosts, int member);
/// Assigns devices to the members of a host in turn. Queries the runtime if `kind` is a device's.
StatePlace place_of(MemoryKind kind, int number_on_host, bool ordinary = false);

/// A contiguous copy of `bytes`. Borrows both.
memory::DeviceCopy plain_copy(const std::byte* from, std::byte* to, ByteCount bytes);

/// Memory for one side of a member's state. Values are made and checked on the device if its runtime supports that,
/// else in a mirror on the host.
class StateBlock {
 public:
  /// Zeros, but undefined on a device. Errors: as Session::allocate() and memory::DeviceRuntime.
  StateBlock(Session& session, ByteCount bytes, const StatePlace& place);

  /// On the host.
  [[nodiscard]] std::span<std::byte> bytes() const { return bytes_; }
  /// The view for a catalog of the memory behind an address in bytes(); null stays null.
  [[nodiscard]] View view_of(const std::byte* place) const;
  /// Address of the first byte on the device; null on the host, and for an empty block.
  [[nodiscard]] std::byte* device_address() const { return memory_ ? memory_->address() : nullptr; }
  [[nodiscard]] bool on_device() const { return runtime_ != nullptr; }
  /// Fills or checks the boxes, whose addresses are in bytes(), in the actual memory; waits. False, nothing: the mirror
  /// or the host must do it.
  [[nodiscard]] bool fill(std::vector<memory::ValueBox> boxes) const;
  [[nodiscard]] std::optional<std::uint64_t> count_wrong(std::vector<memory::ValueBox> boxes) const;
  /// Copies bytes() to the state; nothing to do on the host.
  void store() const { transfer(true); }
  /// Copies the state to bytes().
  void load() const { transfer(false); }
  /// Fills the first `bytes` of `target` from the start of this block, repeated if it is shorter, by plain device
  /// copies; waits.
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

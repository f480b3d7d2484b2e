// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>

#include "shardwire/box.hpp"
#include "shardwire/types.hpp"

namespace shardwire {

enum class MemoryKind : std::uint8_t {
  detect,  ///< ask the driver; host where there is none
  host,
  cuda,
};

/// Where the local part of one tensor lies. The layout says at which local element each of the rank's boxes starts; the
/// view says where local element 0 is, and how the local array is strided where it is not dense row-major.
/// Units: strides, elements and offset in elements.
/// Strides: one per dim of the local array, in any order of dims (column-major, slices of a larger array), as torch's
///          stride(); empty means dense. Only for layouts whose boxes lie in one n-d array: not for several explicit boxes,
///          nor for flat ranges. Negative strides, and those under which elements share an address, are refused.
/// Sharing: views of several tensors may lie in one buffer (fused weights, the shard of a flat parameter).
/// Ownership: borrowed; the memory must stay valid while a publication or a restore uses it.
struct View {
  void* data = nullptr;
  MemoryKind kind = MemoryKind::detect;
  int device = -1;  ///< CUDA device ordinal, where kind is cuda
  Extents strides{};
  void* ready_event = nullptr;  ///< opaque event after which the bytes may be read; null: ready now
  ElementCount elements = -1;   ///< how many the caller says the rank holds, checked against the layout; -1: not said
  ElementCount offset = 0;      ///< local element 0 is data + offset * item size: torch's storage_offset()
};

namespace detail {
class ArenaState;
}

/// Memory that peers can reach without a copy in between (shared memory on one host, registered memory on a fabric).
/// Movable owner: the memory goes back when the arena and every publication that uses it are gone.
class Arena {
 public:
  Arena();
  ~Arena();
  Arena(Arena&&) noexcept;
  Arena& operator=(Arena&&) noexcept;

  [[nodiscard]] std::byte* data() const;
  [[nodiscard]] ByteCount size_bytes() const;
  [[nodiscard]] std::span<std::byte> bytes() const { return {data(), static_cast<std::size_t>(size_bytes())}; }

 private:
  friend class Session;
  explicit Arena(std::shared_ptr<detail::ArenaState> state);
  std::shared_ptr<detail::ArenaState> state_;  // owners: this handle and the session's table of regions
};

}  // namespace shardwire

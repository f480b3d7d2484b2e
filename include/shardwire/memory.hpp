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

/// Where the local part of one tensor lies.
/// Units: strides in elements, per dim of the local array; empty means dense row-major in the order of the layout.
/// Ownership: borrowed; the memory must stay valid while a publication or a restore uses it.
struct View {
  void* data = nullptr;
  MemoryKind kind = MemoryKind::detect;
  int device = -1;  ///< CUDA device ordinal, where kind is cuda
  Extents strides{};
  void* ready_event = nullptr;  ///< opaque event after which the bytes may be read; null: ready now
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

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>

#include "shardwire/box.hpp"
#include "shardwire/export.hpp"
#include "shardwire/tensor.hpp"
#include "shardwire/types.hpp"

SHARDWIRE_API_BEGIN
namespace shardwire {

enum class MemoryKind : std::uint8_t {
  detect,  ///< ask the driver; host where there is none, or where it does not know the memory
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
/// Ownership: borrowed; the memory must stay valid while a publication or a restore uses it. Unmapped earlier, it is reported
///            where the kernel reads or writes it (cross-memory attach, tcp); where this library's own code does (packed and
///            local ways, digests, the target of a restore), the process ends by SIGSEGV: the caller's fault.
/// Devices:   a driver that this process has loaded is asked what the memory is when it is published or restored into, not by
///            Catalog::add. Memory that is freed while it is published is refused when a reader comes (withdrawn), also when
///            the address belongs to something else by then. Managed memory moves as memory of its device.
/// Events:    of host memory too. Recorded before publish(), update(), restore() or exchange() is called, and borrowed until a
///            publication is there, or a restore has ended. publish(), update() and exchange() block until the events of their views
///            have happened; a restore does not, and writes nothing before. They are waited for on streams of the library: nothing
///            waits for the whole device, and nobody else for them. After Restore::wait() all writes to the device are over, so work
///            that is queued then needs no event; who wants one gives RestoreOptions::done_events. An event that never happens blocks as cudaEventSynchronize would.
struct View {
  void* data = nullptr;
  MemoryKind kind = MemoryKind::detect;
  int device = -1;  ///< CUDA device ordinal, checked against the driver's; -1: not said
  Extents strides{};
  /// A cudaEvent_t after which the bytes may be read, and overwritten by a restore; null: now. See Events.
  void* ready_event = nullptr;
  ElementCount elements = -1;    ///< how many the caller says the rank holds, checked against the layout; -1: not said
  ElementCount offset = 0;       ///< local element 0 is data + offset * item size: torch's storage_offset()
  ElementCount bytes = -1;       ///< the same as `elements` in bytes, for memory of no type; -1: not said
  std::optional<DType> dtype{};  ///< type of the memory, checked against the tensor's; empty: not said
  bool read_only = false;        ///< may be published, not restored into
};

/// The dtype of a C++ type: float, double, bool, std::uint8_t and signed integers of 8 to 64 bits; empty for std::byte, which
/// stands for elements of any type. Other types do not compile: C++20 has none of 8 or 16 bits for floats, so memory of such
/// is given as std::as_bytes or std::as_writable_bytes of it.
template <typename T>
constexpr std::optional<DType> dtype_of() {
  using Type = std::remove_cv_t<T>;
  if constexpr (std::same_as<Type, float>) {
    return DType::f32;
  } else if constexpr (std::same_as<Type, double>) {
    return DType::f64;
  } else if constexpr (std::same_as<Type, bool>) {
    return DType::boolean;
  } else if constexpr (std::same_as<Type, std::uint8_t>) {
    return DType::u8;
  } else if constexpr (std::signed_integral<Type> && !std::same_as<Type, char> && !std::same_as<Type, wchar_t>) {
    constexpr DType by_size[]{DType::i8,  DType::i8,  DType::i16, DType::i16, DType::i32,
                              DType::i32, DType::i32, DType::i32, DType::i64};
    return by_size[sizeof(Type)];
  } else {
    static_assert(std::same_as<Type, std::byte>, "no dtype is of this type: give the memory as bytes (std::as_bytes)");
    return std::nullopt;
  }
}

/// A view of a dense local array that knows its size and, unless it is of std::byte, its type: Catalog::add checks both.
/// Memory of const T can be published, but not restored into.
template <typename T, std::size_t size>
View view(std::span<T, size> memory) {
  View result;
  result.data = const_cast<std::remove_cv_t<T>*>(memory.data());
  result.dtype = dtype_of<T>();
  (result.dtype ? result.elements : result.bytes) = static_cast<ElementCount>(memory.size());
  result.read_only = std::is_const_v<T>;
  return result;
}
/// The same of a vector, an array, or whatever else a span can be made of.
template <typename Memory>
requires requires(Memory& memory) {
  std::span(memory);
}
View view(Memory& memory) {
  return view(std::span(memory));
}

namespace detail {
class SHARDWIRE_LOCAL RegisteredMemory;
class SHARDWIRE_LOCAL RegistrationState;
}  // namespace detail

/// Memory that peers can reach without a copy in between (shared memory on one host, registered memory on a fabric).
/// Movable owner: the memory goes back when the arena and every publication that uses it are gone; it outlives its session.
/// Alignment: 64 bytes at least. Content: zeros.
/// Devices:   of an arena on a device data() and bytes() are addresses there: the processor touches nothing of it.
/// Fork:      a child of fork() does not inherit the memory; touching it there is a fault.
/// Threads:   a handle is for one thread at a time, its memory for any.
/// Errors:    an empty or moved-from arena throws Error{invalid_argument}.
class Arena {
 public:
  Arena();
  ~Arena();
  Arena(Arena&&) noexcept;
  Arena& operator=(Arena&&) noexcept;

  /// False for an arena that was made empty or moved from.
  [[nodiscard]] bool valid() const noexcept { return state_ != nullptr; }
  [[nodiscard]] std::byte* data() const;
  [[nodiscard]] ByteCount size_bytes() const;
  [[nodiscard]] std::span<std::byte> bytes() const { return {data(), static_cast<std::size_t>(size_bytes())}; }
  /// Gives memory back to the system before the arena goes, e.g. of state that every reader has: the parts that lie wholly in
  /// the range, which are 256 MiB each, and larger in arenas beyond 16 GiB. Returns how many bytes that was, 0 where arenas
  /// are not in parts, as on devices. What was given back must not be touched again, and nothing that lies there may be
  /// published; who binds to such a publication is refused. Peers that have the parts mapped keep them until they let go.
  /// Errors: throws Error{invalid_argument} for a range that is not inside.
  ByteCount discard(ByteCount offset_bytes, ByteCount bytes);

 private:
  friend class Session;
  SHARDWIRE_LOCAL explicit Arena(std::shared_ptr<detail::RegisteredMemory> state);
  std::shared_ptr<detail::RegisteredMemory> state_;  // owners: this handle and the session's table of regions
};

/// Memory of the caller that peers can read directly, as far as the session's fabrics can do that (Session::register_memory).
/// Movable owner: the destructor withdraws all keys, then deregisters. Registering what an open registration holds all of
/// costs nothing and shares it: the last of the handles withdraws. What lies in an arena is the arena's, and stays so.
/// Ownership: borrows the memory, which has to stay mapped, and what it is, until this handle and every publication of that
///            memory are gone; memory of a device that was freed earlier is not taken for what has its address then. As long as
///            it is registered, its keys open all of it to members of the job. Publications go first: restores that read by
///            keys which are withdrawn under a live publication fail with `withdrawn`.
/// Threads:   a handle is for one thread at a time.
/// Errors:    an empty or moved-from registration throws Error{invalid_argument}.
class Registration {
 public:
  Registration();
  ~Registration();
  Registration(Registration&&) noexcept;
  Registration& operator=(Registration&&) noexcept;

  /// False for a registration that was made empty or moved from.
  [[nodiscard]] bool valid() const noexcept { return state_ != nullptr; }
  /// Of the whole range that is registered, which may be larger than the range asked for.
  [[nodiscard]] ByteCount size_bytes() const;

 private:
  friend class Session;
  SHARDWIRE_LOCAL explicit Registration(std::shared_ptr<detail::RegistrationState> state);
  std::shared_ptr<detail::RegistrationState> state_;  // owners: the handles of this range
};

}  // namespace shardwire
SHARDWIRE_API_END

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <complex>
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
  detect,  ///< ask the driver; host if there is no driver or it does not know the memory
  host,
  cuda,
};

/// Place of the local part of one tensor. The layout gives the local element at which each of the rank's boxes starts.
/// The view gives the address of local element 0, and the strides of the local array if it is not dense row-major.
/// Units: strides, elements and offset in elements.
/// Strides: one per dim of the local array, in any order of dims (column-major, slices of a larger array), as torch's
///          stride(); empty means dense. Only for layouts whose boxes lie in one n-d array: not for several explicit
///          boxes or flat ranges. Negative strides, and strides that map two elements to one address, are refused.
/// Sharing: views of several tensors may lie in one buffer (fused weights, the shard of a flat parameter).
/// Ownership: borrowed; the memory must stay valid while a publication or a restore uses it. If it is unmapped earlier,
///            kernel accesses (cross-memory attach, tcp) report an error. Accesses by the library's own code (packed
///            and local methods, digests, the target of a restore) end the process with SIGSEGV.
/// Owners:    a catalog holds the owners of its views. A publication, restore or exchange holds them too, until a
///            retired publication has no reader, or the restore or exchange has ended. It then releases them on a
///            thread that the library has for this purpose, never on a session's thread: a destructor may take locks.
///            Memory of register_memory() is the caller's to keep; its view's owner is ignored.
/// Devices:   if this process has loaded a driver, publish() and restore() ask it for the kind of memory; Catalog::add
///            does not. If published memory is freed, later readers are refused (withdrawn), even if the address is
///            reused. Managed memory moves as memory of its device.
/// Events:    also allowed for host memory. Record the event before publish(), update(), restore() or exchange(). It is
///            borrowed until the publication exists or the restore has ended. publish(), update() and exchange() block
///            until the events of their views have happened. A restore does not block, and writes nothing before they
///            have happened. The library waits on streams of its own, never for the whole device. After Restore::wait()
///            all writes to the device are complete, so later work needs no event; RestoreOptions::done_events provides
///            one. An event that never happens blocks as cudaEventSynchronize would.
struct View {
  void* data = nullptr;
  MemoryKind kind = MemoryKind::detect;
  int device = -1;  ///< CUDA device ordinal, checked against the driver's; -1: not given
  Extents strides{};
  /// A cudaEvent_t (as_event() of shardwire/cuda.hpp) after which the bytes may be read, or overwritten by a restore;
  /// null: at once. See Events.
  void* ready_event = nullptr;
  ElementCount elements =
      -1;  ///< number the rank holds by the caller's account, checked against the layout; -1: not given
  ElementCount offset = 0;        ///< local element 0 is data + offset * item size: torch's storage_offset()
  ElementCount bytes = -1;        ///< `elements` in bytes, for memory without a type; -1: not given
  std::optional<DType> dtype{};   ///< type of the memory, checked against the tensor's; empty: not given
  bool read_only = false;         ///< may be published, not restored into
  std::shared_ptr<void> owner{};  ///< keeps the memory alive; see Owners
};

/// Waits until the owners that ended operations kept are released, for at most `timeout`. From then on ended operations
/// release none: for interpreters, whose objects cannot be destroyed after their end.
void stop_releasing_owners(std::chrono::nanoseconds timeout);

namespace detail {
/// An integer that is no character.
template <typename T>
concept Number = std::integral<T> && !std::same_as<T, char> && !std::same_as<T, wchar_t> && !std::same_as<T, char8_t> &&
                 !std::same_as<T, char16_t> && !std::same_as<T, char32_t>;

/// Of `one`, `two`, `four` and `eight`, the type whose elements have that many bytes.
constexpr DType by_size(std::size_t bytes, DType one, DType two, DType four, DType eight) {
  return bytes == 1 ? one : bytes == 2 ? two : bytes == 4 ? four : eight;
}
}  // namespace detail

/// The dtype of a C++ type: float, double, their std::complex, bool, and integers of 8 to 64 bits but characters; empty
/// for std::byte, which stands for elements of any type. Other types do not compile. C++20 has no floats of 8 or 16
/// bits, and structs are opaque: pass their memory as std::as_bytes or std::as_writable_bytes.
template <typename T>
constexpr std::optional<DType> dtype_of() {
  using Type = std::remove_cv_t<T>;
  if constexpr (std::same_as<Type, float>) {
    return DType::f32;
  } else if constexpr (std::same_as<Type, double>) {
    return DType::f64;
  } else if constexpr (std::same_as<Type, std::complex<float>>) {
    return DType::complex64;
  } else if constexpr (std::same_as<Type, std::complex<double>>) {
    return DType::complex128;
  } else if constexpr (std::same_as<Type, bool>) {
    return DType::boolean;
  } else if constexpr (detail::Number<Type> && sizeof(Type) <= 8) {
    return std::is_signed_v<Type> ? detail::by_size(sizeof(Type), DType::i8, DType::i16, DType::i32, DType::i64)
                                  : detail::by_size(sizeof(Type), DType::u8, DType::u16, DType::u32, DType::u64);
  } else {
    static_assert(std::same_as<Type, std::byte>, "no dtype is of this type: give the memory as bytes (std::as_bytes)");
    return std::nullopt;
  }
}

/// View of a dense local array with its size and, except for std::byte, its type; Catalog::add checks both. Memory of
/// const T can be published, but not restored into.
template <typename T, std::size_t size>
View view(std::span<T, size> memory) {
  View result;
  result.data = const_cast<std::remove_cv_t<T>*>(memory.data());
  result.dtype = dtype_of<T>();
  (result.dtype ? result.elements : result.bytes) = static_cast<ElementCount>(memory.size());
  result.read_only = std::is_const_v<T>;
  return result;
}
/// View of a vector, an array, or any other type that converts to a span.
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

/// Memory that peers can reach without a copy in between (shared memory on one host, registered memory that a NIC reads).
/// Movable owner: the memory is freed when the arena and every publication that uses it are gone. It may outlive its
/// session.
/// Alignment: at least 64 bytes. Content: zeros.
/// Devices:   data() and bytes() of a device arena are device addresses; the host cannot access them.
/// Fork:      a child of fork() does not inherit the memory; accessing it there faults.
/// Threads:   use a handle from one thread at a time, its memory from any.
/// Errors:    an empty or moved-from arena throws Error{invalid_argument}.
class Arena {
 public:
  Arena();
  ~Arena();
  Arena(Arena&&) noexcept;
  Arena& operator=(Arena&&) noexcept;

  /// False for a default-constructed or moved-from arena.
  [[nodiscard]] bool valid() const noexcept { return state_ != nullptr; }
  [[nodiscard]] std::byte* data() const;
  [[nodiscard]] ByteCount size_bytes() const;
  [[nodiscard]] std::span<std::byte> bytes() const { return {data(), static_cast<std::size_t>(size_bytes())}; }
  /// Returns memory to the system before the arena is destroyed, e.g. state that every reader has. An arena consists of
  /// parts of 256 MiB, or larger in arenas beyond 16 GiB; this frees the parts that lie wholly in the range. Returns
  /// the number of bytes freed; 0 if the arena has no parts, as on devices. The caller must not access or publish freed
  /// memory again; readers that bind to a publication there are refused. Peers that have mapped a part keep it until
  /// they unmap it.
  /// Errors: throws Error{invalid_argument} for a range that is not inside the arena.
  ByteCount discard(ByteCount offset_bytes, ByteCount bytes);

 private:
  friend class Session;
  SHARDWIRE_LOCAL explicit Arena(std::shared_ptr<detail::RegisteredMemory> state);
  std::shared_ptr<detail::RegisteredMemory> state_;  // owners: this handle and the session's table of regions
};

/// Memory of the caller that peers can read directly, as far as the session's transports support it
/// (Session::register_memory). Movable owner: the destructor withdraws all keys, then deregisters. A range that lies
/// inside an open registration costs nothing and shares it; the last handle withdraws it. Memory inside an arena stays
/// under the arena's registration.
/// Ownership: borrows the memory, which has to stay mapped and of the same kind until this handle and every publication
///            of the memory are gone. If device memory is freed earlier, a new allocation at its address is not
///            mistaken for it. While registered, the keys give members of the job access to all of the range. Retire
///            publications first: if keys are withdrawn under a live publication, restores that read by them fail with
///            `withdrawn`.
/// Threads:   use a handle from one thread at a time.
/// Errors:    an empty or moved-from registration throws Error{invalid_argument}.
class Registration {
 public:
  Registration();
  ~Registration();
  Registration(Registration&&) noexcept;
  Registration& operator=(Registration&&) noexcept;

  /// False for a default-constructed or moved-from registration.
  [[nodiscard]] bool valid() const noexcept { return state_ != nullptr; }
  /// Size of the whole registered range, which may be larger than the range asked for.
  [[nodiscard]] ByteCount size_bytes() const;

 private:
  friend class Session;
  SHARDWIRE_LOCAL explicit Registration(std::shared_ptr<detail::RegistrationState> state);
  std::shared_ptr<detail::RegistrationState> state_;  // owners: the handles of this range
};

}  // namespace shardwire
SHARDWIRE_API_END

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "shardwire/types.hpp"
#include "support/descriptors.hpp"

// Anonymous memory (memfd): it is freed with its last descriptor and mapping, however its owner ends. It does not count
// against the size of /dev/shm. A process that has a descriptor needs no namespace in common with the owner.
namespace shardwire::memory {

/// Creates `bytes` of zeros, fixes the size for good; pages are allocated on first touch. Errors: throws Error{out_of_resources} with the
/// reason.
support::Descriptor create_memory(ByteCount bytes);
/// Takes the pages of `bytes` now. Errors: throws Error{out_of_resources} if the system, a control group or a limit has too
/// few; some may be taken then.
void allocate_pages(const support::Descriptor& memory, ByteCount bytes);
/// Forbids new writable mappings.
/// Errors: throws Error{out_of_resources} on a kernel before 5.1.
void seal_memory(const support::Descriptor& memory);
/// Checks that a descriptor of another process is memory of a fixed size: loads from it never raise SIGBUS.
/// Errors: throws Error{transport_failed} that names the defect.
void require_fixed(const support::Descriptor& memory, ByteCount bytes);
/// Checks that a peer's descriptor is such memory of that size: the peer can then not truncate it, so loads from it
/// never raise SIGBUS. Errors: throws Error{transport_failed} that names the defect.
void require_sealed(const support::Descriptor& memory, ByteCount bytes);

ByteCount page_bytes();
/// Requires: the result fits.
ByteCount whole_pages(ByteCount bytes);

/// An address range in which memory is mapped side by side.
class Mapping {
 public:
  Mapping() = default;
  /// Reserves the range; it is not readable yet. A large one can have huge pages. Requires: whole pages. Errors: throws Error{out_of_resources}.
  explicit Mapping(ByteCount bytes);
  ~Mapping();
  Mapping(Mapping&& other) noexcept : address_(std::exchange(other.address_, nullptr)), bytes_(other.bytes_) {}
  Mapping& operator=(Mapping&&) = delete;

  /// Requires: the range consists of whole pages inside the mapping. Errors: throws Error{out_of_resources}.
  void map(ByteCount offset_bytes, ByteCount bytes, const support::Descriptor& memory, bool writable);
  /// Makes the range unreadable again. Requirements and errors as for map().
  void unmap(ByteCount offset_bytes, ByteCount bytes);
  [[nodiscard]] std::byte* address() const { return address_; }
  [[nodiscard]] ByteCount bytes() const { return bytes_; }

 private:
  std::byte* address_ = nullptr;
  ByteCount bytes_ = 0;
};

}  // namespace shardwire::memory

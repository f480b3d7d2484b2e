// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "shardwire/types.hpp"
#include "support/descriptors.hpp"
#include "transport/memory.hpp"

// Memory without a name (memfd): it goes with the last descriptor and the last mapping of it, however its owner ends; it
// does not count against the size of /dev/shm; who has a descriptor of it needs no namespace in common with its owner.
namespace shardwire::transport::shm {

/// `bytes` of zeros, no page of which exists before it is touched. Errors: throws Error{out_of_resources} saying why.
support::Descriptor create_memory(ByteCount bytes);
/// Fixes its size for ever, and lets nobody write to it who has no writable mapping yet.
/// Errors: throws Error{out_of_resources} on a kernel before 5.1.
void seal_memory(const support::Descriptor& memory);
/// Whether a descriptor from a peer is such memory, of that size: what loads from it can then never be a SIGBUS because the
/// peer has cut it short. Errors: throws Error{transport_failed} naming what is wrong.
void require_sealed(const support::Descriptor& memory, ByteCount bytes);

ByteCount page_bytes();
/// Requires: the result fits.
ByteCount whole_pages(ByteCount bytes);

/// Range of addresses in which memory is mapped side by side.
class Mapping {
 public:
  Mapping() = default;
  /// Reserves the range; nothing can be loaded from it. Errors: throws Error{out_of_resources}.
  explicit Mapping(ByteCount bytes);
  ~Mapping();
  Mapping(Mapping&& other) noexcept : address_(std::exchange(other.address_, nullptr)), bytes_(other.bytes_) {}
  Mapping& operator=(Mapping&&) = delete;

  /// Requires: the range, whole pages all of it, is inside. Errors: throws Error{out_of_resources}.
  void map(ByteCount offset_bytes, ByteCount bytes, const support::Descriptor& memory, bool writable);
  /// Nothing can be loaded from there again. The same.
  void unmap(ByteCount offset_bytes, ByteCount bytes);
  [[nodiscard]] std::byte* address() const { return address_; }
  [[nodiscard]] ByteCount bytes() const { return bytes_; }

 private:
  std::byte* address_ = nullptr;
  ByteCount bytes_ = 0;
};

}  // namespace shardwire::transport::shm

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "control/connection.hpp"
#include "serve/publication.hpp"

namespace shardwire {

/// The answer to a Bind request: handles of the memory that a reader may read. Descriptors of that memory are handed
/// over to the reader as it is added, before the answer.
/// Threads: loop thread only.
class BoundReply {
 public:
  /// `fabrics`: whose keys are shown, in the order of the request.
  BoundReply(Connection& reader, std::uint64_t request, std::vector<std::size_t> fabrics);

  void add_address(const Bytes& address) { bound_.addresses.push_back(address); }
  /// Errors: throws Error{withdrawn} if the tensor's memory was freed, Error{invalid_argument} if it was discarded.
  void add_tensor(const detail::PublicationState& publication, std::uint32_t id);
  /// The generation word of the publication, if a requested fabric shows it.
  void add_word(const detail::RegisteredMemory& words, ByteCount offset_bytes);
  /// `digests`: blocks of the publication have digests.
  void send(ByteCount max_pack_bytes, bool digests);

 private:
  /// The index of the handle of the tensor's region.
  std::uint32_t region_of(const detail::RegisteredMemory& memory);
  std::uint32_t region_of(const memory::DeviceAllocation& allocation);
  wire::RegionHandle show(const detail::RegisteredMemory& memory);
  void show(const transport::Region& region, std::size_t fabric, wire::RegionHandle& handle);

  Connection& reader_;
  std::vector<std::size_t> fabrics_;
  wire::Bound bound_;
  std::map<const detail::RegisteredMemory*, std::uint32_t> regions_;
  std::map<std::uint64_t, std::uint32_t> allocations_;  // unregistered device memory, by number of the allocation
};

}  // namespace shardwire

// SPDX-License-Identifier: Apache-2.0
#include "serve/bound_reply.hpp"

#include <fmt/core.h>

#include <utility>

#include "paths/path_choice.hpp"
#include "serve/refusal.hpp"

namespace shardwire {

BoundReply::BoundReply(Connection& reader, std::uint64_t request, std::vector<std::size_t> fabrics)
    : reader_(reader), fabrics_(std::move(fabrics)) {
  bound_.request = request;
}

void BoundReply::add_tensor(const detail::PublicationState& publication, std::uint32_t id) {
  const detail::PublicationState::Tensor& tensor = publication.tensors.at(id);
  publication.require_still_there(id);
  wire::TensorHandle handle{id, wire::no_region, 0, tensor.strides};
  if (tensor.registered) {
    handle.region = region_of(*tensor.registered);
    handle.offset_bytes = static_cast<ByteCount>(tensor.data - tensor.registered->memory().address);
    if (!tensor.registered->holds(handle.offset_bytes, tensor.bytes)) {
      refuse_request(fmt::format("the memory of tensor {} of '{}' was discarded", id, publication.name));
    }
  } else if (tensor.place) {
    handle.region = region_of(*tensor.place);
    handle.offset_bytes = static_cast<ByteCount>(tensor.data - tensor.place->address);
  }
  bound_.tensors.push_back(handle);
}

std::uint32_t BoundReply::region_of(const detail::RegisteredMemory& memory) {
  const auto [entry, fresh] = regions_.emplace(&memory, static_cast<std::uint32_t>(bound_.regions.size()));
  if (fresh) bound_.regions.push_back(show(memory));
  return entry->second;
}

std::uint32_t BoundReply::region_of(const memory::DeviceAllocation& allocation) {
  const auto [entry, fresh] =
      allocations_.emplace(allocation.number, static_cast<std::uint32_t>(bound_.regions.size()));
  if (fresh) {
    bound_.regions.push_back(handle_of(
        {const_cast<std::byte*>(allocation.address), allocation.bytes, {MemoryKind::cuda, allocation.device}}));
  }
  return entry->second;
}

void BoundReply::add_word(const detail::RegisteredMemory& words, ByteCount offset_bytes) {
  wire::Bound::Word word{show(words), offset_bytes};
  if (!word.region.keys.empty()) bound_.word = std::move(word);
}

void BoundReply::send(ByteCount max_pack_bytes, bool digests) {
  bound_.max_pack_bytes = max_pack_bytes;
  bound_.digests = digests;
  reader_.send(bound_);
}

wire::RegionHandle BoundReply::show(const detail::RegisteredMemory& memory) {
  wire::RegionHandle handle = handle_of(memory.memory());
  for (std::size_t i = 0; i < fabrics_.size(); ++i) {
    const auto region = memory.region(fabrics_[i]);
    if (region) show(*region, i, handle);
  }
  return handle;
}

void BoundReply::show(const transport::Region& region, std::size_t fabric, wire::RegionHandle& handle) {
  wire::RegionKey key{static_cast<std::uint8_t>(fabric), region.key(), 0};
  if (key.key.empty()) return;
  if (const std::vector<int> descriptors = region.descriptors(); !descriptors.empty()) {
    if (!reader_.is_local()) refuse_request("descriptors are handed over local connections only");
    static_assert(transport::max_key_descriptors <= wire::max_descriptors_per_message);  // all with one message
    key.descriptors = static_cast<std::uint8_t>(descriptors.size());
    reader_.send(wire::Descriptors{bound_.request, key.descriptors}, descriptors);
  }
  handle.keys.push_back(std::move(key));
}

}  // namespace shardwire

// SPDX-License-Identifier: Apache-2.0
#include "serve/publication.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

#include "geometry/by_value.hpp"
#include "memory/strided_copy.hpp"
#include "support/checked.hpp"
#include "transport/transport.hpp"

namespace shardwire {

namespace detail {

namespace {

// Copies the held elements of `tensor` to `to`, the place of its local element 0; appends copies from devices to
// `later`.
void copy_elements(const PublicationState::Tensor& tensor, const PlacedBoxes& boxes, ByteCount item_bytes,
                   std::byte* to, std::vector<memory::QueuedCopy>& later) {
  if (tensor.place) {
    for (const PlacedBox& placed : boxes.all()) {
      later.push_back({memory::StridedCopy(placed.box, placed, placed, item_bytes), tensor.data, to, tensor.device()});
    }
    return;
  }
  if (boxes.elements() == boxes.local_end()) {  // dense: no gaps between elements
    std::memcpy(to, tensor.data, tensor.bytes);
    return;
  }
  for (const PlacedBox& placed : boxes.all()) {
    memory::StridedCopy(placed.box, placed, placed, item_bytes).run_all(tensor.data, to);
  }
}

// Merges the allocation of another tensor, which begins no earlier, into `all` if both are one allocation or share
// chunks: peers then receive each chunk once. False: it needs a region of its own.
bool join(memory::DeviceAllocation& all, const memory::DeviceAllocation& more) {
  const std::byte* const end = all.address + all.bytes;
  if (more.device != all.device || more.address >= end) return false;
  if (more.address + more.bytes <= end) return true;
  const std::uint32_t chunks = all.chunks + more.chunks - 1;  // an upper bound if tensors overlap
  if (chunks > transport::max_key_descriptors) return false;
  all.bytes = static_cast<ByteCount>(more.address + more.bytes - all.address);
  all.chunks = chunks;
  return true;
}

}  // namespace

void PublicationState::point_at(const Catalog& held, const TensorPlaces& places, const MemoryTable& memory) {
  BoxCache boxes;
  for (std::size_t i = 0; i < held.entries().size(); ++i) {
    const Catalog::Entry& entry = held.entries()[i];
    Tensor& tensor = tensors.emplace_back();
    if (travels_by_value(entry.spec)) continue;
    tensor.data = static_cast<const std::byte*>(entry.view.data);
    tensor.bytes = support::multiply(static_cast<ByteCount>(boxes_of(entry, layout_rank, boxes).local_end()),
                                     item_size(entry.spec.dtype), "the local size of a tensor");
    tensor.strides = entry.view.strides;
    if (i < places.size()) tensor.place = places[i];
    if (tensor.bytes > 0) tensor.registered = memory.find(tensor.data, tensor.bytes);
  }
}

void PublicationState::use_in_place(const Catalog& held, const TensorPlaces& places, MemoryTable& memory) {
  point_at(held, places, memory);
  adopt_host_memory(memory);
  adopt_allocations(memory);
}

void PublicationState::adopt_host_memory(MemoryTable& memory) {
  const std::byte* first = nullptr;
  const std::byte* end = nullptr;
  for (const Tensor& tensor : tensors) {
    if (tensor.registered || tensor.place || tensor.bytes == 0) continue;
    if (first == nullptr || tensor.data < first) first = tensor.data;
    if (end == nullptr || tensor.data + tensor.bytes > end) end = tensor.data + tensor.bytes;
  }
  if (first == nullptr) return;
  const auto known = memory.adopt_unasked({const_cast<std::byte*>(first), static_cast<ByteCount>(end - first), {}});
  if (!known) return;
  adopted.push_back(known);
  for (Tensor& tensor : tensors) {
    if (!tensor.registered && !tensor.place && tensor.bytes > 0) tensor.registered = known;
  }
}

void PublicationState::adopt_allocations(MemoryTable& memory) {
  std::vector<Tensor*> order;
  for (Tensor& tensor : tensors) {
    if (!tensor.registered && tensor.place && tensor.bytes > 0) order.push_back(&tensor);
  }
  std::ranges::sort(order, {}, [](const Tensor* tensor) { return tensor->place->address; });
  for (auto first = order.begin(); first != order.end();) {
    memory::DeviceAllocation all = *(*first)->place;
    auto end = first + 1;
    while (end != order.end() && join(all, *(*end)->place)) ++end;
    const auto known =
        memory.adopt_unasked({const_cast<std::byte*>(all.address), all.bytes, {MemoryKind::cuda, all.device}});
    if (known) adopted.push_back(known);
    for (; first != end; ++first) (*first)->registered = known;
  }
}

void PublicationState::copy_from(const Catalog& held, const TensorPlaces& places, const MemoryTable& memory,
                                 const Allocate& allocate, const CopyAndWait& copy_and_wait) {
  point_at(held, places, memory);
  // Start in the copy of each stretch of memory that tensors share, ascending by address.
  std::vector<Tensor*> order;
  for (Tensor& tensor : tensors) {
    if (tensor.bytes > 0) order.push_back(&tensor);
  }
  std::sort(order.begin(), order.end(), [](const Tensor* a, const Tensor* b) { return a->data < b->data; });
  std::vector<ByteCount> at(order.size());
  ByteCount total = 0;
  const std::byte* stretch = nullptr;
  const std::byte* end = nullptr;
  ByteCount stretch_at = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (stretch == nullptr || order[i]->data >= end) {
      stretch = end = order[i]->data;
      stretch_at = total;
    }
    at[i] = stretch_at + static_cast<ByteCount>(order[i]->data - stretch);
    end = std::max(end, order[i]->data + order[i]->bytes);
    total = stretch_at + static_cast<ByteCount>(end - stretch);
  }
  snapshot = allocate(total);
  std::byte* const copy = snapshot->memory().address;
  BoxCache boxes;
  std::vector<memory::QueuedCopy> on_device;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const Catalog::Entry& entry = held.entries()[static_cast<std::size_t>(order[i] - tensors.data())];
    copy_elements(*order[i], boxes_of(entry, layout_rank, boxes), item_size(entry.spec.dtype), copy + at[i], on_device);
  }
  if (!on_device.empty()) copy_and_wait(std::move(on_device));
  for (std::size_t i = 0; i < order.size(); ++i) {
    order[i]->data = copy + at[i];
    order[i]->registered = snapshot;
    order[i]->place.reset();
  }
}

void PublicationState::use_kept(const std::vector<wire::KeptTensor>& kept, std::shared_ptr<RegisteredMemory> memory) {
  const Manifest& manifest = *described.manifest;
  if (kept.size() != manifest.tensors.size()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("a snapshot has {} tensors, and its manifest {}", kept.size(), manifest.tensors.size()));
  }
  snapshot = std::move(memory);
  for (std::uint32_t i = 0; i < kept.size(); ++i) {
    tensors.push_back({.strides = kept[i].strides});
    const TensorSpec& spec = manifest.tensors[i].spec;
    if (travels_by_value(spec)) continue;
    const ByteCount bytes = support::multiply(static_cast<ByteCount>(placed(i).local_end()), item_size(spec.dtype),
                                              "the local size of a tensor");
    const ByteCount size = snapshot->memory().bytes;
    if (bytes != kept[i].size_bytes || kept[i].offset_bytes > size || bytes > size - kept[i].offset_bytes) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{} of a snapshot has {} bytes at {} of {}, and its layout says {}", to_string(spec.key),
                              kept[i].size_bytes, kept[i].offset_bytes, size, bytes));
    }
    if (bytes == 0) continue;
    tensors[i].data = snapshot->memory().address + kept[i].offset_bytes;
    tensors[i].bytes = bytes;
    tensors[i].registered = snapshot;
  }
}

PublishedDigests PublicationState::undigested_blocks() {
  PublishedDigests all;
  for (std::uint32_t i = 0; i < tensors.size(); ++i) {
    all.tensors.emplace_back().blocks =
        move::Blocks(placed(i).all(), item_size(described.manifest->tensors.at(i).spec.dtype));
  }
  return all;
}

void PublicationState::set_digests(PublishedDigests blocks, std::span<const Digest128> taken) {
  auto next = taken.begin();
  for (PublishedDigests::Tensor& tensor : blocks.tensors) {
    const auto end = next + static_cast<std::ptrdiff_t>(tensor.blocks.size());
    tensor.digests.assign(next, end);
    next = end;
  }
  digests = std::move(blocks);
}

void PublicationState::digest_blocks(const DigestAndWait& digest) {
  PublishedDigests all = undigested_blocks();
  std::vector<memory::QueuedCopy> copies;
  for (std::uint32_t i = 0; i < tensors.size(); ++i) {
    const move::Blocks& blocks = all.tensors[i].blocks;
    const ByteCount item_bytes = item_size(described.manifest->tensors.at(i).spec.dtype);
    for (std::size_t block = 0; block < blocks.size(); ++block) {
      const Box& box = blocks[block];
      copies.push_back({memory::StridedCopy(box, blocks.held(block), memory::packed(box), item_bytes), tensors[i].data,
                        nullptr, tensors[i].device()});
    }
  }
  set_digests(std::move(all), digest(std::move(copies)));
}

void PublicationState::use_digests(std::span<const Digest128> taken) {
  PublishedDigests all = undigested_blocks();
  std::size_t blocks = 0;
  for (const PublishedDigests::Tensor& tensor : all.tensors) blocks += tensor.blocks.size();
  if (taken.size() != blocks) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("a snapshot has {} digests, and its tensors {} blocks", taken.size(), blocks));
  }
  set_digests(std::move(all), taken);
}

void PublicationState::require_still_there(std::uint32_t tensor) const {
  const Tensor& held = tensors.at(tensor);
  if (!held.place || is_still_there(*held.place, held.data)) return;
  throw Error(
      ErrorCode::withdrawn,
      fmt::format("{} of '{}' is no longer in the memory of device {} that it was published from, which was freed",
                  to_string(described.manifest->tensors.at(tensor).spec.key), name, held.device()));
}

const PlacedBoxes& PublicationState::placed(std::uint32_t tensor) {
  const auto found = placed_.find(tensor);
  if (found != placed_.end()) return found->second;
  const TensorLayout& layout = described.manifest->tensors.at(tensor);
  if (travels_by_value(layout.spec)) return placed_[tensor];
  return placed_.emplace(tensor, place_boxes(layout.layout, layout.spec.shape, layout_rank, tensors.at(tensor).strides))
      .first->second;
}

}  // namespace detail

}  // namespace shardwire

// SPDX-License-Identifier: Apache-2.0
#include "cli/run_buffers.hpp"

#include "support/checked.hpp"

namespace shardwire::cli {
namespace {

constexpr ByteCount alignment = 64;  // of each tensor in the arena: a cache line, and more than any element

ByteCount aligned(ByteCount bytes) {
  return support::ceil_div(bytes, alignment) * alignment;
}

const Manifest* manifest_of(const CaseSide& side, Rank rank) {
  for (const Section& section : side.layout.sections) {
    if (std::binary_search(section.ranks.begin(), section.ranks.end(), rank)) return section.manifest.get();
  }
  return nullptr;
}

ByteCount bytes_of(const TensorLayout& tensor, Rank rank) {
  const auto elements = static_cast<ByteCount>(tensor.layout.local_elements(tensor.spec.shape, rank));
  return support::multiply(elements, item_size(tensor.spec.dtype), "a tensor's local size");
}

}  // namespace

ByteCount arena_bytes(const CaseSide& side, Rank rank) {
  ByteCount total = 0;
  const Manifest* manifest = manifest_of(side, rank);
  if (manifest == nullptr) return total;
  for (const TensorLayout& tensor : manifest->tensors) total += aligned(bytes_of(tensor, rank));
  return total;
}

SideBuffers::SideBuffers(Session& session, const Case& job, const CaseSide& side, Rank rank,
                         std::function<void()> alive)
    : job_(&job), ranks_(side.ranks), rank_(rank), alive_(std::move(alive)) {
  const ByteCount by_value = aligned(sizeof(std::uint64_t)) * job.by_value.size();
  arena_ = session.allocate(support::add(arena_bytes(side, rank), by_value, "the arena"));
  std::byte* next = arena_.data();
  if (const Manifest* manifest = manifest_of(side, rank)) {
    for (const TensorLayout& tensor : manifest->tensors) {
      const ByteCount bytes = bytes_of(tensor, rank);
      parts_.push_back(
          {&tensor.spec, tensor.layout, bytes == 0 ? nullptr : next, tensor.layout.boxes_of(tensor.spec.shape, rank)});
      next += aligned(bytes);
    }
  }
  for (const TensorSpec& spec : job.by_value) {
    const Extents& shape = spec.shape;
    values_.push_back({&spec, Layout::replicated(), next, {{Box::whole(shape), 0, row_major_strides(shape)}}});
    next += alignment;
  }
}

void SideBuffers::fill(std::uint64_t generation, bool complement) {
  for (const auto* list : {&parts_, &values_}) {
    for (const Part& part : *list) {
      const ElementValues values(*part.spec, generation);
      for (const PlacedBox& placed : part.boxes) {
        complement ? values.fill_complement(placed, part.data) : values.fill(placed, part.data);
      }
      alive_();
    }
  }
}

Catalog SideBuffers::catalog(std::uint64_t generation) const {
  Catalog catalog(rank_, ranks_);
  for (const auto* list : {&parts_, &values_}) {
    for (const Part& part : *list)
      catalog.add(*part.spec, part.layout, View{.data = part.data, .kind = MemoryKind::host});
  }
  for (const auto& [name, value] : job_->scalars) catalog.add_value({"", name}, scalar_value(value, generation));
  return catalog;
}

void SideBuffers::check(std::uint64_t generation, ValueCheck& elements, ValueCheck& values) const {
  for (const auto* list : {&parts_, &values_}) {
    for (const Part& part : *list) {
      const ElementValues expected(*part.spec, generation);
      for (const PlacedBox& placed : part.boxes) {
        expected.check(placed, part.data, list == &parts_ ? elements : values);
      }
      alive_();
    }
  }
}

Value scalar_value(const Value& value, std::uint64_t generation) {
  const auto* number = std::get_if<std::int64_t>(&value);
  if (number == nullptr) return value;
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(*number) + generation);
}

}  // namespace shardwire::cli

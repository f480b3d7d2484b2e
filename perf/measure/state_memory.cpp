// SPDX-License-Identifier: Apache-2.0
#include "perf/measure/state_memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <stdexcept>

#include "case/values.hpp"
#include "perf/measure/value_box.hpp"
#include "support/checked.hpp"

namespace shardwire::perf {

namespace {

constexpr ByteCount alignment = 64;  // of each buffer: a cache line, and larger than any element

}  // namespace

StateMemory::StateMemory(const CaseSide& side, std::optional<Rank> place) : ranks_(side.layout.ranks) {
  if (!place) return;
  place_ = *place;
  for (std::size_t s = 0; s < side.layout.sections.size(); ++s) {
    const Section& section = side.layout.sections[s];
    if (!std::binary_search(section.ranks.begin(), section.ranks.end(), place_)) continue;
    manifest_ = section.manifest;
    std::map<std::uint32_t, ByteCount> starts;  // of local buffers; members of a flat parameter share one
    for (std::size_t t = 0; t < manifest_->tensors.size(); ++t) {
      const TensorLayout& tensor = manifest_->tensors[t];
      const ByteCount item = item_size(tensor.spec.dtype);
      const auto [start, fresh] = starts.try_emplace(side.buffers[s][t], size_bytes_);
      offsets_.push_back(start->second);
      for (const PlacedBox& placed : tensor.layout.boxes_of(tensor.spec.shape, place_)) {
        payload_bytes_ += static_cast<ByteCount>(placed.box.volume()) * item;
      }
      if (!fresh) continue;
      const auto elements = static_cast<ByteCount>(tensor.layout.local_elements(tensor.spec.shape, place_));
      const ByteCount bytes = support::multiply(elements, item, "a tensor's local size");
      size_bytes_ = support::add(size_bytes_, support::ceil_div(bytes, alignment) * alignment, "the arena");
    }
  }
}

template <typename Visit>
void StateMemory::each(Visit visit) const {
  for (std::size_t i = 0; i < offsets_.size(); ++i) {
    const TensorLayout& tensor = manifest_->tensors[i];
    const ElementValues values(tensor.spec, 0);
    for (const PlacedBox& placed : tensor.layout.boxes_of(tensor.spec.shape, place_)) {
      visit(values, placed, memory_.data() + offsets_[i]);
    }
  }
}

Catalog StateMemory::catalog(const StateBlock& block) const {
  Catalog catalog(place_, ranks_);
  for (std::size_t i = 0; i < offsets_.size(); ++i) {
    const TensorLayout& tensor = manifest_->tensors[i];
    const bool empty = tensor.layout.local_elements(tensor.spec.shape, place_) == 0;
    catalog.add(tensor.spec, tensor.layout, block.view_of(empty ? nullptr : memory_.data() + offsets_[i]));
  }
  return catalog;
}

void StateMemory::fill() const {
  each([](const ElementValues& values, const PlacedBox& placed, std::byte* at) { values.fill(placed, at); });
}

void StateMemory::spoil() const {
  each([](const ElementValues& values, const PlacedBox& placed, std::byte* at) { values.fill_complement(placed, at); });
}

ElementCount StateMemory::check() const {
  ValueCheck check;
  each([&](const ElementValues& values, const PlacedBox& placed, std::byte* at) { values.check(placed, at, check); });
  if (check.first) throw std::runtime_error("wrong element after a restore: " + to_string(*check.first));
  return check.elements;
}

std::vector<memory::ValueBox> StateMemory::boxes(bool complement) const {
  std::vector<memory::ValueBox> boxes;
  each([&](const ElementValues& values, const PlacedBox& placed, std::byte* at) {
    boxes.push_back(value_box(values, placed, at, complement));
  });
  return boxes;
}

void StateMemory::fill(const StateBlock& block) const {
  if (block.fill(boxes(false))) return;
  fill();
  block.store();
}

void StateMemory::spoil(const StateBlock& block) const {
  if (block.fill(boxes(true))) return;
  spoil();
  block.store();
}

ElementCount StateMemory::check(const StateBlock& block) const {
  const std::vector<memory::ValueBox> expected = boxes(false);
  if (block.count_wrong(expected) != 0) {
    block.load();  // to report the wrong element
    return check();
  }
  ElementCount elements = 0;
  for (const memory::ValueBox& box : expected) elements += static_cast<ElementCount>(box.elements);
  return elements;
}

PlacedBox placed_around(const TensorLayout& tensor, Rank rank, const Box& box) {
  for (const PlacedBox& placed : tensor.layout.boxes_of(tensor.spec.shape, rank)) {
    if (contains(placed.box, box)) return placed;
  }
  throw std::runtime_error(
      fmt::format("no box of rank {} holds a piece of {}", to_int(rank), to_string(tensor.spec.key)));
}

}  // namespace shardwire::perf

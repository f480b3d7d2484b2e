// SPDX-License-Identifier: Apache-2.0
#include "catalog/copied_rank.hpp"

#include <algorithm>
#include <iterator>
#include <map>

#include "geometry/by_value.hpp"
#include "geometry/placed_boxes.hpp"
#include "support/checked.hpp"

namespace shardwire {

namespace {

constexpr ByteCount alignment = 64;

/// A stretch of the buffer that tensors share.
class Stretch {
 public:
  /// Whether it takes a tensor whose elements lie in [first, end) bytes.
  bool take(ByteCount first, ByteCount end) {
    const auto next = parts_.lower_bound(first);
    if (next != parts_.end() && next->first < end) return false;
    if (next != parts_.begin() && std::prev(next)->second > first) return false;
    parts_.emplace(first, end);
    bytes_ = std::max(bytes_, end);
    return true;
  }
  [[nodiscard]] ByteCount bytes() const { return bytes_; }

 private:
  std::map<ByteCount, ByteCount> parts_;
  ByteCount bytes_ = 0;
};

}  // namespace

CopiedRank places_for_copy(const Manifest& manifest, Rank rank) {
  CopiedRank copy;
  copy.tensors.resize(manifest.tensors.size());
  std::vector<Stretch> stretches;
  std::vector<std::size_t> shared;  // those that more than one tensor may lie in
  std::vector<std::size_t> stretch_of(manifest.tensors.size());
  for (std::size_t i = 0; i < manifest.tensors.size(); ++i) {
    const auto& [spec, layout] = manifest.tensors[i];
    if (travels_by_value(spec)) continue;
    const PlacedBoxes boxes(layout.boxes_of(spec.shape, rank));
    const ByteCount item_bytes = item_size(spec.dtype);
    const auto bytes = [&](ElementCount elements) {
      return support::multiply(static_cast<ByteCount>(elements), item_bytes, "the local size of a tensor");
    };
    copy.tensors[i].size_bytes = bytes(boxes.local_end());
    if (boxes.all().empty()) continue;
    ElementCount first = boxes.all().front().local_offset;
    for (const PlacedBox& one : boxes.all()) first = std::min(first, one.local_offset);
    const bool shares = boxes.elements() != boxes.local_end() || layout.kind() == "flat";
    const auto takes = [&](std::size_t stretch) {
      return stretches[stretch].take(bytes(first), bytes(boxes.local_end()));
    };
    const auto found = shares ? std::ranges::find_if(shared, takes) : shared.end();
    if (found != shared.end()) {
      stretch_of[i] = *found;
      continue;
    }
    stretch_of[i] = stretches.size();
    stretches.emplace_back();
    takes(stretch_of[i]);
    if (shares) shared.push_back(stretch_of[i]);
  }
  std::vector<ByteCount> offsets;
  for (const Stretch& one : stretches) {
    offsets.push_back(copy.bytes);
    copy.bytes = support::add(copy.bytes, support::ceil_div(one.bytes(), alignment) * alignment, "the size of a copy");
  }
  for (std::size_t i = 0; i < copy.tensors.size(); ++i) {
    if (copy.tensors[i].size_bytes > 0) copy.tensors[i].offset_bytes = offsets[stretch_of[i]];
  }
  return copy;
}

Catalog catalog_of_copy(const Manifest& manifest, Rank rank, const CopiedRank& places, std::byte* to) {
  Catalog catalog(rank, manifest.ranks);
  for (std::size_t i = 0; i < manifest.tensors.size(); ++i) {
    const auto& [spec, layout] = manifest.tensors[i];
    if (places.tensors[i].size_bytes == 0) continue;
    catalog.add(spec, layout, {.data = to + places.tensors[i].offset_bytes, .kind = MemoryKind::host});
  }
  return catalog;
}

}  // namespace shardwire

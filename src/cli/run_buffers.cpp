// SPDX-License-Identifier: Apache-2.0
#include "cli/run_buffers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "geometry/footprint.hpp"
#include "geometry/placed_boxes.hpp"
#include "perf/measure/value_box.hpp"
#include "shardwire/error.hpp"
#include "support/checked.hpp"

namespace shardwire::cli {
namespace {

constexpr ByteCount alignment = 64;  // of each buffer in the arena: a cache line
constexpr int poison = 0xFF;         // every byte: a NaN in every float type

ByteCount aligned(ByteCount bytes) {
  return support::ceil_div(bytes, alignment) * alignment;
}

// One rank's part of a side, and the buffer of each tensor.
struct Share {
  const Manifest* manifest = nullptr;  // null: nothing
  const std::vector<std::uint32_t>* buffers = nullptr;
};

Share share_of(const CaseSide& side, Rank rank) {
  for (std::size_t s = 0; s < side.layout.sections.size(); ++s) {
    const Section& section = side.layout.sections[s];
    if (std::binary_search(section.ranks.begin(), section.ranks.end(), rank)) {
      return {section.manifest.get(), &side.buffers[s]};
    }
  }
  return {};
}

ByteCount bytes_of(const TensorLayout& tensor, Rank rank) {
  const auto elements = static_cast<ByteCount>(tensor.layout.local_elements(tensor.spec.shape, rank));
  return support::multiply(elements, item_size(tensor.spec.dtype), "a tensor's local size");
}

// Calls visit(tensor, bytes, fresh): fresh for the first tensor of each buffer. Members of a flat parameter share a
// buffer, and all give its length.
template <typename Visit>
void for_each_tensor(const Share& share, Rank rank, Visit visit) {
  if (share.manifest == nullptr) return;
  std::vector<bool> seen;
  for (std::size_t t = 0; t < share.manifest->tensors.size(); ++t) {
    const std::uint32_t buffer = (*share.buffers)[t];
    if (buffer >= seen.size()) seen.resize(buffer + 1);
    visit(share.manifest->tensors[t], buffer, bytes_of(share.manifest->tensors[t], rank), !seen[buffer]);
    seen[buffer] = true;
  }
}

// One-element tensors, each on lines of its own.
ByteCount values_bytes(const Case& job) {
  ByteCount bytes = 0;
  for (const TensorSpec& spec : job.by_value) bytes += aligned(item_size(spec.dtype));
  return bytes;
}

}  // namespace

ByteCount arena_bytes(const CaseSide& side, Rank rank) {
  ByteCount total = 0;
  for_each_tensor(share_of(side, rank), rank, [&](const TensorLayout&, std::uint32_t, ByteCount bytes, bool fresh) {
    if (fresh) total = support::add(total, aligned(bytes), "the arena");
  });
  return total;
}

SideBuffers::SideBuffers(Session& session, const Case& job, const CaseSide& side, Rank rank,
                         const perf::StatePlace& place, std::function<void()> alive)
    : job_(&job),
      ranks_(side.ranks),
      rank_(rank),
      alive_(std::move(alive)),
      memory_(session, support::add(arena_bytes(side, rank), values_bytes(job), "the arena"), place) {
  std::byte* next = memory_.bytes().data();
  std::map<std::uint32_t, Buffer> buffers;
  const auto add = [&](const TensorLayout& tensor, std::uint32_t number, ByteCount bytes, bool fresh) {
    Buffer& buffer = buffers[number];
    if (fresh) {
      buffer = {bytes == 0 ? nullptr : next, bytes, {}};
      next += aligned(bytes);
    }
    buffer.parts.push_back(parts_.size());
    parts_.push_back({&tensor.spec, tensor.layout, buffer.data, tensor.layout.boxes_of(tensor.spec.shape, rank)});
  };
  for_each_tensor(share_of(side, rank), rank, add);
  for (const auto& [number, buffer] : buffers) find_padding(buffer);
  for (const TensorSpec& spec : job.by_value) {
    const Extents& shape = spec.shape;
    values_.push_back({&spec, Layout::replicated(), next, {{Box::whole(shape), 0, row_major_strides(shape)}}});
    next += aligned(item_size(spec.dtype));
  }
}

// Finds the bytes that no box of the buffer's tensors covers.
void SideBuffers::find_padding(const Buffer& buffer) {
  using Range = Footprint::Range;
  ByteCount covered = 0;
  for (const std::size_t part : buffer.parts) {
    for (const PlacedBox& placed : parts_[part].boxes) {
      covered += static_cast<ByteCount>(placed.box.volume()) * item_size(parts_[part].spec->dtype);
    }
  }
  if (covered == buffer.bytes) return;
  std::vector<Range> runs;
  for (const std::size_t part : buffer.parts) {
    const Footprint footprint(buffer.data, PlacedBoxes(parts_[part].boxes), item_size(parts_[part].spec->dtype));
    footprint.each_run([&](Range run) { runs.push_back(run); });
  }
  std::sort(runs.begin(), runs.end(), [](const Range& a, const Range& b) { return a.first < b.first; });
  const auto start = reinterpret_cast<std::uintptr_t>(buffer.data);
  runs.push_back({start + buffer.bytes, start + buffer.bytes});
  std::uintptr_t end = start;
  for (const Range& run : runs) {
    if (run.first > end) padding_.push_back({buffer.data + (end - start), run.first - end, buffer.parts.front()});
    end = std::max(end, run.end);
  }
}

template <typename Visit>
void SideBuffers::each_box(std::uint64_t generation, Visit visit) const {
  for (const auto* list : {&parts_, &values_}) {
    for (const Slice& part : *list) {
      const ElementValues values(*part.spec, generation);
      for (const PlacedBox& placed : part.boxes) visit(values, placed, part, list == &values_);
      alive_();
    }
  }
}

std::vector<memory::ValueBox> SideBuffers::boxes(std::uint64_t generation, bool complement) const {
  std::vector<memory::ValueBox> boxes;
  each_box(generation, [&](const ElementValues& values, const PlacedBox& placed, const Slice& part, bool) {
    boxes.push_back(perf::value_box(values, placed, part.data, complement));
  });
  for (const Padding& padding : padding_) {
    memory::ValueBox& box = boxes.emplace_back();
    box.first = padding.data;
    box.elements = padding.bytes;
    box.keep = 0;
    box.flip = ~std::uint64_t{0};
    box.dims = 1;
    box.dim[0] = {padding.bytes, 1, 1};
  }
  return boxes;
}

void SideBuffers::fill(std::uint64_t generation, bool complement) {
  if (memory_.on_device() && memory_.fill(boxes(generation, complement))) return;
  each_box(generation, [&](const ElementValues& values, const PlacedBox& placed, const Slice& part, bool) {
    complement ? values.fill_complement(placed, part.data) : values.fill(placed, part.data);
  });
  for (const Padding& padding : padding_) std::memset(padding.data, poison, padding.bytes);
  memory_.store();
}

Catalog SideBuffers::catalog(std::uint64_t generation) const {
  Catalog catalog(rank_, ranks_);
  for (const auto* list : {&parts_, &values_}) {
    for (const Slice& part : *list) catalog.add(*part.spec, part.layout, memory_.view_of(part.data));
  }
  for (const auto& [name, value] : job_->scalars) catalog.add_value({"", name}, scalar_value(value, generation));
  return catalog;
}

void SideBuffers::check(std::uint64_t generation, ValueCheck& elements, ValueCheck& values) const {
  if (!memory_.on_device() || memory_.count_wrong(boxes(generation, false)) != 0) {
    memory_.load();  // errors are reported from here
    check_in_mirror(generation, elements, values);
    return check_padding();
  }
  each_box(generation, [&](const ElementValues&, const PlacedBox& placed, const Slice&, bool is_value) {
    (is_value ? values : elements).elements += placed.box.volume();
  });
}

void SideBuffers::check_in_mirror(std::uint64_t generation, ValueCheck& elements, ValueCheck& values) const {
  each_box(generation, [&](const ElementValues& expected, const PlacedBox& placed, const Slice& part, bool is_value) {
    expected.check(placed, part.data, is_value ? values : elements);
  });
}

void SideBuffers::check_padding() const {
  for (const Padding& padding : padding_) {
    const std::byte* const first = padding.data;
    const std::byte* const end = first + padding.bytes;
    const std::byte* const found = std::find_if(first, end, [](std::byte byte) { return byte != std::byte{poison}; });
    if (found == end) continue;
    const Slice& part = parts_[padding.part];
    throw Error(ErrorCode::internal, fmt::format("padding of the buffer of {} was written to, at byte {}",
                                                 to_string(part.spec->key), found - part.data));
  }
}

Value scalar_value(const Value& value, std::uint64_t generation) {
  const auto* number = std::get_if<std::int64_t>(&value);
  if (number == nullptr) return value;
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(*number) + generation);
}

}  // namespace shardwire::cli

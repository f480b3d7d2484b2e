// SPDX-License-Identifier: Apache-2.0
#include "geometry/footprint.hpp"

#include <algorithm>
#include <limits>
#include <set>

#include "geometry/local_array.hpp"
#include "geometry/overlap.hpp"
#include "support/checked.hpp"

namespace shardwire {

namespace {

constexpr const char* what = "the extent of a local buffer";

std::uintptr_t address_of(const void* data) {
  return reinterpret_cast<std::uintptr_t>(data);
}

ByteCount bytes_for(Extent elements, ByteCount item_bytes) {
  return support::multiply(static_cast<ByteCount>(elements), item_bytes, what);
}

struct Run {
  Footprint::Range range;
  std::size_t claim = 0;
};

// Compares all pairs among the runs of one cluster. Few runs are open at a time unless much memory is shared.
class Sweep {
 public:
  Sweep(std::span<const Claim> claims, const std::function<bool(const Conflict&)>& visit)
      : claims_(claims), visit_(visit) {}

  bool over(std::vector<Run> runs, bool exact) {
    std::sort(runs.begin(), runs.end(), [](const Run& a, const Run& b) {
      return std::tuple(a.range.first, a.range.end, a.claim) < std::tuple(b.range.first, b.range.end, b.claim);
    });
    std::vector<Run> written;
    std::vector<Run> read;
    for (const Run& run : runs) {
      const auto ended = [&](const Run& open) { return open.range.end <= run.range.first; };
      std::erase_if(written, ended);
      std::erase_if(read, ended);
      const bool writes = claims_[run.claim].written;
      for (const Run& open : written) {
        if (!meet(open.claim, run, exact)) return false;
      }
      for (const Run& open : read) {
        if (writes && !meet(run.claim, {run.range, open.claim}, exact)) return false;
      }
      (writes ? written : read).push_back(run);
    }
    return true;
  }

 private:
  bool meet(std::size_t written, const Run& other, bool exact) {
    if (written == other.claim && !exact) return true;
    const auto pair = std::minmax(written, other.claim);
    if (!seen_.insert(pair).second) return true;
    return visit_({written, other.claim, other.range.first, exact});
  }

  std::span<const Claim> claims_;
  const std::function<bool(const Conflict&)>& visit_;
  std::set<std::pair<std::size_t, std::size_t>> seen_;
};

// Compares claims whose bounds are connected by overlaps. True if the caller wants to continue.
bool compare(std::span<const Claim> claims, const std::vector<std::size_t>& cluster, Sweep& sweep) {
  const bool any_written =
      std::any_of(cluster.begin(), cluster.end(), [&](std::size_t claim) { return claims[claim].written; });
  if (!any_written || (cluster.size() == 1 && claims[cluster.front()].footprint.runs() == 1)) return true;
  ByteCount count = 0;
  for (const std::size_t claim : cluster) {
    if (__builtin_add_overflow(count, claims[claim].footprint.runs(), &count)) {
      count = std::numeric_limits<ByteCount>::max();
      break;
    }
  }
  const bool exact = count <= max_compared_runs;
  std::vector<Run> runs;
  for (const std::size_t claim : cluster) {
    if (!exact) {
      runs.push_back({claims[claim].footprint.bounds(), claim});
      continue;
    }
    claims[claim].footprint.each_run([&](Footprint::Range range) { runs.push_back({range, claim}); });
  }
  return sweep.over(std::move(runs), exact);
}

// Whether the boxes are parts of one row-major array, all different.
bool share_an_array(const std::vector<PlacedBox>& boxes) {
  const Extents& strides = boxes.front().local_strides;
  if (std::any_of(strides.begin(), strides.end(), [](Extent stride) { return stride < 1; })) return false;
  std::vector<Box> images;
  for (const PlacedBox& placed : boxes) {
    if (placed.local_strides != strides) return false;
    images.push_back(image_of(placed));
  }
  for (std::size_t dim = 1; dim < strides.size(); ++dim) {
    for (const Box& image : images) {
      if (image.upper(dim) > strides[dim - 1] / strides[dim]) return false;  // two positions would share an address
    }
  }
  return !find_overlap(images);
}

// Whether the boxes fill their buffer from its start to its end, each element once.
bool is_dense(const PlacedBoxes& boxes) {
  if (boxes.elements() != boxes.local_end()) return false;
  const std::vector<PlacedBox>& all = boxes.all();
  if (all.size() <= 1) return true;
  ElementCount end = 0;
  for (const PlacedBox& placed : all) {  // back to back
    if (placed.local_offset != end || placed.local_strides != row_major_strides(placed.box.size)) {
      return share_an_array(all);
    }
    end += placed.box.volume();
  }
  return true;
}

}  // namespace

Footprint::Footprint(const void* data, const PlacedBoxes& boxes, ByteCount item_bytes) {
  const ByteCount end = bytes_for(boxes.local_end(), item_bytes);
  if (end == 0) return;
  (void)support::add(static_cast<ByteCount>(address_of(data)), end, what);
  if (is_dense(boxes)) {
    add({address_of(data), end, 0, {}, {}});
    return;
  }
  for (const PlacedBox& placed : boxes.all()) {
    if (placed.box.empty()) continue;
    Block block{address_of(data) + bytes_for(placed.local_offset, item_bytes), item_bytes, 0, {}, {}};
    // By stride, so that contiguous memory becomes one run in any order of dims.
    std::array<std::size_t, max_dims> order{};
    for (std::size_t dim = 0; dim < placed.box.dims(); ++dim) order[dim] = dim;
    std::sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(placed.box.dims()),
              [&](std::size_t a, std::size_t b) { return placed.local_strides[a] < placed.local_strides[b]; });
    for (std::size_t i = 0; i < placed.box.dims(); ++i) {
      const auto count = static_cast<ByteCount>(placed.box.size[order[i]]);
      const ByteCount stride = bytes_for(placed.local_strides[order[i]], item_bytes);
      if (count == 1) continue;
      if (block.dims == 0 && stride == block.run_bytes) {
        block.run_bytes *= count;
      } else {
        block.counts[block.dims] = count;
        block.strides[block.dims++] = stride;
      }
    }
    add(block);
  }
}

Footprint::Footprint(const void* data, ByteCount bytes) {
  if (bytes > 0) add({address_of(data), bytes, 0, {}, {}});
}

void Footprint::add(const Block& block) {
  std::uintptr_t end = block.first + block.run_bytes;
  ByteCount runs = 1;
  for (std::size_t dim = 0; dim < block.dims; ++dim) {
    end += (block.counts[dim] - 1) * block.strides[dim];
    if (__builtin_mul_overflow(runs, block.counts[dim], &runs)) runs = std::numeric_limits<ByteCount>::max();
  }
  bounds_ = blocks_.empty() ? Range{block.first, end}
                            : Range{std::min(bounds_.first, block.first), std::max(bounds_.end, end)};
  if (!blocks_.empty() && block.dims == 0 && blocks_.back().dims == 0 &&
      blocks_.back().first + blocks_.back().run_bytes == block.first) {  // flat ranges and boxes back to back
    blocks_.back().run_bytes += block.run_bytes;
    return;
  }
  blocks_.push_back(block);
  if (__builtin_add_overflow(runs_, runs, &runs_)) runs_ = std::numeric_limits<ByteCount>::max();
}

void Footprint::each_run(const std::function<void(Range)>& visit) const {
  for (const Block& block : blocks_) {
    std::array<ByteCount, max_dims> index{};
    std::uintptr_t at = block.first;
    while (true) {
      visit({at, at + block.run_bytes});
      std::size_t dim = 0;  // innermost first
      for (; dim < block.dims; ++dim) {
        at += block.strides[dim];
        if (++index[dim] < block.counts[dim]) break;
        at -= block.counts[dim] * block.strides[dim];
        index[dim] = 0;
      }
      if (dim == block.dims) break;
    }
  }
}

void find_conflicts(std::span<const Claim> claims, const std::function<bool(const Conflict&)>& visit) {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < claims.size(); ++i) {
    if (claims[i].footprint.runs() > 0) order.push_back(i);
  }
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return std::pair(claims[a].footprint.bounds().first, a) < std::pair(claims[b].footprint.bounds().first, b);
  });
  Sweep sweep(claims, visit);
  std::vector<std::size_t> cluster;
  std::uintptr_t end = 0;
  for (const std::size_t claim : order) {
    const Footprint::Range bounds = claims[claim].footprint.bounds();
    if (bounds.first >= end) {
      if (!cluster.empty() && !compare(claims, cluster, sweep)) return;
      cluster.clear();
    }
    cluster.push_back(claim);
    end = std::max(end, bounds.end);
  }
  if (!cluster.empty()) compare(claims, cluster, sweep);
}

}  // namespace shardwire

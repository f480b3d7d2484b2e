// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "shardwire/box.hpp"
#include "shardwire/export.hpp"
#include "shardwire/types.hpp"

SHARDWIRE_API_BEGIN
namespace shardwire {

/// A box and where it lies in the rank's local buffer of that tensor: element (i0, i1, ..) of the box (counted from
/// box.offset) is at local element `local_offset + sum(i_d * local_strides[d])`.
struct PlacedBox {
  Box box;
  ElementCount local_offset = 0;
  Extents local_strides;

  bool operator==(const PlacedBox&) const = default;
};

/// Placements of one mesh dimension, with the meaning of PyTorch's DTensor. A dim may be negative: it counts from the
/// end.
struct Replicate {
  bool operator==(const Replicate&) const = default;
};
struct Shard {
  int dim = 0;
  bool operator==(const Shard&) const = default;
};
/// DTensor's _StridedShard: a shard of `dim` that a later mesh dimension has split `split_factor` ways before it.
struct StridedShard {
  int dim = 0;
  Extent split_factor = 1;
  bool operator==(const StridedShard&) const = default;
};
using Placement = std::variant<Replicate, Shard, StridedShard>;

/// Order in which the placements of a mesh split a dim that several of them share.
enum class MeshOrder {
  mesh,      ///< left to right; StridedShard as DTensor defines it
  tp_first,  ///< plain shards left to right, then the strided ones: how FSDP2 over TP lays data out
};

/// Boxes of each rank, and where each lies in its local buffer.
using PlacedBoxMap = std::map<Rank, std::vector<PlacedBox>>;

class SHARDWIRE_LOCAL LayoutRule;
struct FlatMember;

/// A rule or list giving the boxes of a tensor that each rank holds, and the place of each in the rank's local buffer.
/// Value type: copies share one immutable rule. The same rule serves tensors of many shapes.
/// Threads: const calls may run from any number of threads.
class Layout {
 public:
  /// Every rank holds the whole tensor.
  static Layout replicated();
  /// torch.chunk of `dim` over `ranks` ranks: rank r holds [min(c*r, n), min(c*(r+1), n)), c = ceil(n / ranks); tail
  /// ranks may hold nothing. Source: PyTorch, torch.chunk and FSDP2.
  static Layout chunk(int dim, int ranks);
  /// Placements over an n-d mesh of ranks; `ranks` lists the rank at each mesh position, row-major (default 0..n-1). A
  /// rank outside the mesh holds nothing. Source: PyTorch DTensor; tp_first: FSDP2 over TP.
  static Layout mesh(std::vector<Extent> shape, std::vector<Placement> placements, MeshOrder order = MeshOrder::mesh,
                     std::vector<Rank> ranks = {});
  /// Explicit boxes, any unevenness; a rank's boxes lie back to back in its local buffer, in list order, each
  /// row-major.
  static Layout boxes(std::map<Rank, std::vector<Box>> boxes);

  /// Explicit boxes with places. A rank's boxes may lie anywhere in its local buffer, in any order of dims, and leave
  /// room for other tensors (fused weights: several keys in one buffer). The buffer ends with the last element. A
  /// braced list selects the overload without places, so pass a PlacedBoxMap.
  /// Errors: throws Error{invalid_argument} for a negative offset or stride, a stride that maps two elements of a box
  ///         to one place, and places beyond 64 bits.
  template <std::same_as<PlacedBoxMap> Map>
  static Layout boxes(Map boxes) {
    return placed(std::move(boxes));
  }
  /// Blocks of `block` elements dealt out in turn over a grid of ranks (row-major), per dim: element e of a dim lies at
  /// grid coordinate (e / block + source) mod grid; `source` owns the first block (default 0). Source: ScaLAPACK.
  static Layout block_cyclic(std::vector<Extent> block, std::vector<Extent> grid, std::vector<Extent> source = {});
  /// Splits the local array that `outer` gives to each of its ranks 0..outer_ranks-1 by `inner`, as if that array were
  /// the tensor. Rank = inner rank * outer_ranks + outer rank.
  /// Errors: throws Error{invalid_argument} if ranks of `outer` have no single local array (boxes, flat).
  static Layout within(Layout outer, int outer_ranks, Layout inner);
  /// FSDP1 flat parameter: the members, each flattened in memory order, are concatenated and split into `world` equal
  /// parts, the last ones padded. With `align` > 0 each member starts at a multiple of it, and the end is padded to a
  /// multiple of `world`. Members may be slices over `outer_ranks` ranks: each outer rank then has a flat parameter of
  /// its own, and rank = flat rank * outer_ranks + outer rank. The `outer` layout of a member has to fit it, also if
  /// the member has one element.
  /// Returns one layout per member, in order, valid for that member's shape alone. All members share one local buffer
  /// per rank: places count from the start of the rank's part, and local_elements() is its length. Padding is never
  /// read or written.
  /// Errors: throws Error{invalid_argument} naming the member, Error{layout_mismatch} if its `outer` does not fit.
  static std::vector<Layout> flat(std::span<const FlatMember> members, int world, Extent align = 0,
                                  int outer_ranks = 1);
  /// Gives the boxes of `layout`'s ranks 0..count-1 to ranks first..first+count-1; all others hold nothing. A pipeline
  /// stage.
  static Layout on_ranks(Layout layout, Rank first, int count);
  /// Gives the boxes of `layout`'s ranks 0..n-1 to ranks[0]..ranks[n-1], in any numbering; all others hold nothing. A
  /// process group of some ranks, e.g. FSDP over ranks 1, 3 and 5. Ranks that count up by 1 give the layout above.
  /// Errors: throws Error{invalid_argument} for a negative or repeated rank.
  static Layout on_ranks(Layout layout, std::vector<Rank> ranks);

  /// The boxes of `layout`, back to back: a rank's boxes follow one another in its local buffer without padding, in
  /// local order, from place 0. local_elements() is the sum of their volumes. Each box is dense, in the order of dims
  /// that `layout` gives it: row-major, but for FlatMember::order and boxes with strides. Boxes that interleave in one
  /// local array follow one another here. The state of FSDP1 with use_orig_params=True: every member of a `flat` layout
  /// has a buffer of its own there, which holds its elements of the rank's part. A packed layout stays as it is.
  static Layout packed(Layout layout);

  /// "mesh", "chunk", ...
  [[nodiscard]] std::string_view kind() const;
  /// Verifies that this layout can hold a tensor of this shape on `ranks` ranks.
  /// Errors: throws Error{layout_mismatch} naming dim, rank or box.
  void check(const Extents& shape, int ranks) const;
  /// Boxes that `rank` holds, without empty ones, in local order; boxes of one rank never overlap.
  /// Requires: check(shape, ..) passed.
  [[nodiscard]] std::vector<PlacedBox> boxes_of(const Extents& shape, Rank rank) const;
  /// Length of the rank's local buffer, padding included: at least the sum of its boxes' volumes.
  [[nodiscard]] ElementCount local_elements(const Extents& shape, Rank rank) const;
  /// Short text for people, e.g. "mesh (4, 2) [S(0), R]".
  [[nodiscard]] std::string to_string() const;

  /// Same kind and same parameters.
  bool operator==(const Layout& other) const;

  /// Internal: the rule behind the value.
  [[nodiscard]] const LayoutRule& rule() const { return *rule_; }
  explicit Layout(std::shared_ptr<const LayoutRule> rule) : rule_(std::move(rule)) {}

 private:
  static Layout placed(PlacedBoxMap boxes);

  std::shared_ptr<const LayoutRule> rule_;  // owners: every copy of this Layout; immutable, so sharing is invisible
};

/// One parameter of a flat parameter.
struct FlatMember {
  Extents shape;                  ///< global
  std::optional<Layout> outer{};  ///< how the outer ranks slice it; empty: each has the whole
  std::vector<int> order{};       ///< of its dims in memory, outermost first, where it is not row-major
};

}  // namespace shardwire
SHARDWIRE_API_END

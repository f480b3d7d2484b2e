// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "shardwire/box.hpp"
#include "shardwire/types.hpp"

namespace shardwire {

/// A box and where it lies in the rank's local buffer of that tensor: element (i0, i1, ..) of the box (counted from
/// box.offset) is at local element `local_offset + sum(i_d * local_strides[d])`.
struct PlacedBox {
  Box box;
  ElementCount local_offset = 0;
  Extents local_strides;

  bool operator==(const PlacedBox&) const = default;
};

/// Placements of one mesh dimension, with the meaning of PyTorch's DTensor. A dim may be negative: it counts from the end.
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

/// In which order the placements of a mesh cut a dim that several of them share.
enum class MeshOrder {
  mesh,      ///< left to right; StridedShard as DTensor defines it
  tp_first,  ///< plain shards left to right, then the strided ones: how FSDP2 over TP lays data out
};

class LayoutRule;

/// A rule or list that says which boxes of a tensor each rank holds and where each lies in the rank's local buffer.
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
  /// Explicit boxes, any unevenness; a rank's boxes lie back to back in its local buffer, in list order, each row-major.
  static Layout boxes(std::map<Rank, std::vector<Box>> boxes);

  /// "mesh", "chunk", ...
  [[nodiscard]] std::string_view kind() const;
  /// Says why this layout cannot hold a tensor of this shape on `ranks` ranks.
  /// Errors: throws Error{layout_mismatch} naming dim, rank or box.
  void check(const Extents& shape, int ranks) const;
  /// Boxes that `rank` holds, without empty ones, in local order; never overlapping within a rank.
  /// Requires: check(shape, ..) passed.
  [[nodiscard]] std::vector<PlacedBox> boxes_of(const Extents& shape, Rank rank) const;
  /// Length of the rank's local buffer, padding included: at least the sum of its boxes' volumes.
  [[nodiscard]] ElementCount local_elements(const Extents& shape, Rank rank) const;
  /// Short text for people, e.g. "mesh (4, 2) [S(0), R]".
  [[nodiscard]] std::string to_string() const;

  /// Same kind and same parameters.
  bool operator==(const Layout& other) const;

  /// For code inside the library: the rule behind the value.
  [[nodiscard]] const LayoutRule& rule() const { return *rule_; }
  explicit Layout(std::shared_ptr<const LayoutRule> rule) : rule_(std::move(rule)) {}

 private:
  std::shared_ptr<const LayoutRule> rule_;  // owners: every copy of this Layout; immutable, so sharing is invisible
};

}  // namespace shardwire

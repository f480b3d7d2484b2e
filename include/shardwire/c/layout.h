// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "shardwire/c/error.h"

SHARDWIRE_C_BEGIN

/// A rule or list giving the boxes of a tensor that each rank holds, and the place of each in the rank's local buffer.
/// The same layout serves tensors of many shapes, and any number of catalogs, which keep copies. Immutable.
/// Threads: functions of one layout may run concurrently.
typedef struct shardwire_layout shardwire_layout;
void shardwire_layout_free(shardwire_layout* layout);
/// Cost: O(1).
shardwire_code shardwire_layout_copy(const shardwire_layout* layout, shardwire_layout** copy, shardwire_error** error);

/// Every rank holds the whole tensor.
shardwire_code shardwire_layout_replicated(shardwire_layout** layout, shardwire_error** error);
/// torch.chunk of `dim` over `ranks` ranks: rank r holds [min(c*r, n), min(c*(r+1), n)), c = ceil(n / ranks); tail
/// ranks may hold nothing. A negative dim counts from the end.
shardwire_code shardwire_layout_chunk(int32_t dim, int32_t ranks, shardwire_layout** layout, shardwire_error** error);

typedef int32_t shardwire_placement_kind;
enum {
  SHARDWIRE_REPLICATE = 0,
  SHARDWIRE_SHARD = 1,
  SHARDWIRE_STRIDED_SHARD = 2,  ///< DTensor's _StridedShard: a later mesh dim has split the dim `split_factor` ways
};
/// Placement of one mesh dim, with the meaning of PyTorch's DTensor.
typedef struct shardwire_placement {
  shardwire_placement_kind kind;
  int32_t dim;           ///< of the tensor, negative: from the end; ignored for SHARDWIRE_REPLICATE
  int64_t split_factor;  ///< SHARDWIRE_STRIDED_SHARD only
} shardwire_placement;
/// Order in which the placements of a mesh split a dim that several of them share.
typedef int32_t shardwire_mesh_order;
enum {
  SHARDWIRE_MESH_ORDER = 0,     ///< left to right
  SHARDWIRE_TP_FIRST_ORDER = 1  ///< plain shards left to right, then strided ones: how FSDP2 over TP lays data out
};
/// Placements over a mesh of `dims` dims: `shape` and `placements` have `dims` entries. `ranks` lists the rank at each
/// mesh position, row-major; NULL: 0, 1, .. . A rank outside the mesh holds nothing.
shardwire_code shardwire_layout_mesh(const int64_t* shape, const shardwire_placement* placements, size_t dims,
                                     shardwire_mesh_order order, const int32_t* ranks, size_t rank_count,
                                     shardwire_layout** layout, shardwire_error** error);

/// A box of a rank.
typedef struct shardwire_rank_box {
  int32_t rank;
  shardwire_box box;
} shardwire_rank_box;
/// Explicit boxes, any unevenness. A rank's boxes lie back to back in its local buffer, in list order, each row-major.
shardwire_code shardwire_layout_boxes(const shardwire_rank_box* boxes, size_t count, shardwire_layout** layout,
                                      shardwire_error** error);
/// A box of a rank and where it lies in the local buffer: element (i0, i1, ..) of the box is local element
/// `local_offset + sum(i_d * local_strides[d])`.
typedef struct shardwire_placed_box {
  int32_t rank;
  shardwire_box box;
  int64_t local_offset;
  int64_t local_strides[SHARDWIRE_MAX_DIMS];
} shardwire_placed_box;
/// Explicit boxes with places. They may lie anywhere in the local buffer and leave room for other tensors.
shardwire_code shardwire_layout_placed_boxes(const shardwire_placed_box* boxes, size_t count, shardwire_layout** layout,
                                             shardwire_error** error);

/// Blocks of `block` elements dealt out in turn over a grid of ranks (row-major), per dim, as in ScaLAPACK. All arrays
/// have `dims` entries. `source` is the grid coordinate of the first block; NULL: 0.
shardwire_code shardwire_layout_block_cyclic(const int64_t* block, const int64_t* grid, const int64_t* source,
                                             size_t dims, shardwire_layout** layout, shardwire_error** error);
/// Splits the local array that `outer` gives to each of its ranks 0..outer_ranks-1 by `inner`, as if that array were
/// the tensor. Rank = inner rank * outer_ranks + outer rank.
shardwire_code shardwire_layout_within(const shardwire_layout* outer, int32_t outer_ranks,
                                       const shardwire_layout* inner, shardwire_layout** layout,
                                       shardwire_error** error);

/// One parameter of a flat parameter.
typedef struct shardwire_flat_member {
  const int64_t* shape;  ///< global, `dims` entries
  size_t dims;
  const shardwire_layout* outer;  ///< how the outer ranks slice it; NULL: each has the whole
  const int32_t* order;           ///< its dims in memory, outermost first, `dims` entries; NULL: row-major
} shardwire_flat_member;
/// FSDP1 flat parameter: the members, each flattened in memory order, are concatenated and split into `world` equal
/// parts, the last ones padded. With `align` > 0 each member starts at a multiple of it, and the end is padded to a
/// multiple of `world`. With `outer_ranks` > 1 each outer rank has a flat parameter of its own, and rank = flat rank *
/// outer_ranks + outer rank. Gives one layout per member in `layouts`, which has `count` entries; each is valid for
/// that member's shape alone. All members share one local buffer per rank.
shardwire_code shardwire_layout_flat(const shardwire_flat_member* members, size_t count, int32_t world, int64_t align,
                                     int32_t outer_ranks, shardwire_layout** layouts, shardwire_error** error);

/// Gives the boxes of the ranks 0..count-1 to ranks first..first+count-1; all others hold nothing. A pipeline stage.
shardwire_code shardwire_layout_on_rank_range(const shardwire_layout* layout, int32_t first, int32_t count,
                                              shardwire_layout** result, shardwire_error** error);
/// Gives the boxes of the ranks 0..count-1 to ranks[0]..ranks[count-1]; all others hold nothing. A process group.
shardwire_code shardwire_layout_on_ranks(const shardwire_layout* layout, const int32_t* ranks, size_t count,
                                         shardwire_layout** result, shardwire_error** error);
/// The boxes of `layout`, back to back and without padding, as FSDP1 stores state with use_orig_params=True.
shardwire_code shardwire_layout_packed(const shardwire_layout* layout, shardwire_layout** result,
                                       shardwire_error** error);

/// Verifies that the layout can hold a tensor of this shape on `ranks` ranks.
/// Errors: LAYOUT_MISMATCH naming dim, rank or box. The two functions below check the same.
shardwire_code shardwire_layout_check(const shardwire_layout* layout, const int64_t* shape, size_t dims, int32_t ranks,
                                      shardwire_error** error);
/// Length of the local buffer of `rank` in elements, padding included.
shardwire_code shardwire_layout_local_elements(const shardwire_layout* layout, const int64_t* shape, size_t dims,
                                               int32_t ranks, int32_t rank, int64_t* elements, shardwire_error** error);
/// Boxes of one rank.
typedef struct shardwire_boxes shardwire_boxes;
void shardwire_boxes_free(shardwire_boxes* boxes);
const shardwire_placed_box* shardwire_boxes_data(const shardwire_boxes* boxes, size_t* count);
/// Boxes that `rank` holds, without empty ones, in local order; they never overlap.
shardwire_code shardwire_layout_boxes_of(const shardwire_layout* layout, const int64_t* shape, size_t dims,
                                         int32_t ranks, int32_t rank, shardwire_boxes** boxes, shardwire_error** error);

/// Same kind and same parameters. Two NULLs are equal.
bool shardwire_layout_equal(const shardwire_layout* a, const shardwire_layout* b);
/// For people, e.g. "mesh (4, 2) [S(0), R]": writes at most `text_bytes` bytes with a NUL, and returns the length of
/// the whole text without it.
size_t shardwire_layout_to_string(const shardwire_layout* layout, char* text, size_t text_bytes);

SHARDWIRE_C_END

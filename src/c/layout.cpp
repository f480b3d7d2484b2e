// SPDX-License-Identifier: Apache-2.0
#include "shardwire/layout.hpp"

#include <map>
#include <optional>

#include "c/guard.hpp"

namespace shardwire::c_api {
namespace {

Placement placement_of(const shardwire_placement& given) {
  switch (given.kind) {
    case SHARDWIRE_REPLICATE: return Replicate{};
    case SHARDWIRE_SHARD: return Shard{given.dim};
    case SHARDWIRE_STRIDED_SHARD: return StridedShard{given.dim, given.split_factor};
  }
  refuse(fmt::format("there is no placement of kind {}", given.kind));
}

std::vector<Placement> placements_of(std::span<const shardwire_placement> given) {
  std::vector<Placement> out;
  for (const shardwire_placement& placement : given) out.push_back(placement_of(placement));
  return out;
}

PlacedBox placed_box(const shardwire_placed_box& given) {
  return {box_of(given.box), given.local_offset, extents(given.local_strides, given.box.dims, "local_strides")};
}

shardwire_placed_box placed_box(const PlacedBox& placed, Rank rank) {
  shardwire_placed_box out{to_int(rank), box_of(placed.box), placed.local_offset, {}};
  std::copy(placed.local_strides.begin(), placed.local_strides.end(), out.local_strides);
  return out;
}

FlatMember flat_member(const shardwire_flat_member& given) {
  FlatMember out{extents(given.shape, given.dims, "shape")};
  if (given.outer) out.outer = *peek(given.outer);
  if (given.order) out.order = {given.order, given.order + given.dims};
  return out;
}

std::vector<FlatMember> flat_members(std::span<const shardwire_flat_member> given) {
  std::vector<FlatMember> out;
  for (const shardwire_flat_member& member : given) out.push_back(flat_member(member));
  return out;
}

void check_rank(std::int32_t rank, std::int32_t ranks) {
  if (rank < 0 || rank >= ranks) refuse(fmt::format("rank {} is out of range 0..{}", rank, ranks - 1));
}

/// The layout, proven to fit the shape: without that, its boxes are undefined.
const Layout& checked(const shardwire_layout* layout, const Extents& shape, std::int32_t ranks) {
  const Layout& out = object(layout, "layout");
  out.check(shape, ranks);
  return out;
}

}  // namespace

SHARDWIRE_C_BEGIN

void shardwire_layout_free(shardwire_layout* layout) {
  destroy(layout);
}

shardwire_code shardwire_layout_copy(const shardwire_layout* layout, shardwire_layout** copy, shardwire_error** error) {
  return create(copy, error, [&] { return object(layout, "layout"); });
}

shardwire_code shardwire_layout_replicated(shardwire_layout** layout, shardwire_error** error) {
  return create(layout, error, [] { return Layout::replicated(); });
}

shardwire_code shardwire_layout_chunk(int32_t dim, int32_t ranks, shardwire_layout** layout, shardwire_error** error) {
  return create(layout, error, [&] { return Layout::chunk(dim, ranks); });
}

shardwire_code shardwire_layout_mesh(const int64_t* shape, const shardwire_placement* placements, size_t dims,
                                     shardwire_mesh_order order, const int32_t* ranks, size_t rank_count,
                                     shardwire_layout** layout, shardwire_error** error) {
  return create(layout, error, [&] {
    return Layout::mesh(list(shape, dims, "shape"), placements_of(array(placements, dims, "placements")),
                        enumerator(order, MeshOrder::tp_first, "order"), c_api::ranks(ranks, rank_count, "ranks"));
  });
}

shardwire_code shardwire_layout_boxes(const shardwire_rank_box* boxes, size_t count, shardwire_layout** layout,
                                      shardwire_error** error) {
  return create(layout, error, [&] {
    std::map<Rank, std::vector<Box>> of_ranks;
    for (const auto& given : array(boxes, count, "boxes")) of_ranks[Rank{given.rank}].push_back(box_of(given.box));
    return Layout::boxes(std::move(of_ranks));
  });
}

shardwire_code shardwire_layout_placed_boxes(const shardwire_placed_box* boxes, size_t count, shardwire_layout** layout,
                                             shardwire_error** error) {
  return create(layout, error, [&] {
    PlacedBoxMap of_ranks;
    for (const auto& given : array(boxes, count, "boxes")) of_ranks[Rank{given.rank}].push_back(placed_box(given));
    return Layout::boxes(std::move(of_ranks));
  });
}

shardwire_code shardwire_layout_block_cyclic(const int64_t* block, const int64_t* grid, const int64_t* source,
                                             size_t dims, shardwire_layout** layout, shardwire_error** error) {
  return create(layout, error, [&] {
    return Layout::block_cyclic(list(block, dims, "block"), list(grid, dims, "grid"),
                                list(source, source ? dims : 0, "source"));
  });
}

shardwire_code shardwire_layout_within(const shardwire_layout* outer, int32_t outer_ranks,
                                       const shardwire_layout* inner, shardwire_layout** layout,
                                       shardwire_error** error) {
  return create(layout, error,
                [&] { return Layout::within(object(outer, "outer"), outer_ranks, object(inner, "inner")); });
}

shardwire_code shardwire_layout_flat(const shardwire_flat_member* members, size_t count, int32_t world, int64_t align,
                                     int32_t outer_ranks, shardwire_layout** layouts, shardwire_error** error) {
  return guarded(error, [&] {
    required(layouts, "layouts");
    const std::vector<FlatMember> given = flat_members(array(members, count, "members"));
    std::vector<std::unique_ptr<Layout>> made;  // all of them, before the caller gets any
    for (Layout& layout : Layout::flat(given, world, align, outer_ranks)) {
      made.push_back(std::make_unique<Layout>(std::move(layout)));
    }
    for (auto& layout : made) *layouts++ = reinterpret_cast<shardwire_layout*>(layout.release());
  });
}

shardwire_code shardwire_layout_on_rank_range(const shardwire_layout* layout, int32_t first, int32_t count,
                                              shardwire_layout** result, shardwire_error** error) {
  return create(result, error, [&] { return Layout::on_ranks(object(layout, "layout"), Rank{first}, count); });
}

shardwire_code shardwire_layout_on_ranks(const shardwire_layout* layout, const int32_t* ranks, size_t count,
                                         shardwire_layout** result, shardwire_error** error) {
  return create(result, error,
                [&] { return Layout::on_ranks(object(layout, "layout"), c_api::ranks(ranks, count, "ranks")); });
}

shardwire_code shardwire_layout_packed(const shardwire_layout* layout, shardwire_layout** result,
                                       shardwire_error** error) {
  return create(result, error, [&] { return Layout::packed(object(layout, "layout")); });
}

shardwire_code shardwire_layout_check(const shardwire_layout* layout, const int64_t* shape, size_t dims, int32_t ranks,
                                      shardwire_error** error) {
  return guarded(error, [&] { checked(layout, extents(shape, dims, "shape"), ranks); });
}

shardwire_code shardwire_layout_local_elements(const shardwire_layout* layout, const int64_t* shape, size_t dims,
                                               int32_t ranks, int32_t rank, int64_t* elements,
                                               shardwire_error** error) {
  return give(elements, error, [&] {
    const Extents whole = extents(shape, dims, "shape");
    check_rank(rank, ranks);
    return checked(layout, whole, ranks).local_elements(whole, Rank{rank});
  });
}

void shardwire_boxes_free(shardwire_boxes* boxes) {
  destroy(boxes);
}

const shardwire_placed_box* shardwire_boxes_data(const shardwire_boxes* boxes, size_t* count) {
  return data_of(peek(boxes), count);
}

shardwire_code shardwire_layout_boxes_of(const shardwire_layout* layout, const int64_t* shape, size_t dims,
                                         int32_t ranks, int32_t rank, shardwire_boxes** boxes,
                                         shardwire_error** error) {
  return create(boxes, error, [&] {
    const Extents whole = extents(shape, dims, "shape");
    check_rank(rank, ranks);
    std::vector<shardwire_placed_box> out;
    for (const PlacedBox& placed : checked(layout, whole, ranks).boxes_of(whole, Rank{rank})) {
      out.push_back(placed_box(placed, Rank{rank}));
    }
    return out;
  });
}

bool shardwire_layout_equal(const shardwire_layout* a, const shardwire_layout* b) {
  return a && b ? quietly(false, [&] { return *peek(a) == *peek(b); }) : a == b;
}

size_t shardwire_layout_to_string(const shardwire_layout* layout, char* text, size_t text_bytes) {
  return quietly(size_t{0}, [&] { return write_text(object(layout, "layout").to_string(), text, text_bytes); });
}

SHARDWIRE_C_END

}  // namespace shardwire::c_api

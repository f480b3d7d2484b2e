// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "geometry/fields.hpp"
#include "geometry/local_array.hpp"
#include "shardwire/error.hpp"
#include "support/checked.hpp"

namespace shardwire {
namespace {

constexpr Extent max_flat_ranks = Extent{1} << 24;

[[noreturn]] void refuse_flat(const std::string& why) {
  throw Error(ErrorCode::invalid_argument, "flat layout: " + why);
}

// The position of a member in the flat parameter of one outer rank, and the length of a rank's part of that parameter.
struct Place {
  ElementCount start = 0;
  ElementCount part = 0;
  bool operator==(const Place&) const = default;
};

struct FlatRange {
  ElementCount lower = 0;
  ElementCount upper = 0;
};

// The parts of a row-major array that a range of its flattening covers, as boxes. A prefix of `box`
// is already set; `strides` are those of the array.
void split_range(const Extents& strides, std::size_t dim, FlatRange range, Box& box, std::vector<Box>& out) {
  if (dim == box.dims()) return out.push_back(box);
  const ElementCount row = strides[dim];
  const auto part = [&](Extent first, Extent rows, FlatRange inside) {
    box.offset[dim] = first;
    box.size[dim] = rows;
    split_range(strides, dim + 1, inside, box, out);
  };
  const Extent first = range.lower / row;
  const Extent last = range.upper / row;
  const ElementCount head = range.lower % row;
  const ElementCount tail = range.upper % row;
  if (first == last) return part(first, 1, {head, tail});
  if (head > 0) part(first, 1, {head, row});
  if (const Extent body = first + (head > 0 ? 1 : 0); body < last) part(body, last - body, {0, row});
  if (tail > 0) part(last, 1, {0, tail});
}

class FlatRule final : public LayoutRule {
 public:
  FlatRule(FlatMember member, int world, int outer_ranks, std::vector<Place> places)
      : member_(std::move(member)), world_(world), outer_ranks_(outer_ranks), places_(std::move(places)) {
    if (world < 1 || outer_ranks < 1 || world > max_flat_ranks / outer_ranks) {
      refuse_flat(fmt::format("{} flat ranks times {} outer ranks", world, outer_ranks));
    }
    if (places_.size() != 1 && places_.size() != static_cast<std::size_t>(outer_ranks)) {
      refuse_flat(fmt::format("{} places for {} outer ranks", places_.size(), outer_ranks));
    }
    // Normal form, so that equal layouts have equal descriptions.
    if (std::all_of(places_.begin(), places_.end(), [&](const Place& place) { return place == places_.front(); })) {
      places_.resize(1);
    }
    for (const Place& place : places_) {
      if (place.start < 0 || place.part < 0) refuse_flat(fmt::format("start {}, part {}", place.start, place.part));
      static_cast<void>(support::multiply<ElementCount>(place.part, world, "the length of a flat parameter"));
    }
    if (member_.outer) require_local_array(*member_.outer);
    check_order();
  }

  [[nodiscard]] std::string_view kind() const override { return "flat"; }

  void check(const Extents& shape, int ranks) const override {
    if (shape != member_.shape) {
      mismatch(fmt::format("is of a tensor of shape {}, this one has {}", shardwire::to_string(member_.shape),
                           shardwire::to_string(shape)));
    }
    if (world_ > ranks / outer_ranks_) {
      mismatch(fmt::format("needs {} ranks, there are {}", world_ * outer_ranks_, ranks));
    }
    if (member_.outer) member_.outer->check(shape, outer_ranks_);
    if (const ElementCount most = max_boxes(shape); most > max_boxes_per_rank) {
      mismatch(fmt::format("may cut shape {} into {} boxes on rank 0; at most {} are supported",
                           shardwire::to_string(shape), most, max_boxes_per_rank));
    }
    const int different = member_.outer || places_.size() > 1 ? outer_ranks_ : 1;
    for (int outer = 0; outer < different; ++outer) {
      const Place& place = place_of(outer);
      const ElementCount size = volume_of(slice_shape(slice_of(outer)));
      if (size > 0 && (place.start > place.part * world_ || size > place.part * world_ - place.start)) {
        mismatch(fmt::format("puts {} elements of outer rank {} at {}, beyond its {} parts of {}", size, outer,
                             place.start, world_, place.part));
      }
    }
  }

  [[nodiscard]] ElementCount max_boxes(const Extents&) const override {
    const auto dims = std::count_if(member_.shape.begin(), member_.shape.end(), [](Extent n) { return n > 1; });
    const ElementCount of_range = std::max<ElementCount>(1, 2 * dims - 1);
    return member_.outer ? saturating_product(of_range, member_.outer->rule().max_boxes(member_.shape)) : of_range;
  }
  [[nodiscard]] ElementCount check_cost(const Extents& shape) const override {
    if (!member_.outer) return 1;
    const LayoutRule& outer = member_.outer->rule();
    return saturating_sum(outer.check_cost(shape), saturating_product(outer_ranks_, outer.max_boxes(shape)));
  }

  [[nodiscard]] std::vector<PlacedBox> boxes_of(const Extents&, Rank rank) const override {
    if (!covers(rank)) return {};
    const int outer = to_int(rank) % outer_ranks_;
    const Place& place = place_of(outer);
    const ElementCount part_start = place.part * (to_int(rank) / outer_ranks_);  // no overflow: the whole length fits
    const std::vector<PlacedBox> slice = slice_of(outer);
    const Extents shape = slice_shape(slice);
    const ElementCount lower = std::max(part_start, place.start);
    const ElementCount upper = std::min(part_start + place.part, place.start + volume_of(shape));
    if (lower >= upper) return {};
    const std::vector<PlacedBox> inner =
        range_boxes(shape, {lower - place.start, upper - place.start}, place.start - part_start);
    return member_.outer ? through(slice, inner) : inner;
  }

  // The range of the flattening that the region spans selects the parts to search.
  bool find(const Extents&, const Box& region, OnBox on_box) const override {
    for (int outer = 0; outer < outer_ranks_; ++outer) {
      const std::vector<PlacedBox> slice = slice_of(outer);
      const Place& place = place_of(outer);
      if (const auto reach = reach_of(slice, region)) {
        const ElementCount last = (place.start + reach->upper - 1) / place.part;
        for (ElementCount r = (place.start + reach->lower) / place.part; r <= last; ++r) {
          const Rank rank{static_cast<std::int32_t>(r * outer_ranks_ + outer)};
          for (const PlacedBox& placed : boxes_of(member_.shape, rank)) {
            if (intersect(placed.box, region) && !on_box(placed, rank)) return true;
          }
        }
      }
    }
    return true;
  }

  [[nodiscard]] ElementCount local_elements(const Extents&, Rank rank) const override {
    return covers(rank) ? place_of(to_int(rank) % outer_ranks_).part : 0;
  }

  // Few fields, since a model has a rule for each of its tensors. "place" is the world size, the number of outer ranks,
  // then start and part of each outer rank, or only once if they are all equal.
  [[nodiscard]] RuleDescription describe() const override {
    std::vector<Extent> place{world_, outer_ranks_};
    for (const Place& one : places_) place.insert(place.end(), {one.start, one.part});
    RuleDescription description{
        "flat", {{"shape", {member_.shape.begin(), member_.shape.end()}}, {"place", std::move(place)}}, {}};
    if (!member_.order.empty()) {
      description.fields.push_back({"order", {member_.order.begin(), member_.order.end()}});
    }
    if (member_.outer) description.inner.push_back(member_.outer->rule().describe());
    return description;
  }

  [[nodiscard]] std::string to_string() const override {
    const std::string start = places_.size() == 1 ? fmt::format("at {} ", places_[0].start) : "";
    const std::string outer =
        member_.outer ? fmt::format(" within {} of {} ranks", member_.outer->to_string(), outer_ranks_) : "";
    return fmt::format("flat ({}over {}){}", start, world_, outer);
  }

 private:
  [[noreturn]] void mismatch(const std::string& why) const {
    throw Error(ErrorCode::layout_mismatch, fmt::format("{} {}", to_string(), why));
  }

  void check_order() {
    if (member_.order.empty()) return;
    std::vector<int> dims(member_.shape.size());
    std::iota(dims.begin(), dims.end(), 0);
    if (!std::is_permutation(dims.begin(), dims.end(), member_.order.begin(), member_.order.end())) {
      refuse_flat(fmt::format("the order of the dims of shape {} does not name each once",
                              shardwire::to_string(member_.shape)));
    }
    if (member_.order == dims) member_.order.clear();
  }

  [[nodiscard]] bool covers(Rank rank) const { return to_int(rank) >= 0 && to_int(rank) / outer_ranks_ < world_; }
  [[nodiscard]] const Place& place_of(int outer) const {
    return places_[places_.size() == 1 ? 0 : static_cast<std::size_t>(outer)];
  }

  [[nodiscard]] std::vector<PlacedBox> slice_of(int outer) const {
    return (member_.outer ? *member_.outer : Layout::replicated()).boxes_of(member_.shape, Rank{outer});
  }

  // Of the array that an outer rank flattens; empty for an outer rank without a slice.
  [[nodiscard]] Extents slice_shape(const std::vector<PlacedBox>& slice) const {
    return slice.empty() ? Extents{0} : local_array_of(slice, member_.shape.size());
  }

  [[nodiscard]] std::size_t dim_at(std::size_t place) const {
    return member_.order.empty() ? place : static_cast<std::size_t>(member_.order[place]);
  }

  // Strides of an array of this shape in memory order.
  [[nodiscard]] Extents strides_of(const Extents& shape) const {
    Extents in_memory = shape;
    for (std::size_t i = 0; i < shape.size(); ++i) in_memory[i] = shape[dim_at(i)];
    return row_major_strides(in_memory);
  }

  // From the first to the last flattened element of a slice that lies in `region`.
  [[nodiscard]] std::optional<FlatRange> reach_of(const std::vector<PlacedBox>& slice, const Box& region) const {
    std::optional<FlatRange> reach;
    if (slice.empty()) return reach;
    const Extents strides = strides_of(slice_shape(slice));
    for (const PlacedBox& placed : slice) {
      const auto common = intersect(placed.box, region);
      if (!common) continue;
      const Box image = image_of(placed);
      FlatRange range{0, 1};
      for (std::size_t i = 0; i < strides.size(); ++i) {
        const std::size_t dim = dim_at(i);
        const Extent lower = image.offset[dim] + (common->lower(dim) - placed.box.lower(dim));
        range.lower += lower * strides[i];
        range.upper += (lower + common->size[dim] - 1) * strides[i];
      }
      reach = reach ? FlatRange{std::min(reach->lower, range.lower), std::max(reach->upper, range.upper)} : range;
    }
    return reach;
  }

  // Boxes of an array of this shape; its element 0 has the local position `shift`, which may be negative.
  [[nodiscard]] std::vector<PlacedBox> range_boxes(const Extents& shape, FlatRange range, ElementCount shift) const {
    const std::size_t dims = shape.size();
    const Extents strides = strides_of(shape);
    Box whole{Extents::filled(dims, 0), Extents::filled(dims, 0)};
    std::vector<Box> parts;
    split_range(strides, 0, range, whole, parts);

    std::vector<PlacedBox> boxes;
    boxes.reserve(parts.size());
    for (const Box& box : parts) {
      PlacedBox& placed = boxes.emplace_back(PlacedBox{box, shift, strides});
      for (std::size_t i = 0; i < dims; ++i) {
        placed.box.offset[dim_at(i)] = box.offset[i];
        placed.box.size[dim_at(i)] = box.size[i];
        placed.local_strides[dim_at(i)] = strides[i];
        placed.local_offset += box.offset[i] * strides[i];
      }
    }
    return boxes;
  }

  FlatMember member_;
  int world_;
  int outer_ranks_;
  std::vector<Place> places_;  // by outer rank, or one for all
};

// The number of elements of a member that one outer rank flattens.
ElementCount slice_elements(const FlatMember& member, int outer) {
  if (!member.outer) return volume_of(member.shape);
  ElementCount elements = 0;
  for (const PlacedBox& placed : member.outer->boxes_of(member.shape, Rank{outer})) elements += placed.box.volume();
  return elements;
}

ElementCount padded(ElementCount length, ElementCount unit) {
  const ElementCount over = length % unit;
  return over == 0 ? length : support::add(length, unit - over, "the length of a flat parameter");
}

void check_members(std::span<const FlatMember> members, int outer_ranks) {
  for (std::size_t i = 0; i < members.size(); ++i) {
    const FlatMember& member = members[i];
    try {
      Layout::replicated().check(member.shape, 1);
      if (!member.outer) continue;
      require_local_array(*member.outer);
      member.outer->check(member.shape, outer_ranks);
    } catch (const Error& error) {
      throw Error(error.code(),
                  fmt::format("flat layout: member {} of shape {}: {}", i, to_string(member.shape), error.what()));
    }
  }
}

}  // namespace

std::vector<Layout> Layout::flat(std::span<const FlatMember> members, int world, Extent align, int outer_ranks) {
  if (world < 1 || outer_ranks < 1 || world > max_flat_ranks / outer_ranks) {
    refuse_flat(fmt::format("{} flat ranks times {} outer ranks", world, outer_ranks));
  }
  if (align < 0) refuse_flat(fmt::format("alignment {}", align));
  check_members(members, outer_ranks);
  std::vector<std::vector<Place>> places(members.size());
  for (int outer = 0; outer < outer_ranks; ++outer) {
    ElementCount length = 0;
    for (std::size_t i = 0; i < members.size(); ++i) {
      if (align > 0) length = padded(length, align);
      places[i].push_back({length, 0});
      length = support::add(length, slice_elements(members[i], outer), "the length of a flat parameter");
    }
    if (align > 0) length = padded(length, world);
    for (std::vector<Place>& of_member : places) of_member.back().part = support::ceil_div<Extent>(length, world);
  }
  std::vector<Layout> layouts;
  layouts.reserve(members.size());
  for (std::size_t i = 0; i < members.size(); ++i) {
    layouts.emplace_back(std::make_shared<const FlatRule>(members[i], world, outer_ranks, std::move(places[i])));
  }
  return layouts;
}

Layout flat_from(const RuleDescription& description) {
  Fields fields(description);
  FlatMember member;
  const std::span<const Extent> shape = fields.list("shape");
  if (shape.size() > max_dims) refuse_flat(fmt::format("{} dims; at most {} are supported", shape.size(), max_dims));
  member.shape = Extents(shape);
  std::span<const Extent> place = fields.list("place");
  if (fields.has("order")) {
    for (const Extent dim : fields.list("order")) member.order.push_back(to_int_checked(dim, "dim"));
  }
  const std::size_t inner = description.inner.empty() ? 0 : 1;
  fields.finish(inner);
  if (inner > 0) member.outer = layout_from(description.inner[0]);
  if (place.size() < 4 || place.size() % 2 != 0) refuse_flat("the list of places is of no possible length");
  std::vector<Place> places;
  for (std::size_t i = 2; i < place.size(); i += 2) places.push_back({place[i], place[i + 1]});
  return Layout(std::make_shared<const FlatRule>(std::move(member), to_int_checked(place[0], "number of flat ranks"),
                                                 to_int_checked(place[1], "number of outer ranks"), std::move(places)));
}

}  // namespace shardwire

// SPDX-License-Identifier: Apache-2.0
#include <nanobind/operators.h>
#include <nanobind/stl/vector.h>

#include <functional>

#include "bindings.hpp"

namespace shardwire::python {

namespace {

Placement placement_from(nb::handle object) {
  if (nb::isinstance(object, attribute("shardwire._types", "Replicate"))) return Replicate{};
  if (nb::isinstance(object, attribute("shardwire._types", "Shard"))) return Shard{nb::cast<int>(object.attr("dim"))};
  if (nb::isinstance(object, attribute("shardwire._types", "StridedShard"))) {
    return StridedShard{nb::cast<int>(object.attr("dim")), nb::cast<Extent>(object.attr("split_factor"))};
  }
  throw Error(ErrorCode::invalid_argument,
              std::string("a placement is ") + nb::repr(object).c_str() + ", not a Replicate, Shard or StridedShard");
}

Layout mesh(const std::vector<Extent>& shape, const std::vector<nb::object>& placements, const Name& order,
            const std::vector<int>& ranks) {
  std::vector<Placement> placed;
  for (const nb::object& one : placements) placed.push_back(placement_from(one));
  return Layout::mesh(shape, std::move(placed), mesh_order(order), ranks_from(ranks));
}

PlacedBox placed_box_from(nb::handle object) {
  return {box_from(object.attr("box")), nb::cast<ElementCount>(object.attr("local_offset")),
          nb::cast<Numbers>(object.attr("local_strides"))};
}

Layout boxes(const nb::dict& given) {
  const nb::object placed_type = attribute("shardwire._types", "PlacedBox");
  std::map<Rank, std::vector<Box>> plain;
  PlacedBoxMap placed;
  std::size_t count = 0, with_place = 0;
  for (const auto& [rank, list] : given) {
    const Rank key{nb::cast<int>(rank)};
    plain[key], placed[key];
    for (const nb::handle one : list) {
      ++count;
      if (nb::isinstance(one, placed_type)) {
        ++with_place;
        placed[key].push_back(placed_box_from(one));
      } else {
        plain[key].push_back(box_from(one));
      }
    }
  }
  if (with_place == 0) return Layout::boxes(std::move(plain));
  if (with_place == count) return Layout::boxes(std::move(placed));
  throw Error(ErrorCode::invalid_argument, "some boxes have a place and some have none");
}

std::vector<Layout> flat(const std::vector<nb::object>& members, int world, Extent align, int outer_ranks) {
  std::vector<FlatMember> given;
  for (const nb::object& one : members) {
    FlatMember member{nb::cast<Numbers>(one.attr("shape")), {}, nb::cast<std::vector<int>>(one.attr("order"))};
    if (const nb::object outer = one.attr("outer"); !outer.is_none()) member.outer = nb::cast<Layout>(outer);
    given.push_back(std::move(member));
  }
  return Layout::flat(given, world, align, outer_ranks);
}

nb::list boxes_of(const Layout& layout, const Numbers& shape, int rank) {
  nb::list out;
  for (const PlacedBox& box : layout.boxes_of(shape, Rank{rank})) out.append(to_python(box));
  return out;
}

}  // namespace

void bind_layout(nb::module_& module) {
  nb::class_<Layout>(
      module, "Layout",
      "A rule or list giving the boxes of a tensor that each rank holds, and the place of each in the rank's "
      "local buffer. Immutable; serves tensors of many shapes.")
      .def_static("replicated", &Layout::replicated, "Every rank holds the whole tensor.")
      .def_static("chunk", &Layout::chunk, nb::arg("dim"), nb::arg("ranks"),
                  "torch.chunk of `dim` over `ranks` ranks; tail ranks may hold nothing.")
      .def_static(
          "mesh", &mesh, nb::arg("shape"), nb::arg("placements"), nb::arg("order") = Name{"mesh"},
          nb::arg("ranks") = std::vector<int>{},
          "Placements over an n-d mesh of ranks, with the meaning of PyTorch's DTensor. `ranks` lists the rank at each "
          "mesh position, row-major. `order` 'tp_first' is how FSDP2 over TP lays data out.",
          nb::sig("def mesh(shape: collections.abc.Sequence[int], placements: "
                  "collections.abc.Sequence[shardwire._types.Placement], order: shardwire._types.MeshOrder = 'mesh', "
                  "ranks: collections.abc.Sequence[int] = ()) -> Layout"))
      .def_static(
          "boxes", &boxes, nb::arg("boxes"),
          "Explicit boxes by rank. A rank's boxes lie back to back in its local buffer, or where their places say.",
          nb::sig("def boxes(boxes: collections.abc.Mapping[int, collections.abc.Sequence[shardwire._types.Box]] | "
                  "collections.abc.Mapping[int, collections.abc.Sequence[shardwire._types.PlacedBox]]) -> Layout"))
      .def_static("block_cyclic", &Layout::block_cyclic, nb::arg("block"), nb::arg("grid"),
                  nb::arg("source") = std::vector<Extent>{},
                  "Blocks dealt out in turn over a grid of ranks, as ScaLAPACK does.")
      .def_static("within", &Layout::within, nb::arg("outer"), nb::arg("outer_ranks"), nb::arg("inner"),
                  "Splits the local array that `outer` gives to each of its ranks by `inner`. Rank = inner rank * "
                  "outer_ranks + "
                  "outer rank.")
      .def_static(
          "flat", &flat, nb::arg("members"), nb::arg("world"), nb::arg("align") = 0, nb::arg("outer_ranks") = 1,
          "FSDP1 flat parameter: one layout for each member, in order.",
          nb::sig(
              "def flat(members: collections.abc.Sequence[shardwire._types.FlatMember], world: int, align: int = 0, "
              "outer_ranks: int = 1) -> list[Layout]"))
      .def_static(
          "on_ranks",
          [](Layout layout, const std::vector<int>& ranks) {
            return Layout::on_ranks(std::move(layout), ranks_from(ranks));
          },
          nb::arg("layout"), nb::arg("ranks"),
          "Gives the boxes of the layout's ranks 0..n-1 to these ranks; others hold nothing.")
      .def_static("packed", &Layout::packed, nb::arg("layout"),
                  "The boxes of `layout` back to back in a buffer of their own.")
      .def_prop_ro("kind", [](const Layout& layout) { return std::string(layout.kind()); })
      .def(
          "check", [](const Layout& layout, const Numbers& shape, int ranks) { layout.check(shape, ranks); },
          nb::arg("shape"), nb::arg("ranks"),
          "Raises LayoutMismatch if the layout cannot hold a tensor of this shape on `ranks` ranks.")
      .def("boxes_of", &boxes_of, nb::arg("shape"), nb::arg("rank"), "Boxes that `rank` holds, in local order.",
           nb::sig("def boxes_of(self, shape: collections.abc.Sequence[int], rank: int) -> "
                   "list[shardwire._types.PlacedBox]"))
      .def(
          "local_elements",
          [](const Layout& layout, const Numbers& shape, int rank) { return layout.local_elements(shape, Rank{rank}); },
          nb::arg("shape"), nb::arg("rank"), "Length of the rank's local buffer, padding included.")
      .def(nb::self == nb::self, nb::sig("def __eq__(self, other: object, /) -> bool"))
      .def("__hash__", [](const Layout& layout) { return std::hash<std::string>()(layout.to_string()); })
      .def("__repr__", [](const Layout& layout) { return "<Layout " + layout.to_string() + ">"; });
}

}  // namespace shardwire::python

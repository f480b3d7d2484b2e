// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>

#include "bindings.hpp"
#include "catalog.hpp"

namespace shardwire::python {

namespace {

// The manifest of one rank is what it would publish.
Manifest manifest_of(const Catalog& catalog) {
  Manifest out{catalog.ranks(), {}, catalog.aliases()};
  for (const Catalog::Entry& entry : catalog.entries()) out.tensors.push_back({entry.spec, entry.layout});
  return out;
}

JobLayout job_layout(const std::vector<const PyCatalog*>& catalogs) {
  JobLayout out;
  for (const PyCatalog* one : catalogs) {
    out.ranks = std::max(out.ranks, one->catalog.ranks());
    Manifest manifest = manifest_of(one->catalog);
    auto same =
        std::ranges::find_if(out.sections, [&](const Section& section) { return *section.manifest == manifest; });
    if (same == out.sections.end()) {
      same = out.sections.insert(same, {std::make_shared<const Manifest>(std::move(manifest)), {}});
    }
    const Rank rank = one->catalog.layout_rank();
    const bool copy = std::ranges::find(same->ranks, rank) != same->ranks.end();
    (copy ? out.copies : same->ranks).push_back(rank);
  }
  for (Section& section : out.sections) std::ranges::sort(section.ranks);
  return out;
}

nb::object plan_of(const JobLayout& held, const JobLayout& wanted, int rank) {
  const Plan made = unlocked([&] { return plan(held, wanted, Rank{rank}); });
  nb::list pieces, gaps;
  for (const Piece& piece : made.pieces) {
    const nb::tuple holders =
        nb::steal<nb::tuple>(PySequence_Tuple(ranks_to_python(made.holder_sets[piece.holders]).ptr()));
    const TensorSpec& spec = made.wanted->tensors[to_index(piece.tensor)].spec;
    pieces.append(make("PlannedPiece", to_python(spec.key), to_python(made.box(piece)), holders));
  }
  for (const Gap& gap : made.gaps) gaps.append(to_python(gap));
  return make("Plan", pieces, gaps);
}

nb::object totals_of(const JobLayout& held, const JobLayout& wanted) {
  const JobTotals sums = unlocked([&] { return Planner(held, wanted).totals(); });
  nb::list targets, flows;
  for (const TargetTotals& one : sums.targets)
    targets.append(make("TargetTotals", one.needed, one.local, one.pieces, one.runs));
  for (const Flow& flow : sums.flows) flows.append(make("Flow", to_int(flow.source), to_int(flow.target), flow.bytes));
  return make("Totals", sums.needed, sums.local, sums.remote, sums.max_egress, sums.max_ingress, sums.pieces, sums.runs,
              sums.gaps, targets, flows);
}

}  // namespace

void bind_plan(nb::module_& module) {
  nb::class_<JobLayout>(module, "JobLayout",
                        "The layouts of all tensors on all ranks of one side of a plan. Immutable.")
      .def(
          "__init__",
          [](JobLayout* self, const std::vector<const PyCatalog*>& catalogs) {
            new (self) JobLayout(job_layout(catalogs));
          },
          nb::arg("catalogs"),
          "From the catalogs of all ranks; memory is not needed. Further catalogs of a rank are further holders of the "
          "same.",
          nb::sig("def __init__(self, catalogs: collections.abc.Sequence[Catalog]) -> None"))
      .def(
          "without", [](const JobLayout& self, const std::vector<int>& lost) { return self.without(ranks_from(lost)); },
          nb::arg("lost"), "The same without what these holders hold.")
      .def_ro("ranks", &JobLayout::ranks)
      .def_prop_ro(
          "copies", [](const JobLayout& self) { return ranks_to_python(self.copies); },
          "The ranks of further holders: plans name holder `ranks` + i, which holds what rank `copies[i]` holds.",
          nb::sig("def copies(self) -> list[int]"));
  module.def("plan", &plan_of, nb::arg("held"), nb::arg("wanted"), nb::arg("rank"),
             "What `rank` needs and who holds it: every wanted element exactly once, or a gap.",
             nb::sig("def plan(held: JobLayout, wanted: JobLayout, rank: int) -> shardwire._types.Plan"));
  module.def("totals", &totals_of, nb::arg("held"), nb::arg("wanted"), "Sums over the plans of all ranks.",
             nb::sig("def totals(held: JobLayout, wanted: JobLayout) -> shardwire._types.Totals"));
}

}  // namespace shardwire::python

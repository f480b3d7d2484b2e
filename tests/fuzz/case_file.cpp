// SPDX-License-Identifier: Apache-2.0
// Case files, see src/case/README.md.
#include "case/case.hpp"

#include <algorithm>

#include "fuzz/layout_promises.hpp"
#include "fuzz/target.hpp"

namespace shardwire::fuzz {

namespace {

void require_sound_side(const CaseSide& side) {
  constexpr std::size_t max_layouts = 16;  // that are looked at
  require(side.ranks > 0 && side.layout.ranks == side.ranks, "a side has ranks");
  require(std::is_sorted(side.lost.begin(), side.lost.end()), "lost ranks ascend");
  require(side.buffers.size() == side.layout.sections.size(), "each section has buffers");
  std::size_t looked = 0;
  for (std::size_t i = 0; i < side.layout.sections.size(); ++i) {
    const Section& section = side.layout.sections[i];
    require(std::is_sorted(section.ranks.begin(), section.ranks.end()), "ranks of a section ascend");
    require(section.ranks.empty() || (to_int(section.ranks.front()) >= 0 && to_int(section.ranks.back()) < side.ranks),
            "ranks of a section are ranks of its side");
    require(side.buffers[i].size() == section.manifest->tensors.size(), "each tensor has a buffer");
    for (const TensorLayout& tensor : section.manifest->tensors) {
      if (looked++ == max_layouts) return;
      require_sound(tensor.layout, tensor.spec.shape, section.manifest->ranks);
    }
  }
}

}  // namespace

void case_file(Input input) {
  const std::string text(reinterpret_cast<const char*>(input.data()), input.size());
  try {
    const Case job = parse_case(text);
    require(!job.states.empty() && job.tensors > 0, "a case has tensors and states");
    require_sound_side(job.source);
    require_sound_side(job.target);
    require(job.target.lost.empty(), "no rank of a target is lost");
    require(std::cmp_less(job.source.lost.size(), job.source.ranks) ||
                value_gaps(job, Rank{0}).size() == job.by_value.size(),
            "without sources, every value is missing");
  } catch (const CaseError& refusal) {
    const std::string why = refusal.what();
    require(!why.empty() && why.find('\n') == std::string::npos, "a refusal is one line");
  }
}

}  // namespace shardwire::fuzz

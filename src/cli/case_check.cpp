// SPDX-License-Identifier: Apache-2.0
#include "cli/case_check.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "case/case.hpp"
#include "case/text_file.hpp"
#include "cli/color.hpp"
#include "cli/output.hpp"
#include "cli/relabel.hpp"
#include "cli/text.hpp"
#include "shardwire/plan.hpp"
#include "support/list_of.hpp"

namespace shardwire::cli {
namespace {

using support::counted;

// Tensors that are split alike.
struct Class {
  const TensorLayout* tensor = nullptr;  // one of them
  ByteCount item_bytes = 0;              // of an element of each
  ByteCount buffer_item_bytes = 0;       // of an element of each local buffer that is not counted yet
  std::set<std::string_view> names{};
};

struct Range {
  double least = std::numeric_limits<double>::max();
  double most = 0;
  void add(double value) {
    least = std::min(least, value);
    most = std::max(most, value);
  }
};

// The elements of all ranks of a side.
struct Holdings {
  Range rank_bytes{};
  Range copies{};  // of an element, on the average of its tensor
  ByteCount padding = 0;
  std::set<std::string_view> whole{};  // tensors of which every rank has all, if there are several ranks
  std::set<std::string_view> split{};  // tensors of which a rank has less than all of a state
};

std::vector<Class> classes_of(const Section& section, const std::vector<std::uint32_t>& buffers) {
  std::map<std::pair<const LayoutRule*, Extents>, Class> classes;
  std::set<std::uint32_t> counted_buffers;
  const std::vector<TensorLayout>& tensors = section.manifest->tensors;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const TensorLayout& tensor = tensors[i];
    Class& one = classes[{&tensor.layout.rule(), tensor.spec.shape}];
    one.tensor = &tensor;
    one.item_bytes += item_size(tensor.spec.dtype);
    if (counted_buffers.insert(buffers[i]).second) one.buffer_item_bytes += item_size(tensor.spec.dtype);
    one.names.insert(tensor.spec.key.fqn);
  }
  std::vector<Class> found;
  for (auto& [key, one] : classes) found.push_back(std::move(one));
  return found;
}

void add_section(const Section& section, const std::vector<std::uint32_t>& buffers, Holdings& sums) {
  std::vector<ByteCount> memory(section.ranks.size());
  for (const Class& one : classes_of(section, buffers)) {
    const Extents& shape = one.tensor->spec.shape;
    const ElementCount elements = volume_of(shape);
    ElementCount held = 0;
    bool whole = section.ranks.size() > 1 && elements > 0;
    for (std::size_t i = 0; i < section.ranks.size(); ++i) {
      ElementCount own = 0;
      for (const PlacedBox& placed : one.tensor->layout.boxes_of(shape, section.ranks[i])) own += placed.box.volume();
      const ElementCount local = one.tensor->layout.local_elements(shape, section.ranks[i]);
      memory[i] += static_cast<ByteCount>(local) * one.buffer_item_bytes;
      // Memory of a flat parameter is counted at one member, and what members have there is not padding.
      sums.padding +=
          static_cast<ByteCount>(local) * one.buffer_item_bytes - static_cast<ByteCount>(own) * one.item_bytes;
      held += own;
      whole = whole && own == elements;
    }
    if (elements > 0) sums.copies.add(static_cast<double>(held) / static_cast<double>(elements));
    (whole ? sums.whole : sums.split).insert(one.names.begin(), one.names.end());
  }
  for (const ByteCount bytes : memory) sums.rank_bytes.add(static_cast<double>(bytes));
}

Holdings holdings_of(const CaseSide& side) {
  Holdings sums;
  for (std::size_t s = 0; s < side.layout.sections.size(); ++s) {
    add_section(side.layout.sections[s], side.buffers[s], sums);
  }
  for (const std::string_view name : sums.split) sums.whole.erase(name);
  return sums;
}

std::string range_text(const Range& range, std::string (*text)(double)) {
  const std::string least = text(range.least);
  const std::string most = text(range.most);
  return least == most ? most : fmt::format("{} to {}", least, most);
}

std::string copies_text(const Range& copies) {
  if (copies.least == copies.most && copies.most == 1) return "Each element is on 1 rank.";
  const auto text = [](double ranks) { return fmt::format("{:.3g}", ranks); };
  const bool exact = copies.least == copies.most && copies.most > 1 &&
                     copies.most == static_cast<double>(static_cast<int>(copies.most));
  return fmt::format("{} on {} ranks{}.", exact ? "Each element is" : "Elements are", range_text(copies, text),
                     exact ? "" : " on average");
}

std::string side_text(const char* title, const char* does, const CaseSide& side) {
  const std::string lost =
      side.lost.empty()
          ? ""
          : fmt::format(", of which {} lost", side.lost.size() == 1 ? "1 is" : fmt::format("{} are", side.lost.size()));
  std::string text = fmt::format("The {} has {}{}.", title, counted(side.ranks, "rank"), lost);
  const std::size_t stages = side.layout.sections.size();
  if (stages > 1) text += fmt::format(" They are {} pipeline stages.", stages);
  const Holdings sums = holdings_of(side);
  if (sums.copies.most > 0)
    text += fmt::format(" {} A rank {} {}.", copies_text(sums.copies), does, range_text(sums.rank_bytes, human_bytes));
  text += '\n';
  for (const CaseRule& rule : side.rules) {
    if (rule.tensors > 0)
      text += fmt::format("  rule {}, {}: {}\n", printable(rule.name), counted(rule.tensors, "tensor"), rule.layout);
  }
  if (!sums.whole.empty()) {
    text += fmt::format("  Every rank has the whole of {}, such as {}.\n", counted(sums.whole.size(), "tensor"),
                        printable(std::string(*sums.whole.begin())));
  }
  if (sums.padding > 0)
    text += fmt::format("  Padding of flat parameters takes {} in all.\n", human_bytes(sums.padding));
  return text;
}

// "exp_avg (f32), momentum_buffer (f32, of 224 tensors)"
std::string states_text(const Case& job, const std::map<TensorKey, TensorSpec>& specs) {
  struct State {
    std::set<std::string> dtypes;
    std::size_t tensors = 0;
  };
  std::map<std::string_view, State> states;
  for (const auto& [key, spec] : specs) {
    State& state = states[key.state];
    state.dtypes.insert(to_string(spec.dtype));
    ++state.tensors;
  }
  std::vector<std::string> texts;
  for (const std::string& name : job.states) {
    const State& state = states[name];
    if (state.tensors == 0) continue;
    const std::string some =
        state.tensors == job.tensors ? "" : fmt::format(", of {}", counted(state.tensors, "tensor"));
    texts.push_back(fmt::format("{} ({}{})", printable(name), fmt::join(state.dtypes, " and "), some));
  }
  return fmt::format("{}", fmt::join(texts, ", "));
}

// A restore of the case fails on these target ranks.
std::vector<int> ranks_with_gaps(const Case& job) {
  const std::vector<Rank> targets = ranks_of(job.target.layout);
  std::set<int> found;
  Planner planner(job.source.layout, job.target.layout);
  planner.each_gap(targets, [&](const Gap& gap) { found.insert(to_int(gap.target)); });
  for (const Rank target : targets) {
    if (!value_gaps(job, target).empty()) found.insert(to_int(target));
  }
  return {found.begin(), found.end()};
}

std::vector<std::string> warnings_of(const Case& job) {
  std::vector<std::string> warnings = job.source.warnings;
  warnings.insert(warnings.end(), job.target.warnings.begin(), job.target.warnings.end());
  if (const std::vector<int> ranks = ranks_with_gaps(job); !ranks.empty()) {
    const bool one = ranks.size() == 1;
    warnings.push_back(
        fmt::format("target rank{} {} want{} regions that no source rank holds: shardwire plan names them",
                    one ? "" : "s", support::runs_of(ranks), one ? "s" : ""));
  }
  return warnings;
}

}  // namespace

void check_case(const std::string& path) {
  const Case job = load_case(path);
  std::map<TensorKey, TensorSpec> specs;
  for (const Section& section : job.target.layout.sections) {
    for (const TensorLayout& tensor : section.manifest->tensors) specs.emplace(tensor.spec.key, tensor.spec);
  }
  for (const TensorSpec& spec : job.by_value) specs.emplace(spec.key, spec);
  ByteCount bytes = 0;
  for (const auto& [key, spec] : specs) bytes += static_cast<ByteCount>(volume_of(spec.shape)) * item_size(spec.dtype);

  std::string text = fmt::format("{} is a valid case{}.\n", shown_name(path),
                                 job.name.empty() ? "" : fmt::format(", {}", json_text(job.name)));
  text += fmt::format("It has {}, with {}: {}. Together they have {}.\n", counted(job.tensors, "tensor"),
                      job.states.size() == 1 ? "the state" : "the states", states_text(job, specs), human_bytes(bytes));
  if (!job.by_value.empty()) {
    text += fmt::format("{} {} by value, to every target rank.\n", counted(job.by_value.size(), "one-element tensor"),
                        job.by_value.size() == 1 ? "goes" : "go");
  }
  text += side_text("source", "holds", job.source) + side_text("target", "wants", job.target);
  if (job.ranks_per_host > 0) text += fmt::format("A host has {}.\n", counted(job.ranks_per_host, "rank"));
  for (const std::string& warning : warnings_of(job)) {
    text += fmt::format("{} {}\n", marked("warning:", Mark::warning, stdout), warning);
  }
  write_output(text);
}

}  // namespace shardwire::cli

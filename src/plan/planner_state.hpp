// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "plan/aliases.hpp"
#include "plan/layout_table.hpp"
#include "plan/source_index.hpp"
#include "shardwire/plan.hpp"

namespace shardwire {

/// What the files of this folder share of a Planner.
struct Planner::State {
  State(JobLayout from_side, JobLayout to_side);

  struct KeyView {
    std::string_view fqn;
    std::string_view state;
    bool operator==(const KeyView&) const = default;
  };
  struct KeyHash {
    std::size_t operator()(const KeyView& key) const {
      const std::hash<std::string_view> hash;
      return hash(key.fqn) * 31 + hash(key.state);
    }
  };
  struct Place {  // of a key in one section
    std::uint32_t section = 0;
    TensorId tensor{};
  };
  using KeyTable = std::unordered_map<KeyView, std::vector<Place>, KeyHash>;

  /// Tensors that are cut and held alike: same shape, same layouts of the same ranks.
  struct SourceClass {
    Extents shape;
    std::vector<std::pair<std::uint32_t, std::uint32_t>> held;  ///< section, layout number; by section
    bool operator<(const SourceClass& other) const { return std::tie(shape, held) < std::tie(other.shape, other.held); }
  };
  struct TargetClass {
    std::uint32_t source_class = 0;
    std::uint32_t layout = 0;
    auto operator<=>(const TargetClass&) const = default;
  };
  static constexpr std::uint32_t by_value = ~0U;  ///< class of a tensor that is no piece

  /// Places of `key` in the `from` side; none when nobody has it.
  [[nodiscard]] const std::vector<Place>& places_of(const TensorKey& key) const;
  /// Class of each tensor of a section of the `to` side.
  const std::vector<std::uint32_t>& classes_of(std::uint32_t section);
  SourceIndex& index_of(std::uint32_t source_class);

  JobLayout from;
  JobLayout to;
  NameSearch names;
  LayoutTable layouts;
  KeyTable from_keys;                      ///< fqns as names.held() has them
  std::vector<std::int32_t> from_section;  ///< by rank, -1 for none
  std::vector<std::int32_t> to_section;
  std::map<SourceClass, std::uint32_t> source_classes;
  std::vector<const SourceClass*> source_class_of;  ///< by number; keys of source_classes
  std::vector<std::optional<SourceIndex>> indices;  ///< by source class, built when first asked for
  std::map<TargetClass, std::uint32_t> target_classes;
  std::vector<TargetClass> target_class_of;                    ///< by number
  std::vector<std::vector<std::uint32_t>> classes_of_section;  ///< filled when first asked for
};

}  // namespace shardwire

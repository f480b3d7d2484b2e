// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "case/json_node.hpp"
#include "case/models.hpp"
#include "shardwire/layout.hpp"

namespace shardwire {

/// A `flat` entry of a side's rules. It lists names, so its layouts are known only together with the tensors.
class FlatEntry {
 public:
  /// Errors: throws CaseError.
  explicit FlatEntry(const Node& node);

  struct Member {
    Layout layout;
    std::uint32_t list = 0;  ///< index of its flat parameter
  };
  /// Layouts of `served`, the tensors of one pipeline stage that this entry serves, in order. `elsewhere` names those
  /// of other stages: lists may contain them, and they are skipped.
  /// Errors: throws CaseError for a tensor that is in no list or in two, and for unknown names.
  [[nodiscard]] std::vector<Member> layouts_of(std::span<const CaseTensor* const> served,
                                               const std::set<std::string>& elsewhere) const;

  /// For people: "1 flat parameter over 4 ranks".
  [[nodiscard]] std::string to_string() const;

 private:
  struct Outer {
    Layout layout;
    int ranks = 1;
  };
  void parse_within(const Node& within);
  [[nodiscard]] static Outer parse_outer(const Node& node);
  [[nodiscard]] FlatMember member_of(const CaseTensor& tensor) const;

  Node node_;
  std::vector<std::vector<Node>> lists_;
  int world_ = 1;
  Extent align_ = 0;
  int outer_ranks_ = 1;
  std::optional<std::vector<Rank>> ranks_;  ///< the entry's ranks, if it lists them
  std::map<std::string, Outer> outer_;      ///< by tensor rule name; "*" for all others; empty without `within`
};

}  // namespace shardwire

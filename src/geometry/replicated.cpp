// SPDX-License-Identifier: Apache-2.0
#include "geometry/fields.hpp"

namespace shardwire {
namespace {

class ReplicatedRule final : public LayoutRule {
 public:
  [[nodiscard]] std::string_view kind() const override { return "replicated"; }
  void check(const Extents&, int) const override {}
  [[nodiscard]] std::vector<PlacedBox> boxes_of(const Extents& shape, Rank) const override {
    const Box whole = Box::whole(shape);
    if (whole.empty()) return {};
    return {{whole, 0, row_major_strides(shape)}};
  }
  [[nodiscard]] bool has_local_array() const override { return true; }
  [[nodiscard]] RuleDescription describe() const override { return {"replicated", {}, {}}; }
  [[nodiscard]] std::string to_string() const override { return "replicated"; }
};

}  // namespace

Layout Layout::replicated() {
  static const auto rule = std::make_shared<const ReplicatedRule>();
  return Layout(rule);
}

Layout replicated_from(const RuleDescription& description) {
  Fields(description).finish();
  return Layout::replicated();
}

}  // namespace shardwire

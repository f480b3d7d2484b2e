// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <array>

#include "geometry/layout_rule.hpp"
#include "shardwire/error.hpp"

namespace shardwire {

// Each is defined in the file of its kind.
Layout block_cyclic_from(const RuleDescription& description);
Layout boxes_from(const RuleDescription& description);
Layout chunk_from(const RuleDescription& description);
Layout flat_from(const RuleDescription& description);
Layout mesh_from(const RuleDescription& description);
Layout on_ranks_from(const RuleDescription& description);
Layout packed_from(const RuleDescription& description);
Layout replicated_from(const RuleDescription& description);
Layout within_from(const RuleDescription& description);

namespace {

struct Kind {
  std::string_view name;
  Layout (*from)(const RuleDescription&);
};

// The only list of layout kinds.
constexpr std::array kinds{
    Kind{"blockcyclic", block_cyclic_from},
    Kind{"boxes", boxes_from},
    Kind{"chunk", chunk_from},
    Kind{"flat", flat_from},
    Kind{"mesh", mesh_from},
    Kind{"on_ranks", on_ranks_from},
    Kind{"packed", packed_from},
    Kind{"replicated", replicated_from},
    Kind{"within", within_from},
};

}  // namespace

Layout layout_from(const RuleDescription& description) {
  for (const Kind& kind : kinds) {
    if (kind.name == description.kind) return kind.from(description);
  }
  throw Error(ErrorCode::invalid_argument, fmt::format("layout kind '{}' is unknown", description.kind.substr(0, 64)));
}

}  // namespace shardwire

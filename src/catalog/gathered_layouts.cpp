// SPDX-License-Identifier: Apache-2.0
#include "catalog/gathered_layouts.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "catalog/description.hpp"
#include "shardwire/error.hpp"
#include "wire/messages.hpp"

namespace shardwire {
namespace {

// States of the values; ascending.
constexpr const char* manifest_state = "manifest";
constexpr const char* rank_state = "rank";

struct EncodedLayouts {
  Bytes manifest;
  std::int64_t rank = 0;
};

EncodedLayouts split(const Bytes& encoded) {
  const std::vector<wire::NamedValue> values = wire::decode_values(encoded);
  if (values.size() == 2 && values[0].key.state == manifest_state && values[1].key.state == rank_state) {
    const auto* manifest = std::get_if<Bytes>(&*values[0].value);
    const auto* rank = std::get_if<std::int64_t>(&*values[1].value);
    if (manifest != nullptr && rank != nullptr) return {*manifest, *rank};
  }
  throw Error(ErrorCode::transport_failed, "layouts of a member are other values than a manifest and a rank");
}

[[noreturn]] void refuse_two(int first, int second, const std::string& why) {
  throw Error(ErrorCode::layout_mismatch, fmt::format("members {} and {} {}", first, second, why),
              std::vector<Rank>{Rank{first}, Rank{second}});
}

}  // namespace

Bytes encode_layouts(const Catalog& catalog) {
  if (catalog.entries().empty()) return {};
  return wire::encode_values({{{"", manifest_state}, Value(wire::encode_manifest(*manifest_of(catalog)))},
                              {{"", rank_state}, Value(std::int64_t{to_int(catalog.layout_rank())})}});
}

JobLayout decode_layouts(std::span<const Bytes> members) {
  JobLayout side;
  std::map<Bytes, std::size_t> sections;  // by encoded manifest
  std::map<std::int64_t, int> member_of;  // by layout rank
  for (int member = 0; member < std::ssize(members); ++member) {
    const Bytes& encoded = members[static_cast<std::size_t>(member)];
    if (encoded.empty()) continue;
    const EncodedLayouts one = split(encoded);
    const auto [section, fresh] = sections.try_emplace(one.manifest, side.sections.size());
    if (fresh) {
      side.sections.push_back({std::make_shared<const Manifest>(wire::decode_manifest(one.manifest)), {}});
    }
    Section& shared = side.sections[section->second];
    if (member_of.empty()) side.ranks = shared.manifest->ranks;
    if (shared.manifest->ranks != side.ranks) {
      refuse_two(member_of.begin()->second, member,
                 fmt::format("have layouts over {} and {} ranks", side.ranks, shared.manifest->ranks));
    }
    if (one.rank < 0 || one.rank >= side.ranks) {
      throw Error(ErrorCode::transport_failed,
                  fmt::format("member {} has layout rank {} of {}", member, one.rank, side.ranks));
    }
    const auto [first, is_first] = member_of.try_emplace(one.rank, member);
    if (!is_first) refuse_two(first->second, member, fmt::format("both have layout rank {}", one.rank));
    shared.ranks.push_back(Rank{static_cast<std::int32_t>(one.rank)});
  }
  for (Section& section : side.sections) std::ranges::sort(section.ranks);
  return side;
}

}  // namespace shardwire

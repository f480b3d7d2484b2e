// SPDX-License-Identifier: Apache-2.0
#include "restore/name_view.hpp"

#include <algorithm>

#include "restore/publishers.hpp"

namespace shardwire::restore {

std::vector<wire::PublicationRecord> NameView::publications() const {
  auto records = context_.directory.publications(target_.options.name);
  std::erase_if(records, [&](const auto& record) { return target_.is_excluded(record); });
  std::ranges::stable_sort(records, {}, &wire::PublicationRecord::layout_rank);
  return records;
}

std::vector<int> NameView::possible(int ranks, std::optional<std::int64_t> step) const {
  if (context_.membership.lost() != nullptr) return {};
  const auto records = publications();
  const int member = context_.member;
  const bool listed = std::ranges::any_of(records, [&](const auto& record) { return record.member == member; });
  const bool own_on_its_way = !listed && context_.own_publication(target_.options.name) != nullptr;
  return possible_publishers(context_.directory, records, {member, own_on_its_way, step, ranks});
}

}  // namespace shardwire::restore

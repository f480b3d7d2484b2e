// SPDX-License-Identifier: Apache-2.0
#include "restore/metadata.hpp"

#include <algorithm>
#include <set>

namespace shardwire::restore {

void Metadata::trim(const Directory& directory) {
  constexpr std::size_t min_limit = 64;
  if (manifests.size() + values.size() <= limit_) return;
  std::set<wire::Digest> named;
  directory.each_publication([&](const wire::PublicationRecord& record) {
    named.insert(record.manifest);
    named.insert(record.values);
  });
  // Entries shared with own publications and plans cost nothing to keep.
  const auto unnamed = [&](const auto& entry) { return !named.contains(entry.first) && entry.second.use_count() == 1; };
  std::erase_if(manifests, unnamed);
  std::erase_if(values, unnamed);
  limit_ = std::max(min_limit, 2 * (manifests.size() + values.size()));
}

}  // namespace shardwire::restore

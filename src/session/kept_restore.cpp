// SPDX-License-Identifier: Apache-2.0
#include "session/kept_restore.hpp"

#include <algorithm>

namespace shardwire {

bool alike(const Catalog& a, const Catalog& b) {
  if (a.same(b)) return true;
  const auto same_entry = [](const Catalog::Entry& x, const Catalog::Entry& y) {
    return x.spec == y.spec && x.layout == y.layout && x.view.strides == y.view.strides && x.absent == y.absent;
  };
  const auto same_value = [](const Catalog::ValueEntry& x, const Catalog::ValueEntry& y) {
    return x.key == y.key && x.absent == y.absent;
  };
  return a.place() == b.place() && a.ranks() == b.ranks() && a.aliases() == b.aliases() &&
         std::equal(a.entries().begin(), a.entries().end(), b.entries().begin(), b.entries().end(), same_entry) &&
         std::equal(a.values().begin(), a.values().end(), b.values().begin(), b.values().end(), same_value);
}

bool same_memory(const Catalog& a, const Catalog& b) {
  if (a.same(b)) return true;
  return std::equal(a.entries().begin(), a.entries().end(), b.entries().begin(), b.entries().end(),
                    [](const Catalog::Entry& x, const Catalog::Entry& y) { return x.view.data == y.view.data; });
}

bool same_sources(const std::vector<wire::PublicationRecord>& a, const std::vector<wire::PublicationRecord>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const wire::PublicationRecord& x, const wire::PublicationRecord& y) {
                      return x.member == y.member && x.turn == y.turn && x.place == y.place && x.manifest == y.manifest;
                    });
}

}  // namespace shardwire

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "control/directory.hpp"

namespace shardwire::restore {

/// Manifests and values of publications by digest, kept for later restores while a member publishes them.
struct Metadata {
  using Values = std::vector<wire::NamedValue>;
  std::map<wire::Digest, std::shared_ptr<const Manifest>> manifests;  // owners: this, plans, and own publications
  std::map<wire::Digest, std::shared_ptr<const Values>> values;       // owners: this and plans

  /// Drops entries that no roster names, once there are many. Requires: no restore is fetching metadata.
  /// Cost: O(members) each time the number has doubled.
  void trim(const Directory& directory);

 private:
  std::size_t limit_ = 64;
};

}  // namespace shardwire::restore

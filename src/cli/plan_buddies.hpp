// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "case/case.hpp"

namespace shardwire::cli {

/// The source side of a case as it is once a host has gone.
struct LostHost {
  JobLayout source;
  Topology topology;
  std::vector<Rank> lost;  ///< ranks of which nobody holds a copy; ascending
  std::string summary;     ///< for people, one line
};
/// `copies`: of each source rank, on other hosts, as PublishOptions::buddies places them. Requires: the case gives ranks per
/// host. Errors: throws UsageError for a host that does not exist, and for a case that has lost source ranks itself.
LostHost without_host(const Case& job, int copies, int host);

}  // namespace shardwire::cli

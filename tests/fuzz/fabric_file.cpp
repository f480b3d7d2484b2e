// SPDX-License-Identifier: Apache-2.0
// Fabric files, see docs/case-format.md.
#include "case/fabric_file.hpp"

#include <cmath>

#include "case/case.hpp"
#include "fuzz/target.hpp"

namespace shardwire::fuzz {

void fabric_file(Input input) {
  const std::string text(reinterpret_cast<const char*>(input.data()), input.size());
  const Allocation allocation;
  try {
    const ClusterModel fabric = parse_fabric(text);
    const auto sound = [](double speed) { return std::isfinite(speed) && speed > 0; };
    require(sound(fabric.copy.bytes_per_second) && sound(fabric.host.bytes_per_second), "a link has a speed");
    require(!fabric.nics.empty(), "a host has a network link");
    for (const double nic : fabric.nics) require(sound(nic), "a link has a speed");
    require(fabric.oversubscription >= 1, "a core is not faster than its links");
  } catch (const CaseError& refusal) {
    const std::string why = refusal.what();
    require(!why.empty() && why.find('\n') == std::string::npos, "a refusal is one line");
  }
  allocation.require_at_most(input.size(), 4000, 1u << 20);
}

}  // namespace shardwire::fuzz

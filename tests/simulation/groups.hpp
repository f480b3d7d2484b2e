// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <span>

#include "fabric.hpp"
#include "transport/collective.hpp"

namespace shardwire::simulation {

class SimulatedCollective;
struct Group;

/// The collective of a run: rounds between processes, as of a library that does not see that a member is gone.
class GroupNetwork {
 public:
  /// Its rows are those of this one from now on.
  explicit GroupNetwork(FabricNetwork& fabrics);
  ~GroupNetwork();
  GroupNetwork(const GroupNetwork&) = delete;
  GroupNetwork& operator=(const GroupNetwork&) = delete;

  static std::span<const transport::CollectiveTransport> rows();
  /// The process has ended: nothing reads or writes its memory any more, and nobody is told.
  void ended(Process& process);
  /// Groups of which a member is left.
  [[nodiscard]] std::size_t open_groups() const { return groups_.size(); }

  // --- for the rows ---
  std::unique_ptr<transport::Collective> open(const transport::GroupSetup& setup);
  Bytes make_id();
  [[nodiscard]] FabricNetwork& fabrics() { return fabrics_; }
  [[nodiscard]] Events& events() { return fabrics_.events(); }

 private:
  friend class SimulatedCollective;

  FabricNetwork& fabrics_;
  std::map<Bytes, std::shared_ptr<Group>> groups_;  // owners: this, its members, transfers under way
};

}  // namespace shardwire::simulation

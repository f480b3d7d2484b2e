// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "network.hpp"
#include "shardwire/costs.hpp"
#include "shardwire/layout.hpp"
#include "shardwire/options.hpp"
#include "shardwire/tensor.hpp"

namespace shardwire::simulation {

/// Something that happens to a member, or to the network.
struct Action {
  enum class Kind : std::uint8_t {
    join,
    publish,
    update,  ///< publishes the next step in place of the last one
    restore,
    exchange,
    gather,
    take_inventory,  ///< or waits for a step
    cancel,          ///< the running restores and exchanges
    retire,
    leave,    ///< closes the session
    kill,     ///< the process: its kernel closes its sockets
    vanish,   ///< the host loses its power: its peers hear nothing
    restart,  ///< a new process takes the place of one that has ended
    stop,     ///< the process, for a while
    cut,      ///< nothing passes between two hosts for a while
    slow,     ///< packets of a host are slow for a while
    corrupt,  ///< payload from a host is garbled for a while
    reset,    ///< the connections of fabrics between two members end, those of control do not
    hole,     ///< no payload passes between two hosts for a while; control does
  };
  Kind kind{};
  Duration at{};
  int member = 0;  ///< of cut, hole, slow and corrupt: a host
  /// Of cut and hole: the other host; of reset: the other member; of publish and update: the step; of exchange and gather: which one.
  int other = 0;
  Duration lasts{};
  unsigned times = 1;  ///< of slow
};
std::string to_text(const Action& action);

/// One run: the job, and what happens to it. A pure function of its seed.
struct Schedule {
  struct Tensor {
    TensorSpec spec;
    Layout held;
    Layout wanted;
  };
  enum class Memory : std::uint8_t { arena, plain, snapshot };

  std::uint64_t seed = 0;
  int members = 0;
  int hosts = 0;
  std::vector<int> host_of;       ///< by member
  std::vector<bool> maps, reads;  ///< by member: which fabrics it has, besides that for messages
  std::vector<Memory> memory;     ///< by member: of what it publishes
  std::vector<int> sources;       ///< member, by rank of the held layouts
  struct Spare {
    int member = 0;
    int rank = 0;  ///< of the held layouts, which another member has too
  };
  std::vector<Spare> spares;
  std::vector<int> targets;  ///< member, by rank of the wanted layouts
  std::vector<Tensor> tensors;
  Network::Delay delay;
  Duration deadline{};                     ///< of each restore
  Duration grace{};                        ///< see RestoreOptions::discovery_grace
  Duration notice{};                       ///< see RestoreOptions
  Replicas replicas = Replicas::spread;    ///< of restores
  ByteCount ingress_bytes_per_second = 0;  ///< of each restore; 0: no limit
  std::optional<RestoreMethod> method{};   ///< the only one of the restores
  bool verified = false;                   ///< restores compare digests
  bool digests = false;                    ///< publications have digests
  bool again = false;  ///< restores are of one catalog, so that later ones use results of earlier ones
  StepRule step_rule = StepRule::agreed;  ///< of restores
  bool resumes = false;                   ///< a restore that fails is resumed, once
  bool sockets = false;                   ///< messages go over a fabric that takes sockets
  bool key = true;                        ///< the job has one
  ByteCount staging_bytes = 16 << 10;     ///< of each restore: one slot
  /// The tensors that all members exchange, if any; the ranks of their layouts are the members.
  struct Exchange {
    std::vector<Tensor> tensors{};
    bool in_place = false;  ///< the destinations lie on what is held
    bool rounds = false;    ///< its bytes move in rounds of a collective
    ByteCount staging_bytes = 0;
  };
  std::optional<Exchange> exchange{};
  std::vector<Action> actions;
  bool must_complete = false;  ///< nothing happens that a restore could fail of
  int crashes = -1;            ///< a member that ends at a time that no action names; -1: none

  [[nodiscard]] int source_rank(int member) const;  ///< -1: none
  /// Differs in every byte that the member publishes from what others publish, where replicas are not taken as equal.
  [[nodiscard]] std::byte mark_of(int member) const {
    return replicas == Replicas::first ? static_cast<std::byte>(1 + member) : std::byte{0};
  }
  /// Sources and spares.
  [[nodiscard]] std::vector<int> publishers() const;
  [[nodiscard]] int target_rank(int member) const;
  /// Whether nothing happens to the member, or to its host, that its peers could give it up for.
  [[nodiscard]] bool is_steady(int member) const;
  /// Whether the member is not heard from for a while, and no connection of it ends.
  [[nodiscard]] bool falls_silent(int member) const;
  /// Of some length, on the host of this member: its reads end when network cards give them up.
  [[nodiscard]] bool has_hole(int member) const;
  /// Holes of some length between the hosts of these two.
  [[nodiscard]] int holes_between(int member, int other) const;
  /// Whether the member, member 0, some source and a holder of each element that the member wants are steady, and the
  /// deadline leaves time to find all silent ones.
  /// `published`: by member, those that count as sources.
  [[nodiscard]] bool has_steady_holders(int member, const std::vector<bool>& published) const;
};
/// `members`: 0: drawn as well.
Schedule draw(std::uint64_t seed, int members = 0);

}  // namespace shardwire::simulation

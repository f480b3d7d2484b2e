// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "case/case.hpp"
#include "shardwire/costs.hpp"
#include "shardwire/plan.hpp"
#include "shardwire/session.hpp"

namespace shardwire::perf {

/// The references of a restore's measurement.
enum class Against : std::uint8_t {
  memcpy,         ///< plain copies of the same bytes, by as many processes
  device_memcpy,  ///< the same on the devices that hold the state
  ucx,            ///< tagged messages between buffers as large as the state, for as many pairs
  mpi,            ///< MPI_Alltoallw with subarray types, by as many processes of a separate program
  unverified,     ///< the same restore without digests
  contiguous,     ///< a restore of as many bytes between the same ranks, in one run for each pair: see contiguous.hpp
  ucp_get,        ///< one-sided reads of the same runs by a plain loop over UCX: see read_loop.hpp
  fi_read,        ///< the same over libfabric
  nccl,           ///< plain NCCL sends and receives, of as many bytes between the same members: see nccl_loop.hpp
};
std::string_view to_string(Against against);

/// Ranks of a synthetic case, which are also member numbers.
struct Pair {
  int source = 0;
  int target = 0;
};

/// One case, restored by one or several methods that take turns with each other and with the references.
struct Measurement {
  std::string case_text;  ///< the case file with options applied
  Case job;
  std::vector<std::optional<Method>> methods{std::nullopt};  ///< a turn for each; empty optional: the session chooses
  std::vector<Against> against{};
  ByteCount run_bytes = 0;     ///< of a synthetic case; 0: a case file
  std::vector<Pair> pairs{};   ///< of a synthetic case of pairs; empty: of all ranks
  ByteCount needed_bytes = 0;  ///< of all target ranks, in one turn
};

/// The parameters that all members of a run share. One set of processes does all measurements, one after another.
struct Setup {
  std::vector<Measurement> measurements;
  std::string transport = "auto";
  MemoryKind memory = MemoryKind::host;  ///< place of the state
  bool exchange = false;                 ///< all members call Session::exchange(), whose bytes move in rounds
  bool tcp = false;                      ///< all measured transfers use TCP
  bool encrypted = false;                ///< what moves over tcp is encrypted
  bool ordinary = false;                 ///< state lies in private memory of the process, not in arenas
  bool disjoint = false;                 ///< source and target ranks are different processes
  int repeats = 5;                       ///< timed repeats; one more warms up
  ByteCount staging_bytes = 256u << 20;
  ByteCount rate_bytes_per_second = 0;
  Verify verify = Verify::generation;
  Replicas replicas = Replicas::spread;
  CostModel costs{};
  std::chrono::seconds timeout{1800};  ///< of the whole run

  [[nodiscard]] int members() const;
  [[nodiscard]] bool has(Against against) const;
};

/// The work between two meetings of all members.
struct Turn {
  enum class Kind : std::uint8_t { copy, device_copy, tag, read, nccl, mpi, reference, restore };
  Kind kind{};
  std::size_t index = 0;  ///< of the plain copy, the style of messages or reads, or the method
  std::string name;
  Against against{};  ///< of all but restores; a `reference` is a restore that others are compared with
};
/// A turn that moves all elements, which are compared afterwards.
bool is_checked(const Turn& turn);
/// In the order in which all members take them; restores last. All members and the MPI program compute the same list.
std::vector<Turn> turns_of(const Measurement& measurement);

/// The bytes of all turns of all measurements, if each moves what the targets need.
/// Errors: throws Error{invalid_argument} on overflow.
ByteCount bytes_of_turns(const Setup& setup);

/// A member's rank in a case, or none.
std::optional<Rank> source_of(const Setup& setup, const Case& job, int member);
std::optional<Rank> target_of(const Setup& setup, const Case& job, int member);
/// The member that is a target rank.
int member_of_target(const Setup& setup, const Case& job, Rank target);
/// Of the restores that are measured.
Planner planner_of(const Setup& setup, const Case& job);
/// The member that sends to the one of `target` in the loop of tagged messages.
int tag_sender_of(const Setup& setup, const Measurement& measurement, Rank target);

}  // namespace shardwire::perf

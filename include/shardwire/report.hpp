// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "shardwire/costs.hpp"
#include "shardwire/export.hpp"
#include "shardwire/tensor.hpp"
#include "shardwire/types.hpp"

SHARDWIRE_API_BEGIN
namespace shardwire {

/// Seconds of one restore. The stages follow one another without overlap and sum to `wall`.
struct StageSeconds {
  double wall = 0;
  double join = 0;  ///< joining the session; 0 after the first restore
  double plan = 0;  ///< waiting for publications, fetching manifests, planning
  double bind = 0;  ///< connecting to the peers of the plan, leases, region handles
  double move = 0;
  double verify = 0;  ///< check after read (generation) and digests where asked
  double commit = 0;

  StageSeconds& operator+=(const StageSeconds& next);
};

/// What one way did: what the cost model expected of it, and what it took.
struct WayReport {
  ByteCount bytes = 0;  ///< payload; for over_read with the bytes of the gaps, which count as RestoreReport::extra
  ByteCount runs = 0;   ///< contiguous on both sides
  double predicted_seconds = 0;  ///< as if it had the machine to itself
  double measured_seconds = 0;   ///< during which at least one of its operations was under way
};

/// One row for each Way, in their order. Every report of ways is this table.
class WayTable {
 public:
  WayReport& operator[](Way way) { return rows_[static_cast<std::size_t>(way)]; }
  const WayReport& operator[](Way way) const { return rows_[static_cast<std::size_t>(way)]; }
  /// Calls visit(Way, WayReport&) for each row.
  template <typename Visit>
  void each(Visit visit) {
    for (std::size_t i = 0; i < way_count; ++i) visit(static_cast<Way>(i), rows_[i]);
  }
  template <typename Visit>
  void each(Visit visit) const {
    for (std::size_t i = 0; i < way_count; ++i) visit(static_cast<Way>(i), rows_[i]);
  }
  /// Adds what was done afterwards: seconds too.
  WayTable& operator+=(const WayTable& next);

 private:
  std::array<WayReport, way_count> rows_{};
};

struct PeerReport {
  Rank rank{};  ///< in the source layout
  ByteCount bytes = 0;
  std::string path;              ///< "local" or "<transport>/<way>"
  std::string carrier;           ///< device or protocol behind the path
  std::string why_not;           ///< why no better path was taken; empty where there is none
  double predicted_seconds = 0;  ///< of these bytes by the cost model, as if they had the machine to themselves
};

/// What one restore did. Invariant: moved + local == needed + extra + again.
/// Of a restore with RestoreOptions::bind_only it is what would be done: `needed`, and the bytes, runs and predicted seconds of
/// ways and peers; nothing is moved, and of the stages only join, plan, bind and verify take time.
struct RestoreReport {
  ByteCount needed = 0;  ///< bytes that the target rank wanted
  ByteCount moved = 0;   ///< payload that crossed between ranks
  ByteCount local = 0;   ///< payload copied inside this process
  ByteCount extra = 0;   ///< bytes moved beyond what was needed
  ByteCount again = 0;   ///< bytes moved again after a fault
  WayTable ways;
  std::uint64_t rounds = 0;    ///< of a collective, in exchanges that take the way grouped
  ByteCount rounds_bytes = 0;  ///< that came to this rank in them
  double rounds_seconds = 0;   ///< that they took, waiting for other members included
  StageSeconds seconds;
  ByteCount staging_budget = 0;
  ByteCount staging_peak = 0;      ///< most staging in use at once in this session, as source and as target
  ByteCount registered_bytes = 0;  ///< memory registered or allocated as arenas in this session
  double registration_seconds = 0;
  double digest_seconds = 0;       ///< of processor time that digests took on this side; most of it inside `move`
  std::string transport;           ///< name and loaded version of the fabric
  std::vector<PeerReport> peers;   ///< ascending by rank, one line per (peer, path)
  std::vector<TensorKey> skipped;  ///< elements or values wanted with Absent::skip that no source has
  std::vector<TensorKey> zeroed;   ///< the same with Absent::zero

  /// Adds a restore that the same session ran afterwards: bytes, ways, seconds and peers are sums, the staging peak the
  /// larger one; what is said of the session as a whole is taken from `next`.
  RestoreReport& operator+=(const RestoreReport& next);
};

/// What a session has used so far, as a source and as a target.
struct SessionUsage {
  ByteCount serving_budget = 0;    ///< staging that serves readers: SessionOptions::staging_bytes
  ByteCount serving_peak = 0;      ///< most of it in use at once
  ByteCount registered_bytes = 0;  ///< memory registered or allocated as arenas
  double registration_seconds = 0;
  /// By way of which devices copy from and into ordinary memory: at most 8 MiB, and no more than serving_budget.
  ByteCount pinned_bytes = 0;
};

/// State of a running restore.
struct Progress {
  const char* stage = "";  ///< "plan", "bind", "move", "verify", "commit", "done"
  ByteCount done_bytes = 0;
  ByteCount total_bytes = 0;
};

}  // namespace shardwire
SHARDWIRE_API_END

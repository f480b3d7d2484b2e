// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "shardwire/costs.hpp"
#include "shardwire/tensor.hpp"
#include "shardwire/types.hpp"

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
};

/// Payload bytes by the way that moved them.
struct WayBytes {
  ByteCount local = 0;
  ByteCount mapped = 0;
  ByteCount read = 0;
  ByteCount packed = 0;
  ByteCount over_read = 0;  ///< with the bytes of the gaps, which count as RestoreReport::extra
  ByteCount grouped = 0;
  ByteCount straight =
      0;  ///< of packed: in messages that went from where they lay to where they belong, without staging
};

/// What the cost model expected of one way, and what it took.
struct WayCostReport {
  Way way{};
  ByteCount bytes = 0;
  ByteCount runs = 0;            ///< contiguous on both sides
  double predicted_seconds = 0;  ///< as if it had the machine to itself
  double measured_seconds = 0;   ///< during which at least one of its operations was under way
};

struct PeerReport {
  Rank rank{};  ///< place in the source layout
  ByteCount bytes = 0;
  std::string path;    ///< "local" or "<transport>/<way>"
  std::string detail;  ///< device or protocol behind the path, and why no better path was taken
};

/// What one restore did. Invariant: moved + local == needed + extra + again.
struct RestoreReport {
  ByteCount needed = 0;  ///< bytes that the target rank wanted
  ByteCount moved = 0;   ///< payload that crossed between ranks
  ByteCount local = 0;   ///< payload copied inside this process
  ByteCount extra = 0;   ///< bytes moved beyond what was needed
  ByteCount again = 0;   ///< bytes moved again after a fault
  WayBytes ways;
  StageSeconds seconds;
  ByteCount staging_budget = 0;
  ByteCount staging_peak = 0;      ///< most staging in use at once in this session, as source and as target
  ByteCount registered_bytes = 0;  ///< memory registered or allocated as arenas in this session
  double registration_seconds = 0;
  double digest_seconds = 0;         ///< of processor time that digests took on this side; most of it inside `move`
  std::vector<WayCostReport> costs;  ///< of the ways used
  std::string transport;             ///< name and loaded version of the fabric
  std::vector<PeerReport> peers;     ///< ascending by rank, one line per (peer, path)
  std::vector<TensorKey> skipped;    ///< elements or values wanted with Absent::skip that no source has
  std::vector<TensorKey> zeroed;     ///< the same with Absent::zero
};

/// What a session has used so far, as a source and as a target.
struct SessionUsage {
  ByteCount serving_budget = 0;    ///< staging that serves readers: SessionOptions::staging_bytes
  ByteCount serving_peak = 0;      ///< most of it in use at once
  ByteCount registered_bytes = 0;  ///< memory registered or allocated as arenas
  double registration_seconds = 0;
};

/// State of a running restore.
struct Progress {
  const char* stage = "";  ///< "plan", "bind", "move", "verify", "commit", "done"
  ByteCount done_bytes = 0;
  ByteCount total_bytes = 0;
};

}  // namespace shardwire

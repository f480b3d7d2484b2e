// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "shardwire/report.hpp"

namespace shardwire::perf {

/// When one member was busy, on the clock that all processes of a host share.
struct Span {
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
  std::int64_t cpu_ns = 0;  ///< processor time of all its threads until all members were done
};

/// What a process has of memory at its peak: see memory_use.hpp.
struct MemoryFacts {
  ByteCount own = 0;      ///< anonymous pages and own arenas
  ByteCount allowed = 0;  ///< held, wanted, staging budget, and 64 MiB
  ByteCount mapped = 0;   ///< shared pages of others
};

/// How the bytes of one source rank came.
struct PathFacts {
  int source = 0;
  ByteCount bytes = 0;
  std::string path;                  ///< as in a restore's report
  std::string port;                  ///< of this host; empty where none is known
  double line_bytes_per_second = 0;  ///< of the port; 0: not known
};

/// What one member did in one of the turns.
struct TurnFacts {
  std::vector<Span> spans;  ///< by repeat; the first one warms up
  std::string refused;      ///< why there is nothing but the first; empty: nothing is wrong
  // Of restores only:
  std::vector<StageSeconds> stages;  ///< by repeat
  RestoreReport report;              ///< of the last: bytes, ways, staging, costs
  std::vector<PathFacts> paths;      ///< of the last
  MemoryFacts memory;                ///< of one more restore, which is not timed; all 0: not known
  std::uint64_t elements = 0;        ///< compared after that one, all right
};

/// What one member did in one measurement.
struct MeasurementFacts {
  ByteCount wanted = 0;     ///< bytes that its target rank wants
  std::uint64_t reads = 0;  ///< that its target rank posts in a loop of reads
  std::vector<TurnFacts> turns;
};

/// The device that state lies on; without a name there is none.
struct DeviceFacts {
  std::string name;
  std::string id;                    ///< among those of the host
  std::string runtime;               ///< runtime and driver
  double peak_bytes_per_second = 0;  ///< of its memory; 0: not known
};

struct MemberFacts {
  std::string fabric;  ///< name and loaded version
  std::string host;    ///< its name
  std::string domain;  ///< the same for all whose ports have the same names: kernel and network namespace
  DeviceFacts device;
  std::vector<MeasurementFacts> measurements;
};

nlohmann::json to_json(const MemberFacts& facts);
/// Errors: throws nlohmann::json::exception for text that is none of ours.
MemberFacts member_facts_from(const nlohmann::json& json);

}  // namespace shardwire::perf

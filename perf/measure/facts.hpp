// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "shardwire/report.hpp"

namespace shardwire::perf {

/// A busy period of one member, on the clock that all processes of a host share.
struct Span {
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
  std::int64_t cpu_ns = 0;  ///< processor time of all its threads until all members were done
};

/// Peak memory of a process: see memory_use.hpp.
struct MemoryFacts {
  ByteCount own = 0;      ///< anonymous pages and own arenas
  ByteCount allowed = 0;  ///< held, wanted, staging budget, and 64 MiB
  ByteCount mapped = 0;   ///< shared pages of other processes
};

/// The path of the bytes of one source rank.
struct PathFacts {
  int source = 0;
  ByteCount bytes = 0;
  std::string path;                  ///< as in a restore's report
  std::string port;                  ///< of this host; empty if unknown
  double line_bytes_per_second = 0;  ///< of the port; 0: not known
};

/// The result of one member in one of the turns.
struct TurnFacts {
  std::vector<Span> spans;  ///< by repeat; the first one is the warm-up
  std::string refused;      ///< why there is only the first; empty: all completed
  // Of restores only:
  std::vector<StageSeconds> stages;  ///< by repeat
  RestoreReport report;              ///< of the last repeat: bytes, methods, staging, costs
  std::vector<PathFacts> paths;      ///< of the last repeat
  MemoryFacts memory;                ///< of one more restore, which is not timed; all 0: not known
  std::uint64_t elements = 0;        ///< compared after that one, all correct
};

/// The results of one member in one measurement.
struct MeasurementFacts {
  ByteCount wanted = 0;     ///< bytes that its target rank wants
  std::uint64_t reads = 0;  ///< reads that its target rank posts in a loop of reads
  std::vector<TurnFacts> turns;
};

/// The device that holds the state; an empty name means none.
struct DeviceFacts {
  std::string name;
  std::string id;                    ///< unique on the host
  std::string runtime;               ///< runtime and driver
  double peak_bytes_per_second = 0;  ///< of its memory; 0: not known
};

struct MemberFacts {
  std::string fabric;  ///< name and loaded version
  std::string host;    ///< its name
  std::string domain;  ///< equal if port names have the same meaning: kernel and network namespace
  DeviceFacts device;
  std::vector<MeasurementFacts> measurements;
};

nlohmann::json to_json(const MemberFacts& facts);
/// Errors: throws nlohmann::json::exception for text of another format.
MemberFacts member_facts_from(const nlohmann::json& json);

}  // namespace shardwire::perf

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace shardwire::telemetry {

/// Shows an operation to NVIDIA's profilers while it lasts (NVTX). Does nothing if none runs, or if the build has no NVTX.
/// Threads: any; may begin on one and end on another.
class ProfilerRange {
 public:
  explicit ProfilerRange(const char* name) { begin(name); }
  ~ProfilerRange() { end(); }
  ProfilerRange(const ProfilerRange&) = delete;
  ProfilerRange& operator=(const ProfilerRange&) = delete;

  /// Ends the one before.
  void begin(const char* name);
  void end();

 private:
  std::uint64_t number_ = 0;  // 0: none is shown
};

}  // namespace shardwire::telemetry

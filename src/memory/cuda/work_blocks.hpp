// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <list>

#include "memory/cuda/handles.hpp"
#include "memory/cuda/platform.hpp"
#include "shardwire/types.hpp"

namespace shardwire::memory::cuda {

/// What a piece of work of a stream takes to the device and brings back.
struct WorkBlock {
  HostBytes host;  ///< pinned
  DeviceBytes device;
  EventHandle done;  ///< recorded behind the work
  ByteCount host_bytes = 0;
  ByteCount device_bytes = 0;
  bool recorded = false;
};

/// Blocks of a stream: as many as there is work under way, kept and used again. None is freed before the stream goes, since freeing
/// waits for the whole device.
class WorkBlocks {
 public:
  explicit WorkBlocks(Platform& platform) : platform_(platform) {}

  /// One that nothing uses any more, or a new one. It counts as used until give_back(); where that is never called since something
  /// has failed, for as long as the stream lives.
  WorkBlock& take(ByteCount host_bytes, ByteCount device_bytes);
  /// Free again once what has been queued so far is over.
  void give_back(WorkBlock& block, cudaStream_t stream);

  /// Requires: nothing uses them any more.
  void clear() { blocks_.clear(); }
  /// Leaves them to the end of the process.
  void abandon();

 private:
  [[nodiscard]] bool is_free(const WorkBlock& block);

  Platform& platform_;
  std::list<WorkBlock> blocks_;  ///< their places are kept
};

}  // namespace shardwire::memory::cuda

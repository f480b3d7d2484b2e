// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <list>

#include "memory/cuda/handles.hpp"
#include "memory/cuda/platform.hpp"
#include "memory/device_copy/copy_table.hpp"
#include "memory/device_copy/table.hpp"
#include "shardwire/types.hpp"

namespace shardwire::memory::cuda {

/// Input and output of one piece of work on a stream. Both sides begin with a table.
struct WorkBlock {
  HostBytes host;  ///< pinned
  DeviceBytes device;
  EventHandle done;  ///< recorded after the work
  ByteCount host_bytes = 0;
  ByteCount device_bytes = 0;
  bool recorded = false;
  TableView::Size table{};  ///< uploaded table; of no copies: none
};

/// Blocks of a stream, kept for reuse: one per piece of work under way, and some more whose tables repeated work need
/// not upload again. Blocks are freed only with the stream, since freeing waits for the whole device.
class WorkBlocks {
 public:
  explicit WorkBlocks(Platform& platform) : platform_(platform) {}

  /// A block that contains the table and has room for these bytes after it. It may be in use: tables are only read.
  /// Null: none.
  WorkBlock* find(const CopyTable& table, ByteCount host_bytes, ByteCount device_bytes);
  /// A block that is not in use, preferably one without a table while there are few, or a new one. It counts as used
  /// until give_back(), or for the lifetime of the stream if an error prevents that call.
  WorkBlock& take(ByteCount host_bytes, ByteCount device_bytes);
  /// Frees the block once the work queued so far has ended.
  void give_back(WorkBlock& block, cudaStream_t stream);

  /// Requires: no block is in use.
  void clear() { blocks_.clear(); }
  /// Leaks the blocks until the process ends.
  void abandon();

 private:
  [[nodiscard]] bool is_free(const WorkBlock& block);
  [[nodiscard]] bool keeps_all_with(ByteCount more_bytes) const;
  WorkBlock& use(std::list<WorkBlock>::iterator block);

  Platform& platform_;
  std::list<WorkBlock> blocks_;  ///< stable addresses; most recently used last
  ByteCount host_bytes_ = 0;     ///< of all blocks
};

}  // namespace shardwire::memory::cuda

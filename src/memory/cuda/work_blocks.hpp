// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <list>

#include "memory/cuda/handles.hpp"
#include "memory/cuda/platform.hpp"
#include "memory/device_copy/copy_table.hpp"
#include "memory/device_copy/table.hpp"
#include "shardwire/types.hpp"

namespace shardwire::memory::cuda {

/// What a piece of work of a stream takes to the device and brings back. Both sides begin with a table.
struct WorkBlock {
  HostBytes host;  ///< pinned
  DeviceBytes device;
  EventHandle done;  ///< recorded behind the work
  ByteCount host_bytes = 0;
  ByteCount device_bytes = 0;
  bool recorded = false;
  TableView::Size table{};  ///< that has been uploaded; of no copies: none
};

/// Blocks of a stream, kept and used again: as many as there is work under way, and some more, whose tables need not be uploaded again
/// by work that is repeated. None is freed before the stream goes, since freeing waits for the whole device.
class WorkBlocks {
 public:
  explicit WorkBlocks(Platform& platform) : platform_(platform) {}

  /// One that has the table, has room for so much behind it, and may be in use: tables are only read. Null: none.
  WorkBlock* find(const CopyTable& table, ByteCount host_bytes, ByteCount device_bytes);
  /// One that nothing uses any more, of those without a table as long as there are few, or a new one. It counts as used until
  /// give_back(); where that is never called since something has failed, for as long as the stream lives.
  WorkBlock& take(ByteCount host_bytes, ByteCount device_bytes);
  /// Free again once what has been queued so far is over.
  void give_back(WorkBlock& block, cudaStream_t stream);

  /// Requires: nothing uses them any more.
  void clear() { blocks_.clear(); }
  /// Leaves them to the end of the process.
  void abandon();

 private:
  [[nodiscard]] bool is_free(const WorkBlock& block);
  [[nodiscard]] bool keeps_all_with(ByteCount more_bytes) const;
  WorkBlock& use(std::list<WorkBlock>::iterator block);

  Platform& platform_;
  std::list<WorkBlock> blocks_;  ///< their places are kept; the one used last is the last
  ByteCount host_bytes_ = 0;     ///< of them all
};

}  // namespace shardwire::memory::cuda

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "memory/cuda/engine_calls.hpp"
#include "memory/cuda/engine_limits.hpp"
#include "memory/cuda/handles.hpp"
#include "memory/cuda/platform.hpp"
#include "memory/cuda/work_blocks.hpp"
#include "memory/device.hpp"
#include "memory/device_check.hpp"
#include "memory/device_copy/copy_table.hpp"
#include "memory/device_module.hpp"
#include "shardwire/types.hpp"

namespace shardwire::memory::cuda {

/// Work on a stream of its own, independent of the legacy stream.
class Stream final : public DeviceStream, public DeviceCheck {
 public:
  Stream(std::shared_ptr<Platform> platform, int device);
  ~Stream() override;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  void wait(void* event) override;
  void record(void* event) override;
  void clear(std::byte* address, ByteCount bytes) override;
  void copy(std::span<const DeviceCopy> copies) override;
  void digest(std::span<const DeviceCopy> copies, std::span<Digest128> digests) override;
  void fill(std::span<const ValueBox> boxes) override;
  void count_wrong(std::span<const ValueBox> boxes, std::uint64_t& wrong) override;
  void call_when_done(Done done) override;
  [[nodiscard]] void* native() const override { return stream_.get(); }

  /// Measures engine limits of this device by some copies. Blocks for some milliseconds, and until the device is free
  /// for work. Memory that it needs is kept for the stream's tables.
  EngineLimits measure_engine(MakeTrial make_trial);
  void use(const EngineLimits& limits) { limits_ = limits; }

 private:
  [[nodiscard]] Direction direction_of(const DeviceCopy& copy) const;
  void synchronize();
  void copy_by_engine(const DeviceCopy& copy, std::span<const EngineCall> calls);
  void copy_by_kernel(std::span<const DeviceCopy> copies);
  void upload(const WorkBlock& block, std::span<const std::byte> bytes);
  /// Queues the copy of results on the device to `into`, through `back` in the block; the block's use ends afterwards.
  void bring_back(WorkBlock& block, const void* from, std::byte* back, std::span<std::byte> into);
  /// A block that contains the table, uploaded to the device, and room for these bytes.
  WorkBlock& take_block(const CopyTable& table, ByteCount host_bytes, ByteCount device_bytes);

  const std::shared_ptr<Platform> platform_;  // owners: the runtime and the objects that it has created
  const int device_;
  StreamHandle stream_;
  WorkBlocks blocks_;
  EngineLimits limits_{};
};

}  // namespace shardwire::memory::cuda

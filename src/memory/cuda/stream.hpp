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
#include "memory/device_copy/copy_table.hpp"
#include "memory/device_module.hpp"
#include "shardwire/types.hpp"

namespace shardwire::memory::cuda {

/// Work in a stream of its own, which neither waits for the legacy stream nor is waited for by it.
class Stream final : public DeviceStream {
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
  bool fill(std::span<const ValueBox> boxes) override;
  bool count_wrong(std::span<const ValueBox> boxes, std::uint64_t& wrong) override;
  void call_when_done(Done done) override;
  [[nodiscard]] void* native() const override { return stream_.get(); }

  /// What this device is faster at, found out by some copies of its own. Blocks for some milliseconds, and until the device takes
  /// work. What it needs of memory is kept for the stream's tables.
  EngineLimits measure_engine(MakeTrial make_trial);
  void use(const EngineLimits& limits) { limits_ = limits; }

 private:
  [[nodiscard]] Direction direction_of(const DeviceCopy& copy) const;
  void synchronize();
  void copy_by_engine(const DeviceCopy& copy, std::span<const EngineCall> calls);
  void copy_by_kernel(std::span<const DeviceCopy> copies);
  void upload(const WorkBlock& block, std::span<const std::byte> bytes);
  /// Queues the way of what work leaves on the device to `into`, by way of `back` in the block, which ends its use.
  void bring_back(WorkBlock& block, const void* from, std::byte* back, std::span<std::byte> into);
  /// A block that has the table, on the device too, and room for so many bytes.
  WorkBlock& take_block(const CopyTable& table, ByteCount host_bytes, ByteCount device_bytes);

  const std::shared_ptr<Platform> platform_;  // owners: the runtime, and what it has made
  const int device_;
  StreamHandle stream_;
  WorkBlocks blocks_;
  EngineLimits limits_{};
};

}  // namespace shardwire::memory::cuda

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "memory/cuda/engine_limits.hpp"
#include "memory/cuda/platform.hpp"
#include "memory/cuda/pointer_query.hpp"
#include "memory/cuda/stream.hpp"
#include "memory/device.hpp"
#include "memory/device_module.hpp"

namespace shardwire::memory::cuda {

/// NVIDIA GPUs, through the runtime inside this module and the driver of the machine.
class Runtime final : public DeviceRuntime {
 public:
  /// With `make_trial`, opening a device's first stream measures its engine limits; null: the defaults apply.
  Runtime(const Api& api, int device_count, MakeTrial make_trial);

  [[nodiscard]] std::string version() const override;
  [[nodiscard]] int device_count() const override { return device_count_; }
  [[nodiscard]] DeviceDetails details(int device) const override;
  [[nodiscard]] std::optional<DeviceAllocation> find(const void* address, ByteCount bytes) const override;
  std::unique_ptr<DeviceMemory> allocate(int device, ByteCount bytes) override;
  std::unique_ptr<DeviceMemory> allocate_host(ByteCount bytes) override;
  std::unique_ptr<DeviceStream> open_stream(int device) override;
  void on_device(int device, const std::function<void()>& work) override;
  [[nodiscard]] bool in_use(int device) const override;
  void prepare_for_nics(const void* address, ByteCount bytes) override;
  void flush_remote_writes(int device) override;
  bool enable_peer_access(int device, int peer) override;
  DeviceExport export_memory(const void* address, ByteCount bytes) override;
  std::unique_ptr<DeviceMemory> import_memory(int device, const DeviceExport& exported) override;

 private:
  void require_device(int device) const;
  EngineLimits limits_of(int device);
  [[nodiscard]] DeviceDetails ask_details(int device) const;
  [[nodiscard]] std::optional<FoundAllocation> find_chunks(const void* address, ByteCount bytes) const;

  const std::shared_ptr<Platform> platform_;  // owners: this and the objects that it has created
  const PointerQuery query_;
  const int device_count_;
  const MakeTrial make_trial_;
  struct Measured {
    std::once_flag once;
    std::unique_ptr<Stream> stream{};
    EngineLimits limits{};
  };
  std::vector<Measured> measured_;  // by device
  mutable std::mutex details_mutex_;
  mutable std::map<int, DeviceDetails> details_;  // queried so far; guarded by details_mutex_
};

/// Why there is no device, from CUDA's first answer. Empty: there is one.
std::string why_no_device(int status, const std::string& status_text, int count, int driver_version,
                          int runtime_version);

/// The runtime of this process, or why there is none. `look_up`: finds the driver's functions; called if there is a
/// driver. `make_trial`: as for Runtime. Errors: as `look_up`.
FoundRuntime find_runtime(Api api, void (*look_up)(Api& api), MakeTrial make_trial);

}  // namespace shardwire::memory::cuda

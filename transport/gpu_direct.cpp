// SPDX-License-Identifier: Apache-2.0
#include "transport/gpu_direct.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <utility>

#include "shardwire/error.hpp"
#include "transport/device_use.hpp"

namespace shardwire::transport {
namespace {

constexpr ByteCount trial_bytes = 64 * 1024;  // one page of device memory

Error refusal(const std::string& why) {
  return {ErrorCode::unsupported, why};
}

}  // namespace

PeerMemory peer_memory(const std::string& root) {
  const auto loaded = [&](const char* module) {
    std::error_code none;
    return std::filesystem::exists(fmt::format("{}/sys/module/{}", root, module), none);
  };
  return {.nvidia = loaded("nvidia"), .module = loaded("nvidia_peermem") || loaded("nv_peer_mem")};
}

std::string why_no_gpu_direct(const memory::DeviceDetails& device, const PeerMemory& host) {
  if (!device.gpu_direct) return "the driver has no GPUDirect RDMA for this device";
  if (host.module || device.dma_buf) return {};
  return "there is no nvidia_peermem (modprobe nvidia-peermem), and the driver has no dma-buf (its open kernel modules "
         "do)";
}

std::string iommu_hint(const std::string& pci_address, const std::string& root) {
  std::ifstream file(fmt::format("{}/sys/bus/pci/devices/{}/iommu_group/type", root, pci_address));
  std::string type;
  if (!(file >> type) || !type.starts_with("DMA")) return {};
  return fmt::format(
      "the IOMMU translates for it ({}): GPUDirect may fail or go by way of the processor; iommu=pt on the kernel's "
      "command line leaves addresses as they are",
      type);
}

std::string why_no_gpus_in_ucx(unsigned major, unsigned minor, bool cuda) {
  if (major == 1 && minor < 16) {
    return fmt::format("UCX {}.{} reads into host memory only (1.16 or newer, with CUDA, does better)", major, minor);
  }
  if (cuda) return {};
  return "UCX without CUDA (ucx_info -d shows no cuda_copy: it was built without, its module is missing, no driver was "
         "found, or UCX_TLS leaves it out)";
}

bool ucx_takes_chunks(unsigned major, unsigned minor) {
  return major > 1 || minor >= 22;
}

std::string why_mistaken(const MemoryPlace& place, TakenFor taken_for) {
  const bool on_host = place.kind == MemoryKind::host;
  if (taken_for == (on_host ? TakenFor::host : TakenFor::cuda)) return {};
  if (on_host) return "UCX takes host memory for memory of a device";
  if (taken_for == TakenFor::host) return "UCX takes memory of the device for host memory: it has no CUDA for it";
  return "UCX takes memory of the device for that of another kind";
}

std::string why_not_for_nics(const memory::DeviceAllocation& allocation, bool takes_chunks) {
  if (allocation.managed) return "it is managed memory, which migrates";
  if (!allocation.gpu_direct) {
    return "its allocation is not for NICs (cuMemCreate without gpuDirectRDMACapable, or no GPUDirect here)";
  }
  if (!allocation.legacy_ipc && !takes_chunks) {
    return "it was mapped piece by piece (expandable segments) or is of a pool, which UCX registers from 1.22 on";
  }
  return {};
}

std::string GpuDirect::why_not(int device) {
  if (!setup_.why_never.empty()) return setup_.why_never;
  const memory::FoundRuntime found = setup_.find_devices();
  if (!found.runtime) return "no GPU here: " + found.why_not;
  memory::DeviceRuntime& runtime = *found.runtime;
  const std::lock_guard lock(mutex_);
  try {
    const bool ours = device >= 0 && device < runtime.device_count();
    if (!ours) device = 0;
    auto judged = judged_.find(device);
    if (judged == judged_.end()) judged = judged_.emplace(device, judge(runtime, device)).first;
    if (!judged->second.empty()) return judged->second;
    auto tried = tried_.find(device);
    // Memory of a device that this process does not use would cost a context.
    if (tried == tried_.end() && ours && runtime.in_use(device)) {
      tried = tried_.emplace(device, try_out(runtime, device)).first;
    }
    return tried == tried_.end() ? std::string() : tried->second;
  } catch (const Error& error) {
    return error.what();
  }
}

std::string GpuDirect::why_refused(const memory::DeviceAllocation& allocation) {
  if (std::string why = why_not_for_nics(allocation, setup_.takes_chunks); !why.empty()) return why;
  const std::lock_guard lock(mutex_);
  const auto refused = refused_.find(allocation.number);
  return refused == refused_.end() ? std::string() : refused->second;
}

std::shared_ptr<memory::DeviceRuntime> GpuDirect::require_reached(int device) {
  if (const std::string why = why_not(device); !why.empty()) throw refusal(why);
  return setup_.find_devices().runtime;
}

std::uint64_t GpuDirect::number_of(const Memory& memory) const {
  if (memory.place.kind == MemoryKind::host) return 0;
  try {
    const memory::FoundRuntime found = setup_.find_devices();
    const auto allocation = found.runtime ? found.runtime->find(memory.address, memory.bytes) : std::nullopt;
    return allocation ? allocation->number : 0;
  } catch (const Error&) {  // the caller that registers it gets the error
    return 0;
  }
}

void GpuDirect::register_memory(const Memory& memory, const std::function<void()>& with) {
  const auto runtime = require_reached(memory.place.device);
  try {
    register_found(*runtime, allocation_around(*runtime, memory), memory, with);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::invalid_argument) throw;
    throw refusal(error.what());
  }
}

memory::DeviceAllocation GpuDirect::register_around(const Memory& range,
                                                    const std::function<void(const Memory& whole)>& with) {
  const auto runtime = require_reached(range.place.device);
  const memory::DeviceAllocation allocation = allocation_around(*runtime, range);
  const Memory whole{const_cast<std::byte*>(allocation.address), allocation.bytes, range.place};
  register_found(*runtime, allocation, whole, [&] { with(whole); });
  return allocation;
}

void GpuDirect::register_found(memory::DeviceRuntime& runtime, const memory::DeviceAllocation& allocation,
                               const Memory& memory, const std::function<void()>& with) {
  if (const std::string why = why_refused(allocation); !why.empty()) throw refusal(why);
  try {
    runtime.prepare_for_nics(memory.address, memory.bytes);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::transport_failed) throw;  // every operation on this device fails
    const std::lock_guard lock(mutex_);
    refused_.insert_or_assign(allocation.number, error.what());
    throw refusal(error.what());
  }
  bool asked = false;
  try {
    // Libraries query the driver through the thread's current context.
    runtime.on_device(memory.place.device, [&] {
      asked = true;
      with();
    });
  } catch (const Error& error) {
    if (!asked) throw;  // the device has failed
    const std::lock_guard lock(mutex_);
    tried_.insert_or_assign(memory.place.device, fmt::format("memory of it was not taken: {}", error.what()));
    throw refusal(error.what());
  }
}

std::string GpuDirect::judge(memory::DeviceRuntime& runtime, int device) const {
  return why_no_gpu_direct(runtime.details(device), setup_.host);
}

std::string GpuDirect::try_out(memory::DeviceRuntime& runtime, int device) {
  try {
    std::unique_ptr<memory::DeviceMemory>& trial = trials_[device];
    if (!trial) trial = runtime.allocate(device, trial_bytes);
    runtime.on_device(device, [&] { setup_.try_with({trial->address(), trial->bytes(), {MemoryKind::cuda, device}}); });
    return {};
  } catch (const Error& error) {
    const std::string hint = iommu_hint(runtime.details(device).pci_address, setup_.root);
    return fmt::format("the NIC does not take memory of device {}: {}{}{}", device, error.what(),
                       hint.empty() ? "" : "; ", hint);
  }
}

}  // namespace shardwire::transport

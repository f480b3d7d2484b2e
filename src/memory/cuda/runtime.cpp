// SPDX-License-Identifier: Apache-2.0
#include "memory/cuda/runtime.hpp"

#include <fmt/core.h>

#include <utility>

#include "memory/cuda/allocate.hpp"
#include "memory/cuda/ipc.hpp"
#include "memory/cuda/nic_access.hpp"

namespace shardwire::memory::cuda {
namespace {

// 13020 -> "13.2".
std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

// Device memory transfers twice per clock cycle. 0: the driver does not report it.
double memory_speed(const Api& api, int device) {
  int clock_khz = 0;
  int bus_bits = 0;
  if (api.device_get_attribute(&clock_khz, cudaDevAttrMemoryClockRate, device) != cudaSuccess ||
      api.device_get_attribute(&bus_bits, cudaDevAttrGlobalMemoryBusWidth, device) != cudaSuccess) {
    api.get_last_error();  // else the next launch would report the error
    return 0;
  }
  return 2e3 * clock_khz * bus_bits / 8;
}

class OnDevice final : public DeviceMemory {
 public:
  OnDevice(std::shared_ptr<Platform> platform, int device, DeviceBytes address, ByteCount bytes)
      : platform_(std::move(platform)), device_(device), address_(std::move(address)), bytes_(bytes) {}
  ~OnDevice() override {
    try {
      const CurrentContext current(*platform_, device_);
      address_.reset();
    } catch (const Error&) {     // without its context it cannot be freed
      (void)address_.release();  // NOLINT
    }
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  [[nodiscard]] std::byte* address() const override { return address_.get(); }
  [[nodiscard]] ByteCount bytes() const override { return bytes_; }

 private:
  const std::shared_ptr<Platform> platform_;  // owners: as in Runtime
  const int device_;
  DeviceBytes address_;
  const ByteCount bytes_;
};

class OnHost final : public DeviceMemory {
 public:
  OnHost(std::shared_ptr<Platform> platform, HostBytes address, ByteCount bytes)
      : platform_(std::move(platform)), address_(std::move(address)), bytes_(bytes) {
    platform_->add_host_memory(address_.get(), bytes_);
  }
  ~OnHost() override {
    platform_->remove_host_memory(address_.get());
    try {
      // A thread without a context would create that of device 0.
      const CurrentContext current(*platform_, platform_->any_device());
      address_.reset();
    } catch (const Error&) {     // without a context it cannot be freed
      (void)address_.release();  // NOLINT
    }
  }
  OnHost(const OnHost&) = delete;
  OnHost& operator=(const OnHost&) = delete;

  [[nodiscard]] std::byte* address() const override { return address_.get(); }
  [[nodiscard]] ByteCount bytes() const override { return bytes_; }

 private:
  const std::shared_ptr<Platform> platform_;  // owners: as in Runtime
  HostBytes address_;
  const ByteCount bytes_;
};

}  // namespace

Runtime::Runtime(const Api& api, int device_count, MakeTrial make_trial)
    : platform_(std::make_shared<Platform>(api)),
      query_(api.pointer_get_attributes),
      device_count_(device_count),
      make_trial_(make_trial),
      measured_(static_cast<std::size_t>(device_count)) {
}

void Runtime::require_device(int device) const {
  if (device >= 0 && device < device_count_) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("there is no device {}: this process sees {} (CUDA_VISIBLE_DEVICES)", device, device_count_));
}

std::string Runtime::version() const {
  int runtime = 0;
  int driver = 0;
  platform_->check(platform_->api().runtime_get_version(&runtime), "cudaRuntimeGetVersion");
  platform_->check(platform_->api().driver_get_version(&driver), "cudaDriverGetVersion");
  return fmt::format("CUDA {}, driver for {}", version_text(runtime), version_text(driver));
}

// The query takes milliseconds, and the answers do not change.
DeviceDetails Runtime::details(int device) const {
  require_device(device);
  const std::lock_guard lock(details_mutex_);
  const auto [known, fresh] = details_.try_emplace(device);
  if (!fresh) return known->second;
  try {
    known->second = ask_details(device);
  } catch (const Error&) {
    details_.erase(known);
    throw;
  }
  return known->second;
}

DeviceDetails Runtime::ask_details(int device) const {
  cudaDeviceProp properties{};
  platform_->check(platform_->api().get_device_properties(&properties, device), "cudaGetDeviceProperties");
  DeviceDetails details{.name = properties.name,
                        .bytes = properties.totalGlobalMem,
                        .pci_address = fmt::format("{:04x}:{:02x}:{:02x}.0", properties.pciDomainID,
                                                   properties.pciBusID, properties.pciDeviceID)};
  details.memory_bytes_per_second = memory_speed(platform_->api(), device);
  for (int peer = 0; peer < device_count_; ++peer) {
    int can = 0;
    if (peer == device) continue;
    platform_->check(platform_->api().device_can_access_peer(&can, device, peer), "cudaDeviceCanAccessPeer");
    if (can != 0) details.peers.push_back(peer);
  }
  const NicAccess nics = nic_access(*platform_, device);
  details.gpu_direct = nics.possible;
  details.dma_buf = nics.dma_buf;
  return details;
}

std::optional<FoundAllocation> Runtime::find_chunks(const void* address, ByteCount bytes) const {
  return find_allocation(
      [this](std::uint64_t asked) {
        CUresult status{};
        PointerFacts facts = query_.ask(asked, status);
        const int active = status == CUDA_ERROR_INVALID_CONTEXT ? platform_->active_device() : -1;
        if (active >= 0) {
          const CurrentContext current = enter(*platform_, active);
          facts = query_.ask(asked, status);
        }
        // Some drivers return this for addresses that they did not allocate; others return success without facts.
        if (status == CUDA_ERROR_INVALID_CONTEXT || status == CUDA_ERROR_INVALID_VALUE) return PointerFacts{};
        platform_->check(status, "cuPointerGetAttributes");
        return facts;
      },
      reinterpret_cast<std::uintptr_t>(address), bytes, device_count_);
}

std::optional<DeviceAllocation> Runtime::find(const void* address, ByteCount bytes) const {
  const auto found = find_chunks(address, bytes);
  return found ? std::optional(found->allocation) : std::nullopt;
}

std::unique_ptr<DeviceMemory> Runtime::allocate(int device, ByteCount bytes) {
  require_device(device);
  const CurrentContext current = enter(*platform_, device);
  return std::make_unique<OnDevice>(platform_, device, allocate_on_device(*platform_, bytes), bytes);
}

std::unique_ptr<DeviceMemory> Runtime::allocate_host(ByteCount bytes) {
  const CurrentContext current = enter(*platform_, platform_->any_device());
  return std::make_unique<OnHost>(platform_, allocate_on_host(*platform_, bytes), bytes);
}

std::unique_ptr<DeviceStream> Runtime::open_stream(int device) {
  require_device(device);
  auto stream = std::make_unique<Stream>(platform_, device);
  if (make_trial_ != nullptr) stream->use(limits_of(device));
  return stream;
}

// Concurrent callers wait for the first. If a measurement fails, for example without free memory, the default remains.
// The stream is kept with its trial memory: freeing that memory waits for the whole device.
EngineLimits Runtime::limits_of(int device) {
  Measured& own = measured_[static_cast<std::size_t>(device)];
  std::call_once(own.once, [&] {
    try {
      own.stream = std::make_unique<Stream>(platform_, device);
      own.limits = own.stream->measure_engine(make_trial_);
    } catch (const Error&) {
      own.limits = {};
    }
  });
  return own.limits;
}

void Runtime::on_device(int device, const std::function<void()>& work) {
  require_device(device);
  const CurrentContext current = enter(*platform_, device);
  work();
}

bool Runtime::in_use(int device) const {
  return device >= 0 && device < device_count_ && has_context(*platform_, device);
}

void Runtime::prepare_for_nics(const void* address, ByteCount bytes) {
  const auto found = find_chunks(address, bytes);
  if (!found) throw Error(ErrorCode::invalid_argument, "what NICs are to be shown is no memory of a device");
  const CurrentContext current = enter(*platform_, found->allocation.device);
  synchronise_copies(*platform_, found->chunks);
}

void Runtime::flush_remote_writes(int device) {
  require_device(device);
  if (nic_access(*platform_, device).ordered) return;
  const CurrentContext current = enter(*platform_, device);
  flush_writes(*platform_);
}

bool Runtime::enable_peer_access(int device, int peer) {
  require_device(device);
  require_device(peer);
  if (device == peer) return true;
  int can = 0;
  platform_->check(platform_->api().device_can_access_peer(&can, device, peer), "cudaDeviceCanAccessPeer");
  if (can == 0) return false;
  const CurrentContext current = enter(*platform_, device);
  const cudaError_t status = platform_->api().device_enable_peer_access(peer, 0);
  if (status == cudaErrorPeerAccessAlreadyEnabled || status == cudaErrorPeerAccessUnsupported) {
    platform_->api().get_last_error();  // else the next launch would report the error
    return status == cudaErrorPeerAccessAlreadyEnabled;
  }
  platform_->check(status, "cudaDeviceEnablePeerAccess");
  return true;
}

DeviceExport Runtime::export_memory(const void* address, ByteCount bytes) {
  const auto found = find_chunks(address, bytes);
  if (!found) throw Error(ErrorCode::invalid_argument, "the memory to export is not memory of a device");
  const CurrentContext current = enter(*platform_, found->allocation.device);
  return export_chunks(*platform_, *found, reinterpret_cast<std::uintptr_t>(address), bytes);
}

std::unique_ptr<DeviceMemory> Runtime::import_memory(int device, const DeviceExport& exported) {
  require_device(device);
  const CurrentContext current = enter(*platform_, device);
  return map_export(platform_, device, exported);
}

std::string why_no_device(int status, const std::string& status_text, int count, int driver_version,
                          int runtime_version) {
  if (driver_version == 0) return "no NVIDIA driver here (libcuda.so.1)";
  if (status == cudaErrorInsufficientDriver) {
    return fmt::format("the NVIDIA driver is for CUDA {}, which is older than the {} that this was built with",
                       version_text(driver_version), version_text(runtime_version));
  }
  if (status == cudaErrorNoDevice || (status == cudaSuccess && count == 0)) {
    return "no NVIDIA GPU that this process may use (CUDA_VISIBLE_DEVICES, or a container without them)";
  }
  if (status != cudaSuccess) return fmt::format("CUDA does not start: {}", status_text);
  return {};
}

FoundRuntime find_runtime(Api api, void (*look_up)(Api& api), MakeTrial make_trial) {
  int count = 0;
  int driver = 0;
  int runtime = 0;
  const cudaError_t status = api.get_device_count(&count);
  api.driver_get_version(&driver);
  api.runtime_get_version(&runtime);
  if (std::string why = why_no_device(status, api.get_error_string(status), count, driver, runtime); !why.empty()) {
    return {nullptr, std::move(why)};
  }
  look_up(api);
  return {std::make_shared<Runtime>(api, count, make_trial), {}};
}

}  // namespace shardwire::memory::cuda

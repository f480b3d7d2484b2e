// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "memory/device.hpp"
#include "shardwire/error.hpp"
#include "support/partial_devices.hpp"

namespace shardwire::test {

inline constexpr ByteCount driver_page = 64 * 1024;

/// Two devices with some memory, which is never accessed.
class Driver final : public PartialDevices {
 public:
  [[nodiscard]] std::string version() const override { return "a driver"; }
  [[nodiscard]] int device_count() const override { return 2; }
  [[nodiscard]] memory::DeviceDetails details(int /*device*/) const override { return device; }
  [[nodiscard]] std::optional<memory::DeviceAllocation> find(const void* address, ByteCount) const override {
    if (freed) throw Error(ErrorCode::invalid_argument, "no memory is mapped there");
    const auto* const at = static_cast<const std::byte*>(address);
    if (at < allocation.address || at >= allocation.address + allocation.bytes) return {};
    return allocation;
  }
  std::unique_ptr<memory::DeviceMemory> allocate(int number, ByteCount bytes) override {
    allocated.push_back(number);
    return std::make_unique<Trial>(bytes);
  }
  void on_device(int number, const std::function<void()>& work) override {
    const OnDevice now(current, number);
    work();
  }
  [[nodiscard]] bool in_use(int number) const override { return number == used; }
  void prepare_for_nics(const void*, ByteCount bytes) override {
    if (prepare_fault) throw Error(*prepare_fault, "nothing is prepared (as told)");
    prepared.push_back(bytes);
  }

  memory::DeviceDetails device{.name = "GPU", .gpu_direct = true, .dma_buf = true};
  std::vector<std::byte> storage = std::vector<std::byte>(4 * driver_page);
  memory::DeviceAllocation allocation{.device = 0,
                                      .address = storage.data(),
                                      .bytes = 4 * driver_page,
                                      .number = 7,
                                      .legacy_ipc = true,
                                      .gpu_direct = true};
  bool freed = false;
  std::optional<ErrorCode> prepare_fault;
  int used = 0;      ///< device that has a context
  int current = -1;  ///< current device of the thread
  std::vector<int> allocated;
  std::vector<ByteCount> prepared;

 private:
  struct OnDevice {
    OnDevice(int& device, int number) : current(device) { current = number; }
    ~OnDevice() { current = -1; }
    OnDevice(const OnDevice&) = delete;
    OnDevice& operator=(const OnDevice&) = delete;
    int& current;
  };
  struct Trial final : memory::DeviceMemory {
    explicit Trial(ByteCount size) : content(size) {}
    [[nodiscard]] std::byte* address() const override { return content.data(); }
    [[nodiscard]] ByteCount bytes() const override { return content.size(); }
    mutable std::vector<std::byte> content;
  };
};

/// Global, since functions that look up devices have no argument for it.
inline std::shared_ptr<Driver> driver;  // NOLINT
inline memory::FoundRuntime find_devices() {
  return {driver, driver ? "" : "no driver"};
}

}  // namespace shardwire::test

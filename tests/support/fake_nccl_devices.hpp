// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "support/fake_device.hpp"
#include "support/fake_nccl.hpp"

// Fake devices and a fake NCCL that moves their memory; both replace the process's own.
namespace shardwire::test {

/// A stream for both: work of the devices, and rounds.
class SharedStream final : public memory::DeviceStream, public memory::DeviceCheck {
 public:
  explicit SharedStream(std::unique_ptr<memory::DeviceStream> device) : device_(std::move(device)) {}
  void wait(void* event) override { device_->wait(event); }
  void record(void* event) override { device_->record(event); }
  void clear(std::byte* address, ByteCount bytes) override { device_->clear(address, bytes); }
  void copy(std::span<const memory::DeviceCopy> copies) override { device_->copy(copies); }
  void digest(std::span<const memory::DeviceCopy> copies, std::span<Digest128> digests) override {
    device_->digest(copies, digests);
  }
  void fill(std::span<const memory::ValueBox> boxes) override { memory::check_of(*device_)->fill(boxes); }
  void count_wrong(std::span<const memory::ValueBox> boxes, std::uint64_t& wrong) override {
    memory::check_of(*device_)->count_wrong(boxes, wrong);
  }
  void call_when_done(Done done) override {
    rounds_.call_when_done([this, done = std::move(done)](const std::optional<Error>& error) {
      if (error) return done(error);
      device_->call_when_done(done);
    });
  }
  [[nodiscard]] void* native() const override { return rounds_.native(); }

 private:
  std::unique_ptr<memory::DeviceStream> device_;
  FakeNccl::Stream rounds_;
};

class NcclDevices final : public memory::DeviceRuntime {
 public:
  [[nodiscard]] std::string version() const override { return devices.version(); }
  [[nodiscard]] int device_count() const override { return devices.device_count(); }
  [[nodiscard]] memory::DeviceDetails details(int device) const override { return devices.details(device); }
  [[nodiscard]] std::optional<memory::DeviceAllocation> find(const void* address, ByteCount bytes) const override {
    return devices.find(address, bytes);
  }
  std::unique_ptr<memory::DeviceMemory> allocate(int device, ByteCount bytes) override {
    return devices.allocate(device, bytes);
  }
  std::unique_ptr<memory::DeviceMemory> allocate_host(ByteCount bytes) override { return devices.allocate_host(bytes); }
  std::unique_ptr<memory::DeviceStream> open_stream(int device) override {
    return std::make_unique<SharedStream>(devices.open_stream(device));
  }
  void on_device(int device, const std::function<void()>& work) override { FakeNccl::with_device(device, work); }
  [[nodiscard]] bool in_use(int device) const override { return devices.in_use(device); }
  void prepare_for_nics(const void* address, ByteCount bytes) override { devices.prepare_for_nics(address, bytes); }
  void flush_remote_writes(int device) override { devices.flush_remote_writes(device); }
  bool enable_peer_access(int device, int peer) override { return devices.enable_peer_access(device, peer); }
  memory::DeviceExport export_memory(const void* address, ByteCount bytes) override {
    return devices.export_memory(address, bytes);
  }
  std::unique_ptr<memory::DeviceMemory> import_memory(int device, const memory::DeviceExport& exported) override {
    return devices.import_memory(device, exported);
  }

  FakeDevices devices;
};

/// Installs the fake devices and the fake NCCL during its lifetime.
class UsedNccl {
 public:
  explicit UsedNccl(const FakeNcclFaults& faults = {}) {
    FakeNccl::instance().reset(faults);
    FakeNccl::instance().see_through([this](const std::byte* address) { return runtime_->devices.behind(address); });
    memory::use_device_runtime(runtime_);
    transport::nccl::use_api(&FakeNccl::api());
  }
  ~UsedNccl() {
    transport::nccl::use_api(nullptr);
    memory::use_device_runtime(nullptr);
    FakeNccl::instance().see_through(nullptr);
  }
  UsedNccl(const UsedNccl&) = delete;
  UsedNccl& operator=(const UsedNccl&) = delete;
  FakeDevices* operator->() const { return &runtime_->devices; }

 private:
  std::shared_ptr<NcclDevices> runtime_ = std::make_shared<NcclDevices>();  // owners: this and the process
};

}  // namespace shardwire::test

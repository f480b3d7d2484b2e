// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "memory/device.hpp"
#include "shardwire/error.hpp"

namespace shardwire::test {

/// A test's stream that supports only the calls of its own class; all others throw.
class PartialStream : public memory::DeviceStream {
 public:
  void wait(void* /*event*/) override { refuse("waits for no events"); }
  void record(void* /*event*/) override { refuse("records no events"); }
  void clear(std::byte* /*address*/, ByteCount /*bytes*/) override { refuse("writes no zeros"); }
  void copy(std::span<const memory::DeviceCopy> /*copies*/) override { refuse("copies nothing"); }
  void digest(std::span<const memory::DeviceCopy> /*copies*/, std::span<Digest128> /*digests*/) override {
    refuse("takes no digests");
  }
  void call_when_done(Done /*done*/) override { refuse("calls nobody"); }
  [[nodiscard]] void* native() const override { return nullptr; }

 private:
  [[noreturn]] static void refuse(const char* what) {
    throw Error(ErrorCode::unsupported, std::string("this stream ") + what);
  }
};

/// A test's runtime that supports only the calls of its own class; all others throw, and there is no memory.
class PartialDevices : public memory::DeviceRuntime {
 public:
  [[nodiscard]] std::string version() const override { return "a test"; }
  [[nodiscard]] memory::DeviceDetails details(int /*device*/) const override { return {}; }
  [[nodiscard]] std::optional<memory::DeviceAllocation> find(const void* /*address*/,
                                                             ByteCount /*bytes*/) const override {
    return {};
  }
  std::unique_ptr<memory::DeviceMemory> allocate(int /*device*/, ByteCount /*bytes*/) override { refuse("memory"); }
  std::unique_ptr<memory::DeviceMemory> allocate_host(ByteCount /*bytes*/) override { refuse("host memory"); }
  std::unique_ptr<memory::DeviceStream> open_stream(int /*device*/) override { refuse("streams"); }
  void on_device(int /*device*/, const std::function<void()>& /*work*/) override { refuse("current device"); }
  [[nodiscard]] bool in_use(int device) const override { return device >= 0 && device < device_count(); }
  void prepare_for_nics(const void* /*address*/, ByteCount /*bytes*/) override {}
  void flush_remote_writes(int /*device*/) override {}
  bool enable_peer_access(int device, int peer) override { return device == peer; }
  memory::DeviceExport export_memory(const void* /*address*/, ByteCount /*bytes*/) override { refuse("exports"); }
  std::unique_ptr<memory::DeviceMemory> import_memory(int /*device*/,
                                                      const memory::DeviceExport& /*exported*/) override {
    refuse("imports");
  }

 private:
  [[noreturn]] static void refuse(const char* what) {
    throw Error(ErrorCode::unsupported, std::string("this runtime has no ") + what);
  }
};

}  // namespace shardwire::test

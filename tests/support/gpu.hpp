// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dlfcn.h>

#include <boost/test/tools/assertion_result.hpp>
#include <boost/test/tree/decorator.hpp>
#include <cstdlib>
#include <cstring>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "memory/device.hpp"
#include "memory/strided_copy.hpp"
#include "support/fake_device.hpp"

// For tests of real devices, which are skipped with a message if there are none. With TEST_DEVICES=fake they run on
// fake devices, so that the tests themselves are tested without a GPU.
namespace shardwire::test {

inline FakeDevices* fake_gpus() {
  static const auto fake = [] {
    const char* const asked = std::getenv("TEST_DEVICES");
    const bool wanted = asked != nullptr && std::strcmp(asked, "fake") == 0;
    auto made = wanted ? std::make_shared<FakeDevices>(1) : nullptr;  // owners: this and the process
    if (made) {
      made->share(FakeDevices::Sharing::handle);
      memory::use_device_runtime(made);
    }
    return made;
  }();
  return fake.get();
}

/// Precondition of tests that need a device.
inline boost::test_tools::assertion_result has_gpu(boost::unit_test::test_unit_id /*case*/) {
  fake_gpus();
  const memory::FoundRuntime found = memory::device_runtime();
  boost::test_tools::assertion_result result(found.runtime && found.runtime->device_count() > 0);
  if (!result) result.message() << "no GPU: " << (found.runtime ? "there is no device" : found.why_not);
  return result;
}

/// Requires: has_gpu().
inline memory::DeviceRuntime& gpu_runtime() {
  return *memory::device_runtime().runtime;
}

/// Waits for queued work. Errors: throws the stream's failure.
inline void finish(memory::DeviceStream& stream) {
  std::promise<std::optional<Error>> over;
  stream.call_when_done([&](const std::optional<Error>& error) { over.set_value(error); });
  if (const auto error = over.get_future().get()) throw *error;
}

inline memory::DeviceCopy dense_copy(const std::byte* from, std::byte* to, ByteCount bytes) {
  const Box all = Box::whole({static_cast<Extent>(bytes)});
  return {memory::StridedCopy(all, memory::packed(all), memory::packed(all), 1), from, to};
}

/// Memory of device 0, which the host writes and reads through pinned memory.
class GpuBytes {
 public:
  explicit GpuBytes(ByteCount bytes)
      : memory_(gpu_runtime().allocate(0, bytes)), pinned_(gpu_runtime().allocate_host(bytes)) {}
  [[nodiscard]] std::byte* address() const { return memory_->address(); }
  void write(std::span<const std::byte> bytes) {
    std::memcpy(pinned_->address(), bytes.data(), bytes.size());
    copy(dense_copy(pinned_->address(), address(), bytes.size()));
  }
  [[nodiscard]] std::vector<std::byte> read() {
    copy(dense_copy(address(), pinned_->address(), memory_->bytes()));
    return {pinned_->address(), pinned_->address() + memory_->bytes()};
  }

 private:
  void copy(const memory::DeviceCopy& one) {
    stream_->copy({&one, 1});
    finish(*stream_);
  }
  std::unique_ptr<memory::DeviceMemory> memory_;
  std::unique_ptr<memory::DeviceMemory> pinned_;
  std::unique_ptr<memory::DeviceStream> stream_ = gpu_runtime().open_stream(0);
};

/// An event, as a program creates it.
class GpuEvent {
 public:
  GpuEvent() {
    if (FakeDevices* const fake = fake_gpus()) {
      event_ = fake->make_event();
      return;
    }
    constexpr unsigned without_timing = 2;
    int status = -1;
    gpu_runtime().on_device(0,
                            [&] { status = driver<int(void**, unsigned)>("cuEventCreate")(&event_, without_timing); });
    if (status != 0) throw std::runtime_error("cuEventCreate gives " + std::to_string(status));
  }
  ~GpuEvent() {
    if (FakeDevices* const fake = fake_gpus()) {
      fake->destroy(event_);
    } else {
      driver<int(void*)>("cuEventDestroy_v2")(event_);
    }
  }
  GpuEvent(const GpuEvent&) = delete;
  GpuEvent& operator=(const GpuEvent&) = delete;
  [[nodiscard]] void* get() const { return event_; }

 private:
  template <typename Function>
  static Function* driver(const char* name) {
    void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    void* const found = library == nullptr ? nullptr : ::dlsym(library, name);
    if (found == nullptr) throw std::runtime_error(std::string("the driver has no ") + name);
    return reinterpret_cast<Function*>(found);
  }
  void* event_ = nullptr;
};

}  // namespace shardwire::test

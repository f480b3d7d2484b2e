// SPDX-License-Identifier: Apache-2.0
// Devices that a process finds, and the conditions for having any.
#include "memory/device.hpp"

#include <dlfcn.h>

#include <boost/test/unit_test.hpp>
#include <cstdlib>
#include <memory>

#include "memory/config.hpp"
#include "support/partial_devices.hpp"

BOOST_AUTO_TEST_SUITE(memory_device)

namespace {

using namespace shardwire::memory;

/// A runtime that finds no memory.
struct NoMemory final : shardwire::test::PartialDevices {
  [[nodiscard]] int device_count() const override { return 0; }
};

bool has_driver() {
  void* const driver = ::dlopen("libcuda.so.1", RTLD_LAZY);
  if (driver != nullptr) ::dlclose(driver);
  return driver != nullptr;
}

}  // namespace

BOOST_AUTO_TEST_CASE(devices_are_in_use_once_the_driver_is_loaded) {
  BOOST_TEST(!devices_in_use());
  void* const driver = ::dlopen(std::getenv("TEST_DRIVER"), RTLD_LAZY);  // a library of that name
  BOOST_REQUIRE(driver != nullptr);
  BOOST_TEST(devices_in_use());
  ::dlclose(driver);
  BOOST_TEST(!devices_in_use());
}

BOOST_AUTO_TEST_CASE(a_runtime_of_a_test_is_the_processes_until_it_is_taken_back) {
  const auto runtime = std::make_shared<NoMemory>();
  use_device_runtime(runtime);
  BOOST_TEST(devices_in_use());
  BOOST_TEST((device_runtime().runtime == runtime));
  use_device_runtime(nullptr);
  BOOST_TEST(!devices_in_use());
  BOOST_TEST((device_runtime().runtime != runtime));
}

BOOST_AUTO_TEST_CASE(without_a_runtime_it_is_said_why) {
  const FoundRuntime found = device_runtime();
  if (!SHARDWIRE_HAVE_CUDA) {
    BOOST_TEST(!found.runtime);
    BOOST_TEST(found.why_not == SHARDWIRE_CUDA_DETAIL);
  } else if (!has_driver()) {
    BOOST_TEST(!found.runtime);
    BOOST_TEST(found.why_not == "no NVIDIA driver here (libcuda.so.1)");
  } else {
    BOOST_TEST((found.runtime != nullptr) == found.why_not.empty());
  }
}

BOOST_AUTO_TEST_SUITE_END()

// SPDX-License-Identifier: Apache-2.0
// Linked with the command's main: the command on fake devices, whose memory its processes can export to each other.
#include <memory>

#include "support/fake_device.hpp"

namespace {

using namespace shardwire;

// Runs before main, and so before any fork.
const bool installed = [] {
  const auto devices = std::make_shared<test::FakeDevices>(1);  // owners: this process and users of devices
  devices->share(test::FakeDevices::Sharing::handle);
  devices->set_peak(5e12);
  memory::use_device_runtime(devices);
  return true;
}();

}  // namespace

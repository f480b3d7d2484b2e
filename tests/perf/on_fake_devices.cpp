// SPDX-License-Identifier: Apache-2.0
// Linked with the command's main: the command on a device of the tests, which its processes can show to one another.
#include <memory>

#include "support/fake_device.hpp"

namespace {

using namespace shardwire;

// Before main, and so before any process is forked.
const bool installed = [] {
  const auto devices = std::make_shared<test::FakeDevices>(1);  // owners: this process and who works with it
  devices->share(test::FakeDevices::Sharing::handle);
  devices->set_peak(5e12);
  memory::use_device_runtime(devices);
  return true;
}();

}  // namespace

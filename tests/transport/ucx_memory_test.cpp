// SPDX-License-Identifier: Apache-2.0
// The kind that UCX detects for memory, over transports that need no NIC.
#include <boost/test/unit_test.hpp>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "shardwire/error.hpp"
#include "support/refused.hpp"
#include "transport/gpu_driver.hpp"
#include "transport/rdma.hpp"
#include "transport/ucx/mapped_memory.hpp"

namespace ucx_memory {

namespace {

using namespace shardwire;
using namespace shardwire::transport;
using test::driver;
using test::refused;

}  // namespace

/// A context over TCP on this host that supports GPU memory, and a driver that reports some devices.
struct Fixture {
  Fixture() {
    ::setenv("UCX_TLS", "tcp,cuda_copy", 1);
    ::setenv("UCX_NET_DEVICES", "lo", 1);
    driver = std::make_shared<test::Driver>();
    const ucx::ScopedLogSuppression no_log;
    worker = std::make_shared<ucx::Worker>(ucx::open_serving_context(true));
  }
  ~Fixture() { driver.reset(); }

  std::vector<std::byte> bytes = std::vector<std::byte>(1u << 20);
  std::shared_ptr<ucx::Worker> worker;
};

}  // namespace ucx_memory

BOOST_FIXTURE_TEST_SUITE(ucx_memory, Fixture)

BOOST_AUTO_TEST_CASE(host_memory_is_registered_whether_or_not_ucx_knows_gpus) {
  const ucx::MappedMemory mapped(worker, {bytes.data(), bytes.size(), {}});
  BOOST_TEST(!mapped.packed_key().empty());
}

// A UCX without CUDA support cannot recognize device memory.
BOOST_AUTO_TEST_CASE(memory_of_a_device_that_ucx_takes_for_host_memory_is_refused) {
  refused(ErrorCode::unsupported, "takes memory of the device for host memory", [&] {
    const ucx::MappedMemory mapped(worker, {bytes.data(), bytes.size(), {MemoryKind::cuda, 0}});
  });
}

BOOST_AUTO_TEST_CASE(a_device_whose_memory_cannot_be_read_into_is_not_promised_again) {
  const auto gpus = std::make_shared<GpuDirect>(
      GpuDirect::Setup{.find_devices = test::find_devices, .try_with = [](const Memory&) {}, .host = {}});
  ucx::DeviceTargets targets(worker, gpus);
  BOOST_TEST(gpus->why_not(0) == "");
  const Memory range{driver->storage.data() + 10, 100, {MemoryKind::cuda, 0}};
  refused(ErrorCode::unsupported, "takes memory of the device for host memory", [&] { (void)targets.around(range); });
  BOOST_TEST(driver->prepared == std::vector<ByteCount>{4 * test::driver_page}, boost::test_tools::per_element());
  BOOST_TEST(gpus->why_not(0).find("memory of it was not taken: UCX takes memory") == 0U, gpus->why_not(0));
}

BOOST_AUTO_TEST_CASE(memory_that_is_not_for_nics_rules_out_no_other_of_its_device) {
  const auto gpus = std::make_shared<GpuDirect>(
      GpuDirect::Setup{.find_devices = test::find_devices, .try_with = [](const Memory&) {}, .host = {}});
  ucx::DeviceTargets targets(worker, gpus);
  driver->allocation.managed = true;
  const Memory range{driver->storage.data(), 100, {MemoryKind::cuda, 0}};
  refused(ErrorCode::unsupported, "managed memory", [&] { (void)targets.around(range); });
  BOOST_TEST(gpus->why_not(0) == "");
}

BOOST_AUTO_TEST_CASE(a_choice_of_transports_may_leave_out_what_knows_gpus) {
  BOOST_TEST(leaves_cuda(""));
  BOOST_TEST(leaves_cuda("all"));
  BOOST_TEST(leaves_cuda("rc,cuda_copy"));
  BOOST_TEST(leaves_cuda("rc,cuda"));
  BOOST_TEST(leaves_cuda("^tcp"));
  BOOST_TEST(!leaves_cuda("rc"));
  BOOST_TEST(!leaves_cuda("^cuda_copy"));
}

BOOST_AUTO_TEST_SUITE_END()

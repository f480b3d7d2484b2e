// SPDX-License-Identifier: Apache-2.0
// Whether NICs can access memory of GPUs, with a fake /sys and a fake driver.
#include "transport/gpu_direct.hpp"

#include <boost/test/unit_test.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shardwire/error.hpp"
#include "support/fake_root.hpp"
#include "support/refused.hpp"
#include "transport/gpu_driver.hpp"

namespace gpu_direct {

namespace {

using namespace shardwire;
using namespace shardwire::transport;
using memory::DeviceAllocation;
using test::driver;
using test::Driver;
using test::find_devices;
using test::refused;

constexpr ByteCount page = test::driver_page;

struct Fixture {
  Fixture() { driver = std::make_shared<Driver>(); }
  ~Fixture() { driver.reset(); }
  [[nodiscard]] Memory memory(ByteCount offset, ByteCount bytes, int device = 0) const {
    return {driver->storage.data() + offset, bytes, {MemoryKind::cuda, device}};
  }
  int tries = 0;
  std::string trial_fault;
  GpuDirect::Setup setup{.find_devices = find_devices,
                         .try_with =
                             [this](const Memory& tried) {
                               ++tries;
                               BOOST_TEST((tried.place.kind == MemoryKind::cuda));
                               BOOST_TEST(driver->current == tried.place.device);
                               if (!trial_fault.empty()) throw Error(ErrorCode::unsupported, trial_fault);
                             },
                         .host = {}};
};

bool contains(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

void not_taken() {
  throw Error(ErrorCode::transport_failed, "ibv_reg_mr: Bad address");
}

}  // namespace

}  // namespace gpu_direct

BOOST_FIXTURE_TEST_SUITE(gpu_direct, Fixture)

BOOST_AUTO_TEST_CASE(the_kernel_says_whether_there_is_a_module_for_it) {
  const test::FakeRoot root;
  BOOST_TEST(!peer_memory(root.path.string()).nvidia);
  BOOST_TEST(!peer_memory(root.path.string()).module);
  root.write("/sys/module/nvidia/version", "580");
  BOOST_TEST(peer_memory(root.path.string()).nvidia);
  BOOST_TEST(!peer_memory(root.path.string()).module);
  root.write("/sys/module/nv_peer_mem/version", "1");
  BOOST_TEST(peer_memory(root.path.string()).module);
}

BOOST_AUTO_TEST_CASE(a_device_is_reached_by_the_module_or_by_dma_buf) {
  BOOST_TEST(why_no_gpu_direct({.gpu_direct = true, .dma_buf = true}, {}).empty());
  BOOST_TEST(why_no_gpu_direct({.gpu_direct = true}, {.nvidia = true, .module = true}).empty());
  BOOST_TEST(contains(why_no_gpu_direct({.gpu_direct = true}, {.nvidia = true}), "no nvidia_peermem"));
  BOOST_TEST(contains(why_no_gpu_direct({.dma_buf = true}, {.nvidia = true, .module = true}), "the driver has no"));
}

BOOST_AUTO_TEST_CASE(ucx_needs_cuda_and_a_version_that_reads_there) {
  BOOST_TEST(contains(why_no_gpus_in_ucx(1, 13, true), "UCX 1.13 reads into host memory only"));
  BOOST_TEST(contains(why_no_gpus_in_ucx(1, 16, false), "UCX without CUDA"));
  BOOST_TEST(why_no_gpus_in_ucx(1, 16, true).empty());
  BOOST_TEST(why_no_gpus_in_ucx(2, 0, true).empty());
  BOOST_TEST(!ucx_takes_chunks(1, 21));
  BOOST_TEST(ucx_takes_chunks(1, 22));
}

BOOST_AUTO_TEST_CASE(memory_that_the_library_takes_for_another_kind_is_ruled_out) {
  constexpr MemoryPlace device{MemoryKind::cuda, 0};
  BOOST_TEST(why_mistaken({}, TakenFor::host).empty());
  BOOST_TEST(why_mistaken(device, TakenFor::cuda).empty());
  BOOST_TEST(contains(why_mistaken(device, TakenFor::host), "memory of the device for host memory"));
  BOOST_TEST(contains(why_mistaken(device, TakenFor::other), "another kind"));
  BOOST_TEST(contains(why_mistaken({}, TakenFor::cuda), "host memory for memory of a device"));
}

BOOST_AUTO_TEST_CASE(a_device_in_use_is_tried_once) {
  GpuDirect gpus(setup);
  BOOST_TEST(gpus.why_not(0) == "");
  BOOST_TEST(gpus.why_not(0) == "");
  BOOST_TEST(tries == 1);
}

BOOST_AUTO_TEST_CASE(a_device_that_is_not_in_use_is_left_alone_until_it_is) {
  trial_fault = "ibv_reg_mr: Bad address";
  GpuDirect gpus(setup);
  BOOST_TEST(gpus.why_not(1) == "");
  BOOST_TEST(gpus.why_not(5) == "");  // of another process
  BOOST_TEST(driver->allocated.empty());
  driver->used = 1;
  BOOST_TEST(gpus.why_not(1) == "the NIC does not take memory of device 1: ibv_reg_mr: Bad address");
  BOOST_TEST(gpus.why_not(0) == "");
}

BOOST_AUTO_TEST_CASE(a_trial_that_fails_behind_an_iommu_says_so) {
  const test::FakeRoot root;
  setup.root = root.path.string();
  driver->device.pci_address = "0000:1b:00.0";
  root.write("/sys/bus/pci/devices/0000:1b:00.0/iommu_group/type", "DMA-FQ\n");
  GpuDirect works(setup);
  BOOST_TEST(works.why_not(0) == "");
  trial_fault = "Input/output error";
  GpuDirect fails(setup);
  BOOST_TEST(contains(fails.why_not(0), "Input/output error; the IOMMU translates for it (DMA-FQ)"), fails.why_not(0));
}

BOOST_AUTO_TEST_CASE(the_first_reason_is_the_librarys_then_the_devices) {
  driver->device.dma_buf = false;
  GpuDirect there(setup);
  BOOST_TEST(contains(there.why_not(0), "no nvidia_peermem"));
  BOOST_TEST(contains(there.why_not(9), "no nvidia_peermem"));
  setup.why_never = "UCX without CUDA";
  GpuDirect never(setup);
  BOOST_TEST(never.why_not(0) == "UCX without CUDA");
  refused(ErrorCode::unsupported, "UCX without CUDA", [&] { never.register_memory(memory(0, page), not_taken); });
  BOOST_TEST(tries == 0);
  setup.why_never.clear();
  driver.reset();
  GpuDirect none(setup);
  BOOST_TEST(none.why_not(0) == "no GPU here: no driver");
  driver = std::make_shared<Driver>();
}

BOOST_AUTO_TEST_CASE(memory_is_prepared_before_it_is_registered_and_that_with_its_whole_allocation) {
  GpuDirect gpus(setup);
  gpus.register_memory(memory(page, 100), [] {
    BOOST_TEST(driver->prepared.size() == 1U);
    BOOST_TEST(driver->current == 0);
  });
  BOOST_TEST(driver->prepared == std::vector<ByteCount>{100}, boost::test_tools::per_element());
  Memory registered;
  const DeviceAllocation found = gpus.register_around(memory(page, 100), [&](const Memory& whole) {
    BOOST_TEST(driver->prepared.size() == 2U);
    registered = whole;
  });
  BOOST_TEST((found == driver->allocation));
  BOOST_TEST(registered.address == driver->storage.data());
  BOOST_TEST(registered.bytes == 4 * page);
  BOOST_TEST(driver->prepared.back() == 4 * page);
}

BOOST_AUTO_TEST_CASE(a_device_is_ruled_out_once_the_fabric_does_not_take_its_memory) {
  GpuDirect gpus(setup);
  refused(ErrorCode::unsupported, "ibv_reg_mr",
          [&] { gpus.register_around(memory(0, page), [](const Memory&) { not_taken(); }); });
  BOOST_TEST(gpus.why_not(0) == "memory of it was not taken: ibv_reg_mr: Bad address");
  BOOST_TEST(gpus.why_not(1) == "");
  GpuDirect source(setup);
  refused(ErrorCode::unsupported, "ibv_reg_mr", [&] { source.register_memory(memory(0, page), not_taken); });
  BOOST_TEST(source.why_not(0) == "memory of it was not taken: ibv_reg_mr: Bad address");
}

BOOST_AUTO_TEST_CASE(memory_that_is_not_for_nics_is_refused_with_the_reason_and_no_other) {
  GpuDirect gpus(setup);
  const auto refuses = [&](const char* why, bool alone = true) {
    refused(ErrorCode::unsupported, why, [&] { gpus.register_memory(memory(0, page), not_taken); });
    refused(alone ? ErrorCode::unsupported : ErrorCode::invalid_argument, why,
            [&] { gpus.register_around(memory(0, page), [](const Memory&) { not_taken(); }); });
    BOOST_TEST(gpus.why_not(0) == "");
    if (alone) BOOST_TEST(contains(gpus.why_refused(driver->allocation), why));
    driver->allocation = Driver().allocation;
    driver->allocation.address = driver->storage.data();
    BOOST_TEST(gpus.why_refused(driver->allocation) == "");
  };
  driver->allocation.managed = true;
  refuses("managed");
  driver->allocation.gpu_direct = false;
  refuses("not for NICs");
  driver->allocation.legacy_ipc = false;
  refuses("expandable segments");
  driver->allocation.device = 1;
  refuses("no memory of device", false);
  driver->allocation.bytes = page - 1;
  refuses("not all of one allocation", false);
  driver->freed = true;
  refuses("no memory is mapped", false);
  driver->freed = false;
  BOOST_TEST(driver->prepared.empty());
  driver->allocation.legacy_ipc = false;
  setup.takes_chunks = true;
  BOOST_TEST(GpuDirect(setup).why_refused(driver->allocation) == "");
}

// Once the driver has failed to prepare memory, the next restore knows in advance.
BOOST_AUTO_TEST_CASE(memory_that_the_driver_does_not_prepare_is_remembered) {
  GpuDirect gpus(setup);
  driver->prepare_fault = ErrorCode::out_of_resources;
  refused(ErrorCode::unsupported, "as told", [&] { gpus.register_around(memory(0, page), [](const Memory&) {}); });
  driver->prepare_fault.reset();
  BOOST_TEST(contains(gpus.why_refused(driver->allocation), "as told"));
  driver->allocation.number = 8;  // freed, and allocated again
  BOOST_TEST(gpus.why_refused(driver->allocation) == "");
  BOOST_TEST(gpus.why_not(0) == "");
  driver->prepare_fault = ErrorCode::transport_failed;
  refused(ErrorCode::transport_failed, "as told", [&] { gpus.register_around(memory(0, page), [](const Memory&) {}); });
  BOOST_TEST(gpus.why_refused(driver->allocation) == "");
}

BOOST_AUTO_TEST_SUITE_END()

// SPDX-License-Identifier: Apache-2.0
// Properties of a pointer, through a cuPointerGetAttributes that answers as drivers do for each kind of memory.
#include <cuda.h>

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <map>
#include <stdexcept>
#include <vector>

#include "memory/cuda/allocation.hpp"
#include "memory/cuda/pointer_query.hpp"
#include "shardwire/error.hpp"
#include "support/refused.hpp"

BOOST_AUTO_TEST_SUITE(cuda_allocation)

namespace {

namespace data = boost::unit_test::data;
using namespace shardwire;
using namespace shardwire::memory;
using namespace shardwire::memory::cuda;
using shardwire::test::refused;

constexpr std::uint64_t mib = 1u << 20;
constexpr std::uint64_t posix = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

/// Memory that was allocated, reserved or mapped by one call.
struct Mapping {
  std::uint64_t bytes = 0;
  unsigned type = CU_MEMORYTYPE_DEVICE;
  int device = 0;
  bool managed = false;
  bool mapped = true;
  bool legacy_ipc = false;
  std::uint64_t handle_types = 0;
  std::uint64_t pool = 0;
  std::uint64_t buffer = 0;
  std::uint64_t block = 0;
  std::uint64_t range_start = 0;  ///< 0: the mapping itself
  std::uint64_t range_bytes = 0;
};

// Global, since cuPointerGetAttributes has no argument for the driver.
std::map<std::uint64_t, Mapping> memory_of_driver;
int newest_attribute = 0;
int queries = 0;

/// Clears the allocations of earlier tests.
struct FakeDriver {
  explicit FakeDriver(int newest = CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE) {
    memory_of_driver.clear();
    newest_attribute = newest;
  }
};

template <typename T>
void answer(void* data, T value) {
  *static_cast<T*>(data) = value;
}

void answer_about(CUpointer_attribute attribute, std::uint64_t start, const Mapping& mapping, void* data) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: return answer<unsigned>(data, mapping.type);
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: return answer<unsigned long long>(data, mapping.buffer);
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: return answer<bool>(data, mapping.managed);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: return answer<int>(data, mapping.device);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return answer<CUdeviceptr>(data, mapping.range_start > 0 ? mapping.range_start : start);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return answer<std::size_t>(data, mapping.range_start > 0 ? mapping.range_bytes : mapping.bytes);
    case CU_POINTER_ATTRIBUTE_MAPPED: return answer<bool>(data, mapping.mapped);
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: return answer<bool>(data, mapping.legacy_ipc);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES: return answer<unsigned long long>(data, mapping.handle_types);
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE: return answer<int>(data, 1);
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: return answer<std::uint64_t>(data, mapping.pool);
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE: return answer<std::size_t>(data, mapping.bytes);
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR: return answer<CUdeviceptr>(data, start);
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID: return answer<unsigned long long>(data, mapping.block);
    default: throw std::logic_error("nobody has asked for this attribute before");
  }
}

CUresult fake_attributes(unsigned count, CUpointer_attribute* attributes, void** answers, CUdeviceptr address) {
  ++queries;
  for (unsigned i = 0; i < count; ++i) {
    if (attributes[i] > newest_attribute) return CUDA_ERROR_INVALID_VALUE;
  }
  auto next = memory_of_driver.upper_bound(address);
  if (next == memory_of_driver.begin()) return CUDA_SUCCESS;  // unknown pointer: no value is written
  const auto& [start, mapping] = *--next;
  if (address - start >= mapping.bytes) return CUDA_SUCCESS;
  for (unsigned i = 0; i < count; ++i) answer_about(attributes[i], start, mapping, answers[i]);
  return CUDA_SUCCESS;
}

std::optional<DeviceAllocation> find(std::uint64_t address, ByteCount bytes = 1, int devices = 2) {
  const PointerQuery query(&fake_attributes);
  queries = 0;
  const auto found = find_allocation(
      [&](std::uint64_t asked) {
        CUresult status{};
        const PointerFacts facts = query.ask(asked, status);
        BOOST_REQUIRE(status == CUDA_SUCCESS);
        return facts;
      },
      address, bytes, devices);
  return found ? std::optional(found->allocation) : std::nullopt;
}

std::uint64_t address_of(const std::optional<DeviceAllocation>& found) {
  BOOST_REQUIRE(found.has_value());
  return reinterpret_cast<std::uintptr_t>(found->address);
}

// Like PyTorch's expandable segments: a large reservation with chunks of 2 MiB mapped into it.
void reserve(std::uint64_t start, std::uint64_t bytes, const std::vector<Mapping>& chunks) {
  std::uint64_t at = start;
  for (Mapping chunk : chunks) {
    chunk.bytes = 2 * mib;
    chunk.range_start = start;
    chunk.range_bytes = bytes;
    if (chunk.handle_types == 0) chunk.handle_types = posix;
    memory_of_driver[at] = chunk;
    at += chunk.bytes;
  }
  if (at < start + bytes) {
    memory_of_driver[at] = {.bytes = start + bytes - at, .mapped = false, .range_start = start, .range_bytes = bytes};
  }
}

}  // namespace

BOOST_AUTO_TEST_CASE(memory_of_nobody_and_of_the_host_is_no_devices) {
  const FakeDriver driver;
  memory_of_driver[16 * mib] = {.bytes = mib, .type = CU_MEMORYTYPE_HOST, .buffer = 5};  // cudaMallocHost
  BOOST_TEST(!find(0x1000).has_value());
  BOOST_TEST(!find(16 * mib + 8).has_value());
  BOOST_TEST(queries == 1);
}

// Small allocations may share one mapping of the driver.
BOOST_AUTO_TEST_CASE(an_allocation_is_its_own_range_and_not_all_of_its_mapping) {
  const FakeDriver driver;
  memory_of_driver[8 * mib] = {
      .bytes = 2 * mib, .legacy_ipc = true, .buffer = 7, .range_start = 8 * mib + 1024, .range_bytes = 512};
  const auto found = find(8 * mib + 1100, 4096);
  BOOST_TEST(address_of(found) == 8 * mib + 1024);
  BOOST_TEST(found->bytes == 512U);
  memory_of_driver[8 * mib].legacy_ipc = false;
  memory_of_driver[8 * mib].pool = 3;
  BOOST_TEST(find(8 * mib + 1100)->bytes == 512U);
}

BOOST_AUTO_TEST_CASE(an_allocation_is_found_whole_by_one_query) {
  const FakeDriver driver;
  memory_of_driver[32 * mib] = {.bytes = 4 * mib, .device = 1, .legacy_ipc = true, .buffer = 7};
  memory_of_driver[36 * mib] = {.bytes = 4 * mib, .device = 1, .legacy_ipc = true, .buffer = 8};  // a neighbour
  const auto found = find(33 * mib, 8 * mib);
  BOOST_TEST(queries == 1);
  BOOST_TEST(address_of(found) == 32 * mib);
  BOOST_TEST(found->bytes == 4 * mib);
  BOOST_TEST(found->device == 1);
  BOOST_TEST(found->legacy_ipc);
  BOOST_TEST(found->peer_access);
  BOOST_TEST(!found->descriptor_ipc);
  BOOST_TEST(!found->managed);
  BOOST_TEST(found->gpu_direct);
  BOOST_TEST(found->number != find(37 * mib)->number);
}

BOOST_AUTO_TEST_CASE(managed_memory_says_so) {
  const FakeDriver driver;
  memory_of_driver[mib] = {.bytes = mib, .managed = true, .buffer = 3};
  memory_of_driver[4 * mib] = {.bytes = mib, .type = CU_MEMORYTYPE_UNIFIED, .managed = true, .buffer = 4};
  memory_of_driver[8 * mib] = {.bytes = mib, .type = CU_MEMORYTYPE_HOST, .managed = true, .buffer = 5};
  for (const std::uint64_t at : {mib, 4 * mib, 8 * mib}) {
    const auto found = find(at);
    BOOST_REQUIRE(found.has_value());
    BOOST_TEST(found->managed);
    BOOST_TEST(found->peer_access);
  }
}

BOOST_AUTO_TEST_CASE(memory_of_a_pool_is_not_exported_by_itself) {
  const FakeDriver driver;
  memory_of_driver[mib] = {.bytes = mib, .handle_types = posix, .pool = 0xabc, .buffer = 3};  // cudaMallocAsync
  const auto found = find(mib);
  BOOST_REQUIRE(found.has_value());
  BOOST_TEST(!found->legacy_ipc);
  BOOST_TEST(!found->peer_access);
  BOOST_TEST(!found->descriptor_ipc);
}

BOOST_AUTO_TEST_CASE(chunks_under_one_range_are_walked_as_far_as_is_asked) {
  const FakeDriver driver;
  reserve(64 * mib, 64 * mib, {{.buffer = 9, .block = 1}, {.buffer = 9, .block = 2}, {.buffer = 9, .block = 3}});
  const auto one = find(65 * mib, mib);
  BOOST_TEST(queries == 1);
  BOOST_TEST(address_of(one) == 64 * mib);
  BOOST_TEST(one->bytes == 2 * mib);
  BOOST_TEST(one->descriptor_ipc);
  const auto two = find(65 * mib, mib + 1);
  BOOST_TEST(queries == 2);
  BOOST_TEST(two->bytes == 4 * mib);
  BOOST_TEST(one->chunks == 1U);
  BOOST_TEST(two->chunks == 2U);
  // It ends where the mapping ends, before the requested end.
  const auto all = find(65 * mib, 32 * mib);
  BOOST_TEST(address_of(all) == 64 * mib);
  BOOST_TEST(all->bytes == 6 * mib);
  BOOST_TEST(find(65 * mib, ~ByteCount{0})->bytes == 6 * mib);
}

BOOST_AUTO_TEST_CASE(one_chunk_that_cannot_be_exported_is_enough) {
  const FakeDriver driver;
  reserve(64 * mib, 4 * mib, {{.buffer = 9}, {.handle_types = CU_MEM_HANDLE_TYPE_FABRIC, .buffer = 9}});
  BOOST_TEST(find(64 * mib, 2 * mib)->descriptor_ipc);
  BOOST_TEST(!find(64 * mib, 3 * mib)->descriptor_ipc);
}

BOOST_AUTO_TEST_CASE(a_chunk_on_another_device_ends_the_allocation) {
  const FakeDriver driver;
  reserve(64 * mib, 4 * mib, {{.device = 0, .buffer = 9}, {.device = 1, .buffer = 9}});
  BOOST_TEST(find(64 * mib, 4 * mib)->bytes == 2 * mib);
}

BOOST_AUTO_TEST_CASE(an_address_that_is_only_reserved_is_refused) {
  const FakeDriver driver;
  reserve(64 * mib, 8 * mib, {{.buffer = 9}});
  refused(ErrorCode::invalid_argument, "0x4200000 is an address of device 0 where no memory is mapped",
          [] { find(66 * mib); });
}

BOOST_AUTO_TEST_CASE(a_freed_pointer_is_nobodys_and_a_reused_one_is_another_allocation) {
  const FakeDriver driver;
  memory_of_driver[mib] = {.bytes = mib, .buffer = 21};
  const auto before = find(mib, mib);
  BOOST_TEST(find(mib, mib)->number == before->number);
  memory_of_driver.clear();
  BOOST_TEST(!find(mib, mib).has_value());
  memory_of_driver[mib] = {.bytes = mib, .buffer = 22};
  BOOST_TEST(find(mib, mib)->number != before->number);
}

BOOST_AUTO_TEST_CASE(a_chunk_that_was_mapped_anew_is_another_allocation) {
  const FakeDriver driver;
  reserve(64 * mib, 4 * mib, {{.buffer = 9, .block = 1}, {.buffer = 9, .block = 2}});
  const auto before = find(64 * mib, 4 * mib);
  reserve(64 * mib, 4 * mib, {{.buffer = 9, .block = 1}, {.buffer = 9, .block = 3}});
  BOOST_TEST(find(64 * mib, 4 * mib)->number != before->number);
  BOOST_TEST(find(64 * mib, 2 * mib)->number == find(65 * mib, mib)->number);
  reserve(64 * mib, 4 * mib, {{.buffer = 9, .block = 2}, {.buffer = 9, .block = 1}});
  BOOST_TEST(find(64 * mib, 4 * mib)->number != before->number);
}

BOOST_AUTO_TEST_CASE(memory_of_a_device_that_is_not_seen_is_refused) {
  const FakeDriver driver;
  memory_of_driver[mib] = {.bytes = mib, .device = 2, .buffer = 3};
  refused(ErrorCode::invalid_argument, "is memory of device 2, and this process sees 2", [] { find(mib); });
  memory_of_driver[mib].device = -2;
  refused(ErrorCode::invalid_argument, "is memory of device -2", [] { find(mib); });
}

BOOST_AUTO_TEST_CASE(arrays_are_refused) {
  const FakeDriver driver;
  memory_of_driver[mib] = {.bytes = mib, .type = CU_MEMORYTYPE_ARRAY, .buffer = 3};
  refused(ErrorCode::unsupported, "is in a CUDA array", [] { find(mib); });
}

// Each driver below lacks one more attribute.
BOOST_DATA_TEST_CASE(drivers_that_know_less_are_asked_less,
                     data::xrange(int{CU_POINTER_ATTRIBUTE_MAPPED}, int{CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID} + 1),
                     newest) {
  const FakeDriver driver(newest);
  memory_of_driver[mib] = {.bytes = mib, .device = 1, .legacy_ipc = true, .handle_types = posix, .buffer = 3};
  const auto found = find(mib + 5, 100);
  BOOST_TEST(queries == 1);
  BOOST_TEST(address_of(found) == mib);
  BOOST_TEST(found->bytes == mib);
  BOOST_TEST(found->device == 1);
  BOOST_TEST(found->legacy_ipc);
  BOOST_TEST(found->descriptor_ipc == (newest >= CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES));
  BOOST_TEST(found->gpu_direct == (newest >= CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE));
}

BOOST_AUTO_TEST_SUITE_END()

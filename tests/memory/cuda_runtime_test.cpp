// SPDX-License-Identifier: Apache-2.0
// Streams, memory and contexts of the CUDA module, over fake CUDA functions that use ordinary memory.
#include "memory/cuda/runtime.hpp"

#include <algorithm>
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <cstring>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "memory/cuda/engine_calls.hpp"
#include "memory/cuda/engine_limits.hpp"
#include "memory/device_check.hpp"
#include "memory/fake_cuda.hpp"
#include "shardwire/error.hpp"
#include "support/refused.hpp"
#include "support/splitmix64.hpp"
#include "transport/device_use.hpp"
#include "transport/gpu_direct.hpp"

BOOST_AUTO_TEST_SUITE(cuda_runtime)

namespace {

using namespace shardwire;
using namespace shardwire::memory;
using shardwire::test::FakeCuda;
using shardwire::test::refused;
using Bytes = std::vector<std::byte>;

void look_up_nothing(cuda::Api&) {
}

DeviceCheck& checks_of(DeviceStream& stream) {
  DeviceCheck* const checks = check_of(stream);
  BOOST_REQUIRE(checks != nullptr);
  return *checks;
}

}  // namespace

/// The runtime over a fake; checks at the end that everything was released, in the right context.
struct Fixture {
  FakeCuda fake;
  std::shared_ptr<DeviceRuntime> runtime = cuda::find_runtime(fake.api(), look_up_nothing, nullptr).runtime;

  Fixture() { BOOST_REQUIRE(runtime != nullptr); }
  /// A new runtime that has made no queries yet.
  [[nodiscard]] std::shared_ptr<DeviceRuntime> anew() const {
    return cuda::find_runtime(fake.api(), look_up_nothing, nullptr).runtime;
  }
  ~Fixture() {
    runtime.reset();
    BOOST_TEST(fake.contexts.empty());
    for (const std::string& mistake : fake.mistakes) BOOST_ERROR(mistake);
    BOOST_TEST(fake.device_memory.empty());
    BOOST_TEST(fake.host_memory.empty());
    BOOST_TEST(fake.streams.empty());
    BOOST_TEST(fake.events.empty());
  }
};

namespace {

/// Columns of `width` bytes out of the middle of rows, into a dense array.
StridedCopy columns(ElementCount rows, ElementCount row_bytes, ElementCount first, ElementCount width) {
  const Box whole{{0, 0}, {rows, row_bytes}};
  const Box part{{0, first}, {rows, width}};
  return {part, packed(whole), packed(part), 1};
}

Bytes pattern(std::size_t bytes, unsigned seed = 1) {
  Bytes out(bytes);
  for (std::size_t i = 0; i < bytes; ++i) out[i] = static_cast<std::byte>(i * 7 + seed + i / 251);
  return out;
}

Bytes content(const std::byte* address, std::size_t bytes) {
  return {address, address + bytes};
}

// The target's content after a copy by the host.
Bytes expected(const StridedCopy& copy, const std::byte* source) {
  Bytes out(copy.bytes());
  copy.run_all(source, out.data());
  return out;
}

std::string why(int status, int count, int driver) {
  return cuda::why_no_device(status, "out of luck", count, driver, 13000);
}

}  // namespace

BOOST_AUTO_TEST_CASE(it_says_why_there_is_no_device) {
  BOOST_TEST(why(cudaErrorInsufficientDriver, 0, 0) == "no NVIDIA driver here (libcuda.so.1)");
  BOOST_TEST(why(cudaErrorInsufficientDriver, 0, 12020) ==
             "the NVIDIA driver is for CUDA 12.2, which is older than the 13.0 that this was built with");
  BOOST_TEST(why(cudaErrorNoDevice, 0, 13000).starts_with("no NVIDIA GPU that this process may use"));
  BOOST_TEST(why(cudaSuccess, 0, 13000).starts_with("no NVIDIA GPU that this process may use"));
  BOOST_TEST(why(cudaErrorSystemNotReady, 0, 13000) == "CUDA does not start: out of luck");
  BOOST_TEST(why(cudaSuccess, 1, 13000) == "");
}

BOOST_AUTO_TEST_CASE(without_a_driver_none_of_its_functions_is_looked_up) {
  FakeCuda fake;
  fake.driver_version = 0;
  fake.count_status = cudaErrorInsufficientDriver;
  const FoundRuntime found = cuda::find_runtime(
      fake.api(), [](cuda::Api&) { throw Error(ErrorCode::internal, "there is no driver"); }, nullptr);
  BOOST_TEST(!found.runtime);
  BOOST_TEST(found.why_not == "no NVIDIA driver here (libcuda.so.1)");
}

BOOST_FIXTURE_TEST_CASE(devices_are_told_of_without_a_context, Fixture) {
  BOOST_TEST(runtime->device_count() == 2);
  BOOST_TEST(runtime->version() == "CUDA 13.0, driver for 13.0");
  const DeviceDetails details = runtime->details(1);
  BOOST_TEST(details.name == "NVIDIA Fake");
  BOOST_TEST(details.bytes == ByteCount{80} << 30);
  BOOST_TEST(details.pci_address == "0000:1c:00.0");
  BOOST_TEST(details.peers == std::vector<int>{0}, boost::test_tools::per_element());
  BOOST_TEST(details.memory_bytes_per_second == 2e9 * 2 * 640);  // two transfers per clock cycle
  fake.memory_clock_khz = 0;
  BOOST_TEST(runtime->details(1).memory_bytes_per_second > 0);  // it is queried once
  BOOST_TEST(anew()->details(1).memory_bytes_per_second == 0);
  BOOST_TEST(fake.retained.empty());
}

BOOST_FIXTURE_TEST_CASE(memory_is_allocated_in_the_devices_context, Fixture) {
  const auto memory = runtime->allocate(1, 1000);
  BOOST_TEST(memory->bytes() == 1000u);
  BOOST_TEST(fake.device_memory.contains(memory->address()));
  BOOST_TEST((fake.retained == std::set{1}));
  // Pinned memory needs some context, and does not create another one.
  const auto host = runtime->allocate_host(10);
  BOOST_TEST(fake.host_memory.contains(host->address()));
  BOOST_TEST((fake.retained == std::set{1}));
}

BOOST_FIXTURE_TEST_CASE(pinned_memory_takes_a_context_that_the_program_has_already, Fixture) {
  fake.contexts_elsewhere = {1};
  const auto host = runtime->allocate_host(10);
  BOOST_TEST((fake.retained == std::set{1}));
}

BOOST_FIXTURE_TEST_CASE(no_memory_and_no_such_device_are_typed_errors, Fixture) {
  fake.memory_left = 999;
  refused(ErrorCode::out_of_resources, "cudaMalloc of 1000 bytes", [&] { runtime->allocate(0, 1000); });
  refused(ErrorCode::out_of_resources, "cudaHostAlloc of 1000 bytes", [&] { runtime->allocate_host(1000); });
  BOOST_TEST(runtime->allocate(0, 999)->bytes() == 999u);
  for (const int device : {-1, 2}) {
    refused(ErrorCode::invalid_argument, "this process sees 2", [&] { runtime->allocate(device, 1); });
    refused(ErrorCode::invalid_argument, "this process sees 2", [&] { runtime->open_stream(device); });
    refused(ErrorCode::invalid_argument, "this process sees 2", [&] { (void)runtime->details(device); });
  }
}

BOOST_FIXTURE_TEST_CASE(a_batch_is_one_kernel_and_streams_never_wait_for_the_legacy_one, Fixture) {
  const auto stream = runtime->open_stream(1);
  BOOST_TEST(fake.stream_flags == unsigned{cudaStreamNonBlocking});
  const Bytes source = pattern(40 * 100);
  Bytes target(40 * 30 + 40 * 7);
  const StridedCopy one = columns(40, 100, 11, 30);
  const StridedCopy two = columns(40, 100, 60, 7);
  const std::vector<DeviceCopy> copies{{one, source.data(), target.data()}, {two, source.data(), target.data() + 1200}};
  stream->copy(copies);
  stream->copy({});
  int done = 0;
  stream->call_when_done([&](const std::optional<Error>& error) { done += error ? 100 : 1; });
  BOOST_TEST(done == 0);
  fake.run();
  BOOST_TEST(done == 1);
  BOOST_TEST((content(target.data(), 1200) == expected(one, source.data())));
  BOOST_TEST((content(target.data() + 1200, 280) == expected(two, source.data())));
  BOOST_TEST(fake.calls.size() == 2);  // the table, and the kernel
  BOOST_TEST(fake.calls.back() == "kernel 2");
}

BOOST_FIXTURE_TEST_CASE(tables_under_way_are_not_overwritten_and_blocks_are_used_again, Fixture) {
  const auto stream = runtime->open_stream(0);
  std::vector<Bytes> sources;
  std::vector<Bytes> targets(5, Bytes(40 * 30));
  const StridedCopy copy = columns(40, 100, 11, 30);
  for (unsigned i = 0; i < targets.size(); ++i) {
    sources.push_back(pattern(4000, i));
    const std::vector<DeviceCopy> copies{{copy, sources[i].data(), targets[i].data()}};
    stream->copy(copies);
  }
  fake.run();
  for (unsigned i = 0; i < targets.size(); ++i) BOOST_TEST((targets[i] == expected(copy, sources[i].data())));
  // All of them differ.
  std::vector<Digest128> digests(1);
  Bytes target(300 * 30);
  for (unsigned i = 0; i < 300; ++i) {
    const std::vector<DeviceCopy> copies{{columns(1 + i, 100, 11, 30), sources[0].data(), target.data()}};
    if (i < 40) stream->copy(copies);
    if (i >= 40) stream->digest(copies, digests);
    fake.run();
  }
  BOOST_TEST(fake.host_memory.size() == 64);
  BOOST_TEST(fake.device_memory.size() == 64);
}

// Allocating a block is slow.
BOOST_FIXTURE_TEST_CASE(a_block_that_keeps_no_table_is_used_before_another_is_made, Fixture) {
  const auto stream = runtime->open_stream(0);
  std::uint32_t value = 0;
  ValueBox box;
  box.first = reinterpret_cast<std::byte*>(&value);
  box.elements = 1;
  box.item_bytes = 4;
  box.dims = 1;
  box.dim[0] = {1, 4, 1};
  const Bytes source = pattern(4000);
  Bytes target(1200);
  for (int i = 0; i < 3; ++i) {
    checks_of(*stream).fill({&box, 1});
    fake.run();
  }
  BOOST_TEST(fake.host_memory.size() == 1U);
  stream->copy(std::vector<DeviceCopy>{{columns(40, 100, 11, 30), source.data(), target.data()}});
  fake.run();
  BOOST_TEST(fake.host_memory.size() == 1U);
  checks_of(*stream).fill({&box, 1});  // a block with a table is kept
  fake.run();
  BOOST_TEST(fake.host_memory.size() == 2U);
}

/// A stream that receives the same batch again, at other addresses.
struct RepeatFixture : Fixture {
  static constexpr std::size_t shifted_by = 4096;
  std::unique_ptr<DeviceStream> stream = runtime->open_stream(0);
  alignas(256) std::byte source[2 * shifted_by];
  alignas(256) std::byte target[2 * shifted_by];
  const StridedCopy one = columns(20, 100, 11, 30);
  const StridedCopy two = columns(20, 100, 60, 7);

  RepeatFixture() {
    const Bytes values = pattern(sizeof(source));
    std::memcpy(source, values.data(), values.size());
  }
  void copy(std::size_t from, std::size_t to) {
    stream->copy(std::vector<DeviceCopy>{{one, source + from, target + to}, {two, source + from, target + to + 600}});
  }
  /// Runs the queued work. Returns the numbers of tables and kernels.
  std::pair<int, int> run() {
    fake.run();
    std::pair<int, int> seen;
    for (const std::string& call : fake.calls) ++(call.starts_with("memcpy") ? seen.first : seen.second);
    fake.calls.clear();
    return seen;
  }
  void check(std::size_t from, std::size_t to) {
    BOOST_TEST((content(target + to, 600) == expected(one, source + from)));
    BOOST_TEST((content(target + to + 600, 140) == expected(two, source + from)));
    std::memset(target, 0, sizeof(target));
  }
};

BOOST_FIXTURE_TEST_CASE(a_batch_that_is_repeated_is_not_uploaded_again, RepeatFixture) {
  copy(0, 0);
  BOOST_TEST((run() == std::pair{1, 1}));
  check(0, 0);
  // Also while it is in flight, and after others.
  copy(0, 0);
  copy(0, 0);
  stream->copy(std::vector<DeviceCopy>{{two, source, target}});
  copy(0, 0);
  BOOST_TEST((run() == std::pair{1, 4}));
  check(0, 0);
}

BOOST_FIXTURE_TEST_CASE(a_table_serves_wherever_the_same_copies_lie, RepeatFixture) {
  copy(0, 0);
  run();
  // As from another staging slot, or into one; both are in flight at the same time.
  copy(0, shifted_by);
  copy(shifted_by, 0);
  BOOST_TEST((run() == std::pair{0, 2}));
  BOOST_TEST((content(target, 600) == expected(one, source + shifted_by)));
  check(0, shifted_by);
}

BOOST_FIXTURE_TEST_CASE(a_batch_that_lies_otherwise_has_a_table_of_its_own, RepeatFixture) {
  copy(0, 0);
  run();
  for (const std::size_t shift : {1u, 8u, 16u, 128u}) {  // alignment determines the threads' shares
    copy(shift, 0);
    BOOST_TEST((run() == std::pair{1, 1}));
    check(shift, 0);
    copy(0, shift);
    BOOST_TEST((run() == std::pair{1, 1}));
    check(0, shift);
  }
  // One of two copies has moved.
  stream->copy(std::vector<DeviceCopy>{{one, source, target}, {two, source + 256, target + 600}});
  BOOST_TEST((run() == std::pair{1, 1}));
  BOOST_TEST((content(target + 600, 140) == expected(two, source + 256)));
}

BOOST_FIXTURE_TEST_CASE(digests_that_are_repeated_upload_nothing_and_arrive_each, RepeatFixture) {
  std::vector<Digest128> first(2);
  std::vector<Digest128> second(2);
  const auto digest = [&](std::size_t from, std::vector<Digest128>& into) {
    stream->digest(std::vector<DeviceCopy>{{one, source + from, nullptr}, {two, source + from, nullptr}}, into);
  };
  digest(0, first);
  BOOST_TEST((run() == std::pair{2, 1}));  // the table is uploaded, and digests are downloaded
  digest(0, first);
  digest(shifted_by, second);
  BOOST_TEST((run() == std::pair{2, 2}));
  const auto low = [&](std::size_t at) { return static_cast<std::uint64_t>(source[at]); };
  BOOST_TEST((first[0] == Digest128{low(11), 20}));
  BOOST_TEST((first[1] == Digest128{low(60), 20}));
  BOOST_TEST((second[0] == Digest128{low(shifted_by + 11), 20}));
  BOOST_TEST((second[1] == Digest128{low(shifted_by + 60), 20}));
}

BOOST_FIXTURE_TEST_CASE(a_table_that_failed_on_its_way_is_not_taken_for_one_that_is_there, RepeatFixture) {
  fake.memcpy_status = cudaErrorNotSupported;
  refused(ErrorCode::unsupported, "CUDA status 801", [&] { copy(0, 0); });
  fake.memcpy_status = cudaSuccess;
  copy(0, 0);
  BOOST_TEST((run() == std::pair{1, 1}));
  check(0, 0);
}

BOOST_FIXTURE_TEST_CASE(long_runs_over_the_bus_are_the_copy_engines, Fixture) {
  const auto stream = runtime->open_stream(0);
  const auto host = runtime->allocate_host(16 * 8192);
  const Bytes source = pattern(16 * 10000);
  const StridedCopy rows = columns(16, 10000, 100, 8192);
  const StridedCopy single = columns(1, 10000, 0, 10000);
  stream->copy(std::vector<DeviceCopy>{{rows, source.data(), host->address()}});
  fake.run();
  BOOST_TEST((content(host->address(), rows.bytes()) == expected(rows, source.data())));
  stream->copy(std::vector<DeviceCopy>{{single, source.data(), host->address()}});
  fake.run();
  BOOST_TEST((content(host->address(), 10000) == content(source.data(), 10000)));
  BOOST_TEST(fake.calls == (std::vector<std::string>{"memcpy2d 8192 x 16", "memcpy 10000"}),
             boost::test_tools::per_element());
}

BOOST_FIXTURE_TEST_CASE(digests_arrive_with_the_end_of_the_work, Fixture) {
  const auto stream = runtime->open_stream(0);
  const Bytes source = pattern(300 * 1000);
  const StridedCopy large = columns(300, 1000, 5, 990);
  const StridedCopy small = columns(40, 100, 3, 30);
  std::vector<Digest128> digests(2);
  stream->digest(std::vector<DeviceCopy>{{large, source.data(), nullptr}, {small, source.data() + 7, nullptr}},
                 digests);
  int done = 0;
  stream->call_when_done([&](const std::optional<Error>& error) { done += error ? 100 : 1; });
  BOOST_TEST((digests[0] == Digest128{}));
  fake.run();
  BOOST_TEST(done == 1);
  BOOST_TEST((digests[0] == Digest128{.low = static_cast<std::uint64_t>(source[5]), .high = 300}));
  BOOST_TEST((digests[1] == Digest128{.low = static_cast<std::uint64_t>(source[10]), .high = 40}));
}

BOOST_FIXTURE_TEST_CASE(values_are_made_and_counted_by_kernels, Fixture) {
  const auto stream = runtime->open_stream(1);
  std::vector<std::uint32_t> target(100);
  ValueBox box;  // every other one of 50
  box.first = reinterpret_cast<std::byte*>(target.data());
  box.elements = 50;
  box.seed = 99;
  box.index = 1000;
  box.item_bytes = 4;
  box.dims = 2;
  box.dim[0] = {5, 100, 80};
  box.dim[1] = {10, 1, 8};
  checks_of(*stream).fill({&box, 1});
  BOOST_TEST(target[0] == 0u);
  fake.run();
  for (std::uint64_t i = 0; i < 50; ++i) {
    BOOST_TEST(target[2 * i] == static_cast<std::uint32_t>(support::splitmix64(99 ^ (1000 + i / 10 * 100 + i % 10))));
    BOOST_TEST(target[2 * i + 1] == 0u);
  }
  std::uint64_t wrong = 7;
  checks_of(*stream).count_wrong({&box, 1}, wrong);
  fake.run();
  BOOST_TEST(wrong == 7u);
  target[0] ^= 1;
  target[98] ^= 1u << 31;
  checks_of(*stream).count_wrong({&box, 1}, wrong);
  fake.run();
  BOOST_TEST(wrong == 9u);
}

BOOST_FIXTURE_TEST_CASE(what_is_no_event_is_refused, Fixture) {
  const auto stream = runtime->open_stream(0);
  refused(ErrorCode::invalid_argument, "no event", [&] { stream->wait(nullptr); });
  int nonsense = 0;
  refused(ErrorCode::invalid_argument, "cudaStreamWaitEvent", [&] { stream->wait(&nonsense); });
  FakeCuda::Event event;
  fake.events.insert(&event);
  stream->wait(&event);
  fake.events.erase(&event);
  BOOST_TEST(fake.calls.back() == "wait");
}

BOOST_FIXTURE_TEST_CASE(an_event_of_the_caller_happens_behind_what_is_queued, Fixture) {
  Bytes target = pattern(100);
  const auto stream = runtime->open_stream(1);
  FakeCuda::Event event;
  refused(ErrorCode::invalid_argument, "no event", [&] { stream->record(nullptr); });
  refused(ErrorCode::invalid_argument, "cudaEventRecord", [&] { stream->record(&event); });
  fake.events.insert(&event);
  stream->clear(target.data() + 1, 98);
  stream->record(&event);
  BOOST_TEST(event.pending == 1);
  BOOST_TEST((target == pattern(100)));
  fake.run();
  BOOST_TEST(event.pending == 0);
  Bytes expected = pattern(100);
  std::fill(expected.begin() + 1, expected.end() - 1, std::byte{});
  BOOST_TEST((target == expected));
  fake.events.erase(&event);
}

BOOST_FIXTURE_TEST_CASE(a_stream_that_goes_waits_for_its_work, Fixture) {
  const Bytes source = pattern(4000);
  Bytes target(1200);
  const StridedCopy copy = columns(40, 100, 11, 30);
  int done = 0;
  {
    const auto stream = runtime->open_stream(0);
    stream->copy(std::vector<DeviceCopy>{{copy, source.data(), target.data()}});
    stream->call_when_done([&](const std::optional<Error>&) { ++done; });
  }
  BOOST_TEST(done == 1);
  BOOST_TEST((target == expected(copy, source.data())));
}

// Code that waits for work is notified, and all later calls are refused, also those that do not use the device.
BOOST_FIXTURE_TEST_CASE(a_sticky_error_ends_everything, Fixture) {
  const auto memory = runtime->allocate(0, 10);
  const auto stream = runtime->open_stream(0);
  const Bytes source = pattern(4000);
  Bytes target(1200);
  std::optional<Error> heard;
  stream->copy(std::vector<DeviceCopy>{{columns(40, 100, 11, 30), source.data(), target.data()}});
  stream->call_when_done([&](const std::optional<Error>& error) { heard = error; });
  fake.break_with(cudaErrorIllegalAddress);
  fake.run();
  BOOST_REQUIRE(heard.has_value());
  BOOST_TEST((heard->code() == ErrorCode::transport_failed));
  BOOST_TEST(std::string(heard->what()).find("700") != std::string::npos);
  fake.break_with(cudaSuccess);  // like a call that uses no context
  const std::string says = "works on no device any more";
  refused(ErrorCode::transport_failed, says, [&] { runtime->allocate(1, 1); });
  refused(ErrorCode::transport_failed, says, [&] { runtime->allocate_host(1); });
  refused(ErrorCode::transport_failed, says, [&] { runtime->open_stream(0); });
  refused(ErrorCode::transport_failed, says, [&] {
    stream->copy(std::vector<DeviceCopy>{{columns(1, 1, 0, 1), source.data(), target.data()}});
  });
}

BOOST_FIXTURE_TEST_CASE(an_error_that_is_not_sticky_ends_one_call, Fixture) {
  const auto stream = runtime->open_stream(0);
  fake.break_with(cudaErrorNotSupported);
  refused(ErrorCode::unsupported, "CUDA status 801", [&] { stream->call_when_done([](const auto&) {}); });
  fake.break_with(cudaSuccess);
  int done = 0;
  stream->call_when_done([&](const std::optional<Error>&) { ++done; });
  fake.run();
  BOOST_TEST(done == 1);
}

BOOST_FIXTURE_TEST_CASE(a_driver_that_is_broken_is_no_host_memory, Fixture) {
  for (const CUresult status : {CUDA_SUCCESS, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_INVALID_CONTEXT}) {
    fake.stranger_status = status;
    BOOST_TEST(!runtime->find(&fake).has_value());
  }
  fake.break_with(cudaErrorLaunchFailure);
  refused(ErrorCode::transport_failed, "works on no device any more", [&] { (void)runtime->find(&fake); });
}

// --- other devices, and other processes ---

BOOST_FIXTURE_TEST_CASE(other_libraries_get_streams_and_a_current_device, Fixture) {
  const auto stream = runtime->open_stream(1);
  BOOST_TEST(stream->native() != nullptr);
  int current = -1;
  runtime->on_device(1, [&] { current = fake.contexts.empty() ? -1 : fake.contexts.back(); });
  BOOST_TEST(current == 1);
  BOOST_TEST(fake.contexts.empty());
  BOOST_CHECK_THROW(runtime->on_device(1, [] { throw std::runtime_error("as work may"); }), std::runtime_error);
  BOOST_TEST(fake.contexts.empty());
  refused(ErrorCode::invalid_argument, "there is no device 7", [&] { runtime->on_device(7, [] {}); });
}

BOOST_FIXTURE_TEST_CASE(peer_access_is_asked_for_and_may_be_refused, Fixture) {
  BOOST_TEST(runtime->enable_peer_access(1, 1));
  BOOST_TEST(fake.retained.empty());
  BOOST_TEST(runtime->enable_peer_access(0, 1));
  fake.peer_status = cudaErrorPeerAccessAlreadyEnabled;
  BOOST_TEST(runtime->enable_peer_access(0, 1));
  fake.peer_status = cudaErrorPeerAccessUnsupported;
  BOOST_TEST(!runtime->enable_peer_access(0, 1));
  fake.peer_status = cudaErrorTooManyPeers;
  refused(ErrorCode::out_of_resources, "cudaDeviceEnablePeerAccess", [&] { runtime->enable_peer_access(0, 1); });
  refused(ErrorCode::invalid_argument, "there is no device 7", [&] { runtime->enable_peer_access(0, 7); });
}

/// Three chunks of device 1; the tests export allocations in the last two.
struct ChunkFixture : Fixture {
  ChunkFixture() {
    fake.chunks_start = 64u << 20;
    fake.chunk_count = 3;
  }
  ~ChunkFixture() {
    BOOST_TEST(fake.retained_handles == 0);
    BOOST_TEST(fake.mapped.empty());
    BOOST_TEST(fake.reserved_bytes == 0u);
    BOOST_TEST(!fake.legacy_open);
  }
  [[nodiscard]] const void* address(std::uint64_t offset) const {
    return reinterpret_cast<const void*>(fake.chunks_start + offset);
  }
};
constexpr std::uint64_t chunk_bytes = FakeCuda::chunk_bytes;

BOOST_FIXTURE_TEST_CASE(an_allocation_goes_by_one_handle, ChunkFixture) {
  fake.legacy_ipc = true;
  fake.chunk_count = 1;
  const DeviceExport exported = runtime->export_memory(address(100), 1000);
  BOOST_TEST(exported.handle.size() == 64);
  BOOST_TEST(exported.chunks.empty());
  const auto imported = runtime->import_memory(0, exported);
  BOOST_TEST((imported->address() == address(100)));  // the fake maps it at the original address
  BOOST_TEST(imported->bytes() == 1000u);
  BOOST_TEST(fake.legacy_open);
}

BOOST_FIXTURE_TEST_CASE(chunks_go_by_a_descriptor_each_and_are_mapped_side_by_side, ChunkFixture) {
  fake.handle_types = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  const DeviceExport exported = runtime->export_memory(address(2 * chunk_bytes - 10), 20);
  BOOST_TEST(exported.handle.empty());
  BOOST_REQUIRE(exported.chunks.size() == 2);
  BOOST_TEST(exported.offset == chunk_bytes - 10);
  const auto imported = runtime->import_memory(0, exported);
  BOOST_REQUIRE(fake.mapped.size() == 2);
  for (std::size_t i = 0; i < 2; ++i) {
    BOOST_TEST(fake.mapped[i].first == static_cast<std::uint64_t>(exported.chunks[i].descriptor.get()));
    BOOST_TEST(fake.mapped[i].second == (1ull << 40) + i * chunk_bytes);
  }
  BOOST_TEST((reinterpret_cast<std::uintptr_t>(imported->address()) == (1ull << 40) + chunk_bytes - 10));
  BOOST_TEST(imported->bytes() == 20u);
}

BOOST_FIXTURE_TEST_CASE(chunks_are_opened_to_every_device_that_reaches_theirs, ChunkFixture) {
  fake.handle_types = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  const DeviceExport exported = runtime->export_memory(address(0), 20);
  BOOST_REQUIRE(runtime->device_count() == 2);
  auto imported = runtime->import_memory(1, exported);
  BOOST_TEST(fake.accessible_from == (std::vector<int>{1, 0}), boost::test_tools::per_element());
  imported.reset();
  fake.peer_status = cudaErrorPeerAccessUnsupported;
  imported = runtime->import_memory(1, exported);
  BOOST_TEST(fake.accessible_from == std::vector<int>{1}, boost::test_tools::per_element());
}

BOOST_FIXTURE_TEST_CASE(what_cannot_be_mapped_whole_is_not_mapped, ChunkFixture) {
  fake.handle_types = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  const DeviceExport exported = runtime->export_memory(address(0), 3 * chunk_bytes);
  fake.mappings_left = 2;
  refused(ErrorCode::out_of_resources, "cuMemMap", [&] { runtime->import_memory(0, exported); });
}

BOOST_FIXTURE_TEST_CASE(what_cannot_be_handed_over_is_refused, ChunkFixture) {
  refused(ErrorCode::unsupported, "no other process can map", [&] { runtime->export_memory(address(0), 1); });
  fake.legacy_ipc = true;
  refused(ErrorCode::invalid_argument, "not memory of a device", [&] { runtime->export_memory(&fake, 1); });
  refused(ErrorCode::invalid_argument, "ends before that",
          [&] { runtime->export_memory(address(chunk_bytes), 2 * chunk_bytes + 1); });
}

BOOST_FIXTURE_TEST_CASE(exports_that_contradict_themselves_are_refused, ChunkFixture) {
  DeviceExport exported;
  exported.handle.resize(63);
  refused(ErrorCode::invalid_argument, "has 64 bytes", [&] { runtime->import_memory(0, exported); });
  exported.handle.clear();
  refused(ErrorCode::invalid_argument, "0 bytes in all", [&] { runtime->import_memory(0, exported); });
  exported.chunks.push_back({chunk_bytes, {}});
  exported.offset = 1;
  exported.bytes = chunk_bytes;
  refused(ErrorCode::invalid_argument, "do not hold", [&] { runtime->import_memory(0, exported); });
}

// --- NICs ---

BOOST_FIXTURE_TEST_CASE(devices_say_whether_nics_can_write_to_them, Fixture) {
  BOOST_TEST(!runtime->details(0).gpu_direct);  // a driver that does not know the attribute
  fake.attributes = {{CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED, 1}, {CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, 1}};
  BOOST_TEST(!anew()->details(0).gpu_direct);  // there would be no way to wait for their writes
  BOOST_TEST(anew()->details(0).dma_buf);
  fake.attributes[CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS] =
      CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST;
  BOOST_TEST(anew()->details(0).gpu_direct);
  BOOST_TEST(fake.retained.empty());  // no call needed a context for that
}

BOOST_FIXTURE_TEST_CASE(remote_writes_are_flushed_where_the_device_does_not_order_them, Fixture) {
  runtime->flush_remote_writes(1);
  BOOST_TEST(fake.flushed == std::vector<int>{1}, boost::test_tools::per_element());
  fake.attributes[CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING] = CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER;
  runtime->flush_remote_writes(1);
  BOOST_TEST(fake.flushed.size() == 1U);
  refused(ErrorCode::invalid_argument, "no device 2", [&] { runtime->flush_remote_writes(2); });
}

BOOST_FIXTURE_TEST_CASE(a_device_is_in_use_once_somebody_has_its_context, Fixture) {
  BOOST_TEST(!runtime->in_use(0));
  fake.contexts_elsewhere.insert(0);
  BOOST_TEST(runtime->in_use(0));
  BOOST_TEST(!runtime->in_use(1));
  BOOST_TEST(!runtime->in_use(2));
  BOOST_TEST(fake.retained.empty());
}

BOOST_FIXTURE_TEST_CASE(each_chunk_that_nics_are_shown_has_its_copies_synchronised, ChunkFixture) {
  fake.synchronise_status = CUDA_ERROR_NOT_SUPPORTED;  // not a reason against GPUDirect
  runtime->prepare_for_nics(reinterpret_cast<void*>(fake.chunks_start + 5), FakeCuda::chunk_bytes);
  BOOST_TEST(
      fake.synchronised == (std::vector<std::uint64_t>{fake.chunks_start, fake.chunks_start + FakeCuda::chunk_bytes}),
      boost::test_tools::per_element());
  const int of_host = 0;
  refused(ErrorCode::invalid_argument, "no memory of a device",
          [&] { runtime->prepare_for_nics(&of_host, sizeof(of_host)); });
}

BOOST_FIXTURE_TEST_CASE(what_nics_are_shown_is_whole_chunks_and_ends_with_the_last, ChunkFixture) {
  const auto shown = [&](std::uint64_t offset, ByteCount bytes) {
    auto* const first = reinterpret_cast<std::byte*>(fake.chunks_start + offset);
    return transport::allocation_around(*runtime, {first, bytes, {MemoryKind::cuda, 1}});
  };
  BOOST_TEST(!transport::why_not_for_nics(shown(0, 10), true).empty());
  fake.gpu_direct = true;
  const DeviceAllocation two = shown(chunk_bytes - 10, 20);
  BOOST_TEST(transport::why_not_for_nics(two, true) == "");
  BOOST_TEST((two.address == address(0)));
  BOOST_TEST(two.bytes == 2 * chunk_bytes);
  BOOST_TEST((shown(chunk_bytes, chunk_bytes).address == address(chunk_bytes)));
  refused(ErrorCode::invalid_argument, "not all of one allocation", [&] { (void)shown(3 * chunk_bytes - 10, 11); });
}

// --- copies made by the copy engine ---

BOOST_AUTO_TEST_CASE(the_engine_makes_few_long_copies) {
  using cuda::engine_calls;
  using cuda::EngineCall;
  const StridedCopy rows = columns(16, 10000, 100, 8192);
  BOOST_TEST((engine_calls(rows, 4096) == std::vector{EngineCall{100, 0, 16}}));
  BOOST_TEST(engine_calls(rows, 8193).empty());
  BOOST_TEST(engine_calls(columns(16, 10000, 100, 100), 4096).empty());  // short runs
  BOOST_TEST(engine_calls(columns(0, 10000, 100, 8192), 0).empty());
  BOOST_TEST((engine_calls(columns(1, 4u << 20, 0, 4u << 20), 1u << 20) == std::vector{EngineCall{0, 0, 1}}));

  const auto planes = [](ElementCount count) {
    const Box whole{{0, 0, 0}, {count, 3, 10000}};
    const Box part{{0, 1, 50}, {count, 2, 9000}};
    return StridedCopy{part, packed(whole), packed(part), 1};
  };
  BOOST_TEST((engine_calls(planes(3), 4096) ==
              std::vector{EngineCall{10050, 0, 2}, EngineCall{40050, 18000, 2}, EngineCall{70050, 36000, 2}}));
  BOOST_TEST(engine_calls(planes(17), 4096).empty());  // many calls
}

BOOST_AUTO_TEST_CASE(the_engine_is_taken_from_where_it_is_measured_to_be_faster) {
  using cuda::Direction;
  using cuda::EngineLimits;
  double engine_from_host = 1e-6;
  const auto measured = [&] {
    return cuda::measure_engine_limits([&](Direction direction, ByteCount run_bytes, bool by_engine) {
      const double runs = 1e-6 * static_cast<double>(cuda::trial_bytes / run_bytes);
      if (!by_engine) return 10e-6;
      if (direction == Direction::from_host) return engine_from_host;
      return direction == Direction::to_host ? runs : 11e-6;
    });
  };
  BOOST_TEST((measured() == EngineLimits{.inside = EngineLimits::never, .to_host = 256 << 10, .from_host = 4 << 10}));
  engine_from_host = 10e-3;  // longer than the limit for all trials
  BOOST_TEST((measured() == EngineLimits{.from_host = EngineLimits::never}));
}

BOOST_FIXTURE_TEST_CASE(a_device_is_measured_when_it_is_first_used, Fixture) {
  const auto make_trial = [](ByteCount runs, ByteCount run_bytes) {
    const auto width = static_cast<ElementCount>(run_bytes);
    return columns(static_cast<ElementCount>(runs), 2 * width, 0, width);
  };
  runtime = cuda::find_runtime(fake.api(), look_up_nothing, make_trial).runtime;
  const auto stream = runtime->open_stream(1);
  for (const std::string call : {"memcpy 1048576", "kernel 1"}) {
    BOOST_TEST((std::ranges::find(fake.calls, call) != fake.calls.end()), call);
  }
  fake.calls.clear();
  const auto second = runtime->open_stream(1);
  BOOST_TEST(fake.calls.empty());
  fake.run();
  const std::size_t blocks = fake.host_memory.size();  // kept after trials, since freeing waits for the device
  const Bytes source = pattern(4000);
  Bytes target(1200);
  const StridedCopy copy = columns(40, 100, 11, 30);
  stream->copy(std::vector<DeviceCopy>{{copy, source.data(), target.data()}});
  fake.run();
  BOOST_TEST((target == expected(copy, source.data())));
  BOOST_TEST(fake.host_memory.size() == blocks + 1);

  fake.memory_left = 1u << 20;  // too little for trials
  const auto other = runtime->open_stream(0);
  BOOST_TEST(fake.calls.size() == 2U);  // of the previous copy
  other->copy(std::vector<DeviceCopy>{{copy, source.data(), target.data()}});
  fake.run();
}

BOOST_AUTO_TEST_SUITE_END()

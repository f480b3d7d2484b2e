// SPDX-License-Identifier: Apache-2.0
// The CUDA module and its kernels on a real device, compared with the host's own code.
#include <algorithm>
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <cstring>
#include <memory>
#include <vector>

#include "memory/device_check.hpp"
#include "memory/digest.hpp"
#include "memory/layouts.hpp"
#include "support/deadline.hpp"
#include "support/gpu.hpp"
#include "support/seed.hpp"

namespace memory_gpu {

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;
using memory::DeviceCopy;
using memory::StridedCopy;

namespace {

constexpr std::size_t margin = 64;  // detects writes outside

memory::DeviceCheck& checks_of(memory::DeviceStream& stream) {
  memory::DeviceCheck* const checks = memory::check_of(stream);
  BOOST_REQUIRE(checks != nullptr);
  return *checks;
}

/// A batch of copies between two pieces of memory, and the target's expected content.
struct Batch {
  std::vector<std::byte> from, to, expected;
  struct Part {
    StridedCopy copy;
    std::size_t source, target;  // offset of local element 0
  };
  std::vector<Part> parts;

  void add(layouts::Maker& maker, const StridedCopy& copy) {
    const std::size_t source = from.size() + maker.below(17);
    const std::size_t target = to.size() + margin + maker.below(17);
    const auto grow = [&](std::vector<std::byte>& bytes, std::size_t size) {
      const auto more = maker.bytes(size - bytes.size());
      bytes.insert(bytes.end(), more.begin(), more.end());
    };
    grow(from, source + copy.source_span().end);
    grow(to, target + copy.target_span().end + margin);
    parts.push_back({copy, source, target});
  }
  [[nodiscard]] std::vector<DeviceCopy> listed(const std::byte* source, std::byte* target) const {
    std::vector<DeviceCopy> copies;
    for (const Part& part : parts) copies.push_back({part.copy, source + part.source, target + part.target});
    return copies;
  }
  void copy_on_host() {
    expected = to;
    for (const Part& part : parts) part.copy.run_all(from.data() + part.source, expected.data() + part.target);
  }
};

struct Gpu {
  Deadline deadline{300s};
  layouts::Maker maker{test_seed()};
  std::unique_ptr<memory::DeviceStream> stream = gpu_runtime().open_stream(0);

  // Within the device, and between it and pinned memory in both directions.
  void check(Batch& batch) {
    batch.copy_on_host();
    GpuBytes source(batch.from.size());
    GpuBytes target(batch.to.size());
    source.write(batch.from);
    target.write(batch.to);
    run(batch.listed(source.address(), target.address()));
    BOOST_REQUIRE(target.read() == batch.expected);
    const auto pinned = gpu_runtime().allocate_host(batch.to.size());
    std::memcpy(pinned->address(), batch.to.data(), batch.to.size());
    run(batch.listed(source.address(), pinned->address()));
    BOOST_REQUIRE(std::equal(batch.expected.begin(), batch.expected.end(), pinned->address()));
    const auto pinned_source = gpu_runtime().allocate_host(batch.from.size());
    std::memcpy(pinned_source->address(), batch.from.data(), batch.from.size());
    target.write(batch.to);
    run(batch.listed(pinned_source->address(), target.address()));
    BOOST_REQUIRE(target.read() == batch.expected);
  }
  void run(const std::vector<DeviceCopy>& copies) {
    stream->copy(copies);
    finish(*stream);
  }
  [[nodiscard]] StridedCopy any_copy(ByteCount item) {
    const Box box = maker.box(maker.below(max_dims + 1));
    const PlacedBox source = maker.place(box);
    return {box, source, maker.below(3) == 0 ? memory::packed(box) : maker.place(box), item};
  }
};

StridedCopy rows(Extent count, Extent bytes, Extent source_gap, Extent target_gap) {
  const Box box{{0, 0}, {count, bytes}};
  return {box, {box, 0, {bytes + source_gap, 1}}, {box, 0, {bytes + target_gap, 1}}, 1};
}

memory::ValueBox values(std::byte* first, std::uint64_t count, std::uint32_t item_bytes, std::uint64_t seed) {
  memory::ValueBox box;
  box.first = first;
  box.elements = count;
  box.seed = seed;
  box.item_bytes = item_bytes;
  box.dims = 1;
  box.dim[0] = {count, 1, item_bytes};
  return box;
}

constexpr ByteCount many_bytes = (ByteCount{1} << 32) + (64u << 20);

boost::test_tools::assertion_result has_room(boost::unit_test::test_unit_id id) {
  boost::test_tools::assertion_result result = has_gpu(id);
  if (!result) return result;
  const ByteCount there = gpu_runtime().details(0).bytes;
  boost::test_tools::assertion_result enough(there > 4 * many_bytes);
  enough.message() << "takes a device of 18 GB; this one has " << there << " bytes";
  return enough;
}

}  // namespace

}  // namespace memory_gpu

BOOST_AUTO_TEST_SUITE(memory_gpu, *boost::unit_test::precondition(has_gpu))

BOOST_FIXTURE_TEST_CASE(kernels_copy_what_the_host_does, Gpu) {
  for (const ByteCount item : {1, 2, 3, 4, 8, 16, 24}) {
    for (int round = 0; round < 10; ++round) {
      Batch batch;
      for (std::size_t count = 1 + maker.below(20); count > 0; --count) batch.add(maker, any_copy(item));
      check(batch);
    }
  }
}

BOOST_FIXTURE_TEST_CASE(runs_of_every_length_and_alignment_arrive, Gpu) {
  Batch batch;
  for (Extent bytes = 1; bytes < 200; ++bytes) batch.add(maker, rows(7, bytes, bytes % 13, bytes % 11));
  for (const Extent bytes : {511, 512, 513, 4096, 32767, 32768, 32769, 100'000, 1'000'003}) {
    for (const Extent gap : {0, 1, 8, 16}) batch.add(maker, rows(3, bytes, gap, 16 - gap));
  }
  check(batch);
}

BOOST_FIXTURE_TEST_CASE(digests_are_those_of_the_host, Gpu) {
  Batch batch;
  for (int i = 0; i < 40; ++i) batch.add(maker, any_copy(4));
  for (const Extent bytes : {1, 16, 17, 240, 241, 65535, 65536, 65537, 1'000'000}) {
    batch.add(maker, rows(1, bytes, 0, 0));
    batch.add(maker, rows(5, bytes, 3, 0));
  }
  GpuBytes source(batch.from.size());
  source.write(batch.from);
  std::vector<Digest128> digests(batch.parts.size());
  stream->digest(batch.listed(source.address(), source.address()), digests);
  finish(*stream);
  for (std::size_t i = 0; i < digests.size(); ++i) {
    const auto& [copy, first, target] = batch.parts[i];
    const auto expected = memory::digest_runs(copy, batch.from.data() + first);
    BOOST_REQUIRE_MESSAGE(digests[i] == expected, "digest " << i << " of " << copy.bytes() << " bytes");
  }
}

BOOST_FIXTURE_TEST_CASE(values_are_those_of_the_host, Gpu) {
  constexpr std::uint64_t count = 100'003;
  for (const std::uint32_t item : {1U, 2U, 4U, 8U, 3U, 24U}) {
    GpuBytes there(count * item);
    const memory::ValueBox box = values(there.address(), count, item, 7);
    checks_of(*stream).fill({&box, 1});
    finish(*stream);
    std::vector<std::byte> bytes = there.read();
    std::vector<std::byte> expected(bytes.size());
    const memory::ValueBox here = values(expected.data(), count, item, 7);
    const memory::ValueTable table({&here, 1});
    for (std::uint64_t i = 0; i < table.view().chunks(); ++i) memory::fill_chunk(table.view(), i, 0, 1);
    BOOST_TEST((bytes == expected));
    for (const std::size_t at : {std::size_t{0}, bytes.size() / 2, bytes.size() - 1}) bytes[at] ^= std::byte{1};
    there.write(bytes);
    std::uint64_t wrong = 0;
    checks_of(*stream).count_wrong({&box, 1}, wrong);
    finish(*stream);
    BOOST_TEST(wrong == 3U);
  }
}

BOOST_FIXTURE_TEST_CASE(memory_is_cleared_and_nothing_else, Gpu) {
  GpuBytes there(5000);
  const std::vector<std::byte> ones(5000, std::byte{0xff});
  there.write(ones);
  stream->clear(there.address() + 17, 4001);
  finish(*stream);
  std::vector<std::byte> expected = ones;
  std::fill_n(expected.begin() + 17, 4001, std::byte{0});
  BOOST_TEST((there.read() == expected));
}

// Without the wait, the second stream would finish long before the first.
BOOST_FIXTURE_TEST_CASE(a_stream_waits_for_what_another_one_records, Gpu) {
  const ByteCount bytes = fake_gpus() == nullptr ? 64u << 20 : 64u << 10;
  const auto memory = gpu_runtime().allocate(0, 3 * bytes);
  std::byte* const first = memory->address();
  const auto other = gpu_runtime().open_stream(0);
  for (std::uint64_t round = 1; round <= 5; ++round) {
    const GpuEvent event;
    const memory::ValueBox made = values(first, bytes, 1, round);
    checks_of(*stream).fill({&made, 1});
    const DeviceCopy next = dense_copy(first, first + bytes, bytes);
    stream->copy({&next, 1});
    stream->record(event.get());
    other->wait(event.get());
    const DeviceCopy last = dense_copy(first + bytes, first + 2 * bytes, bytes);
    other->copy({&last, 1});
    const memory::ValueBox expected = values(first + 2 * bytes, bytes, 1, round);
    std::uint64_t wrong = 0;
    checks_of(*other).count_wrong({&expected, 1}, wrong);
    finish(*other);
    BOOST_TEST(wrong == 0U);
    finish(*stream);
  }
}

BOOST_FIXTURE_TEST_CASE(pointers_say_where_they_point, Gpu) {
  auto memory = gpu_runtime().allocate(0, 1 << 20);
  const auto found = gpu_runtime().find(memory->address() + 1000, 1000);
  BOOST_REQUIRE(found.has_value());
  BOOST_TEST(found->device == 0);
  BOOST_TEST(!found->managed);
  BOOST_TEST((found->address <= memory->address()));
  BOOST_TEST((found->address + found->bytes >= memory->address() + memory->bytes()));
  BOOST_TEST((gpu_runtime().find(memory->address(), 1 << 20)->number == found->number));
  int local = 0;
  BOOST_TEST(!gpu_runtime().find(&local, sizeof local).has_value());
  const auto pinned = gpu_runtime().allocate_host(4096);
  BOOST_TEST(!gpu_runtime().find(pinned->address(), 4096).has_value());
  // After freeing, the address has another allocation or none.
  const std::byte* const address = memory->address();
  memory.reset();
  const auto again = gpu_runtime().allocate(0, 1 << 20);
  if (again->address() == address) BOOST_TEST(gpu_runtime().find(address, 1)->number != found->number);
}

BOOST_FIXTURE_TEST_CASE(what_cannot_be_had_is_a_typed_error_and_the_device_goes_on, Gpu) {
  const auto code_of = [](const auto& call) {
    try {
      call();
    } catch (const Error& error) {
      return error.code();
    }
    return ErrorCode::internal;
  };
  const int count = gpu_runtime().device_count();
  BOOST_TEST((code_of([&] { (void)gpu_runtime().allocate(count, 4096); }) == ErrorCode::invalid_argument));
  BOOST_TEST((code_of([&] { (void)gpu_runtime().open_stream(count); }) == ErrorCode::invalid_argument));
  if (fake_gpus() == nullptr) {
    BOOST_TEST((code_of([&] { (void)gpu_runtime().allocate(0, ByteCount{1} << 45); }) == ErrorCode::out_of_resources));
  }
  Batch batch;
  batch.add(maker, rows(100, 1000, 24, 0));
  check(batch);
}

// Offsets, strides and runs that exceed 32 bits, in copies made by a kernel instead of the copy engine.
BOOST_FIXTURE_TEST_CASE(places_past_four_gigabytes_are_reached, Gpu, *boost::unit_test::precondition(has_room)) {
  const auto from = gpu_runtime().allocate(0, many_bytes + 16);
  const auto to = gpu_runtime().allocate(0, many_bytes + 16);
  const memory::ValueBox made = values(from->address() + 1, many_bytes, 1, 3);
  const memory::ValueBox arrived = values(to->address() + 2, many_bytes, 1, 3);
  memory::ValueBox other = arrived;
  other.flip = ~std::uint64_t{0};
  checks_of(*stream).fill({&made, 1});
  const DeviceCopy run = dense_copy(from->address() + 1, to->address() + 2, many_bytes);
  // Two columns of as many rows of 512 bytes: small strides, large offsets.
  const Extent column = 512;
  const Extent count = static_cast<Extent>(many_bytes) / (2 * column);
  const Box band{{0, 0}, {count, column}};
  const PlacedBox placed{band, 0, {2 * column, 1}};
  const std::vector<DeviceCopy> bands{
      {StridedCopy(band, placed, placed, 1), from->address() + 1, to->address() + 2},
      {StridedCopy(band, placed, placed, 1), from->address() + 1 + column, to->address() + 2 + column}};
  for (const auto& copies : {std::vector<DeviceCopy>{run}, bands}) {
    checks_of(*stream).fill({&other, 1});
    stream->copy(copies);
    std::uint64_t wrong = 0;
    checks_of(*stream).count_wrong({&arrived, 1}, wrong);
    finish(*stream);
    BOOST_TEST(wrong == 0U);
  }
}

BOOST_AUTO_TEST_SUITE_END()

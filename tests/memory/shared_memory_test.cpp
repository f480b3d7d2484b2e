// SPDX-License-Identifier: Apache-2.0
#include "memory/shared_memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <utility>
#include <vector>

#include "shardwire/error.hpp"

BOOST_AUTO_TEST_SUITE(shared_memory)

using namespace shardwire;
using memory::SharedMemory;

namespace {

std::vector<support::Descriptor> copies_of(const SharedMemory& memory) {
  std::vector<support::Descriptor> out;
  for (const int descriptor : memory.descriptors()) out.emplace_back(::fcntl(descriptor, F_DUPFD_CLOEXEC, 0));
  return out;
}

ErrorCode refusal(ByteCount bytes, std::vector<support::Descriptor> chunks) {
  try {
    SharedMemory memory(bytes, std::move(chunks));
  } catch (const Error& error) {
    return error.code();
  }
  return ErrorCode::internal;
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_second_mapping_is_the_same_memory_and_outlives_the_first) {
  constexpr ByteCount bytes = 10'000;
  auto first = std::make_unique<SharedMemory>(bytes, SharedMemory::Pages::on_touch);
  SharedMemory second(bytes, copies_of(*first));
  std::fill_n(first->address(), bytes, std::byte{7});
  second.address()[bytes - 1] = std::byte{9};
  BOOST_TEST((first->address()[bytes - 1] == std::byte{9}));
  first.reset();
  BOOST_TEST((second.address()[0] == std::byte{7}));
}

BOOST_AUTO_TEST_CASE(sealed_memory_is_written_by_those_alone_that_have_it_mapped) {
  SharedMemory first(4096, SharedMemory::Pages::on_touch);
  SharedMemory second(4096, copies_of(first));
  BOOST_CHECK_THROW(first.require_sealed(), Error);
  second.seal();
  first.require_sealed();
  first.address()[0] = std::byte{1};
  second.address()[1] = std::byte{2};
  BOOST_TEST((refusal(4096, copies_of(first)) == ErrorCode::out_of_resources));  // no further writer
  const auto readers = copies_of(first);
  void* const read = ::mmap(nullptr, 4096, PROT_READ, MAP_SHARED, readers.front().get(), 0);
  BOOST_REQUIRE(read != MAP_FAILED);
  BOOST_TEST((static_cast<std::byte*>(read)[1] == std::byte{2}));
  ::munmap(read, 4096);
}

BOOST_AUTO_TEST_CASE(large_memory_consists_of_chunks) {
  const ByteCount bytes = memory::smallest_chunk_bytes + 5000;
  const SharedMemory first(bytes, SharedMemory::Pages::on_touch);
  BOOST_TEST(first.descriptors().size() == 2U);
  const SharedMemory second(bytes, copies_of(first));
  for (const ByteCount at : {ByteCount{0}, memory::smallest_chunk_bytes - 1, memory::smallest_chunk_bytes, bytes - 1}) {
    first.address()[at] = std::byte{5};
    BOOST_TEST((second.address()[at] == std::byte{5}));
  }
}

BOOST_AUTO_TEST_CASE(pages_can_be_taken_at_once) {
  constexpr ByteCount bytes = 1u << 20;
  const SharedMemory later(bytes, SharedMemory::Pages::on_touch);
  const SharedMemory now(bytes, SharedMemory::Pages::at_once);
  BOOST_TEST(later.untouched_bytes() == bytes);
  BOOST_TEST(now.untouched_bytes() == 0U);
}

BOOST_AUTO_TEST_CASE(descriptors_of_anything_else_are_refused) {
  const SharedMemory memory(8192, SharedMemory::Pages::on_touch);
  BOOST_TEST((refusal(8192, {}) == ErrorCode::transport_failed));
  BOOST_TEST((refusal(4096, copies_of(memory)) == ErrorCode::transport_failed));  // of another size
  auto both = copies_of(memory);
  for (auto& more : copies_of(memory)) both.push_back(std::move(more));
  BOOST_TEST((refusal(8192, std::move(both)) == ErrorCode::transport_failed));
  std::vector<support::Descriptor> pipe;
  pipe.emplace_back(::open("/dev/null", O_RDWR | O_CLOEXEC));
  BOOST_TEST((refusal(8192, std::move(pipe)) == ErrorCode::transport_failed));
  std::vector<support::Descriptor> unsealed;
  unsealed.emplace_back(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  BOOST_REQUIRE(::ftruncate(unsealed.front().get(), 8192) == 0);
  BOOST_TEST((refusal(8192, std::move(unsealed)) == ErrorCode::transport_failed));  // its owner can cut it short
}

BOOST_AUTO_TEST_SUITE_END()

// SPDX-License-Identifier: Apache-2.0
#include "memory/stream.hpp"

#include <boost/test/unit_test.hpp>
#include <cstdint>
#include <cstring>
#include <vector>

#include "memory/each_kernel.hpp"
#include "memory/strided_copy.hpp"
#include "support/bytes.hpp"

BOOST_AUTO_TEST_SUITE(stream)

using namespace shardwire;
using namespace shardwire::test;
using boost::unit_test::precondition;

namespace {

std::size_t end_of(const PlacedBox& side) {
  return static_cast<std::size_t>(side.local_offset + side.box.size[0] * side.local_strides[0]);
}

// Copies row by row.
void copy_rows(const Box& box, const PlacedBox& source, const PlacedBox& target, const std::byte* from, std::byte* to) {
  const auto first = [&](const PlacedBox& side, Extent row) {
    return side.local_offset + (row - side.box.offset[0]) * side.local_strides[0] + box.offset[1] - side.box.offset[1];
  };
  for (Extent row = box.offset[0]; row < box.offset[0] + box.size[0]; ++row) {
    std::memcpy(to + first(target, row), from + first(source, row), static_cast<std::size_t>(box.size[1]));
  }
}

void check_both_stores(const Box& box, const PlacedBox& source, const PlacedBox& target, std::size_t first_byte) {
  const auto from = numbered_bytes(end_of(source) + 64);
  const std::vector<std::byte> before(end_of(target) + 256, std::byte{0xa5});
  auto expected = before;
  // Aligned to a cache line: runs of whole lines may take a separate code path.
  const auto to_line = [&](std::vector<std::byte>& bytes) {
    return bytes.data() + 64 + -reinterpret_cast<std::uintptr_t>(bytes.data()) % 64 + first_byte;
  };
  const memory::StridedCopy copy(box, source, target, 1);
  for (const memory::Stores stores : {memory::Stores::cached, memory::Stores::streaming}) {
    auto bytes = before;
    copy.run_all(from.data(), to_line(bytes), stores);
    expected = before;
    copy_rows(box, source, target, from.data(), expected.data() + (to_line(bytes) - bytes.data()));
    BOOST_REQUIRE(same_bytes(bytes, expected));
  }
}

void check_strided_copies(std::string_view feature) {
  for (const memory::CopyKernel* kernel : kernels_with(feature)) {
    memory::kernel_choice().force(kernel->name);
    for (const Extent run :
         {Extent{64}, Extent{128}, Extent{256}, Extent{300}, Extent{512}, Extent{1300}, Extent{20000}}) {
      for (const Extent gap : {0, 64, 200}) {
        for (const std::size_t first_byte : {0, 1}) {
          BOOST_TEST_CONTEXT(kernel->name << ", runs of " << run << ", gaps of " << gap) {
            const Box box{{3, 500}, {20, run}};
            const PlacedBox source{Box{{0, 0}, {40, run + 700}}, 0, {run + 700, 1}};
            const PlacedBox target{box, 0, {run + gap, 1}};
            check_both_stores(box, source, target, first_byte);
            check_both_stores(box, target, source, first_byte);
          }
        }
      }
    }
  }
  memory::kernel_choice().force("");
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_strided_copy_touches_its_bytes_alone) {
  check_strided_copies("");
}
BOOST_AUTO_TEST_CASE(a_strided_copy_touches_its_bytes_alone_with_avx2, *precondition(can_run("avx2"))) {
  check_strided_copies("avx2");
}
BOOST_AUTO_TEST_CASE(a_strided_copy_touches_its_bytes_alone_with_avx512, *precondition(can_run("avx512f"))) {
  check_strided_copies("avx512f");
}

BOOST_AUTO_TEST_SUITE_END()

// SPDX-License-Identifier: Apache-2.0
#include "memory/kernels.hpp"

#include <algorithm>
#include <array>
#include <boost/test/unit_test.hpp>
#include <cstdint>
#include <random>
#include <set>
#include <span>
#include <vector>

#include "memory/each_kernel.hpp"
#include "memory/stream.hpp"
#include "support/bytes.hpp"
#include "support/seed.hpp"

BOOST_AUTO_TEST_SUITE(kernels)

using namespace shardwire;
using namespace shardwire::test;
using boost::unit_test::precondition;
using memory::CopyKernel;

namespace {

constexpr std::byte untouched{0xa5};

// Checks that bytes [at, at + size) equal the source, and that all others are unchanged.
void check_bytes(const std::vector<std::byte>& bytes, std::size_t at, const std::byte* source, std::size_t size,
                 const std::string& what) {
  const std::span all(bytes);
  BOOST_REQUIRE_MESSAGE(same_bytes(all.subspan(at, size), {source, size}), what << ": other bytes than in the source");
  BOOST_REQUIRE_MESSAGE(all_are(all.first(at), untouched), what << ": bytes before the target");
  BOOST_REQUIRE_MESSAGE(all_are(all.subspan(at + size), untouched), what << ": bytes behind the target");
}

void check_range(const CopyKernel& kernel, std::size_t size, std::size_t to, std::size_t from, bool keep) {
  constexpr std::size_t margin = 128;
  static const auto source = numbered_bytes((5u << 20) + 2 * margin);
  std::vector<std::byte> target(size + 2 * margin, untouched);
  std::vector<std::byte> kept(size + 2 * margin, untouched);
  const std::size_t kept_at = (to + from) % 64;
  memory::RangeCopier copier(kernel);
  copier.add(target.data() + to, source.data() + from, size, keep ? kept.data() + kept_at : nullptr);
  copier.finish();
  const std::string what = std::string(kernel.name) + ", " + std::to_string(size) + " bytes from " +
                           std::to_string(from) + " to " + std::to_string(to);
  check_bytes(target, to, source.data() + from, size, what);
  check_bytes(kept, keep ? kept_at : 0, source.data() + from, keep ? size : 0, what + ", kept");
}

void check_alignments(const CopyKernel& kernel) {
  for (const std::size_t size : {0, 1, 2, 15, 16, 63, 64, 65, 127, 128, 191, 1024, 4099}) {
    for (std::size_t to = 0; to < 64; to += 7) {
      for (std::size_t from = 0; from < 64; from += 9) check_range(kernel, size, to, from, (to + from) % 2 == 0);
    }
  }
}

// Lengths around the size of parts, and around multiples up to the number in flight at once.
void check_long_ranges(const CopyKernel& kernel) {
  for (const std::size_t size :
       {16383u, 16384u, 16385u, 65536u, 131072u + 64, 262144u + 1, 1u << 20, (3u << 20) + 77}) {
    for (const std::size_t to : {0, 1, 63}) {
      for (const bool keep : {false, true}) check_range(kernel, size, to, 5, keep);
    }
  }
}

// From none to more than are in flight at once, including split ranges, and one object for all of them.
void check_many_ranges(const CopyKernel& kernel) {
  std::mt19937_64 random(test_seed());
  memory::RangeCopier copier(kernel);
  constexpr std::size_t max_ranges = 40;
  static const auto all = numbered_bytes(max_ranges * 80000 + 64);
  for (std::size_t count = 0; count <= max_ranges; ++count) {
    const auto source = std::span(all).first(count * 80000 + 64);
    std::vector<std::byte> target(source.size(), untouched);
    std::vector<std::byte> expected = target;
    std::vector<std::byte> kept(source.size(), untouched);
    std::vector<std::byte> expected_kept = kept;
    std::size_t at = 0;
    std::size_t kept_at = 0;
    for (std::size_t range = 0; range < count; ++range) {
      constexpr std::array<std::size_t, 8> about{1, 64, 65, 600, 4000, 7168, 17000, 70000};
      const std::size_t size = 1 + random() % about[random() % about.size()];
      at += random() % 200;
      const std::size_t from = random() % (source.size() - size);
      copier.add(target.data() + at, source.data() + from, size, kept.data() + kept_at);
      const auto first = source.begin() + static_cast<std::ptrdiff_t>(from);
      std::copy_n(first, size, expected.begin() + static_cast<std::ptrdiff_t>(at));
      std::copy_n(first, size, expected_kept.begin() + static_cast<std::ptrdiff_t>(kept_at));
      at += size;
      kept_at += size;
    }
    copier.finish();
    BOOST_REQUIRE_MESSAGE(same_bytes(target, expected), kernel.name << ", " << count << " ranges");
    BOOST_REQUIRE_MESSAGE(same_bytes(kept, expected_kept), kernel.name << ", " << count << " ranges, kept");
  }
}

void check_kernels_with(std::string_view feature) {
  for (const CopyKernel* kernel : kernels_with(feature)) {
    BOOST_TEST_CONTEXT(kernel->name) {
      check_alignments(*kernel);
      check_long_ranges(*kernel);
      check_many_ranges(*kernel);
    }
  }
}

}  // namespace

BOOST_AUTO_TEST_CASE(what_needs_no_feature_copies_exactly_its_ranges) {
  check_kernels_with("");
}
BOOST_AUTO_TEST_CASE(what_needs_avx2_copies_exactly_its_ranges, *precondition(can_run("avx2"))) {
  check_kernels_with("avx2");
}
BOOST_AUTO_TEST_CASE(what_needs_avx512_copies_exactly_its_ranges, *precondition(can_run("avx512f"))) {
  check_kernels_with("avx512f");
}

BOOST_AUTO_TEST_CASE(no_kernel_is_left_out_above) {
  const std::set<std::string_view> tested{"", "avx2", "avx512f"};
  std::set<std::string_view> names;
  for (const CopyKernel& kernel : memory::copy_kernels()) {
    BOOST_TEST(tested.contains(kernel.feature));
    BOOST_TEST(names.insert(kernel.name).second);
  }
  BOOST_TEST((memory::cached_kernel().stores == memory::Stores::cached));
}

BOOST_AUTO_TEST_SUITE_END()

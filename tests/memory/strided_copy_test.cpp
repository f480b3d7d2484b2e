// SPDX-License-Identifier: Apache-2.0
#define BOOST_TEST_NO_MAIN
#include "memory/strided_copy.hpp"

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <cstring>
#include <limits>

#include "memory/layouts.hpp"
#include "shardwire/error.hpp"
#include "support/seed.hpp"

BOOST_AUTO_TEST_SUITE(strided_copy)

namespace data = boost::unit_test::data;
using namespace shardwire;
using memory::packed;
using memory::StridedCopy;

namespace {

constexpr std::size_t margin = 3;  // makes every address odd, and detects writes before the buffer

struct Case {
  Box box;
  PlacedBox source, target;
  std::size_t item;
  std::vector<std::byte> from, to, expected;
};

Case make_case(layouts::Maker& maker, std::size_t item, std::size_t most_dims = max_dims) {
  Case result;
  result.box = maker.box(maker.below(most_dims + 1));
  result.source = maker.place(result.box);
  result.target = maker.below(3) == 0 ? packed(result.box) : maker.place(result.box);
  result.item = item;
  result.from = maker.bytes(margin + layouts::extent_of(result.source) * item);
  result.to = maker.bytes(margin + layouts::extent_of(result.target) * item + margin);
  result.expected = result.to;
  const auto source = layouts::elements_of(result.box, result.source);
  const auto target = layouts::elements_of(result.box, result.target);
  for (std::size_t i = 0; i < source.size(); ++i) {
    std::memcpy(&result.expected[margin + target[i] * item], &result.from[margin + source[i] * item], item);
  }
  return result;
}

void check_invalid(const Box& box, const PlacedBox& source, const PlacedBox& target, ByteCount item = 4) {
  BOOST_CHECK_EXCEPTION(StridedCopy(box, source, target, item), Error,
                        [](const Error& error) { return error.code() == ErrorCode::invalid_argument; });
}

}  // namespace

BOOST_DATA_TEST_CASE(copies_what_an_element_wise_copy_does, data::make({1, 2, 4, 8, 3, 16, 24, 4096}), item) {
  layouts::Maker maker(test_seed() + static_cast<unsigned>(item));
  for (int round = 0; round < layouts::rounds_for(item, 150); ++round) {
    Case c = make_case(maker, static_cast<std::size_t>(item), layouts::dims_for(item));
    const StridedCopy copy(c.box, c.source, c.target, c.item);
    BOOST_REQUIRE_EQUAL(copy.bytes(), static_cast<ByteCount>(c.box.volume()) * c.item);
    copy.run_all(c.from.data() + margin, c.to.data() + margin);
    BOOST_REQUIRE_MESSAGE(c.to == c.expected, "box " << to_string(c.box));
  }
}

BOOST_DATA_TEST_CASE(resumes_at_every_run, data::make({1, 4}), item) {
  layouts::Maker maker(test_seed() + static_cast<unsigned>(item));
  for (int round = 0; round < 40; ++round) {
    const Case c = make_case(maker, static_cast<std::size_t>(item));
    const StridedCopy copy(c.box, c.source, c.target, c.item);
    for (ByteCount cut = 0; cut <= copy.runs(); ++cut) {
      std::vector<std::byte> to = c.to;
      copy.run(c.from.data() + margin, to.data() + margin, cut, copy.runs() - cut);
      copy.run(c.from.data() + margin, to.data() + margin, 0, cut);
      BOOST_REQUIRE(to == c.expected);
    }
    std::vector<std::byte> to = c.to;
    for (ByteCount run = 0; run < copy.runs();) {
      const ByteCount count = std::min<ByteCount>(1 + maker.below(5), copy.runs() - run);
      copy.run(c.from.data() + margin, to.data() + margin, run, count);
      run += count;
    }
    BOOST_REQUIRE(to == c.expected);
  }
}

BOOST_AUTO_TEST_CASE(parts_by_way_of_dense_memory_copy_the_same) {
  layouts::Maker maker(test_seed());
  for (int round = 0; round < 300; ++round) {
    Case c = make_case(maker, 4);
    const StridedCopy copy(c.box, c.source, c.target, c.item);
    const ByteCount limit = 1 + maker.below(100);
    std::vector<StridedCopy> parts;
    copy.split(limit, parts);
    ByteCount bytes = 0;
    for (const StridedCopy& part : parts) {
      BOOST_REQUIRE(part.bytes() <= limit);
      bytes += part.bytes();
      const StridedCopy into = part.into_dense();
      const StridedCopy out = part.from_dense();
      BOOST_REQUIRE(into.bytes() == part.bytes());
      BOOST_REQUIRE(into.target_span().end == part.bytes());
      BOOST_REQUIRE(out.source_span().end == part.bytes());
      BOOST_REQUIRE(part.source_span().end <= copy.source_span().end);
      BOOST_REQUIRE(part.target_span().end <= copy.target_span().end);
      std::vector<std::byte> dense(part.bytes());
      into.run_all(&c.from[margin], dense.data());
      out.run_all(dense.data(), &c.to[margin]);
    }
    BOOST_REQUIRE(bytes == copy.bytes());
    BOOST_REQUIRE(c.to == c.expected);
  }
}

BOOST_AUTO_TEST_CASE(spans_are_exactly_what_is_touched) {
  layouts::Maker maker(test_seed());
  for (int round = 0; round < 200; ++round) {
    const Case c = make_case(maker, 4);
    const StridedCopy copy(c.box, c.source, c.target, c.item);
    const auto check = [&](StridedCopy::Span span, const PlacedBox& side) {
      const auto elements = layouts::elements_of(c.box, side);
      BOOST_CHECK_EQUAL(span.first, *std::min_element(elements.begin(), elements.end()) * 4);
      BOOST_CHECK_EQUAL(span.end, *std::max_element(elements.begin(), elements.end()) * 4 + 4);
    };
    check(copy.source_span(), c.source);
    check(copy.target_span(), c.target);
  }
}

BOOST_AUTO_TEST_CASE(dims_contiguous_on_both_sides_become_one_run) {
  const PlacedBox tensor = packed({{0, 0, 0}, {8, 6, 4}});
  const auto runs = [&](const Box& box) {
    const StridedCopy copy(box, tensor, packed(box), 2);
    return std::pair(copy.runs(), copy.run_bytes());
  };
  BOOST_CHECK(runs({{0, 0, 0}, {8, 6, 4}}) == std::pair(ByteCount{1}, ByteCount{384}));
  BOOST_CHECK(runs({{2, 0, 0}, {3, 6, 4}}) == std::pair(ByteCount{1}, ByteCount{144}));
  BOOST_CHECK(runs({{0, 1, 0}, {8, 2, 4}}) == std::pair(ByteCount{8}, ByteCount{16}));
  BOOST_CHECK(runs({{0, 0, 1}, {8, 6, 2}}) == std::pair(ByteCount{48}, ByteCount{4}));
  BOOST_CHECK(runs({{3, 2, 1}, {1, 1, 3}}) == std::pair(ByteCount{1}, ByteCount{6}));
  BOOST_CHECK(runs({{0, 3, 2}, {8, 1, 1}}) == std::pair(ByteCount{8}, ByteCount{2}));
}

BOOST_AUTO_TEST_CASE(an_empty_box_copies_nothing) {
  const Box none{{1, 2}, {0, 3}};
  const StridedCopy copy(none, packed({{0, 0}, {4, 8}}), packed(none), 4);
  BOOST_CHECK_EQUAL(copy.runs(), 0u);
  BOOST_CHECK_EQUAL(copy.bytes(), 0u);
  BOOST_CHECK_EQUAL(copy.source_span().end, 0u);
  copy.run_all(nullptr, nullptr);
}

BOOST_AUTO_TEST_CASE(offsets_past_32_bits_are_exact) {
  const Box tensor{{0, 0}, {1 << 20, 1 << 14}};
  const Box corner{{(1 << 20) - 2, (1 << 14) - 1}, {2, 1}};
  const StridedCopy copy(corner, packed(tensor), packed(corner), 8);
  BOOST_CHECK_EQUAL(copy.source_span().end, (ByteCount{1} << 34) * 8);
  BOOST_CHECK_EQUAL(copy.runs(), 2u);
}

BOOST_AUTO_TEST_CASE(what_leaves_its_box_or_64_bits_is_refused) {
  constexpr Extent huge = std::numeric_limits<Extent>::max();
  const Box box{{0, 0}, {2, 2}};
  const PlacedBox good = packed(box);
  check_invalid({{0, 0}, {2, 3}}, good, good);
  check_invalid({{0}, {2}}, good, good);
  check_invalid(box, {box, 0, {1}}, good);
  check_invalid(box, {box, huge, {2, 1}}, good);
  check_invalid(box, good, {box, 0, {huge, 1}});
  check_invalid(box, {box, -1, {2, 1}}, good);
  check_invalid(box, {box, 0, {-2, 1}}, good);
  check_invalid(box, good, good, 0);
  const StridedCopy copy(box, good, good, 4);
  std::byte bytes[16] = {};
  BOOST_CHECK_THROW(copy.run(bytes, bytes, 1, 1), Error);
  BOOST_CHECK_THROW(copy.run(bytes, bytes, 0, 2), Error);
}

BOOST_AUTO_TEST_SUITE_END()

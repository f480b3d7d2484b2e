// SPDX-License-Identifier: Apache-2.0
#define BOOST_TEST_NO_MAIN
#include "wire/runs.hpp"

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include "support/seed.hpp"
#include "wire/samples.hpp"

BOOST_AUTO_TEST_SUITE(wire_runs)

namespace data = boost::unit_test::data;
using namespace samples;

namespace {

const Bytes word(8);  // an Input needs some message to refer to

std::vector<MemberRun> decoded(const Bytes& bytes) {
  const Input in("Runs", word);
  return decode_runs(bytes, in);
}

Bytes bytes_of(std::initializer_list<int> values) {
  Bytes bytes;
  for (const int value : values) bytes.push_back(static_cast<std::byte>(value));
  return bytes;
}

struct Hostile {
  const char* what;
  Bytes bytes;
};
std::ostream& operator<<(std::ostream& out, const Hostile& hostile) {
  return out << hostile.what;
}

// Heads are (members skipped) * 4 + 1 for "many" + 2 for "another group".
const std::vector<Hostile> hostile{
    {"a number that does not end", bytes_of({0x80})},
    {"a number of too many bits", bytes_of({0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01})},
    {"a run that ends before its count", bytes_of({0x01})},
    {"a run that ends before its group", bytes_of({0x02})},
    {"a run that ends before its place", bytes_of({0x02, 0x05})},
    {"a member past the last", bytes_of({0x84, 0x80, 0x80, 0x20})},
    {"members past the last", bytes_of({0x01, 0x80, 0x80, 0x80, 0x08})},
    {"a count of 2^50", bytes_of({0x01, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01})},
    {"a group of 33 bits", bytes_of({0x02, 0x80, 0x80, 0x80, 0x80, 0x10, 0x00})},
    {"a place below 0", bytes_of({0x02, 0x01, 0x01})},
    {"a place past the last", bytes_of({0x02, 0x01, 0x82, 0x80, 0x80, 0x10})},
    {"a shift of 2^54", bytes_of({0x02, 0x01, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f})},
};

}  // namespace

BOOST_AUTO_TEST_CASE(runs_survive_a_round_trip) {
  Maker maker(test_seed());
  for (int round = 0; round < 2000; ++round) {
    const std::vector<MemberRun> original = maker.runs(1u << maker.below(32));
    BOOST_CHECK(decoded(encode_runs(original)) == original);
  }
  const std::vector<MemberRun> widest{{0, (1 << 24) + 1, 0, 0xffffffff}};
  BOOST_CHECK(decoded(encode_runs(widest)) == widest);
  BOOST_CHECK(decoded({}).empty());
}

BOOST_AUTO_TEST_CASE(sixteen_stages_of_a_thousand_members_take_five_bytes_each) {
  std::vector<MemberRun> stages;
  for (std::int32_t stage = 0; stage < 16; ++stage) {
    stages.push_back({1024 * stage, 1024, 1024 * stage, static_cast<std::uint32_t>(stage) + 1});
  }
  BOOST_CHECK_LE(encode_runs(stages).size(), 16u * 5);
}

BOOST_AUTO_TEST_CASE(single_members_take_two_bytes_each) {
  std::vector<MemberRun> some;
  for (std::int32_t member = 0; member < 16384; member += 100) some.push_back({member, 1, member, 1});
  BOOST_CHECK_LE(encode_runs(some).size(), 2 * some.size() + 4);
}

BOOST_AUTO_TEST_CASE(runs_that_overlap_or_go_back_are_not_written) {
  const std::vector<std::vector<MemberRun>> wrong{
      {{0, 4, 0, 1}, {3, 1, 3, 1}}, {{5, 1, 5, 1}, {4, 1, 4, 1}}, {{-1, 1, 0, 1}}, {{0, 0, 0, 1}}};
  for (const auto& one : wrong) BOOST_CHECK_THROW((void)encode_runs(one), Error);
}

BOOST_DATA_TEST_CASE(bytes_that_are_no_runs_are_refused, data::make(hostile), sample) {
  BOOST_CHECK_EXCEPTION((void)decoded(sample.bytes), Error,
                        [](const Error& error) { return error.code() == ErrorCode::transport_failed; });
}

BOOST_AUTO_TEST_CASE(what_random_bytes_say_is_ascending_disjoint_and_in_bounds) {
  Maker maker(test_seed());
  for (int round = 0; round < 20000; ++round) {
    std::vector<MemberRun> result;
    try {
      result = decoded(maker.bytes(40));
    } catch (const Error& error) {
      BOOST_REQUIRE(error.code() == ErrorCode::transport_failed);
      continue;
    }
    std::int64_t end = 0;
    for (const MemberRun& run : result) {
      BOOST_REQUIRE(run.first >= end && run.count >= 1 && run.layout_rank >= 0);
      end = std::int64_t{run.first} + run.count;
      BOOST_REQUIRE(end <= max_rank + 1 && (run.group == 0 || run.layout_rank + run.count <= max_rank + 1));
    }
    BOOST_REQUIRE(decoded(encode_runs(result)) == result);
  }
}

BOOST_AUTO_TEST_CASE(more_runs_than_a_message_may_have_are_refused) {
  BOOST_CHECK_EQUAL(decoded(Bytes(max_boxes_per_message)).size(), max_boxes_per_message);
  BOOST_CHECK_THROW((void)decoded(Bytes(max_boxes_per_message + 1)), Error);
}

BOOST_AUTO_TEST_SUITE_END()

// SPDX-License-Identifier: Apache-2.0
#include "move/rounds.hpp"

#include <algorithm>
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <functional>
#include <map>
#include <numeric>
#include <set>

#include "shardwire/error.hpp"
#include "support/random_layout.hpp"

BOOST_AUTO_TEST_SUITE(rounds)

using namespace shardwire;
using namespace shardwire::move;
using move::Stream;  // not that of runtime
using test::pick;
using test::Random;
namespace data = boost::unit_test::data;

namespace {

using Rounds = std::vector<Round>;

struct Job {
  std::vector<Stream> streams;
  RoundLimits limits;

  [[nodiscard]] std::vector<Rounds> all() const {
    std::vector<Rounds> rounds;
    for (int member = 0; member < limits.members; ++member) rounds.push_back(plan_rounds(streams, limits, member));
    return rounds;
  }
};

ByteCount bytes_of(const Stream& stream) {
  return std::transform_reduce(stream.pieces.begin(), stream.pieces.end(), ByteCount{0}, std::plus<>{},
                               [](const StreamPiece& piece) { return piece.bytes; });
}

StreamPiece random_piece(Random& random) {
  const ByteCount item = ByteCount{1} << pick(random, 0, 3);
  const ByteCount run =
      item * static_cast<ByteCount>(pick(random, 0, 3) == 0 ? pick(random, 1, 3000) : pick(random, 1, 40));
  return {run * static_cast<ByteCount>(pick(random, 0, 12)), run, item};
}

Job random_job(Random& random) {
  // Sometimes less than one element for each stream that needs staging.
  const bool tight = pick(random, 0, 2) == 0;
  const int staging = tight ? pick(random, 8, 64) : pick(random, 4000, 60'000);
  Job job{{}, {.members = pick(random, 1, tight ? 8 : 40), .staging_bytes = static_cast<ByteCount>(staging)}};
  job.limits.in_place_bytes = static_cast<ByteCount>(pick(random, 64, 8000));
  job.limits.max_operations = pick(random, 0, 2) == 0 ? pick(random, 1, 9) : 256;
  const int density = pick(random, 1, 10);
  for (int from = 0; from < job.limits.members; ++from) {
    for (int to = 0; to < job.limits.members; ++to) {
      if (from == to || pick(random, 1, 10) > density) continue;
      Stream& stream = job.streams.emplace_back(Stream{from, to, {}});
      for (int i = pick(random, 0, 4); i > 0; --i) stream.pieces.push_back(random_piece(random));
    }
  }
  std::shuffle(job.streams.begin(), job.streams.end(), random);  // the order of notes must not matter
  return job;
}

// Checks that a part in place is valid, and that a staged part splits no element.
bool lies_well(const Stream& stream, const RoundPart& part, ByteCount in_place_bytes) {
  ByteCount offset = 0;
  for (const StreamPiece& piece : stream.pieces) {
    const ByteCount end = offset + piece.bytes;
    const bool touched = piece.bytes > 0 && part.offset_bytes < end && part.offset_bytes + part.bytes > offset;
    if (touched) {
      const ByteCount first = std::max(part.offset_bytes, offset) - offset;
      const ByteCount part_end = std::min(part.offset_bytes + part.bytes, end) - offset;
      const bool long_runs = piece.run_bytes >= in_place_bytes;
      if (part.in_place != long_runs || first % piece.item_bytes != 0 || part_end % piece.item_bytes != 0) return false;
      if (part.in_place && (first % piece.run_bytes != 0 || part.bytes != piece.run_bytes)) return false;
    }
    offset = end;
  }
  return true;
}

void check_bounds(const Rounds& rounds, const RoundLimits& limits) {
  for (const Round& round : rounds) {
    ByteCount staged = 0;
    for (const auto* parts : {&round.sends, &round.receives}) {
      std::set<int> peers;
      for (const RoundPart& part : *parts) {
        BOOST_REQUIRE(peers.insert(part.peer).second);
        BOOST_REQUIRE(part.bytes > 0);
        if (!part.in_place) staged += part.bytes;
      }
    }
    BOOST_REQUIRE(staged <= limits.staging_bytes);
    BOOST_REQUIRE(static_cast<int>(round.sends.size() + round.receives.size()) <= limits.max_operations);
  }
}

// Every stream's bytes move once and in order, and each send is in the same round as a receive of the same bytes.
void check_streams(const Job& job, const std::vector<Rounds>& all) {
  std::map<std::pair<int, int>, std::vector<std::pair<std::size_t, RoundPart>>> sent;
  std::map<std::pair<int, int>, std::vector<std::pair<std::size_t, RoundPart>>> received;
  for (int member = 0; member < job.limits.members; ++member) {
    const Rounds& rounds = all[static_cast<std::size_t>(member)];
    BOOST_REQUIRE(rounds.size() == all.front().size());
    for (std::size_t i = 0; i < rounds.size(); ++i) {
      for (const RoundPart& part : rounds[i].sends) {
        sent[{member, part.peer}].push_back({i, {0, part.offset_bytes, part.bytes, part.in_place}});
      }
      for (const RoundPart& part : rounds[i].receives) {
        received[{part.peer, member}].push_back({i, {0, part.offset_bytes, part.bytes, part.in_place}});
      }
    }
  }
  BOOST_REQUIRE((sent == received));
  for (const Stream& stream : job.streams) {
    ByteCount offset = 0;
    for (const auto& [round, part] : sent[{stream.from, stream.to}]) {
      BOOST_REQUIRE(part.offset_bytes == offset);
      BOOST_REQUIRE(lies_well(stream, part, job.limits.in_place_bytes));
      offset += part.bytes;
    }
    BOOST_REQUIRE(offset == bytes_of(stream));
    sent.erase({stream.from, stream.to});
  }
  BOOST_REQUIRE(sent.empty());
}

// Members enter the next round only when all partners of the current one have entered theirs, like a collective that
// starts nothing before both sides of a message are posted. Returns whether all reach the end.
bool ends_when_rounds_block(const std::vector<Rounds>& all) {
  std::vector<std::size_t> at(all.size(), 0);
  const auto partners_are_there = [&](std::size_t member) {
    const Round& round = all[member][at[member]];
    const auto there = [&](const RoundPart& part) {
      const auto peer = static_cast<std::size_t>(part.peer);
      if (at[peer] == all[peer].size()) return false;
      const Round& theirs = all[peer][at[peer]];
      const auto& other = &part >= round.sends.data() && &part < round.sends.data() + round.sends.size()
                              ? theirs.receives
                              : theirs.sends;
      return std::ranges::any_of(other, [&](const RoundPart& match) {
        return match.peer == static_cast<int>(member) && match.bytes == part.bytes;
      });
    };
    return std::ranges::all_of(round.sends, there) && std::ranges::all_of(round.receives, there);
  };
  while (true) {
    std::vector<std::size_t> ready;
    bool over = true;
    for (std::size_t member = 0; member < all.size(); ++member) {
      if (at[member] == all[member].size()) continue;
      over = false;
      if (partners_are_there(member)) ready.push_back(member);
    }
    if (over) return true;
    if (ready.empty()) return false;
    // A round ends for all its partners together; a member that waits for others must not go ahead of them.
    std::vector<std::size_t> moving;
    for (const std::size_t member : ready) {
      const Round& round = all[member][at[member]];
      const auto is_ready = [&](const RoundPart& part) {
        return std::ranges::binary_search(ready, static_cast<std::size_t>(part.peer));
      };
      if (std::ranges::all_of(round.sends, is_ready) && std::ranges::all_of(round.receives, is_ready))
        moving.push_back(member);
    }
    if (moving.empty()) return false;
    for (const std::size_t member : moving) ++at[member];
  }
}

}  // namespace

BOOST_DATA_TEST_CASE(every_byte_goes_once_and_both_sides_of_it_are_in_one_round, data::xrange(60), repeat) {
  Random random(test::seed() + static_cast<std::uint64_t>(repeat));
  const Job job = random_job(random);
  const auto all = job.all();
  for (const Rounds& rounds : all) check_bounds(rounds, job.limits);
  check_streams(job, all);
}

BOOST_AUTO_TEST_CASE(three_hundred_members_have_no_more_than_256_operations) {
  Job hub{{}, {.members = 300, .staging_bytes = 1 << 20}};
  for (int member = 1; member < 300; ++member) {
    hub.streams.push_back({member, 0, {{4000, 40, 4}}});
    hub.streams.push_back({0, member, {{400, 40, 4}}});
    hub.streams.push_back({member, member % 299 + 1, {{80, 8, 8}}});
  }
  const auto all = hub.all();
  check_streams(hub, all);
  std::size_t most = 0;
  for (const Rounds& rounds : all) {
    check_bounds(rounds, hub.limits);
    for (const Round& round : rounds) most = std::max(most, round.sends.size() + round.receives.size());
  }
  BOOST_TEST(most == 256);
}

// All with all: 598 operations of each member in only three rounds.
BOOST_AUTO_TEST_CASE(three_hundred_members_that_all_talk_with_all_need_few_rounds) {
  Job job{{}, {.members = 300, .staging_bytes = 1 << 20}};
  for (int from = 0; from < 300; ++from) {
    for (int to = 0; to < 300; ++to) {
      if (from != to) job.streams.push_back({from, to, {{800, 40, 4}}});
    }
  }
  for (const int member : {0, 1, 150, 299}) {
    const Rounds rounds = plan_rounds(job.streams, job.limits, member);
    check_bounds(rounds, job.limits);
    BOOST_TEST(rounds.size() == 3);
  }
}

// Found with blocking executors: a schedule whose rounds differ between two members never ends.
BOOST_DATA_TEST_CASE(members_that_block_in_every_round_all_come_to_the_end, data::xrange(30), repeat) {
  Random random(test::seed() + 1000 + static_cast<std::uint64_t>(repeat));
  auto all = random_job(random).all();
  BOOST_TEST(ends_when_rounds_block(all));
  const auto busy = std::ranges::find_if(all, [](const Rounds& rounds) {
    return std::ranges::any_of(rounds, [](const Round& round) { return !round.sends.empty(); });
  });
  if (busy == all.end()) return;
  const auto first = std::ranges::find_if(*busy, [](const Round& round) { return !round.sends.empty(); });
  first->sends.pop_back();  // now one member waits for a send that does not come
  BOOST_TEST(!ends_when_rounds_block(all));
}

BOOST_AUTO_TEST_CASE(long_runs_go_in_place_and_short_ones_share_messages) {
  const Job job{{{0, 1, {{96, 8, 8}, {3000, 1000, 8}, {96, 8, 8}, {96, 8, 8}}}},
                {.members = 2, .staging_bytes = 400, .in_place_bytes = 1000}};
  const auto rounds = plan_rounds(job.streams, job.limits, 0);
  const std::vector<RoundPart> expected{
      {1, 0, 96, false}, {1, 96, 1000, true}, {1, 1096, 1000, true}, {1, 2096, 1000, true}, {1, 3096, 192, false}};
  BOOST_REQUIRE(rounds.size() == expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) BOOST_TEST((rounds[i].sends == std::vector{expected[i]}));
}

BOOST_AUTO_TEST_CASE(who_is_left_alone_has_all_of_the_staging) {
  const Job job{{{0, 1, {{1000, 1, 1}}}, {0, 2, {{10'000, 1, 1}}}}, {.members = 3, .staging_bytes = 1000}};
  const auto rounds = plan_rounds(job.streams, job.limits, 0);
  BOOST_REQUIRE(!rounds.empty());
  BOOST_TEST(rounds.front().sends.size() == 2);
  BOOST_TEST(rounds.back().sends.size() == 1);
  BOOST_TEST(rounds.size() == 11);  // 11,000 bytes through 1000
}

BOOST_AUTO_TEST_CASE(a_budget_of_less_than_one_element_is_refused) {
  const Job job{{{0, 1, {{64, 8, 8}}}}, {.members = 2, .staging_bytes = 7}};
  BOOST_CHECK_EXCEPTION(plan_rounds(job.streams, job.limits, 0), Error,
                        [](const Error& e) { return e.code() == ErrorCode::out_of_resources; });
}

BOOST_AUTO_TEST_CASE(nothing_to_move_takes_no_round) {
  BOOST_TEST(plan_rounds({}, {.members = 3}, 0).empty());
  const std::vector<Stream> empty{{0, 1, {{0, 8, 8}}}, {1, 0, {}}};
  BOOST_TEST(plan_rounds(empty, {.members = 3}, 0).empty());
}

BOOST_AUTO_TEST_SUITE_END()

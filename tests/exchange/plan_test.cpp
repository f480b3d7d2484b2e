// SPDX-License-Identifier: Apache-2.0
#define BOOST_TEST_NO_MAIN
#include "exchange/exchange_plan.hpp"

#include <boost/test/unit_test.hpp>
#include <map>
#include <random>
#include <set>

#include "support/sanitizer.hpp"
#include "support/seed.hpp"

BOOST_AUTO_TEST_SUITE(exchange_plan)

using namespace shardwire;
using wire::ExchangeNote;
using wire::ExchangePart;
using wire::ExchangeWrite;

namespace {

// A member with tensors "0" to "n - 1" of `bytes` each; writing tensor i destroys the tensors in destroys[i].
ExchangeNote note_of(const std::vector<std::vector<std::uint32_t>>& destroys, ByteCount bytes) {
  ExchangeNote note;
  for (std::uint32_t i = 0; i < destroys.size(); ++i) {
    note.parts.push_back({{std::to_string(i), "m"}, 0, 1});
    note.writes.push_back({i, bytes, destroys[i]});
  }
  return note;
}

// Carries out the plans of all members and checks every rule. Returns each member's staging peak.
std::vector<ByteCount> check(const std::vector<ExchangeNote>& notes, const std::vector<ExchangePlan>& plans) {
  std::vector<ByteCount> most(notes.size(), 0);
  std::vector<ByteCount> staged(notes.size(), 0);
  std::vector<std::set<ExchangePart>> waiting(notes.size());
  std::vector<std::set<ExchangePart>> written(notes.size());
  std::set<ExchangePart> read;  // by all members, before the last barrier
  const auto write_of = [&](std::size_t member, const ExchangePart& part) -> const ExchangeWrite& {
    for (const ExchangeWrite& write : notes[member].writes) {
      if (notes[member].parts[write.part] == part) return write;
    }
    throw std::logic_error("no such write");
  };
  // Parts that only occupy a destination are read in the first wave.
  const std::vector<ExchangePart>& ordered = plans.front().parts;
  const auto needed = [&](std::size_t wave, const ExchangePart& part) {
    return wave == 0 || std::binary_search(ordered.begin(), ordered.end(), part) ? !read.contains(part) : false;
  };
  for (std::size_t wave = 0; wave < plans.front().waves.size(); ++wave) {
    std::set<ExchangePart> now;
    for (std::size_t m = 0; m < notes.size(); ++m) {
      BOOST_TEST_REQUIRE(plans[m].waves.size() == plans.front().waves.size());
      for (const ExchangeWave::Read& one : plans[m].waves[wave].reads) {
        const ExchangePart& part = plans[m].parts[one.part];
        const ExchangeWrite& write = write_of(m, part);
        now.insert(part);
        BOOST_TEST(!read.contains(part));  // all members read it in the same wave
        if (one.staged) {
          staged[m] += write.bytes;
          waiting[m].insert(part);
        } else {
          for (const std::uint32_t other : write.destroys) BOOST_TEST(!needed(wave, notes[m].parts[other]));
          BOOST_TEST(written[m].insert(part).second);
        }
      }
      most[m] = std::max(most[m], staged[m]);
    }
    read.merge(now);
    for (std::size_t m = 0; m < notes.size(); ++m) {
      for (const std::uint32_t index : plans[m].waves[wave].writes) {
        const ExchangePart& part = plans[m].parts[index];
        const ExchangeWrite& write = write_of(m, part);
        BOOST_TEST(waiting[m].erase(part) == 1U);
        for (const std::uint32_t other : write.destroys) BOOST_TEST(!needed(wave + 1, notes[m].parts[other]));
        BOOST_TEST(written[m].insert(part).second);
        staged[m] -= write.bytes;
      }
    }
  }
  for (std::size_t m = 0; m < notes.size(); ++m) {
    BOOST_TEST(waiting[m].empty());
    BOOST_TEST(written[m].size() == notes[m].writes.size());
    BOOST_TEST(most[m] == plans[m].staging_bytes);
  }
  return most;
}

std::vector<ExchangePlan> plan_all(const std::vector<ExchangeNote>& notes, ByteCount budget) {
  std::vector<ExchangePlan> plans;
  for (int member = 0; member < static_cast<int>(notes.size()); ++member) {
    plans.push_back(plan_exchange(notes, budget, member));
  }
  return plans;
}

}  // namespace

BOOST_AUTO_TEST_CASE(nothing_in_the_way_needs_no_wave) {
  BOOST_TEST(plan_exchange(std::vector<ExchangeNote>(3), 0, 1).waves.empty());
}

BOOST_AUTO_TEST_CASE(a_tensor_on_its_own_memory_takes_staging_for_itself_only) {
  const std::vector<ExchangeNote> notes{note_of({{0}, {1}, {2}}, 10)};
  for (const ByteCount budget : {10, 20, 30, 100}) {
    const auto plans = plan_all(notes, budget);
    BOOST_TEST(check(notes, plans).front() <= budget);
  }
  BOOST_TEST(plan_all(notes, 30).front().waves.size() == 1U);
  const auto small = plan_all(notes, 9).front();
  BOOST_REQUIRE(small.shortage);
  BOOST_TEST(small.shortage->bytes == 10U);
}

BOOST_AUTO_TEST_CASE(a_chain_is_walked_from_its_free_end_without_staging_where_it_can_be) {
  // 0 destroys 1, 1 destroys 2, and so on: the last destroys nothing.
  const std::vector<ExchangeNote> notes{note_of({{1}, {2}, {3}, {3}}, 10)};
  const auto plans = plan_all(notes, 10);
  BOOST_TEST(!plans.front().shortage);
  check(notes, plans);
}

BOOST_AUTO_TEST_CASE(two_tensors_that_swap_take_staging_for_both_at_once) {
  const std::vector<ExchangeNote> notes{note_of({{1}, {0}}, 10)};
  check(notes, plan_all(notes, 20));
  // With staging for one part, the other is read directly to its destination after the first was read.
  const auto plans = plan_all(notes, 10);
  BOOST_TEST(!plans.front().shortage);
  check(notes, plans);
}

BOOST_AUTO_TEST_CASE(neighbours_in_each_others_way_take_staging_for_a_few_not_for_all) {
  // Shifted to the left on one member, to the right on the other: a single cycle of all tensors.
  std::vector<std::vector<std::uint32_t>> left(100);
  std::vector<std::vector<std::uint32_t>> right(100);
  for (std::uint32_t i = 0; i < 100; ++i) {
    left[i] = i == 0 ? std::vector<std::uint32_t>{0} : std::vector<std::uint32_t>{i - 1, i};
    right[i] = i == 99 ? std::vector<std::uint32_t>{99} : std::vector<std::uint32_t>{i, i + 1};
  }
  const std::vector<ExchangeNote> notes{note_of(left, 10), note_of(right, 10)};
  const auto plans = plan_all(notes, 40);
  BOOST_REQUIRE(!plans.front().shortage);
  check(notes, plans);
}

BOOST_AUTO_TEST_CASE(all_members_find_the_same_shortage_with_what_it_takes) {
  const std::vector<ExchangeNote> notes{note_of({{0, 1, 2}, {0, 1, 2}, {0, 1, 2}}, 10), {}};
  const auto plans = plan_all(notes, 29);
  BOOST_REQUIRE(plans[0].shortage);
  BOOST_TEST((plans[0].shortage == plans[1].shortage));
  BOOST_TEST(plans[0].shortage->bytes == 30U);
  BOOST_TEST(plans[0].shortage->waiting.size() == 3U);
  BOOST_TEST(!plan_all(notes, 30)[0].shortage);
}

BOOST_AUTO_TEST_CASE(what_nobody_orders_is_read_in_the_first_wave_and_not_overwritten_in_it) {
  ExchangeNote note;
  note.parts = {{{"w", "m"}, 0, 1}, {{"in the way", "m"}, 0, 1}};
  note.writes = {{0, 10, {1}}};
  const std::vector<ExchangeNote> notes{note};
  for (const ByteCount budget : {ByteCount{0}, ByteCount{10}}) {
    const auto plans = plan_all(notes, budget);
    BOOST_REQUIRE(!plans.front().shortage);
    check(notes, plans);
    BOOST_TEST(plans.front().waves.size() == (budget == 0 ? 2U : 1U));
  }
}

BOOST_AUTO_TEST_CASE(a_parameter_is_one_under_all_names_that_any_member_gives_it) {
  std::vector<ExchangeNote> notes(3);
  notes[0].aliases = {{"d", "c"}, {"b", "a"}};
  notes[2].aliases = {{"c", "b"}};
  notes[1].parts = {{{"d", "m"}, 0, 1}, {{"x", "m"}, 0, 1}};
  notes[1].writes = {{0, 8, {1}}, {1, 8, {0}}};
  const OneName names(notes);
  for (const char* name : {"a", "b", "c", "d"}) BOOST_TEST(names.of(std::string(name)) == "a");
  BOOST_TEST(names.of(std::string("x")) == "x");
  use_one_name(notes, names);
  BOOST_TEST((notes[1].parts[0].key == TensorKey{"a", "m"}));
  notes[1].parts[1].key.fqn = "b";
  BOOST_CHECK_EXCEPTION(use_one_name(notes, names), Error,
                        [](const Error& error) { return error.code() == ErrorCode::layout_mismatch; });
}

BOOST_AUTO_TEST_CASE(a_long_chain_of_names_is_one_parameter_in_any_order) {
  // Each member declares one link. Taken from the end, each link joins the smallest name of all links before it.
  const auto name = [](int i) { return std::to_string(100000 + i); };
  constexpr int links = 20000;
  std::vector<int> order(links);
  for (int i = 0; i < links; ++i) order[static_cast<std::size_t>(i)] = i;
  std::mt19937_64 random(test_seed());
  for (int round = 0; round < 3; ++round) {
    std::vector<ExchangeNote> notes(links);
    for (std::size_t i = 0; i < order.size(); ++i) notes[i].aliases = {{name(order[i] + 1), name(order[i])}};
    const OneName names(notes);
    for (int i = 0; i <= links; ++i) BOOST_TEST_REQUIRE(names.of(name(i)) == name(0));
    if (round == 0) std::reverse(order.begin(), order.end());
    if (round == 1) std::shuffle(order.begin(), order.end(), random);
  }
}

BOOST_AUTO_TEST_CASE(a_tensor_over_very_many_is_written_after_all_of_them) {
  // None of those can be written either before the last is read, which has the greatest name.
  constexpr std::uint32_t others = 99999;
  std::vector<std::vector<std::uint32_t>> destroys(others + 1);
  for (std::uint32_t i = 1; i <= others; ++i) {
    destroys[0].push_back(i);
    destroys[i] = {i, i == others ? i - 1 : others};
  }
  const auto plan = plan_exchange(std::vector<ExchangeNote>{note_of(destroys, 1)}, others + 1, 0);
  BOOST_REQUIRE(!plan.shortage);
  std::size_t reads = 0;
  for (std::size_t wave = 0; wave < plan.waves.size(); ++wave) {
    for (const auto& read : plan.waves[wave].reads) {
      ++reads;
      const bool last = reads == others + 1;
      if (plan.parts[read.part].key.fqn == "0" && !read.staged) BOOST_TEST(last);
    }
    for (const std::uint32_t part : plan.waves[wave].writes) {
      if (plan.parts[part].key.fqn == "0") BOOST_TEST(reads == others + 1);
    }
  }
  BOOST_TEST(reads == others + 1);
}

BOOST_AUTO_TEST_CASE(what_one_member_wants_twice_is_refused_by_both_names) {
  std::vector<ExchangeNote> notes(2);
  BOOST_TEST(OneName(notes).empty());
  notes[1].aliases = {{"c", "b"}, {"b", "a"}};
  const OneName names(notes);
  BOOST_TEST(!names.empty());
  const std::vector<TensorKey> separate{{"a", "m"}, {"c", "v"}, {"x", "m"}};
  BOOST_CHECK_NO_THROW(require_disjoint(3, separate, names));
  const std::vector<TensorKey> twins{{"a", "m"}, {"x", "m"}, {"c", "m"}};
  BOOST_CHECK_EXCEPTION(require_disjoint(3, twins, names), Error, [](const Error& error) {
    const std::string what = error.what();
    return error.code() == ErrorCode::layout_mismatch && error.ranks() == std::vector<Rank>{Rank{3}} &&
           what.find("a:m") != std::string::npos && what.find("c:m") != std::string::npos;
  });
}

BOOST_AUTO_TEST_CASE(random_exchanges_keep_every_rule_and_every_budget) {
  std::mt19937_64 random(test_seed());
  const auto below = [&](std::uint64_t count) { return random() % count; };
  int short_of = 0;
  int fit = 0;
  for (int round = 0; round < test::rounds(2000); ++round) {
    const std::size_t tensors = 1 + below(12);
    std::vector<ExchangeNote> notes(1 + below(4));
    for (ExchangeNote& note : notes) {
      for (std::uint32_t i = 0; i < tensors; ++i) {
        note.parts.push_back({{std::to_string(i % 7), "m"}, i / 7, i % 7 + 7 < tensors ? 2U : 1U});
      }
      std::shuffle(note.parts.begin(), note.parts.end(), random);
      const std::uint64_t density = 1 + below(6);
      for (std::uint32_t i = 0; i < tensors; ++i) {
        if (below(3) == 0) continue;
        ExchangeWrite write{i, below(20), {}};
        for (std::uint32_t k = 0; k < tensors; ++k) {
          if (below(density) == 0) write.destroys.push_back(k);
        }
        note.writes.push_back(write);
      }
    }
    const ByteCount budget = below(80);
    const auto plans = plan_all(notes, budget);
    for (const ExchangePlan& plan : plans) BOOST_TEST((plan.shortage == plans.front().shortage));
    if (plans.front().shortage) {
      BOOST_TEST(plans.front().shortage->bytes > budget);
      ++short_of;
      continue;
    }
    for (const ByteCount most : check(notes, plans)) BOOST_TEST(most <= budget);
    ++fit;
  }
  BOOST_TEST(short_of > test::rounds(50));
  BOOST_TEST(fit > test::rounds(50));
}

BOOST_AUTO_TEST_SUITE_END()

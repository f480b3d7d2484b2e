// SPDX-License-Identifier: Apache-2.0
#define BOOST_TEST_NO_MAIN
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <cstdint>
#include <map>
#include <string>

#include "simulation/bugs.hpp"
#include "simulation/schedule.hpp"
#include "simulation/shrink.hpp"
#include "simulation/world.hpp"
#include "support/sanitizer.hpp"
#include "support/seed.hpp"

BOOST_AUTO_TEST_SUITE(simulation)

using namespace shardwire::simulation;

namespace {

/// The findings of a seed, which runs once for all cases.
const Findings& findings_of(std::uint64_t seed) {
  static std::map<std::uint64_t, Findings> known;
  const auto found = known.find(seed);
  return found != known.end() ? found->second : known.emplace(seed, run(draw(seed))).first->second;
}

/// Of `count` seeds from `first` on, the first whose run fails under the bug; `first + count`: none.
std::uint64_t first_failure(std::uint64_t first, std::uint64_t count, Bug bug) {
  std::uint64_t seed = first;
  while (seed < first + count && run(draw(seed), {.bug = bug, .traced = false}).failures.empty()) ++seed;
  return seed;
}

boost::test_tools::assertion_result takes_no_minutes(boost::unit_test::test_unit_id /*case*/) {
  boost::test_tools::assertion_result result(!shardwire::test::with_address_sanitizer &&
                                             !shardwire::test::with_thread_sanitizer);
  result.message() << "what a search finds, which no sanitizer changes and each makes take minutes";
  return result;
}

}  // namespace

BOOST_AUTO_TEST_CASE(equal_seeds_give_equal_traces) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) findings_of(seed);
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    const Findings again = run(draw(seed));
    BOOST_TEST_CONTEXT("seed " << seed) BOOST_CHECK(again.trace == findings_of(seed).trace);
    BOOST_CHECK_EQUAL(again.hash, findings_of(seed).hash);
    BOOST_CHECK_GT(again.trace.size(), 1000u);
  }
}

BOOST_AUTO_TEST_CASE(other_seeds_give_other_traces) {
  BOOST_CHECK(run(draw(1)).trace != run(draw(2)).trace);
  BOOST_CHECK(run(draw(3), {.bug = Bug::unseeded}).trace != run(draw(3)).trace);
}

BOOST_AUTO_TEST_CASE(every_invariant_holds_in_some_hundred_runs) {
  const std::uint64_t first = first_seed();
  for (std::uint64_t seed = first; seed < first + shardwire::test::rounds(std::uint64_t{300}); ++seed) {
    for (const std::string& failure : findings_of(seed).failures) {
      BOOST_ERROR("tests/simulation/run --seeds " << seed << ":" << seed + 1 << ": " << failure);
    }
  }
}

// Between any two messages.
BOOST_AUTO_TEST_CASE(a_member_may_crash_after_any_event) {
  const std::uint64_t first = first_seed();
  constexpr std::uint64_t apart =
      shardwire::test::with_address_sanitizer || shardwire::test::with_thread_sanitizer ? 211 : 29;  // events
  for (std::uint64_t seed = first; seed < first + 10; ++seed) {
    const Schedule schedule = draw(seed);
    const Findings whole = run(schedule);
    for (int member = 0; member < schedule.members; ++member) {
      const std::uint64_t end = whole.events_of[static_cast<std::size_t>(member)];
      for (std::uint64_t after = 1 + seed % apart; after < end; after += apart) {
        const bool silent = after % 2 == 0;
        const RunOptions options{.traced = false, .fails_over = true, .crash = Crash{member, after, silent}};
        for (const std::string& failure : run(schedule, options).failures) {
          BOOST_ERROR("tests/simulation/run --seeds " << seed << ":" << seed + 1 << " --failover --crash " << member
                                                      << "@" << after << (silent ? "!" : "") << ": " << failure);
        }
      }
    }
  }
}

// Of every kind of end, some: a search in which everything fails, or nothing goes wrong, is worth little.
BOOST_TEST_DECORATOR(*boost::unit_test::precondition(takes_no_minutes))
BOOST_AUTO_TEST_CASE(restores_end_in_many_ways) {
  std::string traces;
  for (std::uint64_t seed = 0; seed < 300; ++seed) traces += findings_of(seed).trace;
  constexpr const char* ways[] = {"restored step 1",
                                  "restored step 2",
                                  "bytes local",
                                  "bytes mapped",
                                  "bytes read",
                                  "bytes zcopy",
                                  "bytes packed",
                                  "not restored: peer_lost",
                                  "not restored: timed_out",
                                  "not restored: cancelled",
                                  "not restored: step_mismatch",
                                  "not restored: transport_failed",
                                  "is killed",
                                  "vanishes",
                                  "garbled",
                                  " reset",
                                  ": hole",
                                  "part of a round",
                                  "from the first replicas",
                                  " bytes/s",
                                  " exchanged",
                                  "gathered 0",
                                  "took inventory"};
  for (const char* one : ways) {
    BOOST_CHECK_MESSAGE(traces.find(one) != std::string::npos, "no run shows '" << one << "'");
  }
}

BOOST_TEST_DECORATOR(*boost::unit_test::precondition(takes_no_minutes))
BOOST_DATA_TEST_CASE(planted_bugs_are_found,
                     boost::unit_test::data::make({"flipped", "early", "misplaced", "shortened", "dropped", "lost",
                                                   "leaked", "swapped", "deaf", "late", "mute", "asleep"}),
                     name) {
  constexpr std::uint64_t seeds = 300;
  BOOST_CHECK_LT(first_failure(0, seeds, bug_of(name).value()), seeds);
}

BOOST_TEST_DECORATOR(*boost::unit_test::precondition(takes_no_minutes))
BOOST_AUTO_TEST_CASE(the_shrinker_leaves_only_actions_without_which_the_run_passes) {
  const RunOptions options{.bug = Bug::early, .traced = false};
  const Schedule schedule = draw(first_failure(0, 300, Bug::early));
  const std::string kind = kind_of(run(schedule, options).failures.at(0));
  const auto fails = [&](const Schedule& fewer) {
    const Findings findings = run(fewer, options);
    return !findings.failures.empty() && kind_of(findings.failures.front()) == kind;
  };
  const auto kept = shrink(schedule, schedule.must_complete, fails);
  BOOST_CHECK_LT(kept.size(), schedule.actions.size());
  BOOST_CHECK(fails(with_actions(schedule, kept)));
  for (std::size_t i = 0; i < kept.size(); ++i) {
    const Action::Kind action = schedule.actions[kept[i]].kind;
    if (schedule.must_complete && (action == Action::Kind::join || action == Action::Kind::publish)) continue;
    auto fewer = kept;
    fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(i));
    BOOST_CHECK(!fails(with_actions(schedule, fewer)));
  }
}

BOOST_AUTO_TEST_SUITE_END()

// SPDX-License-Identifier: Apache-2.0
// Connections that carry nothing, on a clock of the test.
#include "restore/source_rules.hpp"

#include <boost/test/unit_test.hpp>
#include <chrono>
#include <cstddef>
#include <utility>
#include <vector>

#include "support/made_clock.hpp"

BOOST_AUTO_TEST_SUITE(standstill)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;
using restore::Standstill;

namespace {

constexpr Duration notice = 5s;
constexpr Duration tick = 100ms;

struct Bench {
  explicit Bench(std::vector<restore::Sample> given) : sources(std::move(given)) {
    rule.begin(sources.size(), clock.now());
    look.start();
  }

  void advance(Duration by) {
    for (Duration passed{}; passed < by; passed += tick) clock.advance(tick);
  }

  MadeClock clock;
  std::vector<restore::Sample> sources;
  std::vector<std::pair<std::size_t, Duration>> reported;
  Standstill rule;
  restore::RegularLook look{clock, notice, [this](Clock::Time now, bool overslept) {
                              for (std::size_t i = 0; i < sources.size(); ++i) {
                                const auto lasted = rule.look(i, sources[i], now, overslept);
                                if (lasted) reported.emplace_back(i, *lasted);
                              }
                            }};
};

}  // namespace

BOOST_AUTO_TEST_CASE(what_was_asked_for_and_does_not_come_is_reported_after_its_patience) {
  Bench bench({{.under_way = true, .patience = 10s}, {.under_way = true, .patience = 20s}});
  bench.advance(9800ms);
  BOOST_TEST(bench.reported.empty());
  bench.advance(1s);
  BOOST_REQUIRE_EQUAL(bench.reported.size(), 1U);
  BOOST_TEST(bench.reported[0].first == 0U);
  BOOST_TEST((bench.reported[0].second >= 10s && bench.reported[0].second < 11s));
  bench.advance(10s);
  BOOST_REQUIRE_EQUAL(bench.reported.size(), 3U);  // the first one once more
  BOOST_TEST(bench.reported[2].first + bench.reported[1].first == 1U);
}

BOOST_AUTO_TEST_CASE(a_byte_now_and_then_is_no_standstill) {
  Bench bench({{.under_way = true, .patience = 10s}});
  for (int i = 0; i < 10; ++i) {
    bench.advance(9s);
    ++bench.sources[0].arrived_bytes;
  }
  BOOST_TEST(bench.reported.empty());
}

// A rate limit, or a copy, may keep the next request back for long.
BOOST_AUTO_TEST_CASE(nothing_is_due_of_a_source_that_was_not_asked) {
  Bench bench({{.under_way = false, .patience = 10s}});
  bench.advance(60s);
  bench.sources[0].under_way = true;
  bench.advance(9s);
  BOOST_TEST(bench.reported.empty());
  bench.advance(2s);
  BOOST_TEST(bench.reported.size() == 1U);
}

BOOST_AUTO_TEST_CASE(time_in_which_this_process_was_stopped_does_not_count) {
  Bench bench({{.under_way = true, .patience = 10s}});
  bench.advance(9s);
  bench.clock.jump(60s);
  bench.advance(9s);
  BOOST_TEST(bench.reported.empty());
  bench.advance(2s);
  BOOST_TEST(bench.reported.size() == 1U);
}

BOOST_AUTO_TEST_SUITE_END()

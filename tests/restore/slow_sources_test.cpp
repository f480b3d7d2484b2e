// SPDX-License-Identifier: Apache-2.0
// Sources that are much slower than others, on a clock of the test.
#include "restore/source_rules.hpp"

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <cstddef>
#include <utility>
#include <vector>

#include "support/made_clock.hpp"

BOOST_AUTO_TEST_SUITE(slow_sources)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;
using restore::SlowSources;

namespace {

constexpr Duration notice = 5s;
constexpr Duration tick = 100ms;

/// Sources that deliver at a pace each, until they owe nothing.
struct Bench {
  struct Source {
    double bytes_per_second = 0;
    ByteCount owed = 0;
    ByteCount arrived = 0;
  };
  explicit Bench(std::vector<Source> given) : sources(std::move(given)) {
    rule.begin(samples(), clock.now());
    look.start();
  }

  [[nodiscard]] std::vector<restore::Sample> samples() const {
    std::vector<restore::Sample> samples;
    for (const Source& one : sources) samples.push_back({.arrived_bytes = one.arrived, .owed_bytes = one.owed});
    return samples;
  }

  void advance(Duration by) {
    for (Duration passed{}; passed < by; passed += tick) {
      for (Source& one : sources) {
        const auto bytes = std::min(
            one.owed, static_cast<ByteCount>(one.bytes_per_second * std::chrono::duration<double>(tick).count()));
        one.owed -= bytes;
        one.arrived += bytes;
      }
      clock.advance(tick);
    }
  }

  MadeClock clock;
  std::vector<Source> sources;
  std::vector<std::size_t> reported;
  SlowSources rule{notice};
  restore::RegularLook look{clock, notice, [this](Clock::Time now, bool overslept) {
                              for (const std::size_t one : rule.look(samples(), now, overslept))
                                reported.push_back(one);
                            }};
};

}  // namespace

BOOST_AUTO_TEST_CASE(a_source_that_keeps_up_with_half_of_the_best_is_not_slow) {
  Bench bench({{1e6, 100'000'000}, {5e5, 100'000'000}});
  bench.advance(200s);
  BOOST_TEST(bench.sources[1].owed == 0U);
  BOOST_TEST(bench.reported.empty());
}

BOOST_AUTO_TEST_CASE(a_source_at_a_tenth_of_the_pace_of_another_is_slow) {
  Bench bench({{1e6, 20'000'000}, {1e5, 20'000'000}});
  bench.advance(notice - tick);
  BOOST_TEST(bench.reported.empty());
  bench.advance(2 * tick);
  BOOST_TEST(bench.reported == std::vector<std::size_t>{1}, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_source_that_is_done_at_once_shows_what_is_possible) {
  Bench bench({{1e8, 10'000'000}, {1e5, 20'000'000}});
  bench.advance(notice + tick);
  BOOST_TEST(bench.reported == std::vector<std::size_t>{1}, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_source_that_falls_behind_its_own_pace_is_slow) {
  Bench bench({{1e6, 100'000'000}});
  bench.advance(4 * notice);
  BOOST_TEST(bench.reported.empty());
  bench.sources[0].bytes_per_second = 1e3;
  bench.advance(2 * notice);
  BOOST_TEST(!bench.reported.empty());
}

BOOST_AUTO_TEST_CASE(a_source_that_was_slow_from_the_beginning_has_nothing_to_compare_with) {
  Bench bench({{1e3, 100'000'000}});
  bench.advance(10 * notice);
  BOOST_TEST(bench.reported.empty());
}

BOOST_AUTO_TEST_CASE(a_source_that_is_done_within_notice_is_left_alone) {
  Bench bench({{1e6, 20'000'000}, {1e5, 900'000}});
  bench.advance(20s);
  BOOST_TEST(bench.sources[1].owed == 0U);
  BOOST_TEST(bench.reported.empty());
}

BOOST_AUTO_TEST_CASE(a_reader_that_did_not_run_blames_nobody) {
  Bench bench({{1e6, 100'000'000}});
  bench.advance(2 * notice);
  bench.clock.jump(10 * notice);
  bench.advance(notice - 2 * tick);
  BOOST_TEST(bench.reported.empty());
}

BOOST_AUTO_TEST_CASE(a_reader_that_did_not_run_knows_what_has_come_meanwhile) {
  Bench bench({{1e8, 100'000'000}, {1e5, 20'000'000}});
  std::swap(bench.sources[0].arrived, bench.sources[0].owed);
  bench.clock.jump(2s);
  bench.advance(tick);
  BOOST_TEST(bench.reported.empty());
  bench.advance(notice + tick);
  BOOST_TEST(bench.reported == std::vector<std::size_t>{1}, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_SUITE_END()

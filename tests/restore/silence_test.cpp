// SPDX-License-Identifier: Apache-2.0
// Sources of which nothing is heard, on a fake clock and link.
#include "restore/source_rules.hpp"

#include <boost/test/unit_test.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "restore/made_source.hpp"

BOOST_AUTO_TEST_SUITE(silence)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;
using restore::Silence;

namespace {

constexpr Duration notice = 5s;

struct Bench {
  Bench() {
    made.start();
    sources.push_back(std::move(made.source));
    rule = std::make_unique<Silence>(sources, notice, look.interval());
  }

  void start() {
    rule->begin(made.clock.now());
    look.start();
  }
  void look_at(Clock::Time now, bool overslept) {
    const Silence::Found found = rule->look(std::span(&sample, 1), now, overslept);
    if (found.silent.empty()) return;
    BOOST_TEST(found.doubtful.empty());
    BOOST_TEST(found.silent.size() == 1U);
    BOOST_TEST(found.silent[0]->index() == 0U);
    reported.push_back(now);
    if (then) then();
  }

  /// Signs of life come at this interval while the clock moves on.
  void advance(Duration by, Duration each) {
    for (Duration passed{}; passed < by; passed += each) {
      made.link->last_heard = made.clock.now();
      made.clock.advance(each);
    }
  }

  MadeSource made;
  std::vector<std::unique_ptr<restore::Source>> sources;
  restore::Sample sample{.due = true};
  std::vector<Clock::Time> reported;
  std::function<void()> then;
  std::unique_ptr<Silence> rule;
  restore::RegularLook look{made.clock, notice, [this](Clock::Time now, bool overslept) { look_at(now, overslept); }};
};

}  // namespace

BOOST_AUTO_TEST_CASE(silence_is_reported_after_notice_and_not_before) {
  Bench bench;
  bench.made.link->last_heard = bench.made.clock.now() - 1h;  // nothing was due then
  const auto began = bench.made.clock.now();
  bench.start();
  bench.made.clock.advance(notice - 1ms);
  BOOST_TEST(bench.reported.empty());
  bench.made.clock.advance(notice / 10);
  BOOST_REQUIRE(!bench.reported.empty());
  BOOST_TEST((bench.reported.front() - began >= notice));
  BOOST_TEST((bench.reported.front() - began < notice + notice / 10));
}

BOOST_AUTO_TEST_CASE(answers_and_bytes_are_signs_of_life) {
  Bench bench;
  bench.start();
  bench.advance(10 * notice, notice - notice / 4);
  BOOST_TEST(bench.reported.empty());

  for (int i = 0; i < 20; ++i) {
    bench.sample.arrived_bytes += 1;
    bench.made.clock.advance(notice - notice / 4);
  }
  BOOST_TEST(bench.reported.empty());
  bench.made.clock.advance(2 * notice);
  BOOST_TEST(!bench.reported.empty());
}

BOOST_AUTO_TEST_CASE(a_source_that_owes_nothing_may_be_silent) {
  Bench bench;
  bench.made.link->last_heard = bench.made.clock.now();
  bench.sample.due = false;
  bench.start();
  bench.made.clock.advance(10 * notice);
  BOOST_TEST(bench.reported.empty());
  bench.sample.due = true;
  bench.made.clock.advance(notice - notice / 4);
  BOOST_TEST(bench.reported.empty());
  bench.made.clock.advance(notice / 2);
  BOOST_TEST(!bench.reported.empty());
}

// A process that was stopped itself has not read what others sent meanwhile.
BOOST_AUTO_TEST_CASE(a_reader_that_did_not_run_reports_nothing_before_notice_has_passed_again) {
  Bench bench;
  bench.made.link->last_heard = bench.made.clock.now();
  bench.start();
  bench.made.clock.jump(1h);
  bench.made.clock.advance(notice - notice / 4);
  BOOST_TEST(bench.reported.empty());
  bench.made.clock.advance(notice);
  BOOST_TEST(!bench.reported.empty());
}

BOOST_AUTO_TEST_CASE(a_look_that_is_put_off_does_not_hide_that_the_reader_did_not_run) {
  Bench bench;
  bench.made.link->last_heard = bench.made.clock.now();
  bench.start();
  bench.made.clock.jump(1h);
  bench.look.start();  // as when bytes begin to move
  bench.made.clock.advance(notice - notice / 4);
  BOOST_TEST(bench.reported.empty());
}

BOOST_AUTO_TEST_CASE(nothing_is_reported_after_the_end) {
  Bench bench;
  bench.made.link->last_heard = bench.made.clock.now();
  bench.then = [&] { bench.look.stop(); };
  bench.start();
  bench.made.clock.advance(10 * notice);
  BOOST_TEST(bench.reported.size() == 1U);
}

namespace {

// Source 0 owes something, source 1 could take its place.
struct TwoSources {
  TwoSources() {
    debtor.start();
    other.start(restore::Source::Leasing::first, 1);
    sources.push_back(std::move(debtor.source));
    sources.push_back(std::move(other.source));
    rule = std::make_unique<Silence>(sources, notice, look.interval());
    debtor.link->last_heard = other.link->last_heard = debtor.clock.now();
  }

  void start() {
    rule->begin(debtor.clock.now());
    look.start();
  }
  void look_at(Clock::Time now, bool overslept) {
    const std::vector<restore::Sample> samples{{.due = true}, {.nothing_more = other_is_over}};
    const Silence::Found found = rule->look(samples, now, overslept);
    if (found.silent.empty()) return;
    reported = true;
    BOOST_TEST(found.silent.size() == 1U);
    BOOST_TEST(found.silent[0]->index() == 0U);
    doubted = !found.doubtful.empty();
    if (doubted) BOOST_TEST(found.doubtful[0]->index() == 1U);
    look.stop();
  }

  MadeSource debtor;
  MadeSource other;
  std::vector<std::unique_ptr<restore::Source>> sources;
  bool other_is_over = false;
  bool reported = false;
  bool doubted = false;
  std::unique_ptr<Silence> rule;
  restore::RegularLook look{debtor.clock, notice, [this](Clock::Time now, bool overslept) { look_at(now, overslept); }};
};

}  // namespace

BOOST_AUTO_TEST_CASE(who_does_not_answer_while_another_is_silent_is_doubted) {
  TwoSources two;
  two.start();
  two.debtor.clock.advance(2 * notice);
  BOOST_TEST(two.reported);
  BOOST_TEST(two.doubted);
}

BOOST_AUTO_TEST_CASE(who_answers_while_another_is_silent_is_not_doubted) {
  TwoSources two;
  two.start();
  for (int i = 0; i < 20 && !two.reported; ++i) {
    two.debtor.clock.advance(notice / 10);
    two.other.link->last_heard = two.debtor.clock.now();
  }
  BOOST_TEST(two.reported);
  BOOST_TEST(!two.doubted);
}

BOOST_AUTO_TEST_CASE(who_is_read_no_more_is_not_doubted) {
  TwoSources two;
  two.other_is_over = true;
  two.start();
  two.debtor.clock.advance(2 * notice);
  BOOST_TEST(two.reported);
  BOOST_TEST(!two.doubted);
}

BOOST_AUTO_TEST_SUITE_END()

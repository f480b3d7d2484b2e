// SPDX-License-Identifier: Apache-2.0
// All sources of one plan together, on a fake clock, link and fabrics.
#include "restore/sources.hpp"

#include <boost/test/unit_test.hpp>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <vector>

#include "restore/made_source.hpp"

BOOST_AUTO_TEST_SUITE(sources)

using namespace shardwire;
using namespace shardwire::test;
using restore::Source;
using restore::Sources;
using State = Source::State;

namespace {

class Reports final : public Sources::Listener {
 public:
  void on_all_bound() override {
    ++bound;
    if (do_when_bound) do_when_bound();
  }
  void on_all_confirmed() override {
    ++confirmed;
    if (do_when_confirmed) do_when_confirmed();
  }
  void on_source_lost(Source&, const std::exception_ptr&) override {
    ++lost;
    if (do_when_lost) do_when_lost();
  }

  int bound = 0;
  int confirmed = 0;
  int lost = 0;
  std::function<void()> do_when_bound{};
  std::function<void()> do_when_confirmed{};
  std::function<void()> do_when_lost{};
};

/// Sources of layout ranks 3 and 4, over one link that offers shm.
struct Bench {
  explicit Bench(std::size_t count = 2) {
    made.link->offer({shm});
    std::vector<restore::Binding> bindings(count, made.binding);
    for (std::size_t i = 0; i < count; ++i) {
      bindings[i].layout_rank = Rank{3 + static_cast<int>(i)};
    }
    sources =
        std::make_unique<Sources>(made.context, reports, restore::PathInputs{made.context.table, made.reach, nullptr},
                                  made.options, std::move(bindings));
  }
  void start() { sources->start(Source::Leasing::first); }
  /// Both have their leases, and request handles.
  void to_connecting() {
    start();
    made.link->answer(wire::Leased{0, 77, MadeSource::step});
    made.link->answer(wire::Leased{0, 78, MadeSource::step});
  }
  void to_bound() {
    to_connecting();
    made.bind_over(shm);
    made.bind_over(shm);
  }
  void confirm() {
    sources->confirm([](const Source&) { return false; });
  }
  [[nodiscard]] State state(std::size_t index) const { return sources->all()[index]->state(); }
  [[nodiscard]] bool all(State wanted) const {
    for (const auto& source : sources->all()) {
      if (source->state() != wanted) return false;
    }
    return true;
  }

  MadeSource made;
  Reports reports;
  std::unique_ptr<Sources> sources;
};

}  // namespace

BOOST_AUTO_TEST_CASE(sources_are_reported_once_when_the_last_of_them_is_bound) {
  Bench bench;
  bench.to_connecting();
  bench.made.bind_over(shm);
  BOOST_TEST((bench.state(0) == State::bound));
  BOOST_TEST(bench.reports.bound == 0);
  bench.made.bind_over(shm);
  BOOST_TEST(bench.reports.bound == 1);
  BOOST_TEST(bench.all(State::bound));
  BOOST_TEST(bench.sources->bound_anew());
}

BOOST_AUTO_TEST_CASE(a_plan_without_sources_is_bound_and_confirmed_at_once) {
  Bench bench(0);
  bench.start();
  BOOST_TEST(bench.reports.bound == 1);
  BOOST_TEST(bench.reports.confirmed == 0);
  BOOST_TEST(!bench.sources->bound_anew());
  bench.confirm();
  BOOST_TEST(bench.reports.bound == 1);
  BOOST_TEST(bench.reports.confirmed == 1);
}

BOOST_AUTO_TEST_CASE(sources_that_are_confirmed_at_once_are_reported_after_the_last_of_them) {
  Bench bench;
  bench.to_bound();
  bool all_released = false;
  bench.reports.do_when_confirmed = [&] { all_released = bench.all(State::released); };
  bench.confirm();  // the generation word is mapped, and live
  BOOST_TEST(bench.reports.confirmed == 1);
  BOOST_TEST(all_released);
}

BOOST_AUTO_TEST_CASE(sources_that_have_to_be_asked_are_reported_when_the_last_of_them_has_answered) {
  Bench bench;
  bench.to_bound();
  bench.made.set_word(shm, 0);
  bench.confirm();
  bench.made.link->answer(wire::Released{0, true});
  BOOST_TEST(bench.reports.confirmed == 0);
  bench.made.link->answer(wire::Released{0, true});
  BOOST_TEST(bench.reports.confirmed == 1);
  BOOST_TEST(bench.reports.bound == 1);
}

BOOST_AUTO_TEST_CASE(the_caller_says_of_which_sources_the_bytes_are_proven) {
  Bench bench;
  bench.to_bound();
  std::vector<std::size_t> asked;
  bench.sources->confirm([&](const Source& source) {
    asked.push_back(source.index());
    return false;
  });
  BOOST_TEST(asked == (std::vector<std::size_t>{0, 1}), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_lost_source_is_reported_and_the_set_is_never_bound) {
  Bench bench;
  bench.start();
  bench.made.link->answer(wire::Leased{0, 77, MadeSource::step});
  bench.made.link->refuse(ErrorCode::withdrawn);
  BOOST_TEST(bench.reports.lost == 1);
  bench.made.bind_over(shm);
  BOOST_TEST((bench.state(0) == State::bound));
  BOOST_TEST((bench.state(1) == State::withdrawn));
  BOOST_TEST(bench.reports.bound == 0);
}

BOOST_AUTO_TEST_CASE(a_source_whose_bytes_have_changed_is_lost_and_the_set_is_never_confirmed) {
  Bench bench;
  bench.to_bound();
  bench.made.set_word(shm, 0);
  bench.confirm();
  bench.made.link->answer(wire::Released{0, false});
  BOOST_TEST(bench.reports.lost == 1);
  bench.made.link->answer(wire::Released{0, true});
  BOOST_TEST(bench.reports.confirmed == 0);
}

BOOST_AUTO_TEST_CASE(no_further_source_is_started_once_they_are_stopped) {
  Bench bench;
  bench.made.context.no_link = Error(ErrorCode::peer_lost, "no route");
  bench.reports.do_when_lost = [&] {
    bench.sources->stop();
    bench.made.context.no_link.reset();
  };
  bench.start();
  BOOST_TEST(bench.reports.lost == 1);
  BOOST_TEST((bench.state(1) == State::resolving));
  BOOST_TEST(bench.made.link->requests_made == 0U);
  BOOST_TEST(bench.reports.bound == 0);
}

BOOST_AUTO_TEST_CASE(sources_that_are_stopped_report_nothing_and_return_their_leases) {
  Bench bench;
  bench.to_connecting();
  bench.sources->stop();
  bench.made.bind_over(shm);
  bench.made.bind_over(shm);
  BOOST_TEST(bench.reports.bound == 0);
  bench.sources->release();
  BOOST_TEST(bench.all(State::released));
  BOOST_TEST(bench.made.link->posted_releases(77) == 1U);
  BOOST_TEST(bench.made.link->posted_releases(78) == 1U);
  BOOST_TEST(bench.made.link->watchers() == 0U);
}

BOOST_AUTO_TEST_CASE(the_set_may_be_stopped_and_released_when_it_is_bound) {
  Bench bench;
  bench.reports.do_when_bound = [&] {
    bench.sources->stop();
    bench.sources->release();
  };
  bench.to_bound();
  BOOST_TEST(bench.reports.bound == 1);
  BOOST_TEST(bench.all(State::released));
}

BOOST_AUTO_TEST_CASE(bindings_are_handed_over_for_the_next_restore) {
  Bench bench;
  bench.to_bound();
  bench.confirm();
  const auto bindings = bench.sources->take_bindings();
  BOOST_REQUIRE(bindings.size() == 2U);
  for (const restore::Binding& binding : bindings) BOOST_TEST(binding.generation == MadeSource::generation);
}

BOOST_AUTO_TEST_SUITE_END()

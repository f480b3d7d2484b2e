// SPDX-License-Identifier: Apache-2.0
// All sources of one plan together, on a fake clock, link and fabrics.
#include <boost/test/unit_test.hpp>
#include <cstddef>
#include <utility>
#include <vector>

#include "restore/made_source.hpp"

BOOST_AUTO_TEST_SUITE(sources)

using namespace shardwire;
using namespace shardwire::test;
using restore::have_reached;
using restore::Source;
using State = Source::State;

namespace {

/// Sources of layout ranks 3 and 4, over one link that offers shm.
struct Bench {
  explicit Bench(std::size_t count = 2) {
    made.link->offer({shm});
    std::vector<restore::Binding> bindings(count, made.binding);
    for (std::size_t i = 0; i < count; ++i) {
      bindings[i].layout_rank = Rank{3 + static_cast<int>(i)};
    }
    sources = make_sources(made.context, made.listener, {made.context.table, made.reach, nullptr}, made.options,
                           std::move(bindings));
  }
  /// Both have their leases, and request handles.
  void to_connecting() {
    for (const auto& source : sources) source->start(Source::Leasing::first);
    made.link->answer(wire::Leased{0, 77, MadeSource::step});
    made.link->answer(wire::Leased{0, 78, MadeSource::step});
  }

  MadeSource made;
  restore::Sources sources;
};

}  // namespace

BOOST_AUTO_TEST_CASE(sources_are_numbered_like_their_bindings) {
  const Bench bench;
  BOOST_REQUIRE(bench.sources.size() == 2U);
  for (std::size_t i = 0; i < 2; ++i) {
    BOOST_TEST(bench.sources[i]->index() == i);
    BOOST_TEST(to_int(bench.sources[i]->rank()) == 3 + static_cast<int>(i));
    BOOST_TEST((bindings_of(bench.sources)[i] == &bench.sources[i]->binding()));
  }
}

BOOST_AUTO_TEST_CASE(sources_have_reached_a_state_with_the_last_of_them) {
  Bench bench;
  BOOST_TEST(have_reached(bench.sources, State::resolving));
  bench.to_connecting();
  bench.made.bind_over(shm);
  BOOST_TEST(!have_reached(bench.sources, State::bound));
  bench.made.bind_over(shm);
  BOOST_TEST(have_reached(bench.sources, State::bound));
  BOOST_TEST(!have_reached(bench.sources, State::released));
}

BOOST_AUTO_TEST_CASE(a_lost_source_is_not_awaited) {
  Bench bench;
  bench.to_connecting();
  bench.sources[0]->lose(Error(ErrorCode::peer_lost, "so it is"));
  BOOST_TEST(!have_reached(bench.sources, State::bound));
  bench.sources[1]->lose(Error(ErrorCode::peer_lost, "so it is"));
  BOOST_TEST(have_reached(bench.sources, State::bound));
  BOOST_TEST(have_reached(bench.sources, State::released));
}

BOOST_AUTO_TEST_CASE(a_source_that_has_withdrawn_reaches_nothing) {
  Bench bench(1);
  bench.sources[0]->start(Source::Leasing::first);
  bench.made.link->refuse(ErrorCode::withdrawn);
  BOOST_TEST((bench.sources[0]->state() == State::withdrawn));
  BOOST_TEST(!have_reached(bench.sources, State::bound));
  BOOST_TEST(!have_reached(bench.sources, State::released));
}

BOOST_AUTO_TEST_CASE(no_sources_have_reached_every_state) {
  const Bench bench(0);
  BOOST_TEST(have_reached(bench.sources, State::bound));
  BOOST_TEST(have_reached(bench.sources, State::released));
}

BOOST_AUTO_TEST_SUITE_END()

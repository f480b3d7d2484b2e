// SPDX-License-Identifier: Apache-2.0
// Digests of received parts, compared with those of two sources over one fake link. Sources may be lost meanwhile.
#include "restore/content_checks.hpp"

#include <boost/test/unit_test.hpp>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <vector>

#include "memory/copier.hpp"
#include "memory/copy_queue.hpp"
#include "restore/made_source.hpp"

BOOST_AUTO_TEST_SUITE(content_checks)

using namespace shardwire;
using namespace shardwire::test;
using restore::ContentChecks;
using restore::Source;

namespace {

struct Bench final : Source::Listener {
  Bench() {
    for (const auto& source : sources) source->start(Source::Leasing::first);
    made.link->answer(wire::Leased{0, 77, MadeSource::step});
    made.link->answer(wire::Leased{0, 78, MadeSource::step});
    made.bind_over(shm);
    made.bind_over(shm);
    for (std::uint32_t peer = 0; peer < 2; ++peer) {
      transfers[peer].peer = peer;
      transfers[peer].box = {{0}, {4}};
      transfers[peer].item_bytes = 1;
    }
  }
  void on_bound(Source&) override {}
  void on_confirmed(Source&) override {}
  void on_lost(Source&, const std::exception_ptr&) override { checks.source_lost(); }

  void add(std::uint32_t peer) { checks.add(move::TransferPart(transfers[peer], transfers[peer].box), {peer, 5}); }
  void compare() {
    checks.compare([this] { ++done; });
  }
  void answer(std::uint64_t low, std::size_t index = 0) { made.link->answer(wire::Digests{0, {{low, 5}}}, index); }
  void lose(std::size_t source) { sources[source]->lose(Error(ErrorCode::peer_lost, "so it is")); }

  MadeSource made;
  restore::Sources sources = [this] {
    made.link->offer({shm});
    Source::Listener& listener = *this;
    return make_sources(made.context, listener, {made.context.table, made.reach, nullptr}, made.options,
                        std::vector<restore::Binding>(2, made.binding));
  }();
  std::vector<move::Transfer> transfers{2};
  std::size_t differing = 0;
  std::size_t corrupt_blocks = 0;
  int done = 0;
  int failures = 0;
  memory::Copier copier{1, [] {}};
  memory::HostCopies copies{copier};
  ContentChecks checks{
      copies,
      sources,
      {.block_differs = [](const Source&, const wire::RequestedBox&) {},
       .parts_differ =
           [this](std::span<const move::TransferPart> parts, std::span<const wire::RequestedBox> blocks) {
             differing += parts.size();
             corrupt_blocks += blocks.size();
           },
       .failed = [this](const std::exception_ptr&) { ++failures; },
       .quieter = [] {}},
      nullptr};
};

}  // namespace

BOOST_AUTO_TEST_CASE(checks_are_done_when_all_sources_have_answered) {
  Bench bench;
  bench.add(0);
  bench.add(1);
  bench.compare();
  bench.answer(0);
  BOOST_TEST(bench.done == 0);
  bench.answer(1);
  BOOST_TEST(bench.done == 1);
  BOOST_TEST(bench.differing == 0U);
}

BOOST_AUTO_TEST_CASE(parts_that_differ_are_reported) {
  Bench bench;
  bench.add(0);
  bench.compare();
  bench.answer(99);
  BOOST_TEST(bench.differing == 1U);
}

BOOST_AUTO_TEST_CASE(blocks_that_the_source_finds_corrupt_are_reported_with_all_parts_of_the_request) {
  Bench bench;
  bench.add(0);
  bench.add(0);
  bench.add(1);
  bench.compare();
  bench.made.link->answer(wire::Failure{0, ErrorCode::corrupt, "rotten", {{0, {{0}, {4}}}}});
  BOOST_TEST(bench.differing == 2U);
  BOOST_TEST(bench.corrupt_blocks == 1U);
  BOOST_TEST(bench.done == 0);
  bench.answer(1);
  BOOST_TEST(bench.done == 1);
}

BOOST_AUTO_TEST_CASE(nothing_to_compare_is_done_at_once) {
  Bench bench;
  bench.compare();
  BOOST_TEST(bench.done == 1);
  BOOST_TEST(bench.made.link->requests.empty());
}

BOOST_AUTO_TEST_CASE(a_source_that_was_lost_before_is_not_asked) {
  Bench bench;
  bench.add(0);
  bench.add(1);
  bench.lose(0);
  bench.compare();
  BOOST_TEST(bench.made.link->requests.size() == 1U);
  bench.answer(1);
  BOOST_TEST(bench.done == 1);
  BOOST_TEST(bench.differing == 0U);
}

BOOST_AUTO_TEST_CASE(a_source_that_is_lost_meanwhile_is_not_awaited) {
  for (const bool answered : {false, true}) {
    Bench bench;
    bench.add(0);
    bench.add(1);
    bench.compare();
    if (answered) bench.answer(1, 1);
    BOOST_TEST(bench.done == 0);
    bench.lose(0);
    BOOST_TEST(bench.done == (answered ? 1 : 0));
    if (!answered) bench.answer(1, 1);
    BOOST_TEST(bench.done == 1);
    bench.lose(0);
    bench.lose(1);
    BOOST_TEST(bench.done == 1);
  }
}

BOOST_AUTO_TEST_CASE(when_all_sources_are_lost_nothing_is_awaited) {
  Bench bench;
  bench.add(0);
  bench.add(1);
  bench.compare();
  bench.made.link->end(Error(ErrorCode::peer_lost, "so it is"));
  BOOST_TEST(bench.done == 1);
  BOOST_TEST(bench.differing == 0U);
}

BOOST_AUTO_TEST_SUITE_END()

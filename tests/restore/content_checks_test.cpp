// SPDX-License-Identifier: Apache-2.0
// Blocks of loaded memory and received parts, compared with the digests of two sources over one fake link. Sources
// may be lost meanwhile.
#include "restore/content_checks.hpp"

#include <boost/test/unit_test.hpp>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <vector>

#include "memory/copier.hpp"
#include "memory/copy_queue.hpp"
#include "memory/digest.hpp"
#include "restore/made_source.hpp"
#include "support/deadline.hpp"
#include "support/job.hpp"

BOOST_AUTO_TEST_SUITE(content_checks)

using namespace shardwire;
using namespace shardwire::test;
using restore::ContentChecks;
using restore::Source;

namespace {

const TensorLayout four_bytes{{{"w", "exp_avg"}, DType::u8, {4}}, Layout::replicated()};

struct Bench final : Source::Listener {
  Bench() {
    for (const auto& source : sources) source->start(Source::Leasing::first);
    made.link->answer(wire::Leased{0, 77, MadeSource::step});
    made.link->answer(wire::Leased{0, 78, MadeSource::step});
    wire::Bound bound = MadeSource::reply_over(shm);
    bound.digests = true;
    made.link->answer(bound);
    made.link->answer(bound);
    for (std::uint32_t peer = 0; peer < 2; ++peer) {
      transfers[peer].peer = peer;
      transfers[peer].method = Method::mapped;
      transfers[peer].box = {{0}, {4}};
      transfers[peer].item_bytes = 1;
      transfers[peer].source = mapped.data();
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
  /// Both sources publish digests of what is in memory now.
  void publish_digests() {
    checks.start(transfers);
    for (int source = 0; source < 2; ++source) made.link->answer(wire::Digests{0, {digest()}});
  }
  [[nodiscard]] Digest128 digest() const {
    const Box all{{0}, {4}};
    return memory::digest_box(all, memory::packed(all), mapped.data(), 1);
  }
  /// Batches that have ended report inside poll() only.
  void finish_batch() {
    BOOST_TEST(!checks.idle());
    BOOST_TEST(run_until([&] { copies.poll(); }, [&] { return checks.idle(); }, patience));
  }
  void lose(std::size_t source) { sources[source]->lose(Error(ErrorCode::peer_lost, "so it is")); }

  std::vector<std::byte> mapped = std::vector<std::byte>(4, std::byte{7});  // memory of both sources
  MadeSource made;
  restore::Sources sources = [this] {
    made.binding.manifest = std::make_shared<const Manifest>(Manifest{4, std::vector<TensorLayout>(3, four_bytes)});
    made.link->offer({shm});
    Source::Listener& listener = *this;
    return make_sources(made.context, listener, {made.context.table, made.reach, nullptr}, made.options,
                        std::vector<restore::Binding>(2, made.binding));
  }();
  std::vector<move::Transfer> transfers{2};
  std::vector<const Source*> with_differing_blocks;
  bool throws_of_blocks = false;
  std::size_t differing = 0;
  std::size_t corrupt_blocks = 0;
  int done = 0;
  int failures = 0;
  int quieter = 0;
  const std::shared_ptr<BlockDigests> wanted = std::make_shared<BlockDigests>();
  memory::Copier copier{1, [] {}};
  memory::HostCopies copies{copier};
  ContentChecks checks{
      copies,
      sources,
      {.block_differs =
           [this](const Source& source, const wire::RequestedBox&) {
             with_differing_blocks.push_back(&source);
             if (throws_of_blocks) throw Error(ErrorCode::corrupt, "so it is");
           },
       .parts_differ =
           [this](std::span<const move::TransferPart> parts, std::span<const wire::RequestedBox> blocks) {
             differing += parts.size();
             corrupt_blocks += blocks.size();
           },
       .failed = [this](const std::exception_ptr&) { ++failures; },
       .quieter = [this] { ++quieter; }},
      wanted};
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

BOOST_AUTO_TEST_CASE(blocks_of_loaded_memory_are_compared_with_those_that_were_published) {
  for (const bool changed : {false, true}) {
    Bench bench;
    bench.publish_digests();
    if (changed) bench.mapped[2] = std::byte{8};
    bench.compare();
    BOOST_TEST(bench.done == 0);
    bench.finish_batch();
    BOOST_TEST(bench.done == 1);
    BOOST_TEST(bench.with_differing_blocks.size() == (changed ? 2U : 0U));
    BOOST_TEST(bench.checks.digest_seconds() > 0);
    BOOST_TEST(bench.failures == 0);
    BOOST_TEST(bench.quieter == 0);
  }
}

BOOST_AUTO_TEST_CASE(no_block_is_compared_before_all_published_digests_have_come) {
  Bench bench;
  bench.checks.start(bench.transfers);
  bench.compare();
  for (std::size_t source = 0; source < 2; ++source) {
    BOOST_TEST(!bench.checks.can_check(source));
    BOOST_TEST(bench.checks.idle());
    bench.made.link->answer(wire::Digests{0, {bench.digest()}});
    BOOST_TEST(bench.checks.can_check(source));
  }
  bench.finish_batch();
  BOOST_TEST(bench.done == 1);
  BOOST_TEST((*bench.wanted == BlockDigests{{0, {bench.digest()}}}));
}

BOOST_AUTO_TEST_CASE(memory_of_a_lost_source_is_compared_if_its_digests_have_come) {
  for (const bool came : {true, false}) {
    Bench bench;
    bench.checks.start(bench.transfers);
    bench.made.link->answer(wire::Digests{0, {bench.digest()}}, came ? 0 : 1);
    bench.mapped[2] = std::byte{8};
    bench.lose(0);
    bench.compare();
    if (came) bench.made.link->answer(wire::Digests{0, {bench.digest()}});  // of memory as it is now
    bench.finish_batch();
    BOOST_TEST(bench.done == 1);
    BOOST_TEST((bench.with_differing_blocks == std::vector<const Source*>{bench.sources[came ? 0 : 1].get()}));
  }
}

BOOST_AUTO_TEST_CASE(a_source_digests_parts_once_blocks_were_compared) {
  Bench bench;
  bench.publish_digests();
  bench.add(1);
  bench.compare();
  BOOST_TEST(bench.made.link->requests.empty());
  bench.finish_batch();
  BOOST_TEST(bench.done == 0);
  bench.answer(1);
  BOOST_TEST(bench.done == 1);
}

BOOST_AUTO_TEST_CASE(an_error_of_the_report_of_a_block_ends_the_checks) {
  Bench bench;
  bench.publish_digests();
  bench.mapped[2] = std::byte{8};
  bench.throws_of_blocks = true;
  bench.compare();
  bench.finish_batch();
  BOOST_TEST(bench.failures == 1);
  BOOST_TEST(bench.with_differing_blocks.size() == 1U);
  BOOST_TEST(bench.done == 0);
}

BOOST_AUTO_TEST_CASE(checks_that_stop_while_blocks_are_read_report_only_that_they_have_become_idle) {
  Bench bench;
  bench.publish_digests();
  bench.mapped[2] = std::byte{8};
  bench.add(1);
  bench.compare();
  bench.checks.stop();
  BOOST_TEST(bench.quieter == 0);
  bench.finish_batch();
  BOOST_TEST(bench.quieter == 1);
  BOOST_TEST(bench.with_differing_blocks.empty());
  BOOST_TEST(bench.made.link->requests.empty());
  BOOST_TEST(bench.done == 0);
  BOOST_TEST(bench.failures == 0);
}

BOOST_AUTO_TEST_CASE(checks_that_have_stopped_begin_nothing) {
  Bench bench;
  bench.checks.start(bench.transfers);
  bench.compare();
  bench.checks.stop();
  for (int source = 0; source < 2; ++source) bench.made.link->answer(wire::Digests{0, {bench.digest()}});
  bench.lose(0);
  BOOST_TEST(bench.checks.idle());
  BOOST_TEST(bench.wanted->empty());
  BOOST_TEST(bench.done == 0);
  BOOST_TEST(bench.quieter == 0);
}

BOOST_AUTO_TEST_SUITE_END()

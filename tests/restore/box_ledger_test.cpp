// SPDX-License-Identifier: Apache-2.0
// Which boxes of a plan are in place, and which another attempt has to move. Nothing arrives: the engine keeps all transfers.
#include "restore/box_ledger.hpp"

#include <boost/test/unit_test.hpp>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "memory/copier.hpp"
#include "memory/copy_queue.hpp"
#include "restore/made_source.hpp"

BOOST_AUTO_TEST_SUITE(box_ledger)

using namespace shardwire;
using namespace shardwire::test;
using restore::BoxLedger;

namespace {

constexpr Extent rows = 4;
constexpr Extent columns = 4;
constexpr ElementCount half = rows / 2 * columns;

JobLayout job(int ranks, const Layout& layout) {
  return JobLayout::uniform(ranks, {TensorLayout{{{"w", "exp_avg"}, DType::f64, {rows, columns}}, layout}});
}

RestoreOptions options_with(Replicas replicas) {
  RestoreOptions options;
  options.replicas = replicas;
  return options;
}

ElementCount elements(const std::vector<PieceBox>& boxes) {
  ElementCount all = 0;
  for (const PieceBox& one : boxes) all += one.box.volume();
  return all;
}

/// Two sources with half of a tensor each, two rows. Each row is a transfer, by messages.
struct Bench final : move::Requests, move::Events {
  explicit Bench(Replicas replicas = Replicas::spread)
      : target({std::make_shared<const Catalog>(Rank{0}, 1), job(1, Layout::replicated()).sections.front().manifest,
                restore::ValueScope::none},
               {}, options_with(replicas), std::nullopt, made.clock.now(), false) {
    planning.from = job(2, Layout::chunk(0, 2));
    Planner planner(planning.from, job(1, Layout::replicated()), {}, replicas);
    planning.plan = planner.plan(Rank{0});
    planning.schedule = planner.schedule(planning.plan);
    std::vector<restore::Binding> bindings(2, made.binding);
    for (int i = 0; i < 2; ++i) bindings[static_cast<std::size_t>(i)].holder = Rank{i};
    sources = make_sources(made.context, made.listener, {made.context.table, made.reach, nullptr}, made.options,
                           std::move(bindings));
  }
  void begin() {
    const PlacedBox all{Box::whole({rows, columns}), 0, {columns, 1}};
    auto list = std::make_shared<std::vector<move::Transfer>>();
    for (const ScheduledPiece& item : planning.schedule.items) {
      const Box& box = planning.schedule.box(item);
      for (Extent row = 0; row < box.size[0]; ++row) {
        move::Transfer& one = list->emplace_back();
        one.piece = item.piece;
        one.peer = static_cast<std::uint32_t>(to_int(item.source));
        one.method = Method::zcopy;
        one.box = Box{{box.offset[0] + row, 0}, {1, columns}};
        one.held = all;
        one.wanted = all;
        one.item_bytes = sizeof(double);
        one.target = std::as_writable_bytes(std::span(destination)).data();
      }
    }
    transfers = std::move(list);
    for (std::uint32_t peer = 0; peer < 2; ++peer) {
      engine.limit(peer, {.max_pack_bytes = 1u << 20,
                          .first_request = 1000 * (peer + 1),
                          .max_ranges = 1,
                          .max_read_bytes = 1u << 20,
                          .max_reads = 1,
                          .max_message_ranges = 1});
    }
    engine.add(transfers);
    ledger.begin(engine, *transfers, [](std::size_t) { return true; });
  }
  void lose(std::size_t source) {
    sources[source]->lose(Error(ErrorCode::peer_lost, "so it is"));
    BOOST_TEST(!ledger.drop(*sources[source]));
  }
  [[nodiscard]] const move::Transfer& transfer_of(std::uint32_t peer) const {
    for (const move::Transfer& one : *transfers) {
      if (one.peer == peer) return one;
    }
    throw std::logic_error("no such peer");
  }

  transport::Endpoint& endpoint(std::uint32_t) override { throw std::logic_error("nothing is read"); }
  void ask(std::uint32_t, std::uint64_t, std::vector<move::PackPart>, move::MessageForm) override {}
  void forget(std::uint32_t, std::uint64_t) override {}
  void changed() override {}
  void failed(const std::exception_ptr&) override {}
  void peer_failed(std::uint32_t, const transport::Fault&) override {}
  void digested(const move::TransferPart&, const Digest128&) override {}
  void differs(const move::TransferPart&) override {}

  MadeSource made;
  restore::Planning planning;
  restore::Target target;
  restore::Sources sources;
  std::vector<double> destination = std::vector<double>(rows * columns);
  std::shared_ptr<const std::vector<move::Transfer>> transfers;
  move::PayloadTable payloads;
  CostModel costs;
  memory::Copier copier{1, [] {}};
  memory::HostCopies copies{copier};
  move::Engine engine{copies,
                      std::make_shared<move::StagingPool>(1u << 20, 1u << 16),
                      {.ingress_bytes_per_second = 0, .digests = false, .costs = costs, .payloads = payloads},
                      static_cast<move::Requests&>(*this),
                      static_cast<move::Events&>(*this)};
  BoxLedger ledger{made.context, target, planning, sources};
};

}  // namespace

BOOST_AUTO_TEST_CASE(before_anything_moves_all_that_is_planned_is_owed) {
  Bench bench;
  BOOST_TEST(elements(bench.ledger.undelivered()) == 2 * half);
  BOOST_TEST(elements(bench.ledger.undelivered(bench.sources[1].get())) == half);
  BOOST_TEST(elements(bench.ledger.owed_by(*bench.sources[0])) == half);
  BOOST_TEST(elements(bench.ledger.unproven()) == 2 * half);
  BOOST_TEST(bench.ledger.resent_bytes(*bench.sources[0]) == 0U);
  BOOST_TEST(bench.ledger.missing().empty());
  BOOST_TEST(bench.ledger.accounts_for_all());
}

BOOST_AUTO_TEST_CASE(sources_that_live_deliver_what_they_owe) {
  Bench bench;
  bench.begin();
  BOOST_TEST(bench.ledger.undelivered().empty());
  BOOST_TEST(elements(bench.ledger.owed_by(*bench.sources[0])) == half);
  BOOST_TEST(bench.ledger.missing().size() == 2U);
  BOOST_TEST(!bench.ledger.accounts_for_all());
}

BOOST_AUTO_TEST_CASE(a_lost_source_leaves_what_it_has_not_delivered) {
  Bench bench;
  bench.begin();
  bench.lose(0);
  BOOST_TEST(elements(bench.ledger.undelivered()) == half);
  BOOST_TEST(elements(bench.ledger.undelivered(bench.sources[0].get())) == half);
  BOOST_TEST(bench.ledger.undelivered(bench.sources[1].get()).empty());
  BOOST_TEST(bench.ledger.resent_bytes(*bench.sources[0]) == 0U);
  BOOST_TEST(!bench.ledger.accounts_for_all());
  bench.lose(1);
  BOOST_TEST(elements(bench.ledger.undelivered()) == 2 * half);
  BOOST_TEST(bench.ledger.accounts_for_all());
}

BOOST_AUTO_TEST_CASE(what_a_slow_source_returns_moves_again_and_the_source_keeps_the_rest) {
  Bench bench;
  bench.begin();
  bench.ledger.note_returned(bench.engine.take_waiting(1));
  BOOST_TEST(elements(bench.ledger.undelivered()) == half);
  BOOST_TEST(bench.ledger.undelivered(bench.sources[0].get()).empty());
}

BOOST_AUTO_TEST_CASE(with_the_first_replica_a_tensor_of_a_holder_moves_again_as_a_whole) {
  for (const Replicas replicas : {Replicas::spread, Replicas::first}) {
    Bench bench(replicas);
    bench.begin();
    const move::Transfer& row = bench.transfer_of(0);
    const move::TransferPart part(row, row.box);
    bench.ledger.note_rotten(std::span(&part, 1));
    bench.ledger.note_corrupt(std::span(&part, 1));
    BOOST_TEST(elements(bench.ledger.undelivered()) == (replicas == Replicas::first ? half : columns));
  }
}

BOOST_AUTO_TEST_CASE(a_box_is_found_corrupt_once) {
  Bench bench;
  bench.begin();
  const wire::RequestedBox block{0, bench.transfer_of(1).box};
  for (int times = 0; times < 2; ++times) bench.ledger.note_corrupt(*bench.sources[1], std::span(&block, 1));
  BOOST_REQUIRE(bench.ledger.corrupt().size() == 1U);
  BOOST_TEST((bench.ledger.corrupt().front().holder == Rank{1}));
  BOOST_TEST((bench.ledger.corrupt().front().box.box == block.box));
  BOOST_TEST(bench.made.context.logged.size() == 1U);
}

BOOST_AUTO_TEST_CASE(blocks_of_which_nothing_is_read_are_refused) {
  Bench bench;
  bench.begin();
  const wire::RequestedBox block{0, bench.transfer_of(1).box};
  BOOST_CHECK_EXCEPTION(bench.ledger.note_corrupt(*bench.sources[0], std::span(&block, 1)), Error,
                        [](const Error& error) { return error.code() == ErrorCode::transport_failed; });
}

BOOST_AUTO_TEST_CASE(corrupt_bytes_end_a_restore_that_compares_replicas) {
  Bench bench(Replicas::compare);
  bench.begin();
  const wire::RequestedBox block{0, bench.transfer_of(1).box};
  BOOST_CHECK_EXCEPTION(bench.ledger.note_corrupt(*bench.sources[1], std::span(&block, 1)), Error,
                        [](const Error& error) { return error.code() == ErrorCode::corrupt; });
}

BOOST_AUTO_TEST_SUITE_END()

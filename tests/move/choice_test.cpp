// SPDX-License-Identifier: Apache-2.0
#include "move/choice.hpp"

#include <boost/test/unit_test.hpp>

#include <numeric>

#include "shardwire/error.hpp"

using namespace shardwire;
using namespace shardwire::move;

namespace {

// `rows` rows of `row` elements, `gap` elements of the source between them; the target is dense.
Transfer rows_of(std::uint32_t peer, Extent rows, Extent row, Extent gap, ByteCount item_bytes = 4) {
  Transfer transfer;
  transfer.peer = peer;
  transfer.box = Box::whole({rows, row});
  transfer.held = {transfer.box, 0, {row + gap, 1}};
  transfer.wanted = {transfer.box, 0, {row, 1}};
  transfer.item_bytes = item_bytes;
  return transfer;
}

constexpr Offer everything{Reach::host, {Way::mapped, Way::read, Way::over_read, Way::straight, Way::packed}};
constexpr Offer messages{Reach::network, {Way::straight, Way::packed}};

// All ways cost the same at every reach, until a test makes one cheap or dear.
CostModel flat_costs() {
  CostModel costs;
  for (std::size_t reach = 0; reach < reach_count; ++reach) {
    for (std::size_t way = 0; way < way_count; ++way) {
      costs.at(static_cast<Reach>(reach), static_cast<Way>(way)) = {1e-6, 1e-6, 1e9};
    }
  }
  return costs;
}

Predictions choose(std::vector<Transfer>& transfers, const std::vector<Offer>& offers, const CostModel& costs,
                   std::optional<Way> forced = std::nullopt) {
  return choose_ways(transfers, offers, costs, forced);
}

Way way_of(Transfer transfer, const Offer& offer, const CostModel& costs, std::optional<Way> forced = std::nullopt) {
  std::vector<Transfer> one{std::move(transfer)};
  choose(one, {offer}, costs, forced);
  return one.front().way;
}

bool is_unsupported(Transfer transfer, const Offer& offer, Way forced) {
  try {
    way_of(std::move(transfer), offer, flat_costs(), forced);
    return false;
  } catch (const ImpossibleWay& error) {
    return error.code() == ErrorCode::unsupported && error.forced == forced && error.transfer == 0;
  }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(choice)

BOOST_AUTO_TEST_CASE(runs_are_classed_by_powers_of_four) {
  BOOST_TEST(run_class(0) == 0U);
  BOOST_TEST(run_class(1) == 0U);
  ByteCount first = 256;
  for (std::size_t index = 1; index < run_classes; ++index, first *= 4) {
    BOOST_TEST(run_class(first - 1) == index - 1);
    BOOST_TEST(run_class(first) == index);
  }
  BOOST_TEST(run_class(ByteCount{1} << 40) == run_classes - 1);
  BOOST_TEST(run_class(~ByteCount{0}) == run_classes - 1);
}

BOOST_AUTO_TEST_CASE(the_cheapest_of_those_that_are_possible_is_taken) {
  for (const Way cheap : {Way::mapped, Way::read, Way::straight, Way::packed}) {
    CostModel costs = flat_costs();
    costs.at(Reach::host, cheap).bytes_per_second = 1e12;
    BOOST_TEST((way_of(rows_of(0, 100, 100, 0), everything, costs) == cheap));
  }
  CostModel costs = flat_costs();
  costs.at(Reach::network, Way::mapped).bytes_per_second = 1e12;  // but not possible
  costs.at(Reach::host, Way::packed).bytes_per_second = 1e12;     // but of another reach
  costs.at(Reach::network, Way::straight).latency_seconds = 0;
  BOOST_TEST((way_of(rows_of(0, 100, 100, 0), messages, costs) == Way::straight));
}

BOOST_AUTO_TEST_CASE(what_lies_in_this_process_is_copied_whatever_is_forced) {
  const Offer own{Reach::process, {Way::local}};
  for (std::size_t way = 0; way < way_count; ++way) {
    BOOST_TEST((way_of(rows_of(0, 4, 4, 0), own, flat_costs(), static_cast<Way>(way)) == Way::local));
  }
  BOOST_TEST((way_of(rows_of(0, 4, 4, 0), own, flat_costs()) == Way::local));
}

BOOST_AUTO_TEST_CASE(long_runs_and_short_ones_of_a_peer_are_decided_apart) {
  CostModel costs = flat_costs();
  costs.at(Reach::network, Way::straight) = {0, 1e-5, 1e10};
  costs.at(Reach::network, Way::packed) = {0, 0, 1e9};
  // Rows of 64 B and rows of 1 MiB: a message for each pays off for the long ones only.
  std::vector<Transfer> transfers{rows_of(0, 1000, 16, 1), rows_of(0, 8, 1 << 18, 1), rows_of(1, 1000, 16, 1)};
  choose(transfers, {messages, messages, messages}, costs);
  BOOST_TEST((transfers[0].way == Way::packed));
  BOOST_TEST((transfers[1].way == Way::straight));
  BOOST_TEST((transfers[2].way == Way::packed));
}

BOOST_AUTO_TEST_CASE(transfers_of_one_peer_and_class_go_one_way_and_share_its_latency) {
  CostModel costs = flat_costs();
  costs.at(Reach::network, Way::straight) = {0.001, 0, 1e9};
  costs.at(Reach::network, Way::packed) = {0, 0, 1e8};
  // 40 kB alone: 0.4 ms packed, more than 1 ms straight. Ten of them: 4 ms packed, 1.4 ms straight.
  BOOST_TEST((way_of(rows_of(0, 100, 100, 1), messages, costs) == Way::packed));
  std::vector<Transfer> same(10, rows_of(0, 100, 100, 1));
  const Predictions together = choose(same, std::vector<Offer>(10, messages), costs);
  for (const Transfer& transfer : same) BOOST_TEST((transfer.way == Way::straight));
  BOOST_TEST(together.ways[static_cast<std::size_t>(Way::straight)].seconds == 0.0014,
             boost::test_tools::tolerance(1e-9));
  std::vector<Transfer> apart;
  for (std::uint32_t peer = 0; peer < 10; ++peer) apart.push_back(rows_of(peer, 100, 100, 1));
  choose(apart, std::vector<Offer>(10, messages), costs);
  for (const Transfer& transfer : apart) BOOST_TEST((transfer.way == Way::packed));
}

BOOST_AUTO_TEST_CASE(transfers_that_can_go_other_ways_are_not_held_to_one_decision) {
  CostModel costs = flat_costs();
  costs.at(Reach::host, Way::mapped).bytes_per_second = 1e12;
  std::vector<Transfer> transfers{rows_of(0, 10, 10, 0), rows_of(0, 10, 10, 0)};
  choose(transfers, {everything, {Reach::host, {Way::packed}}}, costs);
  BOOST_TEST((transfers[0].way == Way::mapped));
  BOOST_TEST((transfers[1].way == Way::packed));
}

BOOST_AUTO_TEST_CASE(predictions_add_up_to_the_bytes_and_runs_of_the_transfers) {
  std::vector<Transfer> transfers{rows_of(0, 10, 10, 1), rows_of(0, 7, 3, 2, 8), rows_of(2, 5, 4, 0)};
  const Predictions predictions =
      choose(transfers, {everything, messages, {Reach::process, {Way::local}}}, CostModel());
  ByteCount bytes = 0;
  ByteCount runs = 0;
  for (std::size_t way = 0; way < way_count; ++way) {
    const Prediction& one = predictions.ways[way];
    BOOST_TEST((one.seconds > 0) == (one.bytes > 0));
    bytes += one.bytes;
    runs += one.runs;
  }
  BOOST_TEST(bytes == 10U * 10 * 4 + 7U * 3 * 8 + 5U * 4 * 4);
  BOOST_TEST(runs == 10U + 7 + 1);
  BOOST_TEST(predictions.ways[static_cast<std::size_t>(Way::local)].runs == 1U);
}

BOOST_AUTO_TEST_CASE(predicted_seconds_are_those_of_the_model) {
  CostModel costs = flat_costs();
  costs.at(Reach::network, Way::packed) = {0.5, 0.25, 400};
  std::vector<Transfer> transfers{rows_of(0, 10, 10, 1)};
  const Predictions predictions = choose(transfers, {{Reach::network, {Way::packed}}}, costs);
  BOOST_TEST(predictions.ways[static_cast<std::size_t>(Way::packed)].seconds == 0.5 + 10 * 0.25 + 1.0);
}

BOOST_AUTO_TEST_CASE(what_mapping_would_have_saved_is_told_for_peers_of_this_host_only) {
  CostModel costs = flat_costs();
  costs.at(Reach::host, Way::packed) = {1, 0, 400};
  costs.at(Reach::host, Way::mapped) = {0, 0, 4000};
  std::vector<Transfer> transfers{rows_of(0, 10, 10, 1), rows_of(1, 10, 10, 1), rows_of(2, 10, 10, 1)};
  const Predictions predictions =
      choose(transfers, {{Reach::host, {Way::packed}}, {Reach::network, {Way::packed}}, everything}, costs);
  BOOST_REQUIRE(predictions.unmapped_seconds.size() == 3U);
  BOOST_TEST(predictions.unmapped_seconds[0] == 1.9, boost::test_tools::tolerance(1e-9));
  BOOST_TEST(predictions.unmapped_seconds[1] == 0.0);
  BOOST_TEST(predictions.unmapped_seconds[2] == 0.0);
}

BOOST_AUTO_TEST_CASE(gaps_are_read_only_where_that_wins) {
  CostModel costs = flat_costs();
  const Offer reads{Reach::host, {Way::read, Way::over_read}};
  costs.at(Reach::host, Way::read) = {0, 1e-6, 1e9};
  costs.at(Reach::host, Way::over_read) = {0, 0, 1e9};
  BOOST_TEST((way_of(rows_of(0, 1000, 16, 8), reads, costs) == Way::over_read));
  costs.at(Reach::host, Way::over_read).bytes_per_second = 1e7;
  BOOST_TEST((way_of(rows_of(0, 1000, 16, 8), reads, costs) == Way::read));
}

BOOST_AUTO_TEST_CASE(gaps_are_never_read_beyond_double_nor_where_there_are_none) {
  CostModel costs = flat_costs();
  const Offer reads{Reach::host, {Way::read, Way::over_read}};
  for (const Way way : {Way::read, Way::straight, Way::packed}) costs.at(Reach::host, way) = {1, 1, 1};
  costs.at(Reach::host, Way::over_read) = {0, 0, 1e15};
  // 100 rows of 16: hull 100 * (16 + gap) - gap elements.
  BOOST_TEST((way_of(rows_of(0, 100, 16, 16), reads, costs) == Way::over_read));
  BOOST_TEST((way_of(rows_of(0, 100, 16, 17), reads, costs) == Way::read));
  BOOST_TEST((way_of(rows_of(0, 100, 16, 0), reads, costs) == Way::read));
  BOOST_TEST((way_of(rows_of(0, 100, 16, 17), reads, costs, Way::over_read) == Way::read));
  BOOST_TEST((way_of(rows_of(0, 100, 16, 16), reads, costs, Way::over_read) == Way::over_read));
}

BOOST_AUTO_TEST_CASE(a_forced_way_is_taken_however_dear_it_is) {
  for (const Way forced : {Way::mapped, Way::read, Way::over_read, Way::straight, Way::packed}) {
    CostModel costs = flat_costs();
    costs.at(Reach::host, forced) = {1e9, 1e9, 1e-9};
    BOOST_TEST((way_of(rows_of(0, 100, 100, 1), everything, costs, forced) == forced));
    BOOST_TEST((way_of(rows_of(0, 100, 100, 1), everything, costs) != forced));
  }
}

BOOST_AUTO_TEST_CASE(a_forced_way_that_is_not_possible_is_unsupported) {
  BOOST_TEST(is_unsupported(rows_of(0, 4, 4, 1), everything, Way::local));
  for (const Way forced : {Way::mapped, Way::read, Way::over_read}) {
    BOOST_TEST(is_unsupported(rows_of(0, 4, 4, 1), messages, forced));
  }
  BOOST_TEST(is_unsupported(rows_of(0, 4, 4, 1), {Reach::host, {Way::mapped}}, Way::packed));
  BOOST_TEST(is_unsupported(rows_of(0, 4, 4, 1), {Reach::network, {Way::packed}}, Way::straight));
}

BOOST_AUTO_TEST_CASE(nothing_to_move_is_nothing_to_decide) {
  std::vector<Transfer> none;
  const Predictions predictions = choose(none, {}, CostModel(), Way::read);
  for (const Prediction& one : predictions.ways) BOOST_TEST((one.bytes == 0 && one.seconds == 0));
  BOOST_TEST(predictions.unmapped_seconds.empty());
}

BOOST_AUTO_TEST_SUITE_END()

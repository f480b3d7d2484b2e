// SPDX-License-Identifier: Apache-2.0
// Leases on publications and the end of a publication, on a fake clock.
#include "serve/leases.hpp"

#include <boost/test/unit_test.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "support/made_clock.hpp"
#include "support/refused.hpp"

BOOST_AUTO_TEST_SUITE(leases)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;

namespace {

constexpr auto limit = 6s;
constexpr auto one_iteration = 1ms;  // releases that have arrived are read before leases are revoked

using Published = std::shared_ptr<detail::PublicationState>;
using Members = std::vector<int>;

Published published(const std::string& name = "model") {
  auto publication = std::make_shared<detail::PublicationState>();
  publication->name = name;
  return publication;
}

Lease lease_of(std::uint64_t reader, int member) {
  Lease lease;
  lease.reader = reader;
  lease.member = member;
  return lease;
}

struct Bench {
  /// `to`: receives the members that still read.
  void retire(const Published& publication, std::optional<Members>& to) {
    leases.retire(publication, limit, [&to](Members members) { to = std::move(members); });
  }

  MadeClock clock;
  std::vector<const detail::PublicationState*> aborted;
  std::function<void()> on_abort = [] {};
  Leases leases{clock, [this](const detail::PublicationState& publication) {
                  aborted.push_back(&publication);
                  on_abort();
                }};
  Published model = published();
  std::optional<Members> left;
};

}  // namespace

BOOST_AUTO_TEST_CASE(a_lease_is_held_by_its_reader_only_until_it_is_released) {
  Bench bench;
  const std::uint64_t number = bench.leases.grant(bench.model, lease_of(7, 3));
  const Leases::Held held = bench.leases.held(number, 7);
  BOOST_TEST((held.publication == bench.model));
  BOOST_TEST(held.lease->member == 3);
  BOOST_TEST(bench.leases.holds(7, number));
  BOOST_TEST(!bench.leases.holds(8, number));
  refused(ErrorCode::invalid_argument, "another reader's", [&] { (void)bench.leases.held(number, 8); });
  refused(ErrorCode::invalid_argument, "there is no lease", [&] { (void)bench.leases.held(number + 1, 7); });
  BOOST_TEST(bench.leases.release(number));
  BOOST_TEST(!bench.leases.holds(7, number));
  BOOST_TEST(!bench.leases.release(number));
  refused(ErrorCode::invalid_argument, "there is no lease", [&] { (void)bench.leases.held(number, 7); });
}

BOOST_AUTO_TEST_CASE(leases_have_numbers_of_their_own) {
  Bench bench;
  const std::uint64_t first = bench.leases.grant(bench.model, lease_of(7, 3));
  const std::uint64_t second = bench.leases.grant(published("other"), lease_of(7, 3));
  BOOST_TEST(first != second);
  BOOST_TEST(first != 0U);
  BOOST_TEST(bench.leases.release(first));
  BOOST_TEST(bench.leases.holds(7, second));
}

BOOST_AUTO_TEST_CASE(a_publication_without_readers_is_retired_at_once) {
  Bench bench;
  bench.retire(bench.model, bench.left);
  BOOST_REQUIRE(bench.left.has_value());
  BOOST_TEST(bench.left->empty());
  BOOST_TEST(bench.clock.alarms_set() == 0U);
  BOOST_TEST(bench.model.use_count() == 1);
}

BOOST_AUTO_TEST_CASE(retiring_waits_for_the_last_lease_on_the_publication) {
  Bench bench;
  const std::uint64_t first = bench.leases.grant(bench.model, lease_of(7, 3));
  const std::uint64_t second = bench.leases.grant(bench.model, lease_of(8, 4));
  const std::uint64_t other = bench.leases.grant(published("other"), lease_of(7, 3));
  bench.retire(bench.model, bench.left);
  bench.clock.advance(limit / 2);
  BOOST_TEST(bench.leases.release(first));
  BOOST_TEST(!bench.left.has_value());
  BOOST_TEST(bench.leases.release(second));
  BOOST_REQUIRE(bench.left.has_value());
  BOOST_TEST(bench.left->empty());
  BOOST_TEST(bench.aborted.empty());
  BOOST_TEST(bench.clock.alarms_set() == 0U);
  BOOST_TEST(bench.model.use_count() == 1);
  BOOST_TEST(bench.leases.release(other));
}

BOOST_AUTO_TEST_CASE(retiring_waits_for_reads_by_this_member) {
  Bench bench;
  bench.leases.begin_read(bench.model);
  bench.leases.begin_read(bench.model);
  bench.retire(bench.model, bench.left);
  bench.leases.end_read(bench.model);
  BOOST_TEST(!bench.left.has_value());
  bench.leases.end_read(bench.model);
  BOOST_REQUIRE(bench.left.has_value());
  BOOST_TEST(bench.left->empty());
}

BOOST_AUTO_TEST_CASE(leases_are_revoked_when_the_time_is_up_and_their_members_are_named_once) {
  Bench bench;
  const std::uint64_t first = bench.leases.grant(bench.model, lease_of(8, 4));
  const std::uint64_t second = bench.leases.grant(bench.model, lease_of(7, 3));
  bench.leases.grant(bench.model, lease_of(8, 4));
  bench.retire(bench.model, bench.left);
  bench.clock.advance(limit - 1ns);
  BOOST_TEST(!bench.left.has_value());
  bench.clock.advance(one_iteration + 1ns);
  BOOST_REQUIRE(bench.left.has_value());
  BOOST_TEST(*bench.left == (Members{3, 4}), boost::test_tools::per_element());
  refused(ErrorCode::withdrawn, "'model' was withdrawn", [&] { (void)bench.leases.held(first, 8); });
  BOOST_TEST(bench.leases.holds(8, first));  // its reader may still send requests
  BOOST_TEST(!bench.leases.release(first));
  BOOST_TEST(!bench.leases.release(second));
  bench.leases.release_all(8);
  BOOST_TEST(bench.model.use_count() == 1);
}

BOOST_AUTO_TEST_CASE(a_release_that_the_socket_holds_when_the_time_is_up_counts) {
  Bench bench;
  const std::uint64_t number = bench.leases.grant(bench.model, lease_of(7, 3));
  bench.retire(bench.model, bench.left);
  bench.clock.advance(limit);
  BOOST_TEST(!bench.left.has_value());
  BOOST_TEST(bench.leases.release(number));
  BOOST_REQUIRE(bench.left.has_value());
  BOOST_TEST(bench.left->empty());
  bench.clock.advance(one_iteration);
  BOOST_TEST(bench.aborted.empty());
}

BOOST_AUTO_TEST_CASE(memory_that_is_still_read_when_the_time_is_up_stays_in_use_until_the_read_ends) {
  Bench bench;
  bench.leases.grant(bench.model, lease_of(7, 3));
  bench.leases.begin_read(bench.model);
  bench.retire(bench.model, bench.left);
  bench.clock.advance(limit + one_iteration);
  BOOST_REQUIRE(bench.aborted.size() == 1U);
  BOOST_TEST(bench.aborted.front() == bench.model.get());
  BOOST_TEST(!bench.left.has_value());
  bench.leases.end_read(bench.model);
  BOOST_REQUIRE(bench.left.has_value());
  BOOST_TEST(*bench.left == Members{3}, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(reads_that_end_by_being_aborted_end_the_retirement_once) {
  Bench bench;
  int retired = 0;
  bench.leases.begin_read(bench.model);
  bench.on_abort = [&] { bench.leases.end_read(bench.model); };
  bench.leases.retire(bench.model, limit, [&](const Members& members) {
    ++retired;
    BOOST_TEST(members.empty());
  });
  bench.clock.advance(limit + one_iteration);
  BOOST_TEST(retired == 1);
  BOOST_TEST(bench.clock.alarms_set() == 0U);
}

BOOST_AUTO_TEST_CASE(leases_are_revoked_before_reads_are_aborted) {
  Bench bench;
  const std::uint64_t number = bench.leases.grant(bench.model, lease_of(7, 3));
  bench.leases.begin_read(bench.model);
  bool revoked = false;
  bench.on_abort = [&] {
    refused(ErrorCode::withdrawn, "'model'", [&] { (void)bench.leases.held(number, 7); });
    revoked = true;
  };
  bench.retire(bench.model, bench.left);
  bench.clock.advance(limit + one_iteration);
  BOOST_TEST(revoked);
  bench.leases.end_read(bench.model);
}

BOOST_AUTO_TEST_CASE(a_reader_that_has_gone_holds_no_lease) {
  Bench bench;
  const Published other = published("other");
  bench.leases.grant(bench.model, lease_of(7, 3));
  bench.leases.grant(bench.model, lease_of(7, 3));
  const std::uint64_t kept = bench.leases.grant(other, lease_of(8, 4));
  bench.leases.grant(other, lease_of(7, 3));
  std::optional<Members> left_of_other;
  bench.retire(bench.model, bench.left);
  bench.retire(other, left_of_other);
  bench.leases.release_all(7);
  BOOST_TEST(bench.left.has_value());
  BOOST_TEST(!left_of_other.has_value());
  BOOST_TEST(bench.leases.release(kept));
  BOOST_TEST(left_of_other.has_value());
}

BOOST_AUTO_TEST_CASE(retirements_of_several_publications_do_not_affect_each_other) {
  Bench bench;
  const Published other = published("other");
  bench.leases.grant(bench.model, lease_of(7, 3));
  const std::uint64_t of_other = bench.leases.grant(other, lease_of(7, 3));
  std::optional<Members> left_of_other;
  bench.retire(bench.model, bench.left);
  bench.clock.advance(limit / 2);
  bench.retire(other, left_of_other);
  bench.clock.advance(limit / 2 + one_iteration);
  BOOST_TEST(bench.left.has_value());
  BOOST_TEST(!left_of_other.has_value());
  BOOST_TEST((bench.leases.held(of_other, 7).publication == other));
  bench.clock.advance(limit / 2);
  BOOST_TEST(left_of_other.has_value());
}

BOOST_AUTO_TEST_CASE(a_publication_may_be_retired_while_the_end_of_another_is_reported) {
  Bench bench;
  const Published next = published("next");
  const std::uint64_t number = bench.leases.grant(bench.model, lease_of(7, 3));
  bench.leases.retire(bench.model, limit, [&](const Members&) { bench.retire(next, bench.left); });
  BOOST_TEST(bench.leases.release(number));
  BOOST_TEST(bench.left.has_value());
}

BOOST_AUTO_TEST_CASE(memory_that_fabrics_adopted_is_withdrawn_from_them_at_the_end) {
  Bench bench;
  const auto adopted = std::make_shared<detail::RegisteredMemory>(
      nullptr, detail::RegisteredMemory::Regions{}, transport::Memory{}, detail::RegisteredMemory::Owner::caller);
  bench.model->adopted.push_back(adopted);
  const std::uint64_t number = bench.leases.grant(bench.model, lease_of(7, 3));
  bool withdrawn_at_the_end = false;
  bench.leases.retire(bench.model, limit, [&](const Members&) { withdrawn_at_the_end = adopted->withdrawn(); });
  BOOST_TEST(!withdrawn_at_the_end);
  BOOST_TEST(!adopted->withdrawn());
  BOOST_TEST(bench.leases.release(number));
  BOOST_TEST(withdrawn_at_the_end);
}

BOOST_AUTO_TEST_CASE(the_end_of_the_session_ends_all_retirements) {
  Bench bench;
  std::optional<Members> left;
  {
    Leases leases(bench.clock, [](const detail::PublicationState&) {});
    leases.grant(bench.model, lease_of(7, 3));
    leases.retire(bench.model, limit, [&](Members members) { left = std::move(members); });
    BOOST_TEST(!left.has_value());
  }
  BOOST_REQUIRE(left.has_value());
  BOOST_TEST(left->empty());
  BOOST_TEST(bench.clock.alarms_set() == 0U);
}

BOOST_AUTO_TEST_CASE(the_charge_of_a_lease_ends_with_it) {
  Bench bench;
  const auto load = std::make_shared<ReaderLoad>();
  const ReaderLoad::Amount all_boxes{.leases = 1, .boxes = 1u << 17};
  Lease lease = lease_of(7, 3);
  lease.charge = Charge(load, all_boxes);
  const std::uint64_t number = bench.leases.grant(bench.model, std::move(lease));
  refused(ErrorCode::out_of_resources, "holds 1 leases", [&] { load->check({.leases = 1, .boxes = 1}); });
  BOOST_TEST(bench.leases.release(number));
  load->check(all_boxes);
}

BOOST_AUTO_TEST_SUITE_END()

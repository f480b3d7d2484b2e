// SPDX-License-Identifier: Apache-2.0
// Processes beside the members of a job: Bootstrap::guest.
#include <boost/test/unit_test.hpp>

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "support/deadline.hpp"
#include "support/job.hpp"

BOOST_AUTO_TEST_SUITE(guest)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;

namespace {

const TensorSpec spec{{"w", "exp_avg"}, DType::f32, {64, 16}};
const Layout halves = Layout::chunk(0, 2);

Bootstrap guest_of(std::uint16_t port, int members = 0) {
  Bootstrap bootstrap = member(0, members, port);
  bootstrap.guest = true;
  return bootstrap;
}

/// One rank of some layout, and its catalog.
struct Shard {
  Shard(const Layout& layout, int rank, int ranks) : memory(spec, layout, Rank{rank}), catalog(Rank{rank}, ranks) {
    memory.add_to(catalog);
  }
  TestShard memory;
  Catalog catalog;
};

std::size_t wrong_after_restore(Session& session, const RestoreOptions& options, std::uint64_t seed) {
  Shard all(Layout::replicated(), 0, 1);
  all.memory.fill(4711);
  Restore restore = session.restore(all.catalog, options);
  restore.wait();
  return all.memory.wrong(seed);
}

}  // namespace

BOOST_AUTO_TEST_CASE(guests_publish_to_members_and_restore_from_them) {
  const Deadline deadline(120s);
  const std::uint16_t port = free_port();
  Session zero = Session::join(member(0, 2, port), quick());
  Session first = Session::join(guest_of(port), quick());
  Session second = Session::join(guest_of(port, 2), quick());
  BOOST_TEST(first.rank() == 2);
  BOOST_TEST(first.world_size() == 2);
  BOOST_TEST(second.rank() == 3);

  Shard lower(halves, 0, 2);
  Shard upper(halves, 1, 2);
  lower.memory.fill(8);
  upper.memory.fill(8);
  const Publication by_member = zero.publish(lower.catalog, {.step = 8});
  const Publication by_guest = second.publish(upper.catalog, {.step = 8});
  BOOST_TEST(wrong_after_restore(zero, within(patience), 8) == 0U);
  BOOST_TEST(wrong_after_restore(first, within(patience), 8) == 0U);
}

BOOST_AUTO_TEST_CASE(a_guest_takes_no_part_in_calls_of_all_members) {
  const Deadline deadline(120s);
  const std::uint16_t port = free_port();
  Session zero = Session::join(member(0, 1, port), quick());
  Session guest = Session::join(guest_of(port), quick());
  const Shard none(halves, 0, 2);
  BOOST_TEST((failure_of([&] { guest.gather("all", {}, 1s); }).code() == ErrorCode::unsupported));
  BOOST_TEST((failure_of([&] { guest.exchange(none.catalog, none.catalog); }).code() == ErrorCode::unsupported));
  BOOST_TEST((failure_of([&] { guest.start_exchange(none.catalog, none.catalog); }).code() == ErrorCode::unsupported));
  BOOST_TEST(zero.gather("all", Bytes(3), patience).size() == 1U);
}

BOOST_AUTO_TEST_CASE(what_a_guest_has_published_goes_with_it) {
  const Deadline deadline(120s);
  const std::uint16_t port = free_port();
  Session zero = Session::join(member(0, 1, port), quick());
  {
    Session guest = Session::join(guest_of(port), quick());
    Shard all(Layout::replicated(), 0, 1);
    const Publication publication = guest.publish(all.catalog, {.step = 1});
    const auto known = [&] { return zero.inventory("state", {}, patience).publishers.size() == 1U; };
    BOOST_TEST(run_until([] {}, known, patience));
  }
  RestoreOptions options = within(1s);
  options.step_rule = StepRule::newest_complete;
  const Error error = failure_of([&] { wrong_after_restore(zero, options, 1); });
  BOOST_TEST((error.code() == ErrorCode::timed_out || error.code() == ErrorCode::peer_lost), error.what());
}

BOOST_AUTO_TEST_CASE(a_guest_that_expects_another_size_is_refused) {
  const Deadline deadline(120s);
  const std::uint16_t port = free_port();
  Session zero = Session::join(member(0, 2, port), quick());
  const Error error = failure_of([&] { Session::join(guest_of(port, 3), quick()); });
  BOOST_TEST((error.code() == ErrorCode::invalid_argument), error.what());
  BOOST_TEST((failure_of([&] { Session::join(guest_of(port, -1), quick()); }).code() == ErrorCode::invalid_argument));
}

BOOST_AUTO_TEST_SUITE_END()

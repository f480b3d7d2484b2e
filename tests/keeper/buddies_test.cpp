// SPDX-License-Identifier: Apache-2.0
// Copies of what a keeper holds, in keepers of other hosts. Here every host is a keeper of this process, and a failure domain.
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <cstdint>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "keeper/kept_job.hpp"
#include "restore/buddy_task.hpp"
#include "support/deadline.hpp"

BOOST_AUTO_TEST_SUITE(buddies_of_keepers)

using namespace shardwire;
using namespace shardwire::test;
using namespace shardwire::test::kept_job;
using namespace std::chrono_literals;

namespace {

PublishOptions copied(std::int64_t step) {
  return {.step = step, .keep = {.steps = 1}, .buddies = 1};
}

/// Two hosts with a keeper and two ranks each.
struct TwoHosts {
  explicit TwoHosts(const std::string& test, ByteCount budget = 64u << 20, ByteCount budget_of_second = 64u << 20)
      : options(named(test)) {
    for (const int host : {0, 1}) {
      keepers[host] = start(keeper_of(host), host == 0 ? budget : budget_of_second, memory[host].allocate());
    }
    begin(4, [](int rank) { return rank / 2; });
  }
  /// Ends the sessions without a goodbye, if there are any, and begins another one.
  template <typename HostOf>
  void begin(int ranks, HostOf host_of) {
    publications.clear();
    sessions.clear();
    states.clear();
    sessions.resize(static_cast<std::size_t>(ranks));
    publications.resize(static_cast<std::size_t>(ranks));
    for (int rank = 0; rank < ranks; ++rank) states.emplace_back(rank, ranks);
    const std::uint16_t port = free_port();
    on_members(ranks, [&](int rank) {
      SessionOptions of_rank = with(keeper_of(host_of(rank)));
      of_rank.host_domain = "host " + std::to_string(host_of(rank));
      of_rank.log = [this](LogLevel level, std::string_view text) {
        if (level < LogLevel::warning) return;
        const std::lock_guard lock(mutex);
        warnings.emplace_back(text);
      };
      auto& session = sessions[static_cast<std::size_t>(rank)];
      session.emplace(Session::join(member(rank, ranks, port), of_rank));
      session->gather("joined", {}, patience);
    });
  }
  void publish(std::int64_t step) {
    on_members(static_cast<int>(sessions.size()), [&](int rank) {
      const auto at = static_cast<std::size_t>(rank);
      states[at].set(step);
      publications[at] = Publication();
      PublishOptions of_step = copied(step);
      of_step.digest = digest;
      publications[at] = sessions[at]->publish(states[at].catalog, of_step);
    });
  }
  /// All members have copied this step, or failed to.
  void wait_for_copies(std::int64_t step) {
    const std::string name = restore::CopiesMade::name_for("state");
    while (sessions[0]->inventory(name, step, patience).publishers.size() < sessions.size()) {
    }
  }
  void lose_second_host() {
    lose_trainers_of_second_host();
    keepers[1].reset();
  }
  void lose_trainers_of_second_host() {
    for (const std::size_t rank : {std::size_t{2}, std::size_t{3}}) {
      publications[rank] = Publication();
      sessions[rank].reset();
    }
  }
  KeeperOptions keeper_of(int host) {
    KeeperOptions of_host = options;
    of_host.socket = options.job + " host " + std::to_string(host);
    return of_host;
  }
  bool warned(const std::string& text) {
    const std::lock_guard lock(mutex);
    for (const std::string& one : warnings) {
      if (one.find(text) != std::string::npos) return true;
    }
    return false;
  }

  std::mutex mutex;
  std::vector<std::string> warnings;  // guarded by mutex
  KeeperOptions options;
  bool digest = false;
  TakenMemory memory[2];
  std::unique_ptr<shardwire::keeper::Keeper> keepers[2];
  std::vector<State> states;
  std::vector<std::optional<Session>> sessions;
  std::vector<Publication> publications;
};

}  // namespace

BOOST_AUTO_TEST_CASE(a_host_that_is_lost_is_read_from_its_buddies_in_the_same_session) {
  const Deadline deadline(240s);
  TwoHosts job("same");
  job.publish(5);
  job.publish(6);
  job.wait_for_copies(6);
  job.lose_second_host();
  BOOST_TEST(restored(*job.sessions[0], 0, 1) == 6);
  BOOST_TEST(restored(*job.sessions[1], 2, 3) == 6);
  // Step 7 would lack two ranks, and replace a step that is complete.
  const Error error = failure_of([&] { job.sessions[0]->publish(job.states[0].catalog, copied(7)); });
  BOOST_TEST((error.code() == ErrorCode::peer_lost), error.what());
  BOOST_TEST(!error.ranks().empty());
}

BOOST_AUTO_TEST_CASE(a_host_that_is_lost_is_read_from_its_buddies_in_the_next_session) {
  const Deadline deadline(240s);
  TwoHosts job("next");
  for (const std::int64_t step : {1, 2, 3}) job.publish(step);
  job.lose_second_host();
  job.begin(1, [](int) { return 0; });
  BOOST_TEST(restored(*job.sessions[0], 0, 1) >= 2);  // before step 3 all had copied step 2
}

BOOST_AUTO_TEST_CASE(a_byte_that_changes_in_a_copy_is_found_by_the_digests_of_its_publisher) {
  const Deadline deadline(240s);
  TwoHosts job("rotten");
  job.digest = true;
  job.publish(1);
  job.wait_for_copies(1);
  job.lose_second_host();
  State lower(1, 2);  // what ranks 2 and 3 held, of which the first host has the copies
  Restore sound = job.sessions[0]->restore(lower.catalog, newest());
  sound.wait();
  BOOST_TEST(lower.wrong(1) == 0U);
  job.memory[0].rot();
  const Error error = failure_of([&] { job.sessions[0]->restore(lower.catalog, newest()).wait(); });
  BOOST_TEST((error.code() == ErrorCode::corrupt), error.what());
  BOOST_REQUIRE(!error.ranks().empty());
  for (const Rank rank : error.ranks()) BOOST_TEST((rank == Rank{2} || rank == Rank{3}));
}

BOOST_AUTO_TEST_CASE(a_byte_that_changes_in_a_keeper_costs_nothing_where_a_copy_is_sound) {
  const Deadline deadline(240s);
  TwoHosts job("sound");
  job.digest = true;
  job.publish(1);
  job.wait_for_copies(1);
  job.lose_trainers_of_second_host();
  // Ranks 2 and 3, each by the guests of both keepers. The lost trainers may be listed for a while.
  const auto by_keepers = [&] {
    const auto all = job.sessions[0]->inventory("state", 1, patience).publishers;
    return std::ranges::count_if(all, [](const auto& one) { return one.member >= 4 && one.rank >= Rank{2}; });
  };
  while (by_keepers() < 4) std::this_thread::yield();
  job.memory[1].rot();
  State lower(1, 2);
  Restore restore = job.sessions[0]->restore(lower.catalog, newest());
  restore.wait();
  BOOST_TEST(lower.wrong(1) == 0U);
}

BOOST_AUTO_TEST_CASE(a_publication_that_is_retired_stays_until_it_is_copied) {
  const Deadline deadline(240s);
  TwoHosts job("retired");
  for (const std::int64_t step : {1, 2, 3, 4, 5, 6, 7, 8}) job.publish(step);
  for (Publication& one : job.publications) one.retire(patience);
  job.wait_for_copies(8);
  job.lose_second_host();
  job.begin(1, [](int) { return 0; });
  BOOST_TEST(restored(*job.sessions[0], 0, 1) == 8);
  const std::lock_guard lock(job.mutex);
  for (const std::string& one : job.warnings) BOOST_TEST(one.find("no copy") == std::string::npos, one);
}

BOOST_AUTO_TEST_CASE(the_name_of_a_retired_publication_is_free_for_one_without_copies) {
  const Deadline deadline(240s);
  TwoHosts job("free");
  for (std::int64_t step = 1; step <= 5; ++step) {
    job.publish(step);
    on_members(4, [&](int rank) {
      const auto at = static_cast<std::size_t>(rank);
      job.publications[at].retire(patience);
      job.publications[at] = job.sessions[at]->publish(job.states[at].catalog, kept(step));
      job.publications[at].retire(patience);
    });
  }
}

BOOST_AUTO_TEST_CASE(a_callback_cannot_publish_with_buddies) {
  const Deadline deadline(240s);
  TwoHosts job("callback");
  job.publish(1);
  State late(0, 1);
  State state(0, 1);
  late.set(2);
  state.catalog.add_value({"", "step"});
  RestoreOptions options = within(patience);
  options.name = "late";
  Restore restore = job.sessions[0]->restore(state.catalog, options);
  std::promise<ErrorCode> code;
  restore.on_done(
      [&] { code.set_value(failure_of([&] { job.sessions[0]->publish(job.states[0].catalog, copied(2)); }).code()); });
  const Publication publication = job.sessions[0]->publish(late.catalog, {.name = "late"});
  restore.wait();
  BOOST_TEST((code.get_future().get() == ErrorCode::unsupported));
}

BOOST_AUTO_TEST_CASE(an_update_is_copied_as_well) {
  const Deadline deadline(240s);
  TwoHosts job("update");
  job.publish(1);
  on_members(4, [&](int rank) {
    const auto at = static_cast<std::size_t>(rank);
    job.states[at].set(2);
    job.publications[at].update(job.states[at].catalog, 2, Snapshot::copy, patience);
  });
  job.wait_for_copies(2);
  job.lose_second_host();
  BOOST_TEST(restored(*job.sessions[0], 0, 1) == 2);
}

BOOST_AUTO_TEST_CASE(a_keeper_without_room_for_copies_costs_a_warning) {
  const Deadline deadline(240s);
  // Three snapshots of each of its two ranks take 6000 bytes, and those of a copied one 3000 more.
  TwoHosts job("full", 64u << 20, 8'000);
  job.publish(1);
  job.publish(2);
  job.wait_for_copies(2);
  BOOST_TEST(job.warned("no copy of source rank 0 of 'state', step 1"));
  BOOST_TEST(!job.warned("no copy of source rank 2"));  // the first keeper has room
}

BOOST_AUTO_TEST_CASE(one_failure_domain_makes_no_copies_and_says_so) {
  const Deadline deadline(240s);
  TwoHosts job("alone");
  job.begin(2, [](int) { return 0; });
  job.publish(1);
  job.publish(2);
  BOOST_TEST(job.warned("1 copies on other hosts are wanted, and the ranks of 'state' are in 1 failure domains"));
}

BOOST_AUTO_TEST_CASE(a_session_that_ends_while_copies_are_made_ends_soon) {
  const Deadline deadline(60s);
  TwoHosts job("end");
  job.publish(1);
  job.sessions.clear();
}

BOOST_AUTO_TEST_CASE(buddies_without_a_keeper_and_of_guests_are_refused) {
  const Deadline deadline(60s);
  const std::uint16_t port = free_port();
  Session session = Session::join(member(0, 1, port), quick());
  State state(0, 1);
  state.set(1);
  const auto refused = [&](Session& by, const PublishOptions& options) {
    return failure_of([&] { by.publish(state.catalog, options); });
  };
  BOOST_TEST((refused(session, {.buddies = 1}).code() == ErrorCode::invalid_argument));
  BOOST_TEST((refused(session, {.buddies = -1}).code() == ErrorCode::invalid_argument));
  BOOST_TEST((refused(session, copied(1)).code() == ErrorCode::invalid_argument));  // no keeper is named
  Bootstrap bootstrap = member(0, 1, port);
  bootstrap.guest = true;
  Session guest = Session::join(bootstrap, quick());
  BOOST_TEST((refused(guest, copied(1)).code() == ErrorCode::unsupported));
}

BOOST_AUTO_TEST_SUITE_END()

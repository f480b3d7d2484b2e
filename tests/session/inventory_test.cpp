// SPDX-License-Identifier: Apache-2.0
#include <boost/test/unit_test.hpp>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "simulation/scenario.hpp"
#include "support/job.hpp"

BOOST_AUTO_TEST_SUITE(inventory)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;

namespace {

TensorSpec weight() {
  return {{"w", "exp_avg"}, DType::f32, {6, 4}};
}

/// Members 0 to 2 of one job, in made time. Any of them publishes the part that its number has under chunk(0, 3).
struct Job {
  Job() {
    for (int member = 0; member < 3; ++member) {
      sessions.push_back(made.join(member));
      shards.emplace_back(weight(), Layout::chunk(0, 3), Rank{member});
    }
  }
  Catalog catalog(int member, int ranks = 3) {
    Catalog catalog(Rank{member}, ranks);
    if (ranks == 3) shards[static_cast<std::size_t>(member)].add_to(catalog);
    catalog.add_value({"w", "step"}, Value(std::int64_t{7}));
    if (member == 0) catalog.add_value({"", "epoch"}, Value(std::int64_t{1}));
    catalog.alias("tied", "w");
    return catalog;
  }
  Publication publish(int member, std::int64_t step, int ranks = 3) {
    return at(member).publish(catalog(member, ranks), {.step = step});
  }
  Session& at(int member) { return sessions[static_cast<std::size_t>(member)]; }

  shardwire::simulation::Scenario made{3};
  std::vector<Session> sessions;
  std::vector<TestShard> shards;
};

std::vector<Rank> ranks_of(const Inventory& inventory) {
  std::vector<Rank> ranks;
  for (const Inventory::Publisher& one : inventory.publishers) ranks.push_back(one.rank);
  return ranks;
}

/// The inventory at `step`, of so many publications, once the roster has come to the member.
Inventory once_published(Job& job, int member, std::int64_t step, std::size_t publications) {
  job.made.pass(100ms);
  Inventory inventory = job.at(member).inventory("state", step, patience);
  BOOST_TEST_REQUIRE(inventory.publishers.size() == publications);
  return inventory;
}

}  // namespace

BOOST_AUTO_TEST_CASE(every_publication_is_listed_with_tensors_values_and_aliases) {
  Job job;
  const Publication first = job.publish(0, 5), second = job.publish(1, 5), third = job.publish(2, 5);
  const Inventory inventory = job.at(1).await_step("state", 5, patience);
  BOOST_TEST(inventory.step == 5);
  BOOST_TEST((ranks_of(inventory) == std::vector<Rank>{Rank{0}, Rank{1}, Rank{2}}));
  BOOST_TEST(inventory.publishers[2].member == 2);
  BOOST_TEST(inventory.absent.empty());
  BOOST_TEST(inventory.awaited.empty());
  BOOST_TEST(inventory.held.ranks == 3);
  BOOST_REQUIRE(inventory.held.sections.size() == 1U);
  const Manifest& manifest = *inventory.held.sections[0].manifest;
  BOOST_REQUIRE(manifest.tensors.size() == 1U);
  BOOST_TEST((manifest.tensors[0] == TensorLayout{weight(), Layout::chunk(0, 3)}));
  BOOST_TEST((manifest.aliases == std::vector<Alias>{{"tied", "w"}}));
  BOOST_TEST((inventory.values == std::vector<TensorKey>{{"", "epoch"}, {"w", "step"}}));
}

BOOST_AUTO_TEST_CASE(a_name_that_nobody_publishes_has_an_empty_inventory) {
  Job job;
  const Inventory inventory = job.at(0).inventory("nothing");
  BOOST_TEST(inventory.publishers.empty());
  BOOST_TEST(inventory.absent.empty());
  BOOST_TEST(inventory.held.sections.empty());
  BOOST_TEST((inventory.awaited == std::vector<int>{1, 2}));
}

// More names than a member may watch at a time.
BOOST_AUTO_TEST_CASE(names_that_are_looked_at_no_more_are_forgotten) {
  Job job;
  const Publication publications[] = {job.publish(0, 1), job.publish(1, 1)};
  job.made.together({0, 2}, [&](int member) {
    for (int i = 0; i < 5000; ++i) {
      require(job.at(member).inventory("name " + std::to_string(i), {}, patience).publishers.empty(), "none there");
    }
  });
  for (const int member : {0, 1, 2}) {
    BOOST_TEST((ranks_of(once_published(job, member, 1, 2)) == std::vector<Rank>{Rank{0}, Rank{1}}));
  }
  BOOST_TEST(job.at(2).inventory("name 0", {}, patience).publishers.empty());
}

BOOST_AUTO_TEST_CASE(a_name_that_was_forgotten_is_known_again_with_all_its_publications) {
  Job job;
  const Publication first = job.publish(0, 1);
  BOOST_TEST(once_published(job, 2, 1, 1).publishers.size() == 1U);
  for (int i = 0; i < 200; ++i) {
    BOOST_TEST_REQUIRE(job.at(2).inventory("name " + std::to_string(i), {}, patience).publishers.empty());
  }
  const Publication second = job.publish(1, 1);  // while nobody watches
  BOOST_TEST(once_published(job, 2, 1, 2).publishers.size() == 2U);
}

BOOST_AUTO_TEST_CASE(a_publication_that_is_refused_leaves_its_name_free) {
  shardwire::simulation::Scenario made(2);
  Session sessions[] = {made.join(0), made.join(1)};
  for (Session& session : sessions) {
    Catalog held(Rank{0}, 1);
    held.add_value({"w", "step"}, Value(std::int64_t{7}));
    std::vector<Publication> all;
    const auto name_of = [](std::size_t i) { return "name " + std::to_string(i); };
    const Error error = failure_of([&] {
      while (all.size() < 10'000) all.push_back(session.publish(held, {.name = name_of(all.size())}));
    });
    BOOST_TEST((error.code() == ErrorCode::out_of_resources), error.what());
    BOOST_TEST(all.size() == 4096U);
    const std::string refused = name_of(all.size());
    all.front().retire(patience);
    all.push_back(session.publish(held, {.name = refused}));
    made.pass(1s);
    for (const std::string& name : {refused, name_of(1)}) {
      for (Session& reader : sessions) BOOST_TEST(reader.inventory(name, {}, patience).publishers.size() == 1U);
    }
    for (std::size_t i = 1; i < all.size(); ++i) all[i].retire(patience);
  }
}

BOOST_AUTO_TEST_CASE(absent_ranks_are_named_with_the_members_that_could_still_publish_them) {
  Job job;
  const Publication first = job.publish(0, 5), third = job.publish(2, 5);
  Inventory inventory = once_published(job, 0, 5, 2);
  BOOST_TEST((inventory.absent == std::vector<Rank>{Rank{1}}));
  BOOST_TEST((inventory.awaited == std::vector<int>{1}));
  job.at(1).close(patience);
  while (!inventory.awaited.empty()) inventory = job.at(0).inventory("state", 5);
  BOOST_TEST((inventory.absent == std::vector<Rank>{Rank{1}}));
}

BOOST_AUTO_TEST_CASE(a_replacement_learns_without_waiting_that_a_rank_publishes_no_more) {
  Job job;
  const Publication first = job.publish(0, 5), third = job.publish(2, 5);
  job.at(1).close(patience);
  const Inventory inventory = job.at(0).await_step("state", 5, patience);
  BOOST_TEST((ranks_of(inventory) == std::vector<Rank>{Rank{0}, Rank{2}}));
  BOOST_TEST((inventory.absent == std::vector<Rank>{Rank{1}}));
}

BOOST_AUTO_TEST_CASE(a_replacement_does_not_wait_for_itself) {
  Job job;
  const Publication first = job.publish(0, 5), third = job.publish(2, 5);
  const Inventory inventory = job.at(1).await_step("state", 5, patience);
  BOOST_TEST((ranks_of(inventory) == std::vector<Rank>{Rank{0}, Rank{2}}));
  BOOST_TEST((inventory.absent == std::vector<Rank>{Rank{1}}));
  BOOST_TEST(inventory.awaited.empty());
}

BOOST_AUTO_TEST_CASE(without_a_step_the_newest_complete_one_is_taken) {
  Job job;
  Publication first = job.publish(0, 5), second = job.publish(1, 5), third = job.publish(2, 5);
  BOOST_TEST(job.at(2).await_step("state", 5, patience).step == 5);
  first.update(job.catalog(0), 6, Snapshot::copy, patience);
  const Inventory newest = once_published(job, 2, 6, 1);
  BOOST_TEST((newest.absent == std::vector<Rank>{Rank{1}, Rank{2}}));
  BOOST_TEST(job.at(2).inventory().step == 6);  // step 5 lacks rank 0
  second.update(job.catalog(1), 6, Snapshot::copy, patience);
  third.update(job.catalog(2), 6, Snapshot::copy, patience);
  BOOST_TEST(job.at(2).await_step("state", 6, patience).absent.empty());
}

namespace {

/// The inventory that member 0 awaits until member 2 publishes step 5, and member 1 updates to it.
Inventory await_last(Job& job, std::optional<std::int64_t> step, Publication& second) {
  std::optional<Inventory> found;
  Publication third;
  job.made.together({0, 1, 2}, [&](int member) {
    if (member == 0) {
      found = job.at(0).await_step("state", step, patience);
      return;
    }
    job.made.pass(1s);
    require(!found, "it waits");
    member == 1 ? second.update(job.catalog(1), 5, Snapshot::copy, patience) : void(third = job.publish(2, 5));
  });
  return found.value();
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_step_is_awaited_until_its_last_rank_publishes) {
  Job job;
  const Publication first = job.publish(0, 5);
  Publication second = job.publish(1, 4);
  const Error early = failure_of([&] { job.at(2).await_step("state", 5, 1s); });
  BOOST_TEST((early.code() == ErrorCode::timed_out));
  const Inventory found = await_last(job, 5, second);
  BOOST_TEST(found.publishers.size() == 3U);
}

BOOST_AUTO_TEST_CASE(any_step_is_awaited_until_its_last_rank_publishes) {
  Job job;
  const Error nobody = failure_of([&] { job.at(2).await_step("state", {}, 1s); });
  BOOST_TEST((nobody.code() == ErrorCode::timed_out && nobody.ranks().empty()));
  const Publication first = job.publish(0, 5);
  Publication second = job.publish(1, 4);
  for (const std::int64_t step : {5, 4}) BOOST_TEST(once_published(job, 0, step, 1).absent.size() == 2U);
  const Error early = failure_of([&] { job.at(0).await_step("state", {}, 1s); });
  BOOST_TEST((early.code() == ErrorCode::timed_out));
  const std::string text =
      "it is published at step 4 by source rank 1, at step 5 by source rank 0, not at step 5 by source ranks 1, 2";
  BOOST_TEST(says(early, "'state' was not there within the timeout: " + text), early.what());
  const Inventory found = await_last(job, {}, second);
  BOOST_TEST(found.step == 5);
  BOOST_TEST(found.publishers.size() == 3U);
}

BOOST_AUTO_TEST_CASE(a_step_that_all_have_passed_is_refused) {
  Job job;
  const Publication first = job.publish(0, 9), second = job.publish(1, 9), third = job.publish(2, 9);
  BOOST_TEST(once_published(job, 0, 9, 3).absent.empty());
  const Error error = failure_of([&] { job.at(0).await_step("state", 5, patience); });
  BOOST_TEST((error.code() == ErrorCode::step_mismatch));
}

BOOST_AUTO_TEST_CASE(a_timeout_names_the_absent_ranks) {
  Job job;
  const Publication first = job.publish(0, 5), third = job.publish(2, 5);
  BOOST_TEST(once_published(job, 0, 5, 2).absent.size() == 1U);
  const Error error = failure_of([&] { job.at(0).await_step("state", 5, 1s); });
  BOOST_TEST((error.code() == ErrorCode::timed_out));
  BOOST_TEST((error.ranks() == std::vector<Rank>{Rank{1}}));
}

BOOST_AUTO_TEST_CASE(layouts_over_different_numbers_of_ranks_are_refused) {
  Job job;
  const Publication first = job.publish(0, 5), other = job.publish(1, 5, 4);
  job.made.pass(100ms);
  const Error error = failure_of([&] { job.at(2).inventory("state", 5); });
  BOOST_TEST((error.code() == ErrorCode::layout_mismatch));
  BOOST_TEST((error.ranks() == std::vector<Rank>{Rank{0}, Rank{1}}));
}

BOOST_AUTO_TEST_CASE(an_earlier_step_may_have_layouts_over_another_number_of_ranks) {
  Job job;
  const Publication first = job.publish(0, 4, 4), second = job.publish(1, 5);
  const Inventory inventory = once_published(job, 2, 5, 1);
  BOOST_TEST((inventory.publishers == std::vector<Inventory::Publisher>{{Rank{1}, 1}}));
  BOOST_TEST((inventory.absent == std::vector<Rank>{Rank{0}, Rank{2}}));
}

BOOST_AUTO_TEST_CASE(what_is_held_plans_a_restore) {
  Job job;
  const Publication first = job.publish(0, 5), second = job.publish(1, 5), third = job.publish(2, 5);
  const Inventory inventory = job.at(0).await_step("state", 5, patience);
  const JobLayout whole = JobLayout::uniform(1, {{weight(), Layout::replicated()}});
  const Plan all = plan(inventory.held, whole, Rank{0});
  BOOST_TEST(all.gaps.empty());
  BOOST_TEST(all.pieces.size() == 3U);
}

BOOST_AUTO_TEST_SUITE_END()

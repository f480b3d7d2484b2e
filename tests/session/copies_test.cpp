// SPDX-License-Identifier: Apache-2.0
// A rank that is published by several members, such as a spare beside a stopped one. tests/simulation/stopped_members_test.cpp has
// more of those, in made time.
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "session/hang.hpp"
#include "simulation/scenario.hpp"
#include "support/blocked.hpp"
#include "support/deadline.hpp"

BOOST_AUTO_TEST_SUITE(copies)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;
using shardwire::simulation::Scenario;
using WallClock = std::chrono::steady_clock;

namespace {

constexpr auto soon = 20s;  // well before any deadline
const std::optional<RestoreMethod> methods[] = {std::nullopt, RestoreMethod::zcopy, RestoreMethod::packed};

// --- real processes: members 1 and 2 publish the only layout rank ---

std::string copy(const std::string& memory, int number) {
  return memory + "copy " + std::to_string(number);
}

// Member 0 reads; the others are started when a test wants them, and publish on command.
struct Job {
  void start(const std::string& memory, int number) {
    Child& child = members.try_emplace(number, peer_arguments(copy(memory, number), port, 3)).first->second;
    if (!session) session.emplace(Session::join(member(0, 3, port), watching()));
    read_frame(child.socket());
  }
  void publish(int number) {
    write_frame(members.at(number).socket(), {});
    read_frame(members.at(number).socket());
  }

  SessionOptions watching() {
    SessionOptions options = quick();
    options.log = [this](LogLevel, std::string_view text) {
      const std::lock_guard lock(mutex);
      if (text.starts_with("path to source rank")) paths += text;
    };
    return options;
  }
  bool has_read_from(int number) {
    const std::lock_guard lock(mutex);
    return paths.find("path to source rank 0, member " + std::to_string(number)) != std::string::npos;
  }

  std::mutex mutex;
  std::string paths;  // guarded by mutex
  std::uint16_t port = free_port();
  std::map<int, Child> members;
  std::optional<Session> session;
  Tensor tensor;
};

RestoreOptions noticing(std::optional<RestoreMethod> method) {
  RestoreOptions options = by(method, patience);
  options.notice = 1s;  // a busy machine may keep the live one from answering for half of that
  options.ingress_bytes_per_second = tensor_bytes / 2 * 3;
  return options;
}

void require_complete(const Tensor& tensor, const RestoreReport& report) {
  BOOST_TEST(tensor.is_filled());
  BOOST_TEST(report.needed_bytes == tensor_bytes);
  BOOST_TEST(report.moved_bytes + report.local_bytes ==
             report.needed_bytes + report.overread_bytes + report.resent_bytes);
}

}  // namespace

BOOST_DATA_TEST_CASE(both_members_that_publish_a_rank_are_read, boost::unit_test::data::make(in_each_memory("")),
                     memory) {
  const Deadline deadline(400s);
  for (const auto method : methods) {
    Job job;
    for (const int number : {1, 2}) job.start(memory, number);
    for (const int number : {1, 2}) job.publish(number);
    BOOST_TEST(job.session->await_step("state", 0, patience).publishers.size() == 2U);
    Restore restore = job.session->restore(job.tensor.catalog(), by(method, patience));
    restore.wait();
    require_complete(job.tensor, restore.report());
    BOOST_TEST_REQUIRE(restore.report().peers.size() == 1U);  // a row per rank and path
    BOOST_TEST(restore.report().peers.front().bytes == tensor_bytes);
    BOOST_TEST(restore.report().peers.front().measured_seconds <= restore.report().seconds.move);
    for (const int number : {1, 2}) BOOST_TEST(job.has_read_from(number));
    // The next one finds one of them killed.
    std::memset(job.tensor.bytes().data(), 0, tensor_bytes);
    kill_and_await(job.members.at(1));
    job.session->restore(job.tensor.catalog(), by(method, patience)).wait();
    BOOST_TEST(job.tensor.is_filled());
  }
}

BOOST_DATA_TEST_CASE(a_member_that_is_stopped_or_killed_while_it_is_read_has_a_spare,
                     boost::unit_test::data::make(in_each_memory("")) * boost::unit_test::data::make({false, true}),
                     memory, killed) {
  const Deadline deadline(400s);
  for (const auto method : methods) {
    Job job;
    for (const int number : {1, 2}) job.start(memory, number);
    for (const int number : {1, 2}) job.publish(number);
    BOOST_TEST(job.session->await_step("state", 0, patience).publishers.size() == 2U);
    const Child& victim = job.members.at(1);
    Restore restore = moving(*job.session, job.tensor.catalog(), noticing(method),
                             [&] { killed ? kill_and_await(victim) : freeze_and_await(victim); });
    const auto began = WallClock::now();
    restore.wait();
    BOOST_TEST((WallClock::now() - began < soon));
    require_complete(job.tensor, restore.report());
    if (method) BOOST_TEST(restore.report().resent_bytes == 0U);  // messages prove themselves
  }
}

// It is resumed: tests/simulation/resumed_restores_test.cpp has more.
BOOST_DATA_TEST_CASE(a_spare_of_the_last_holder_that_was_killed_gives_what_is_missing,
                     boost::unit_test::data::make(in_each_memory("")), memory) {
  const Deadline deadline(400s);
  for (const auto method : methods) {
    if (!method && !memory.empty()) continue;  // an arena that is mapped is read on
    Job job;
    for (const int number : {1, 2}) job.start(memory, number);
    job.publish(1);
    Restore restore = moving(
        *job.session, job.tensor.catalog(), noticing(method), [&] { kill_and_await(job.members.at(1)); }, enough_bytes);
    const Error error = failure_of([&] { restore.wait(); });
    BOOST_TEST((error.code() == ErrorCode::peer_lost), error.what());
    BOOST_TEST(!error.gaps().empty());
    BOOST_TEST(restore.poll());

    restore.resume(patience);
    BOOST_TEST(!restore.poll());
    job.publish(2);
    const auto began = WallClock::now();
    restore.wait();
    BOOST_TEST((WallClock::now() - began < soon));
    require_complete(job.tensor, restore.report());
    if (method) BOOST_TEST(restore.report().resent_bytes == 0U);  // messages prove themselves
    std::memset(job.tensor.bytes().data(), 0, tensor_bytes);
    job.session->restore(job.tensor.catalog(), within(patience)).wait();
    BOOST_TEST(job.tensor.is_filled());
  }
}

// --- publications that differ, in made time ---

namespace {

const TensorSpec spec{{"w", "exp_avg"}, DType::f32, {64, 16}};

// A member of three that publishes rows of a tensor.
struct Source {
  Source(Scenario& made, int number, Layout layout, int layout_rank, int ranks)
      : held(spec, std::move(layout), Rank{layout_rank}), catalog(Rank{layout_rank}, ranks) {
    session.emplace(made.join(number));
    held.add_to(catalog);
  }
  void publish(std::uint64_t seed, std::int64_t step) {
    held.fill(seed);
    publication = session->publish(catalog, {.step = step});
  }

  std::optional<Session> session;
  TestShard held;
  Catalog catalog;
  Publication publication;
};

// Members 0 and 1 hold halves, member 2 is a spare of layout rank 1, member 3 reads.
struct Halves {
  explicit Halves(const Layout& of_spare = Layout::chunk(0, 2)) : spare(made, 2, of_spare, 1, 2) {}

  Scenario made{4};
  Source first{made, 0, Layout::chunk(0, 2), 0, 2};
  Source second{made, 1, Layout::chunk(0, 2), 1, 2};
  Source spare;
  Session reader = made.join(3);
  TestShard wanted{spec, Layout::replicated(), Rank{0}};

  void publish(Source& source, std::uint64_t seed, std::int64_t step) {
    source.publish(seed, step);
    made.pass(1s);  // until the reader knows of it
  }
  Restore restore(std::optional<std::int64_t> step = {}) {
    wanted.fill(4711);
    Catalog catalog(Rank{0}, 1);
    wanted.add_to(catalog);
    RestoreOptions options = within(patience);
    options.step = step;
    return reader.restore(catalog, options);
  }
};

}  // namespace

BOOST_AUTO_TEST_CASE(copies_of_one_step_with_different_manifests_are_a_mismatch_that_names_both_members) {
  Halves job(Layout::boxes({{Rank{1}, {{{40, 0}, {24, 16}}}}}));
  job.publish(job.first, 1, 5);
  job.publish(job.second, 1, 5);
  job.publish(job.spare, 1, 5);
  for (const std::optional<std::int64_t> step : {std::optional<std::int64_t>(), std::optional<std::int64_t>(5)}) {
    const auto began = job.made.now();
    const Error error = failure_of([&] { job.restore(step).wait(); });
    BOOST_TEST((job.made.now() - began < 2s));
    BOOST_TEST((error.code() == ErrorCode::layout_mismatch));
    BOOST_TEST((error.ranks() == std::vector{Rank{1}}));
    BOOST_TEST(says(error, "members 1 and 2 both publish layout rank 1 of 'state' at step 5"), error.what());
  }
  const Error error = failure_of([&] { (void)job.reader.inventory(); });
  BOOST_TEST((error.code() == ErrorCode::layout_mismatch));
}

BOOST_AUTO_TEST_CASE(another_manifest_at_another_step_does_not_matter) {
  Halves job(Layout::boxes({{Rank{1}, {{{40, 0}, {24, 16}}}}}));
  job.publish(job.first, 1, 5);
  job.publish(job.second, 1, 5);
  job.publish(job.spare, 2, 4);
  for (const std::optional<std::int64_t> step : {std::optional<std::int64_t>(), std::optional<std::int64_t>(5)}) {
    job.restore(step).wait();
    BOOST_TEST(job.wanted.wrong(1) == 0U);
  }
}

BOOST_AUTO_TEST_CASE(copies_at_different_steps_give_the_newest_step_that_all_ranks_have) {
  Halves job;
  job.publish(job.first, 2, 6);
  job.publish(job.second, 1, 5);  // behind
  job.publish(job.spare, 2, 6);
  const auto began = job.made.now();
  job.restore().wait();
  BOOST_TEST((job.made.now() - began < 2s));
  BOOST_TEST(job.wanted.wrong(2) == 0U);
  const Inventory inventory = job.reader.inventory();
  BOOST_TEST(inventory.step == 6);
  BOOST_TEST(inventory.absent.empty());

  // The spare goes on alone: step 6 is not complete any more, and 7 is not yet.
  job.spare.publication.retire(20s);
  job.publish(job.spare, 3, 7);
  const Error error = failure_of([&] { job.restore().wait(); });
  BOOST_TEST((error.code() == ErrorCode::step_mismatch), error.what());
}

BOOST_AUTO_TEST_CASE(an_inventory_counts_ranks_and_lists_all_members_that_publish_them) {
  Halves job;
  job.publish(job.second, 1, 5);
  job.publish(job.spare, 1, 5);
  const Inventory half = job.reader.inventory();
  BOOST_TEST((half.absent == std::vector{Rank{0}}));
  job.first.publish(1, 5);
  const Inventory all = job.reader.await_step("state", 5, patience);
  BOOST_TEST((all.publishers == std::vector<Inventory::Publisher>{{Rank{0}, 0}, {Rank{1}, 1}, {Rank{1}, 2}}));
  BOOST_TEST((all.held.copies == std::vector{Rank{1}}));
  BOOST_TEST(all.absent.empty());
}

// --- values ---

BOOST_DATA_TEST_CASE(values_of_a_rank_and_its_copy_have_to_agree, boost::unit_test::data::make({false, true}), agree) {
  Halves job;
  const TensorKey step{"", "step"};
  job.first.catalog.add_value(step, std::int64_t{7});
  job.second.catalog.add_value(step, std::int64_t{7});
  job.spare.catalog.add_value(step, std::int64_t{agree ? 7 : 8});
  job.publish(job.first, 1, 5);
  job.publish(job.second, 1, 5);
  job.publish(job.spare, 1, 5);
  job.wanted.fill(4711);
  Catalog catalog(Rank{0}, 1);
  job.wanted.add_to(catalog);
  catalog.add_value(step);
  Restore restore = job.reader.restore(catalog, within(patience));
  if (agree) {
    restore.wait();
    BOOST_TEST(std::get<std::int64_t>(restore.value(step)) == 7);
    BOOST_TEST(job.wanted.wrong(1) == 0U);
    return;
  }
  const Error error = failure_of([&] { restore.wait(); });
  BOOST_TEST((error.code() == ErrorCode::layout_mismatch));
  BOOST_TEST((error.ranks() == std::vector{Rank{0}, Rank{1}}));
}

BOOST_AUTO_TEST_SUITE_END()

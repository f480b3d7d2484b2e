// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "control/connection.hpp"
#include "peers/keeper_link.hpp"
#include "runtime/uv_loop.hpp"
#include "simulation/scenario.hpp"
#include "support/deadline.hpp"
#include "support/job.hpp"

BOOST_AUTO_TEST_SUITE(membership)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;
using shardwire::simulation::Scenario;

namespace {

constexpr int members = 3;
constexpr Duration soon = 2s;  // well before any deadline

/// Members 0, 1 and 2 in made time: 0 serves the rendezvous, 1 publishes, 2 reads.
struct Job {
  static constexpr Extent rows = 64;

  Scenario made{members};
  std::optional<Session> host = made.join(0);
  std::optional<Session> source = made.join(1);
  Session reader = made.join(2);
  TestShard held{{{"w", "m"}, DType::f32, {rows, 64}}, Layout::replicated(), Rank{0}};
  TestShard wanted{{{"w", "m"}, DType::f32, {rows, 64}}, Layout::replicated(), Rank{0}};
  Publication publication;

  void publish(std::uint64_t seed) {
    held.fill(seed);
    Catalog catalog(Rank{0}, 1);
    held.add_to(catalog);
    publication = source->publish(catalog);
  }
  Restore start(const RestoreOptions& options) {
    Catalog catalog(Rank{0}, 1);
    wanted.add_to(catalog);
    return reader.restore(catalog, options);
  }
  Session& of(int member) { return member == 0 ? *host : member == 1 ? *source : reader; }
  /// On threads of these members at once.
  void together(const std::vector<int>& which, const std::function<void(Session& session, int member)>& body) {
    made.together(which, [&](int member) { body(of(member), member); });
  }
};

/// A member 0 of 2 that answers each gather with as many empty values as it was told.
class FalseHost {
 public:
  explicit FalseHost(std::size_t values, const wire::Joined& joined = {1, 1, 2}) : values_(values), joined_(joined) {
    identity_.hello.rank = 0;
    identity_.hello.world_size = 2;
    identity_.hello.incarnation = 4711;
    loop_.call([&] {
      listener_ = loop_.listen({"127.0.0.1", 0}, [this](const AcceptedStream& open) { accept(open); });
    });
  }
  ~FalseHost() {
    loop_.call([&] {
      for (const auto& one : members_) one->drop();
      members_.clear();
      listener_.reset();
    });
  }
  FalseHost(const FalseHost&) = delete;
  FalseHost& operator=(const FalseHost&) = delete;
  [[nodiscard]] std::uint16_t port() {
    return loop_.call([&] { return listener_->address().port; });
  }
  /// When the last member asked to join.
  [[nodiscard]] Clock::Time asked() {
    return loop_.call([&] { return asked_; });
  }

 private:
  void accept(const AcceptedStream& open) {
    Connection::Events events;
    events.message = [this](Connection& member, wire::Message& message) {
      if (std::holds_alternative<wire::Join>(message)) {
        asked_ = loop_.now();
        member.send(joined_);
      }
      const auto* gather = std::get_if<wire::Gather>(&message);
      if (gather != nullptr) member.send(wire::Gathered{gather->name, std::vector<Bytes>(values_)});
    };
    members_.push_back(Connection::accept(loop_, open, identity_, std::move(events)));
  }

  std::size_t values_;
  wire::Joined joined_;
  Clock::Time asked_{};  // loop thread only
  Identity identity_;
  UvLoop loop_;
  std::unique_ptr<Listener> listener_;                // loop thread only, like the next
  std::vector<std::shared_ptr<Connection>> members_;  // owners: this and their own callbacks
};

/// A keeper that holds nothing.
class FalseKeeper {
 public:
  explicit FalseKeeper(const KeeperOptions& options) : identity_(keeper_identity(options, 0, 0, {})) {
    loop_.call([&] {
      listener_ = loop_.listen_local(keeper_socket(options), [this](const AcceptedStream& open) { accept(open); });
    });
  }
  ~FalseKeeper() {
    loop_.call([&] {
      for (const auto& one : members_) one->drop();
      members_.clear();
      listener_.reset();
    });
  }
  FalseKeeper(const FalseKeeper&) = delete;
  FalseKeeper& operator=(const FalseKeeper&) = delete;
  [[nodiscard]] wire::KeepJob job() {
    return loop_.call([&] { return job_; });
  }

 private:
  void accept(const AcceptedStream& open) {
    Connection::Events events;
    events.message = [this](Connection& member, wire::Message& message) {
      const auto* job = std::get_if<wire::KeepJob>(&message);
      if (job == nullptr) return;
      job_ = *job;
      member.send(wire::KeepJoined{job->request, 1});
    };
    members_.push_back(Connection::accept(loop_, open, identity_, std::move(events)));
  }

  Identity identity_;
  UvLoop loop_;
  std::unique_ptr<Listener> listener_;                // loop thread only, like the next two
  std::vector<std::shared_ptr<Connection>> members_;  // owners: this and their own callbacks
  wire::KeepJob job_{};
};

// Joins the number of a member that ended without leaving; it is free once the rendezvous notices that.
Session replacement_of(int rank, Job& job) {
  for (const auto began = job.made.now();;) {
    try {
      return job.made.join(rank);
    } catch (const Error& error) {
      BOOST_REQUIRE((says(error, "joined already") && job.made.now() - began < soon));
    }
  }
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_restore_under_way_does_not_need_the_rendezvous) {
  Job job;
  job.publish(1);
  RestoreOptions slowly = within(patience);
  slowly.ingress_bytes_per_second = job.wanted.size_bytes();
  slowly.staging_bytes = 4 << 10;
  Catalog catalog(Rank{0}, 1);
  job.wanted.add_to(catalog);
  Restore restore = moving(job.made, job.reader, catalog, slowly);
  BOOST_TEST(!restore.poll());
  job.host.reset();
  restore.wait();
  BOOST_TEST(job.wanted.wrong(1) == 0U);

  // The next restore uses the same knowledge.
  job.wanted.fill(9);
  job.start(within(patience)).wait();
  BOOST_TEST(job.wanted.wrong(1) == 0U);
}

// A member 0 that is stopped for longer than handshakes may take.
BOOST_AUTO_TEST_CASE(a_member_0_that_does_not_answer_is_asked_again_until_the_join_is_over) {
  Scenario made(3);
  const Session host = made.join(0);
  made.process(0).stop();
  std::optional<Session> joined;
  made.together({1, 2}, [&](int member) {
    if (member == 1) {
      joined = made.join(1);
    } else {
      SessionOptions options;
      options.join_timeout = 15s;
      const Error late = failure_of([&] { made.join(2, options); });
      require(says(late, "the peer did not complete the handshake"), late.what());
      made.pass(10s);
      require(!joined, "it waits");
      made.resume(made.process(0));
    }
  });
  BOOST_TEST(joined->inventory().publishers.empty());
}

BOOST_AUTO_TEST_CASE(a_restore_that_has_yet_to_learn_who_publishes_ends_with_the_rendezvous) {
  Job job;
  job.publish(1);
  job.host.reset();
  const auto began = job.made.now();
  const Error error = failure_of([&] { job.start(within(patience)).wait(); });
  BOOST_TEST((error.code() == ErrorCode::peer_lost));
  BOOST_TEST((error.ranks() == std::vector{Rank{0}}));
  BOOST_TEST(says(error, "rendezvous"));
  BOOST_TEST(says(error, "the publishers of 'state'"));
  BOOST_TEST((job.made.now() - began < soon));
  const Error late = failure_of([&] {
    SessionOptions options;
    options.join_timeout = 300ms;
    job.made.join(1, options);
  });
  BOOST_TEST((late.code() == ErrorCode::timed_out));
}

// Without the rendezvous, later publications would not be announced.
BOOST_AUTO_TEST_CASE(a_restore_that_waits_for_a_source_ends_with_the_rendezvous) {
  Job job;
  job.held.fill(1);
  Catalog half(Rank{0}, 2);
  half.add({{"w", "m"}, DType::f32, {Job::rows, 64}}, Layout::chunk(0, 2), View{.data = job.held.data()});
  job.publication = job.source->publish(half);
  BOOST_REQUIRE(job.reader.inventory().publishers.size() == 1);
  Restore restore = job.start(within(patience));
  job.made.pass(patience / 2);
  BOOST_TEST(!restore.poll());
  const auto began = job.made.now();
  job.host.reset();
  const Error error = failure_of([&] { restore.wait(); });
  BOOST_TEST((error.code() == ErrorCode::peer_lost), error.what());
  BOOST_TEST((error.ranks() == std::vector{Rank{1}}));
  BOOST_TEST(error.gaps().size() == 1U);
  BOOST_TEST(says(error, "source rank 1 of 2 has not published 'state', and member 0, which serves the rendezvous"));
  BOOST_TEST((job.made.now() - began < soon));
}

// A restore learns the addresses of all publishers, also of those that its plan does not name.
BOOST_DATA_TEST_CASE(without_the_rendezvous_sources_are_found_that_an_earlier_restore_has_heard_of,
                     boost::unit_test::data::make({true, false}), heard) {
  Scenario made(4);
  const TensorSpec spec{{"w", "m"}, DType::f32, {8, 4}};
  std::optional<Session> host = made.join(0);
  std::vector<Session> sources;
  std::vector<TestShard> held;
  std::vector<Publication> publications;
  for (int place = 0; place < 2; ++place) {
    sources.push_back(made.join(1 + place));
    held.emplace_back(spec, Layout::chunk(0, 2), Rank{place}).fill(1);
    Catalog catalog(Rank{place}, 2);
    held.back().add_to(catalog);
    publications.push_back(sources.back().publish(catalog));
  }
  Session reader = made.join(3);
  const auto restore_rows = [&](Extent from) {
    TestShard wanted(spec, Layout::boxes({{Rank{0}, {{{from, 0}, {4, 4}}}}}), Rank{0});
    Catalog catalog(Rank{0}, 1);
    wanted.add_to(catalog);
    reader.restore(catalog, within(patience)).wait();
    BOOST_TEST(wanted.wrong(1) == 0U);
  };
  if (heard)
    restore_rows(4);  // an odd member asks the second holder for the manifest, and the plan names no other source
  host.reset();
  if (heard) {
    restore_rows(0);
    return restore_rows(4);
  }
  const auto began = made.now();
  const Error error = failure_of([&] { restore_rows(0); });
  BOOST_TEST((error.code() == ErrorCode::peer_lost));
  BOOST_TEST(says(error, "rendezvous"));
  BOOST_TEST((made.now() - began < soon));
}

BOOST_AUTO_TEST_CASE(who_takes_a_lost_member_s_place_is_read_instead_of_it) {
  Job job;
  job.publish(1);
  job.start(within(patience)).wait();
  BOOST_TEST(job.wanted.wrong(1) == 0U);
  job.source.reset();  // without leaving
  job.source = replacement_of(1, job);
  job.publish(2);
  job.made.pass(soon);
  job.start(within(patience)).wait();
  BOOST_TEST(job.wanted.wrong(2) == 0U);
}

BOOST_AUTO_TEST_CASE(a_gather_that_times_out_names_who_did_not_come) {
  Job job;
  const auto gather = [](Session& session) { return failure_of([&] { session.gather("all", {}, 300ms); }); };
  BOOST_TEST((gather(job.reader).code() == ErrorCode::timed_out));  // from now on it has come
  const Error error = gather(*job.host);
  BOOST_TEST((gather(job.reader).ranks() == std::vector{Rank{1}}));
  BOOST_TEST((error.code() == ErrorCode::timed_out));
  BOOST_TEST((error.ranks() == std::vector{Rank{1}}));
  BOOST_TEST(says(error, "member 1 did not come to 'all'"));
  BOOST_TEST(error.report() == nullptr);
}

BOOST_AUTO_TEST_CASE(a_gather_with_a_value_for_more_or_fewer_members_is_refused) {
  const Deadline deadline(120s);
  for (const std::size_t values : {0U, 1U, 3U}) {
    FalseHost host(values);
    Session session = Session::join(member(1, 2, host.port()), quick());
    const Error gathered = failure_of([&] { session.gather("all", {}, patience); });
    BOOST_TEST((gathered.code() == ErrorCode::transport_failed), gathered.what());
    BOOST_TEST((gathered.ranks() == std::vector{Rank{0}}));
    const Error exchanged = failure_of([&] { session.exchange(Catalog(Rank{1}, 2), Catalog(Rank{1}, 2)); });
    BOOST_TEST((exchanged.code() == ErrorCode::transport_failed), exchanged.what());
  }
}

// Keepers go by it, also if they hear of a session long after it began.
BOOST_AUTO_TEST_CASE(a_member_tells_its_keeper_when_the_session_began) {
  const Deadline deadline(120s);
  const KeeperOptions named{.job = "membership-test-" + std::to_string(::getpid())};
  for (const std::chrono::nanoseconds age : {0ns, std::chrono::nanoseconds(1h)}) {
    FalseKeeper keeper(named);
    FalseHost host(
        0,
        {.epoch = 1, .member = 1, .world_size = 2, .session = 77, .age_ns = static_cast<std::uint64_t>(age.count())});
    SessionOptions options = quick();
    options.keeper = named;
    const Clock::Time before = std::chrono::steady_clock::now();
    const Session session = Session::join(member(1, 2, host.port()), options);
    const Clock::Time after = std::chrono::steady_clock::now();
    const wire::KeepJob told = keeper.job();
    BOOST_TEST(told.session == 77U);
    const Clock::Time began{std::chrono::nanoseconds(told.began_ns)};
    BOOST_TEST((before - age <= began && began <= after - age));
    if (age == 0ns) BOOST_TEST((began <= host.asked()));  // however late the answer comes
  }
}

namespace {

void require_values_of_all(Job& job) {
  job.together({0, 1, 2}, [](Session& session, int member) {
    const auto values = session.gather("all", Bytes(static_cast<std::size_t>(member)), patience);
    require(values == std::vector<Bytes>{Bytes(0), Bytes(1), Bytes(2)}, "the values of these processes");
  });
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_gather_names_a_member_that_was_lost_after_it_came_and_its_replacement_comes_anew) {
  Job job;
  BOOST_TEST((failure_of([&] { job.source->gather("all", Bytes(1), 10ms); }).code() == ErrorCode::timed_out));
  job.source.reset();  // without leaving
  const auto missed = [&](Session& session) {
    const Error error = failure_of([&] { session.gather("all", {}, patience); });
    require(error.code() == ErrorCode::peer_lost, error.what());
    require(error.ranks() == std::vector{Rank{1}}, error.what());
  };
  missed(*job.host);
  missed(job.reader);
  job.source = replacement_of(1, job);
  require_values_of_all(job);
}

BOOST_AUTO_TEST_CASE(a_gather_takes_no_value_of_a_process_that_left_before_its_replacement_joined) {
  Job job;
  BOOST_TEST((failure_of([&] { job.source->gather("all", Bytes(9), 10ms); }).code() == ErrorCode::timed_out));
  job.source->close(10s);
  job.source.reset();
  job.source = replacement_of(1, job);
  require_values_of_all(job);
}

BOOST_AUTO_TEST_CASE(a_gather_ends_with_the_rendezvous) {
  Job job;
  std::optional<Error> error;
  job.together({0, 2}, [&](Session& session, int member) {
    if (member == 2) error = failure_of([&] { session.gather("all", {}, patience); });
    if (member == 0) {
      job.made.pass(100ms);
      job.host.reset();
    }
  });
  BOOST_TEST((error->code() == ErrorCode::peer_lost));
  BOOST_TEST((error->ranks() == std::vector{Rank{0}}));
  // A source that repeats its barrier keeps its publication for restores that have their plan.
  BOOST_TEST(error->retryable());
  BOOST_TEST((failure_of([&] { job.reader.gather("more", {}, patience); }).code() == ErrorCode::peer_lost));
}

// --- barriers ---

namespace {

void meet(Job& job, int times = 1) {
  int calls = 0;
  job.together({0, 1, 2}, [&](Session& session, int) {
    for (int met = 1; met <= times; ++met) {
      ++calls;
      session.barrier(patience);
      require(calls >= met * members, "all have called it as often as this one");
    }
  });
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_barrier_holds_each_time_until_all_have_come) {
  Job job;
  meet(job, 50);
}

BOOST_AUTO_TEST_CASE(who_has_given_a_barrier_up_has_not_come) {
  Job job;
  const Error error = failure_of([&] { job.source->barrier(10ms); });
  BOOST_TEST((error.code() == ErrorCode::timed_out));
  BOOST_TEST((error.ranks() == std::vector{Rank{0}, Rank{2}}));
  BOOST_TEST(says(error, "members 0, 2 did not come to 'shardwire.barrier'"));
  job.together({0, 2}, [&](Session& session, int) {
    require(failure_of([&] { session.barrier(300ms); }).code() == ErrorCode::timed_out, "it waits for member 1");
  });
  meet(job);
}

BOOST_AUTO_TEST_CASE(layouts_of_all_members_are_one_side_of_a_plan) {
  Job job;
  // A member that has given up does not count in the next call.
  const Error error = failure_of([&] { job.source->gather_layouts(Catalog(Rank{0}, 1), 10ms); });
  BOOST_TEST((error.code() == ErrorCode::timed_out));
  BOOST_TEST((error.ranks() == std::vector{Rank{0}, Rank{2}}));
  const TensorSpec spec{{"w", "m"}, DType::f32, {6}};
  job.together({0, 1, 2}, [&](Session& session, int member) {
    std::vector<float> memory(6);
    Catalog catalog(Rank{member}, members);
    catalog.add(spec, Layout::on_ranks(Layout::replicated(), {Rank{member}}), View{.data = memory.data()});
    const JobLayout side = session.gather_layouts(catalog, patience);
    require(side.ranks == members && side.sections.size() == 3U, "each member has a section");
    for (int rank = 0; rank < members; ++rank) {
      const Section& section = side.sections[static_cast<std::size_t>(rank)];
      require(section.ranks == std::vector{Rank{rank}}, "of its rank");
      require(section.manifest->tensors.at(0).layout.boxes_of(spec.shape, Rank{rank}).size() == 1U, "with its boxes");
    }
  });
}

BOOST_AUTO_TEST_CASE(a_barrier_names_a_lost_member_and_its_replacement_comes_anew) {
  Job job;
  meet(job, 2);
  job.source.reset();  // without leaving
  job.together({0, 2}, [&](Session& session, int) {
    const Error error = failure_of([&] { session.barrier(patience); });
    require(error.code() == ErrorCode::peer_lost, error.what());
    require(error.ranks() == std::vector{Rank{1}}, error.what());
  });
  job.source = replacement_of(1, job);
  meet(job, 2);
}

BOOST_AUTO_TEST_SUITE_END()

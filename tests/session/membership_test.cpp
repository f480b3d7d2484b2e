// SPDX-License-Identifier: Apache-2.0
#include <boost/test/unit_test.hpp>

#include <chrono>
#include <optional>

#include "support/job.hpp"

BOOST_AUTO_TEST_SUITE(membership)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;

namespace {

constexpr int members = 3;

/// Members 0, 1 and 2: 0 serves the rendezvous, 1 publishes, 2 reads.
struct Job {
  static constexpr Extent rows = 4096;

  std::uint16_t port = free_port();
  std::optional<Session> host = Session::join(member(0, members, port), quick());
  std::optional<Session> source = Session::join(member(1, members, port), quick());
  Session reader = Session::join(member(2, members, port), quick());
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
};

}  // namespace

BOOST_AUTO_TEST_CASE(a_restore_under_way_does_not_need_the_rendezvous) {
  Job job;
  job.publish(1);
  RestoreOptions slowly = within(patience);
  slowly.ingress_bytes_per_second = job.wanted.size_bytes();
  Restore restore = job.start(slowly);
  std::atomic<bool> moving = false;
  restore.on_progress([&](const Progress& progress) { moving = progress.done_bytes > 0; }, 5ms);
  while (!moving) std::this_thread::sleep_for(1ms);
  restore.on_progress(nullptr);
  job.host.reset();
  restore.wait();
  BOOST_TEST(job.wanted.wrong(1) == 0U);

  // The next restore uses the same knowledge.
  job.wanted.fill(9);
  job.start(within(patience)).wait();
  BOOST_TEST(job.wanted.wrong(1) == 0U);
}

BOOST_AUTO_TEST_CASE(a_restore_that_has_yet_to_learn_who_publishes_ends_with_the_rendezvous) {
  Job job;
  job.publish(1);
  job.host.reset();
  const auto began = std::chrono::steady_clock::now();
  const Error error = failure_of([&] { job.start(within(patience)).wait(); });
  BOOST_TEST((error.code() == ErrorCode::peer_lost));
  BOOST_TEST((error.ranks() == std::vector{Rank{0}}));
  BOOST_TEST(says(error, "rendezvous"));
  BOOST_TEST(says(error, "the publishers of 'state'"));
  BOOST_TEST((std::chrono::steady_clock::now() - began < 30s));  // does not wait for the deadline
  const Error late = failure_of([&] {
    SessionOptions options = quick();
    options.join_timeout = 300ms;
    Session::join(member(1, members, job.port), options);
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
  Restore restore = job.start(within(patience));
  std::atomic<bool> waits = false;
  restore.on_progress([&](const Progress&) { waits = true; }, 5ms);
  while (!waits) std::this_thread::sleep_for(1ms);
  std::this_thread::sleep_for(100ms);
  const auto began = std::chrono::steady_clock::now();
  job.host.reset();
  const Error error = failure_of([&] { restore.wait(); });
  BOOST_TEST((error.code() == ErrorCode::peer_lost), error.what());
  BOOST_TEST((error.ranks() == std::vector{Rank{1}}));
  BOOST_TEST(error.gaps().size() == 1U);
  BOOST_TEST(says(error, "source rank 1 of 2 has not published 'state', and member 0, which serves the rendezvous"));
  BOOST_TEST((std::chrono::steady_clock::now() - began < 30s));  // does not wait for the deadline
}

BOOST_AUTO_TEST_CASE(a_source_whose_address_was_never_needed_cannot_be_found_without_the_rendezvous) {
  const auto port = free_port();
  const TensorSpec spec{{"w", "m"}, DType::f32, {8, 4}};
  std::optional<Session> host = Session::join(member(0, 4, port), quick());
  std::vector<Session> sources;
  std::vector<TestShard> held;
  std::vector<Publication> publications;
  for (int place = 0; place < 2; ++place) {
    sources.push_back(Session::join(member(1 + place, 4, port), quick()));
    held.emplace_back(spec, Layout::chunk(0, 2), Rank{place}).fill(1);
    Catalog catalog(Rank{place}, 2);
    held.back().add_to(catalog);
    publications.push_back(sources.back().publish(catalog));
  }
  Session reader = Session::join(member(3, 4, port), quick());
  const auto restore_rows = [&](Extent from) {
    TestShard wanted(spec, Layout::boxes({{Rank{0}, {{{from, 0}, {4, 4}}}}}), Rank{0});
    Catalog catalog(Rank{0}, 1);
    wanted.add_to(catalog);
    reader.restore(catalog, within(patience)).wait();
    BOOST_TEST(wanted.wrong(1) == 0U);
  };
  restore_rows(4);  // an odd member asks the second holder for the manifest, and the plan names no other source
  host.reset();
  // Until the reader notices the loss, it may still ask the lost source.
  const auto began = std::chrono::steady_clock::now();
  const Error error = failure_of([&] { restore_rows(0); });
  BOOST_TEST((error.code() == ErrorCode::peer_lost));
  BOOST_TEST(says(error, "rendezvous"));
  BOOST_TEST((std::chrono::steady_clock::now() - began < 30s));  // does not wait for the deadline
  restore_rows(4);
}

BOOST_AUTO_TEST_CASE(who_takes_a_lost_member_s_place_is_read_instead_of_it) {
  Job job;
  job.publish(1);
  job.start(within(patience)).wait();
  BOOST_TEST(job.wanted.wrong(1) == 0U);
  job.source.reset();  // without leaving
  // The rank is free once the rendezvous notices the loss.
  for (const auto began = std::chrono::steady_clock::now(); !job.source;) {
    try {
      job.source = Session::join(member(1, members, job.port), quick());
    } catch (const Error& error) {
      BOOST_REQUIRE((says(error, "joined already") && std::chrono::steady_clock::now() - began < 20s));
    }
  }
  job.publish(2);
  // The reader may still know only the first publication: then the restore reports that its source is lost.
  for (int attempt = 0;; ++attempt) {
    BOOST_REQUIRE(attempt < 100);
    try {
      job.start(within(patience)).wait();
      break;
    } catch (const Error& error) {
      BOOST_REQUIRE((error.code() == ErrorCode::peer_lost));
      std::this_thread::sleep_for(10ms);
    }
  }
  BOOST_TEST(job.wanted.wrong(2) == 0U);
}

BOOST_AUTO_TEST_CASE(a_gather_that_times_out_names_who_did_not_come) {
  Job job;
  std::thread other([&] {
    const Error error = failure_of([&] { job.reader.gather("all", {}, 300ms); });
    require(error.ranks() == std::vector{Rank{1}}, "the missing member is named to the other");
  });
  const Error error = failure_of([&] { job.host->gather("all", {}, 400ms); });
  other.join();
  BOOST_TEST((error.code() == ErrorCode::timed_out));
  BOOST_TEST((error.ranks() == std::vector{Rank{1}}));
  BOOST_TEST(says(error, "member 1 did not come to 'all'"));
}

BOOST_AUTO_TEST_CASE(a_gather_ends_with_the_rendezvous) {
  Job job;
  std::thread leaver([&] {
    std::this_thread::sleep_for(100ms);
    job.host.reset();
  });
  const Error error = failure_of([&] { job.reader.gather("all", {}, patience); });
  leaver.join();
  BOOST_TEST((error.code() == ErrorCode::peer_lost));
  BOOST_TEST((error.ranks() == std::vector{Rank{0}}));
  BOOST_TEST((failure_of([&] { job.reader.gather("more", {}, patience); }).code() == ErrorCode::peer_lost));
}

BOOST_AUTO_TEST_SUITE_END()

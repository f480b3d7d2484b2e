// SPDX-License-Identifier: Apache-2.0
// Replicas::compare: a restore whose sources hold different replicas fails before it commits.
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "memory/digest.hpp"
#include "session/false_source.hpp"
#include "support/deadline.hpp"
#include "support/job.hpp"

BOOST_AUTO_TEST_SUITE(compare_replicas)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;

namespace {

const TensorSpec weight{{"w", "exp_avg"}, DType::f32, {64, 1000}};
const TensorSpec scale{{"w", "scale"}, DType::f32, {1}};
const TensorKey step{"", "step"};
const Layout whole = Layout::replicated();

RestoreOptions comparing(Verify verify = Verify::generation) {
  RestoreOptions options = within(patience);
  options.replicas = Replicas::compare;
  options.verify = verify;
  return options;
}

/// Members that hold `weight` under `held`, each with bytes of its own to change, and restore it under `wanted`.
struct Job {
  int members = 3;
  Layout held = whole;
  Layout wanted = whole;
  std::function<void(int member, std::vector<float>& local)> drift{};
  RestoreOptions options = comparing();
};

struct Outcome {
  std::optional<Error> error{};
  RestoreReport report{};
  std::size_t wrong = 0;
  float scale = -1;  // -1: not committed
};

std::vector<Outcome> run(const Job& job) {
  std::vector<Outcome> outcomes(static_cast<std::size_t>(job.members));
  const auto port = free_port();
  on_members(job.members, [&](int rank) {
    Outcome& outcome = outcomes[static_cast<std::size_t>(rank)];
    Session session = Session::join(member(rank, job.members, port), quick());
    TestShard holds(weight, job.held, Rank{rank});
    holds.fill(1);
    std::vector<float> local(holds.size_bytes() / sizeof(float));
    std::memcpy(local.data(), holds.data(), holds.size_bytes());
    if (job.drift) job.drift(rank, local);
    float held_scale = 7;
    Catalog held(Rank{rank}, job.members), wanted(Rank{rank}, job.members);
    held.add(weight, job.held, View{.data = local.data()});
    held.add(scale, whole, View{.data = &held_scale});
    TestShard wants(weight, job.wanted, Rank{rank});
    wants.add_to(wanted);
    wanted.add(scale, whole, View{.data = &outcome.scale});
    const Publication publication = session.publish(held);
    session.gather("published", {}, patience);
    Restore restore = session.restore(wanted, job.options);
    try {
      restore.wait();
    } catch (const Error& error) {
      outcome.error = error;
    }
    outcome.report = restore.report();
    outcome.wrong = wants.wrong(1);
    session.gather("done", {}, patience);
  });
  return outcomes;
}

std::function<void(int, std::vector<float>&)> change(int member, std::size_t element) {
  return [member, element](int rank, std::vector<float>& local) {
    if (rank == member) local.at(element) = -local.at(element) - 1;
  };
}

}  // namespace

BOOST_DATA_TEST_CASE(equal_replicas_are_restored, boost::unit_test::data::make({0, 1}), digests) {
  const Deadline deadline(120s);
  Job job{.members = 4, .options = comparing(digests == 1 ? Verify::digest : Verify::generation)};
  for (const Layout& held : {whole, Layout::mesh({2, 2}, {Replicate{}, Shard{0}}), Layout::chunk(0, 4)}) {
    job.held = held;
    job.wanted = Layout::chunk(1, 4);
    for (const Outcome& one : run(job)) {
      BOOST_TEST(!one.error, (one.error ? one.error->what() : ""));
      BOOST_TEST(one.wrong == 0U);
      BOOST_TEST(one.scale == 7);
      BOOST_TEST(one.report.needed_bytes == weight.shape[0] * weight.shape[1]);  // a quarter of the floats
      BOOST_TEST(one.report.moved_bytes + one.report.local_bytes == one.report.needed_bytes);
      BOOST_TEST(one.report.overread_bytes + one.report.resent_bytes == 0U);
      if (held == whole) BOOST_TEST(one.report.digest_seconds > 0);
    }
  }
}

// Every reader notices, also the member that has it and the one that is read; nothing is committed.
BOOST_DATA_TEST_CASE(one_replica_that_differs_ends_the_restore, boost::unit_test::data::make({0, 1}), digests) {
  const Deadline deadline(120s);
  Job job{.drift = change(1, 17), .options = comparing(digests == 1 ? Verify::digest : Verify::generation)};
  for (const Outcome& one : run(job)) {
    BOOST_TEST_REQUIRE(one.error.has_value());
    const Error& error = *one.error;
    BOOST_TEST((error.code() == ErrorCode::layout_mismatch), error.what());
    BOOST_TEST((error.ranks() == std::vector<Rank>{Rank{1}}));
    BOOST_TEST(says(error, "w:exp_avg [0:64, 0:1000] of source rank 1 is not equal to that of source rank 0"),
               error.what());
    BOOST_TEST_REQUIRE(error.gaps().size() == 1U);
    BOOST_TEST(error.gaps().front().fqn == "w");
    BOOST_TEST((error.gaps().front().box == Box::whole(weight.shape)));
    BOOST_TEST(one.scale == -1);
  }
}

BOOST_AUTO_TEST_CASE(the_rank_that_is_read_differs_from_all_others) {
  const Deadline deadline(120s);
  for (const Outcome& one : run({.drift = change(0, 63'999)})) {
    BOOST_TEST_REQUIRE(one.error.has_value());
    BOOST_TEST((one.error->ranks() == std::vector<Rank>{Rank{1}, Rank{2}}));
  }
}

BOOST_AUTO_TEST_CASE(the_first_replica_is_restored_without_a_comparison) {
  const Deadline deadline(120s);
  Job job{.drift = change(1, 17)};
  job.options.replicas = Replicas::first;
  for (const Outcome& one : run(job)) {
    BOOST_TEST(!one.error);
    BOOST_TEST(one.wrong == 0U);
  }
}

// Each member wants a third of the rows; the drifted element is in the second.
BOOST_AUTO_TEST_CASE(only_wanted_elements_are_compared) {
  const Deadline deadline(120s);
  const auto outcomes = run({.wanted = Layout::chunk(0, 3), .drift = change(2, 30 * 1000)});
  BOOST_TEST(!outcomes[0].error);
  BOOST_TEST_REQUIRE(outcomes[1].error.has_value());
  BOOST_TEST((outcomes[1].error->gaps().front().box == Box{{22, 0}, {22, 1000}}));
  BOOST_TEST(!outcomes[2].error);
}

// Ranks 1 and 2 hold a half each of what rank 0 holds.
BOOST_AUTO_TEST_CASE(holders_of_a_part_are_compared) {
  const Deadline deadline(120s);
  const Layout parts = Layout::boxes({{Rank{0}, {Box{{0, 0}, {64, 1000}}}},
                                      {Rank{1}, {Box{{0, 0}, {32, 1000}}}},
                                      {Rank{2}, {Box{{32, 0}, {32, 1000}}}}});
  for (const Outcome& one : run({.held = parts, .drift = change(2, 31'999)})) {
    BOOST_TEST_REQUIRE(one.error.has_value());
    BOOST_TEST((one.error->ranks() == std::vector<Rank>{Rank{2}}));
    BOOST_TEST((one.error->gaps().front().box == Box{{32, 0}, {32, 1000}}));
  }
  for (const Outcome& one : run({.held = parts})) {
    BOOST_TEST(!one.error);
    BOOST_TEST(one.wrong == 0U);
  }
}

BOOST_AUTO_TEST_CASE(holders_of_a_one_element_tensor_have_to_agree) {
  const Deadline deadline(120s);
  const auto port = free_port();
  on_members(2, [&](int rank) {
    Session session = Session::join(member(rank, 2, port), quick());
    float held_scale = static_cast<float>(rank), wanted_scale = -1;
    Catalog held(Rank{rank}, 2), wanted(Rank{rank}, 2);
    held.add(scale, whole, View{.data = &held_scale});
    wanted.add(scale, whole, View{.data = &wanted_scale});
    const Publication publication = session.publish(held);
    session.gather("published", {}, patience);
    const Error error = failure_of([&] { session.restore(wanted, comparing()).wait(); });
    require(error.code() == ErrorCode::layout_mismatch, error.what());
    require(says(error, "have to agree"), error.what());
    require(wanted_scale == -1, "it was written");
    session.gather("done", {}, patience);
  });
}

// 24 MB in 1,600 tensors: holders are asked several times, and digests here are taken in several batches.
BOOST_AUTO_TEST_CASE(many_tensors_and_large_ones_are_compared) {
  const Deadline deadline(120s);
  const TensorSpec large{{"large", "exp_avg"}, DType::f32, {6'000'000}};
  const auto port = free_port();
  on_members(2, [&](int rank) {
    Session session = Session::join(member(rank, 2, port), quick());
    Catalog held(Rank{rank}, 2), wanted(Rank{rank}, 2);
    std::vector<std::unique_ptr<TestShard>> holds, wants;
    for (int i = 0; i < 1600; ++i) {
      const TensorSpec spec = i == 0 ? large : TensorSpec{{"small." + std::to_string(i), "m"}, DType::f32, {3}};
      holds.push_back(std::make_unique<TestShard>(spec, whole, Rank{rank}));
      wants.push_back(std::make_unique<TestShard>(spec, whole, Rank{rank}));
      holds.back()->fill(1);
      holds.back()->add_to(held);
      wants.back()->add_to(wanted);
    }
    Publication publication = session.publish(held);
    session.gather("published", {}, patience);
    session.restore(wanted, comparing()).wait();
    for (const auto& one : wants) require(one->wrong(1) == 0, "other bytes");
    session.gather("restored", {}, patience);
    if (rank == 1) {
      publication.retire(patience);
      holds.front()->data()[holds.front()->size_bytes() - 1] ^= std::byte{1};
      holds.back()->data()[0] ^= std::byte{1};
      publication = session.publish(held);
    }
    session.gather("drifted", {}, patience);
    const Error error = failure_of([&] { session.restore(wanted, comparing()).wait(); });
    require(error.ranks() == std::vector<Rank>{Rank{1}}, error.what());
    require(error.gaps().size() == 2, error.what());
    require(error.gaps().front().fqn == "large" && error.gaps().front().box.upper(0) == 6'000'000, error.what());
    require(error.gaps().front().box.volume() <= (4 << 20) / 4, "no part of it");
    require(error.gaps().back().fqn == "small.1599", error.what());
    require(says(error, "; 2 boxes of 2 tensors differ"), error.what());
    session.gather("done", {}, patience);
  });
}

// The second finds the plan of the first.
BOOST_AUTO_TEST_CASE(a_repeated_restore_compares_again) {
  const Deadline deadline(120s);
  const auto port = free_port();
  on_members(2, [&](int rank) {
    Session session = Session::join(member(rank, 2, port), quick());
    TestShard holds(weight, whole, Rank{rank}), wants(weight, whole, Rank{rank});
    holds.fill(1);
    Catalog held(Rank{rank}, 2), wanted(Rank{rank}, 2);
    holds.add_to(held);
    wants.add_to(wanted);
    Publication publication = session.publish(held);
    for (int i = 0; i < 3; ++i) {
      session.gather("published " + std::to_string(i), {}, patience);
      session.restore(wanted, comparing()).wait();
      require(wants.wrong(1) == 0, "other bytes");
    }
    session.gather("restored", {}, patience);
    if (rank == 1) {
      publication.retire(patience);
      holds.data()[5] ^= std::byte{1};
      publication = session.publish(held);
    }
    session.gather("drifted", {}, patience);
    const Error error = failure_of([&] { session.restore(wanted, comparing()).wait(); });
    require(error.ranks() == std::vector<Rank>{Rank{1}}, error.what());
    session.gather("done", {}, patience);
  });
}

BOOST_AUTO_TEST_CASE(a_restore_that_only_binds_compares_nothing) {
  const Deadline deadline(120s);
  Job job{.drift = change(1, 17)};
  job.options.bind_only = true;
  for (const Outcome& one : run(job)) {
    BOOST_TEST(!one.error, (one.error ? one.error->what() : ""));
    BOOST_TEST(one.report.needed_bytes == 64'000 * sizeof(float));
    BOOST_TEST(one.report.digest_seconds == 0);
    BOOST_TEST(one.wrong == 64'000U);
  }
}

BOOST_AUTO_TEST_CASE(an_exchange_refuses_to_compare) {
  const Deadline deadline(120s);
  const auto port = free_port();
  on_members(2, [&](int rank) {
    Session session = Session::join(member(rank, 2, port), quick());
    TestShard holds(weight, whole, Rank{rank}), wants(weight, whole, Rank{rank});
    Catalog held(Rank{rank}, 2), wanted(Rank{rank}, 2);
    holds.add_to(held);
    wants.add_to(wanted);
    ExchangeOptions options;
    options.timeout = patience;
    if (rank == 1) options.replicas = Replicas::compare;  // one is enough
    const Error error = failure_of([&] { session.exchange(held, wanted, options); });
    require(error.code() == ErrorCode::unsupported, error.what());
  });
}

// --- a holder that misbehaves ---

namespace {

/// This process holds rank 0, which is read; a false source holds rank 1, which is compared.
struct WithFalseHolder {
  std::uint16_t port = free_port();
  Session reader = Session::join(member(0, 2, port), quick());
  TestShard held{weight, whole, Rank{0}};
  TestShard wanted{weight, whole, Rank{0}};
  Publication own;
  std::unique_ptr<FalseSource> source;
  std::function<void(Connection&, const wire::DigestRequest&)> instead{};  // used on the source's loop

  WithFalseHolder() {
    held.fill(1);
    Catalog catalog(Rank{0}, 2), other(Rank{1}, 2);
    held.add_to(catalog);
    held.add_to(other);
    own = reader.publish(catalog);
    source = std::make_unique<FalseSource>(port, other);
    source->answer_requests_with({}, [this](Connection& from, const wire::DigestRequest& asked) {
      if (instead) return instead(from, asked);
      from.send(truth(asked));
    });
  }
  wire::Digests truth(const wire::DigestRequest& asked) {
    wire::Digests answer{asked.request, {}};
    const PlacedBox placed{Box::whole(weight.shape), 0, row_major_strides(weight.shape)};
    for (const wire::RequestedBox& one : asked.parts) {
      answer.digests.push_back(memory::digest_box(one.box, placed, held.data(), sizeof(float)));
    }
    return answer;
  }
  void restore(Duration timeout = 30s) {
    Catalog catalog(Rank{0}, 1);
    wanted.add_to(catalog);
    RestoreOptions options = comparing();
    options.timeout = timeout;
    reader.restore(catalog, options).wait();
  }
  /// The error of a restore during which the holder acts like this.
  Error failure(std::function<void(Connection&, const wire::DigestRequest&)> act, Duration timeout = 30s) {
    source->loop().call([&] { instead = std::move(act); });
    return failure_of([&] { restore(timeout); });
  }
  /// The session still works, and so does the holder once it answers correctly.
  void check_truth_is_believed() {
    source->loop().call([&] { instead = {}; });
    restore();
    BOOST_TEST(wanted.wrong(1) == 0U);
    BOOST_TEST(source->binds() == 0);  // no bytes are read from it
  }
};

}  // namespace

BOOST_AUTO_TEST_CASE(a_holder_that_is_not_read_gives_a_lease_and_digests_only) {
  const Deadline deadline(120s);
  WithFalseHolder made;
  made.check_truth_is_believed();
}

BOOST_AUTO_TEST_CASE(another_digest_of_a_holder_ends_the_restore) {
  const Deadline deadline(120s);
  WithFalseHolder made;
  const Error error = made.failure([&](Connection& from, const wire::DigestRequest& asked) {
    wire::Digests answer = made.truth(asked);
    answer.digests.back().high ^= 1;
    from.send(answer);
  });
  BOOST_TEST((error.code() == ErrorCode::layout_mismatch), error.what());
  BOOST_TEST((error.ranks() == std::vector<Rank>{Rank{1}}));
  made.check_truth_is_believed();
}

BOOST_AUTO_TEST_CASE(too_few_or_too_many_digests_end_the_restore) {
  const Deadline deadline(120s);
  for (const bool few : {true, false}) {
    WithFalseHolder made;
    const Error error = made.failure([&](Connection& from, const wire::DigestRequest& asked) {
      wire::Digests answer = made.truth(asked);
      few ? answer.digests.pop_back() : answer.digests.push_back({});
      from.send(answer);
    });
    BOOST_TEST((error.code() == ErrorCode::transport_failed), error.what());
    BOOST_TEST((error.ranks() == std::vector<Rank>{Rank{1}}));
  }
}

BOOST_AUTO_TEST_CASE(a_holder_that_is_lost_ends_the_restore) {
  const Deadline deadline(120s);
  WithFalseHolder made;
  const Error error = made.failure([](Connection& from, const wire::DigestRequest&) { from.drop(); });
  BOOST_TEST((error.code() == ErrorCode::peer_lost), error.what());
  BOOST_TEST((error.ranks() == std::vector<Rank>{Rank{1}}));
  made.check_truth_is_believed();
}

BOOST_AUTO_TEST_CASE(a_holder_that_is_silent_is_named_at_the_deadline) {
  const Deadline deadline(120s);
  WithFalseHolder made;
  const Error error = failure_by(
      2s, [&](Duration limit) { throw made.failure([](Connection&, const wire::DigestRequest&) {}, limit); },
      [](const Error& one) { return says(one, "waiting for an answer") && one.ranks() == std::vector<Rank>{Rank{1}}; });
  BOOST_TEST((error.code() == ErrorCode::timed_out), error.what());
  BOOST_TEST((error.ranks() == std::vector<Rank>{Rank{1}}), error.what());
  BOOST_TEST(says(error, "waiting for an answer from source rank 1"), error.what());
  made.check_truth_is_believed();
}

BOOST_AUTO_TEST_CASE(a_holder_that_grants_no_lease_is_named_at_the_deadline) {
  const Deadline deadline(120s);
  WithFalseHolder made;
  made.source->answer_leases_with([](Connection&, const wire::Lease&) {});
  const Error error = failure_by(
      2s, [&](Duration limit) { made.restore(limit); },
      [](const Error& one) { return one.ranks() == std::vector<Rank>{Rank{1}}; });
  BOOST_TEST((error.code() == ErrorCode::timed_out), error.what());
  BOOST_TEST((error.ranks() == std::vector<Rank>{Rank{1}}), error.what());
}

// Its publication does not count any more: the restore goes on with the others.
BOOST_AUTO_TEST_CASE(a_holder_that_has_withdrawn_is_not_compared) {
  const Deadline deadline(120s);
  WithFalseHolder made;
  std::atomic<int> asked = 0;
  made.source->answer_leases_with([&](Connection& from, const wire::Lease& lease) {
    ++asked;
    from.send(wire::Failure{lease.request, ErrorCode::withdrawn, "it is gone"});
  });
  made.restore();
  BOOST_TEST(asked == 1);
  BOOST_TEST(made.wanted.wrong(1) == 0U);
}

BOOST_AUTO_TEST_CASE(a_holder_that_withdraws_when_it_is_asked_is_not_compared) {
  const Deadline deadline(120s);
  WithFalseHolder made;
  std::atomic<int> asked = 0;
  made.source->loop().call([&] {
    made.instead = [&](Connection& from, const wire::DigestRequest& request) {
      ++asked;
      from.send(wire::Failure{request.request, ErrorCode::withdrawn, "it is gone"});
    };
  });
  made.restore();
  BOOST_TEST(asked == 1);
  BOOST_TEST(made.wanted.wrong(1) == 0U);
}

BOOST_DATA_TEST_CASE(a_comparison_ends_with_its_restore_or_its_session, boost::unit_test::data::make({0, 1}), session) {
  const Deadline deadline(120s);
  WithFalseHolder made;
  std::atomic<bool> asked = false;
  made.source->loop().call([&] { made.instead = [&](Connection&, const wire::DigestRequest&) { asked = true; }; });
  Catalog catalog(Rank{0}, 1);
  made.wanted.add_to(catalog);
  Restore restore = made.reader.restore(catalog, comparing());
  while (!asked && !restore.wait_for(1ms)) continue;
  if (session == 1) {
    made.reader.close(0s);
  } else {
    restore.cancel();
  }
  const Error error = failure_of([&] { restore.wait(); });
  BOOST_TEST((error.code() == ErrorCode::cancelled), error.what());
  if (session == 0) made.check_truth_is_believed();
}

BOOST_AUTO_TEST_SUITE_END()

// SPDX-License-Identifier: Apache-2.0
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>
#include <boost/test/unit_test.hpp>

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "support/job.hpp"

BOOST_AUTO_TEST_SUITE(refusal)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;

namespace {

SessionOptions hasty() {
  SessionOptions options = quick();
  options.join_timeout = 5s;
  return options;
}

TensorSpec matrix(DType dtype = DType::f32, Extents shape = {12, 4}) {
  return {{"w", "exp_avg"}, dtype, shape};
}

// A job of one member that holds `held` rows of 12 and wants all of them.
struct Alone {
  Session session = Session::join(member(0, 1, free_port()), hasty());
  TestShard held{matrix(), Layout::boxes({{Rank{0}, {{{0, 0}, {8, 4}}}}}), Rank{0}};
  Catalog source{Rank{0}, 1};
  Publication publication;

  Publication publish() {
    held.fill(1);
    held.add_to(source);
    return session.publish(source);
  }
};

}  // namespace

BOOST_AUTO_TEST_CASE(a_transport_that_does_not_exist_is_refused_by_name_with_those_that_do) {
  for (const std::string names : {"pigeon", "tcp,pigeon", "tcp,"}) {
    SessionOptions options = hasty();
    options.transport = names;
    const Error error = failure_of([&] { Session::join(member(0, 1, free_port()), options); });
    BOOST_TEST((error.code() == ErrorCode::unsupported));
    BOOST_TEST(std::string(error.what()).find("known: ") != std::string::npos, error.what());
  }
}

BOOST_AUTO_TEST_CASE(every_element_without_a_holder_is_named_before_any_byte_moves) {
  Alone alone;
  const Publication publication = alone.publish();
  TestShard wanted(matrix(), Layout::replicated(), Rank{0});
  Catalog target(Rank{0}, 1);
  wanted.add_to(target);
  std::vector<float> other(6);
  target.add({{"absent", "exp_avg"}, DType::f32, {6}}, Layout::replicated(), View{.data = other.data()});
  Restore restore = alone.session.restore(target, within(patience));
  const Error error = failure_of([&] { restore.wait(); });
  BOOST_TEST((error.code() == ErrorCode::layout_mismatch));
  BOOST_REQUIRE_EQUAL(error.gaps().size(), 2U);
  BOOST_TEST((error.gaps()[0] == Gap{"w", "exp_avg", Box{{8, 0}, {4, 4}}, Rank{0}}));
  BOOST_TEST((error.gaps()[1] == Gap{"absent", "exp_avg", Box{{0}, {6}}, Rank{0}}));
  BOOST_TEST(restore.report().moved_bytes + restore.report().local_bytes == 0U);
}

BOOST_AUTO_TEST_CASE(another_dtype_or_shape_is_an_error_that_names_both_and_never_a_cast) {
  Alone alone;
  const Publication publication = alone.publish();
  const auto refused = [&](const TensorSpec& spec, const std::string& part) {
    TestShard wanted(spec, Layout::replicated(), Rank{0});
    Catalog target(Rank{0}, 1);
    target.add(spec, Layout::replicated(), View{.data = wanted.data()}, Absent::skip);  // skip does not cover this
    Restore restore = alone.session.restore(target, within(patience));
    const Error error = failure_of([&] { restore.wait(); });
    BOOST_TEST_INFO(error.what());
    BOOST_TEST((error.code() == ErrorCode::layout_mismatch));
    BOOST_TEST(says(error, "w:exp_avg is f32 (12, 4) and " + part));
  };
  refused(matrix(DType::bf16), "bf16 (12, 4)");
  refused(matrix(DType::i32), "i32 (12, 4)");
  refused(matrix(DType::f32, {12, 5}), "f32 (12, 5)");
  refused(matrix(DType::f32, {48}), "f32 (48,)");
  refused(matrix(DType::f32, {12, 4, 1}), "f32 (12, 4, 1)");
}

BOOST_AUTO_TEST_CASE(a_value_wanted_where_there_is_a_tensor_is_refused) {
  Alone alone;
  const Publication publication = alone.publish();
  Catalog target(Rank{0}, 1);
  target.add_value({"w", "exp_avg"});
  Restore restore = alone.session.restore(target, within(patience));
  const Error error = failure_of([&] { restore.wait(); });
  BOOST_TEST((error.code() == ErrorCode::layout_mismatch));
  BOOST_TEST(says(error, "w:exp_avg: wanted as a value, but it is a f32 tensor of shape (12, 4) on source rank 0"));
}

BOOST_AUTO_TEST_CASE(nothing_published_ends_at_the_deadline_and_says_so) {
  Alone alone;
  TestShard wanted(matrix(), Layout::replicated(), Rank{0});
  Catalog target(Rank{0}, 1);
  wanted.add_to(target);
  Restore restore = alone.session.restore(target, within(200ms));
  const Error error = failure_of([&] { restore.wait(); });
  BOOST_TEST((error.code() == ErrorCode::timed_out));
  BOOST_TEST(says(error, "no member publishes 'state'"));
}

BOOST_AUTO_TEST_CASE(a_rank_that_wants_nothing_finishes_at_once) {
  Alone alone;
  Restore restore = alone.session.restore(Catalog(Rank{0}, 1), within(patience));
  restore.wait();
  BOOST_TEST(restore.report().needed_bytes == 0U);
}

BOOST_AUTO_TEST_CASE(a_cancelled_restore_throws_cancelled) {
  Alone alone;
  TestShard wanted(matrix(), Layout::replicated(), Rank{0});
  Catalog target(Rank{0}, 1);
  wanted.add_to(target);
  Restore restore = alone.session.restore(target, within(patience));
  restore.cancel();
  const Error error = failure_of([&] { restore.wait(); });
  BOOST_TEST((error.code() == ErrorCode::cancelled));
}

BOOST_AUTO_TEST_CASE(a_destination_that_overlaps_published_memory_is_refused) {
  Alone alone;
  const Publication publication = alone.publish();
  Catalog target(Rank{0}, 1);
  target.add(matrix(), Layout::boxes({{Rank{0}, {{{0, 0}, {2, 4}}}}}), View{.data = alone.held.data() + 16});
  const Error error = failure_of([&] { alone.session.restore(target, within(patience)); });
  BOOST_TEST((error.code() == ErrorCode::invalid_argument));
  BOOST_TEST(says(error, "overlaps"));
}

BOOST_AUTO_TEST_CASE(a_second_publication_of_the_same_name_is_refused_until_the_first_is_retired) {
  Alone alone;
  Publication first = alone.publish();
  const Error error = failure_of([&] { alone.session.publish(alone.source); });
  BOOST_TEST((error.code() == ErrorCode::invalid_argument));
  first.retire(5s);
  const Publication second = alone.session.publish(alone.source);
}

BOOST_AUTO_TEST_CASE(repeated_keys_and_null_views_are_refused) {
  Catalog catalog(Rank{0}, 2);
  std::vector<float> memory(48);
  catalog.add(matrix(), Layout::chunk(0, 2), View{.data = memory.data()});
  BOOST_TEST(
      says(failure_of([&] { catalog.add(matrix(), Layout::chunk(0, 2), View{.data = memory.data()}); }), "w:exp_avg"));
  TensorSpec other = matrix();
  other.key.fqn = "other";
  BOOST_TEST(says(failure_of([&] { catalog.add(other, Layout::chunk(0, 2), View{}); }), "null"));
  BOOST_TEST(says(failure_of([&] { catalog.add(other, Layout::chunk(5, 2), View{.data = memory.data()}); }), "other"));
}

BOOST_AUTO_TEST_CASE(conflicting_values_name_the_ranks_that_disagree) {
  const auto port = free_port();
  on_members(2, [&](int rank) {
    Session session = Session::join(member(rank, 2, port), hasty());
    Catalog held(Rank{rank}, 2);
    held.add_value({"w", "step"}, std::int64_t{rank == 0 ? 5 : 6});
    const Publication publication = session.publish(held);
    session.gather("published", {}, patience);  // otherwise one member may finish before the other disagrees
    Catalog wanted(Rank{rank}, 2);
    wanted.add_value({"w", "step"});
    Restore restore = session.restore(wanted, within(patience));
    const Error error = failure_of([&] { restore.wait(); });
    require(error.code() == ErrorCode::layout_mismatch, "a mismatch");
    require(error.ranks() == std::vector<Rank>{Rank{0}, Rank{1}}, "both ranks are named");
    session.gather("done", {}, patience);
  });
}

BOOST_AUTO_TEST_CASE(sources_at_different_steps_are_refused) {
  const auto port = free_port();
  on_members(2, [&](int rank) {
    Session session = Session::join(member(rank, 2, port), hasty());
    TestShard shard(matrix(), Layout::chunk(0, 2), Rank{rank});
    Catalog held(Rank{rank}, 2);
    shard.add_to(held);
    const Publication publication = session.publish(held, {.step = rank});
    session.gather("published", {}, patience);
    TestShard wanted(matrix(), Layout::replicated(), Rank{rank});
    Catalog target(Rank{rank}, 2);
    wanted.add_to(target);
    Restore restore = session.restore(target, within(patience));
    const Error error = failure_of([&] { restore.wait(); });
    require(says(error, "step"), "the steps are named");
    session.gather("done", {}, patience);
  });
}

BOOST_AUTO_TEST_CASE(one_element_tensors_travel_by_value) {
  const auto port = free_port();
  on_members(2, [&](int rank) {
    Session session = Session::join(member(rank, 2, port), hasty());
    float have = 2.5F;
    float get = 0;
    const TensorSpec scale{{"scale", "exp_avg"}, DType::f32, {1, 1}};
    Catalog held(Rank{rank}, 2);
    held.add(scale, Layout::replicated(), View{.data = &have});
    const Publication publication = session.publish(held);
    session.gather("published", {}, patience);
    Catalog target(Rank{rank}, 2);
    target.add(scale, Layout::replicated(), View{.data = &get});
    Restore restore = session.restore(target, within(patience));
    restore.wait();
    require(get == 2.5F, "the value arrived");
    require(restore.report().needed_bytes == 0, "no bytes were counted");
    session.gather("done", {}, patience);
  });
}

// --- joining ---

BOOST_AUTO_TEST_CASE(another_job_key_is_refused) {
  const auto port = free_port();
  Bootstrap zero = member(0, 2, port);
  zero.job_key = Bytes(32, std::byte{1});
  SessionOptions logged = hasty();
  int warnings = 0;
  logged.log = [&](LogLevel level, std::string_view text) {
    const bool of_it = text.starts_with("refused a connection from 127.0.0.1: its job key is not that of this job. ");
    if (level == LogLevel::warning && of_it) ++warnings;
  };
  std::optional<Session> host = Session::join(zero, logged);
  Bootstrap one = member(1, 2, port);
  one.job_key = Bytes(32, std::byte{2});
  for (int i = 0; i < 2; ++i) {
    const Error error = failure_of([&] { Session::join(one, hasty()); });
    BOOST_TEST((error.code() == ErrorCode::invalid_argument));
    BOOST_TEST(says(error, "job key"));
  }
  host.reset();
  BOOST_TEST(warnings == 1);  // of two refusals
}

BOOST_AUTO_TEST_CASE(a_refusal_is_logged_with_its_reason) {
  const auto refusal_of = [](const std::function<void(Bootstrap&)>& change) {
    const auto port = free_port();
    SessionOptions logged = hasty();
    std::string text;
    logged.log = [&](LogLevel level, std::string_view line) {
      if (level == LogLevel::warning && line.starts_with("refused a connection from ")) text = line;
    };
    std::optional<Session> host = Session::join(member(0, 2, port), logged);
    Bootstrap other = member(1, 2, port);
    change(other);
    const Error error = failure_of([&] { Session::join(other, hasty()); });
    BOOST_TEST((error.code() == ErrorCode::invalid_argument));
    host.reset();
    return text.substr(0, text.find(". "));
  };
  const std::string begin = "refused a connection from 127.0.0.1: its ";
  const std::string end = " is not that of this job";
  BOOST_TEST(refusal_of([](Bootstrap& other) { other.run_id = "other"; }) == begin + "run id" + end);
  BOOST_TEST(refusal_of([](Bootstrap& other) { other.world_size = 3; }) == begin + "number of members" + end);
  // Without a key, a job does not know whether the key or the user differs.
  const std::string key = member(0, 2, 0).job_key.empty() ? "user, host or job key" : "job key";
  BOOST_TEST(refusal_of([](Bootstrap& other) { other.job_key = Bytes(32, std::byte{1}); }) == begin + key + end);
}

BOOST_AUTO_TEST_CASE(a_job_key_that_can_be_guessed_is_refused) {
  Bootstrap alone = member(0, 1, free_port());
  for (const std::size_t bytes : {1U, 15U}) {
    alone.job_key = Bytes(bytes, std::byte{1});
    const Error error = failure_of([&] { Session::join(alone, hasty()); });
    BOOST_TEST((error.code() == ErrorCode::invalid_argument));
    BOOST_TEST(says(error, "Bootstrap::job_key: a key of " + std::to_string(bytes) + " bytes can be guessed"),
               error.what());
  }
  alone.job_key.resize(16);
  Session::join(alone, hasty());
}

BOOST_AUTO_TEST_CASE(another_world_size_is_refused) {
  const auto port = free_port();
  const Session host = Session::join(member(0, 2, port), hasty());
  const Error error = failure_of([&] { Session::join(member(1, 3, port), hasty()); });
  BOOST_TEST(says(error, "expects"));
}

BOOST_AUTO_TEST_CASE(a_member_number_that_is_taken_is_refused) {
  const auto port = free_port();
  const Session host = Session::join(member(0, 2, port), hasty());
  const Session one = Session::join(member(1, 2, port), hasty());
  const Error error = failure_of([&] { Session::join(member(1, 2, port), hasty()); });
  BOOST_TEST(says(error, "joined already"));
}

BOOST_AUTO_TEST_CASE(a_taken_port_is_a_clear_error) {
  const auto port = free_port();
  const Session host = Session::join(member(0, 1, port), hasty());
  const Error error = failure_of([&] { Session::join(member(0, 1, port), hasty()); });
  BOOST_TEST((error.code() == ErrorCode::invalid_argument));
  BOOST_TEST(says(error, std::to_string(port)));
}

BOOST_AUTO_TEST_CASE(a_rendezvous_that_does_not_answer_times_out) {
  SessionOptions options = hasty();
  options.join_timeout = 300ms;
  const Error error = failure_of([&] { Session::join(member(1, 2, free_port()), options); });
  BOOST_TEST((error.code() == ErrorCode::timed_out));
}

BOOST_AUTO_TEST_CASE(a_member_that_is_gone_ends_a_gather_by_name) {
  const auto port = free_port();
  const Session host = Session::join(member(0, 2, port), hasty());
  std::optional<Session> one = Session::join(member(1, 2, port), hasty());
  std::thread leaver([&] {
    std::this_thread::sleep_for(100ms);
    one.reset();
  });
  Session& waiting = const_cast<Session&>(host);
  const Error error = failure_of([&] { waiting.gather("all", {}, patience); });
  leaver.join();
  BOOST_TEST((error.code() == ErrorCode::peer_lost));
  BOOST_TEST((error.ranks() == std::vector<Rank>{Rank{1}}));
}

BOOST_AUTO_TEST_CASE(an_unknown_transport_is_refused) {
  SessionOptions options = hasty();
  options.transport = "carrier-pigeon";
  BOOST_TEST(says(failure_of([&] { Session::join(member(0, 1, free_port()), options); }), "carrier-pigeon"));
}

// --- two jobs on one port ---

BOOST_AUTO_TEST_CASE(members_of_two_jobs_on_one_port_refuse_each_other_by_name) {
  const auto port = free_port();
  Bootstrap here = member(0, 2, port);
  here.run_id = "job-a";
  const Session host = Session::join(here, hasty());
  for (const std::string other : {"job-b", ""}) {
    Bootstrap there = member(1, 2, port);
    there.run_id = other;
    const Error error = failure_of([&] { Session::join(there, hasty()); });
    BOOST_TEST((error.code() == ErrorCode::invalid_argument));
    BOOST_TEST(says(error, "this is job 'job-a'"), error.what());
    BOOST_TEST(says(error, other.empty() ? "a job without a run id" : "comes from job 'job-b'"), error.what());
  }
  Bootstrap same = member(1, 2, port);
  same.run_id = "job-a";
  Session::join(same, hasty()).close(5s);
}

BOOST_AUTO_TEST_CASE(a_rendezvous_whose_port_another_job_has_names_that_job) {
  const auto port = free_port();
  Bootstrap first = member(0, 2, port);
  first.run_id = "job-a";
  const Session host = Session::join(first, hasty());
  Bootstrap second = member(0, 3, port);
  second.run_id = "job-b";
  const Error error = failure_of([&] { Session::join(second, hasty()); });
  BOOST_TEST((error.code() == ErrorCode::invalid_argument));
  BOOST_TEST(says(error, "member 0 of job 'job-b' cannot listen"), error.what());
  BOOST_TEST(says(error, "this is job 'job-a'"), error.what());
}

BOOST_AUTO_TEST_CASE(a_port_that_something_else_has_is_refused_and_not_waited_for) {
  const auto port = free_port();
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  BOOST_REQUIRE(::bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  BOOST_REQUIRE(::listen(listener, 8) == 0);  // accepts, and never sends anything
  SessionOptions patient = hasty();
  patient.join_timeout = 60s;
  const auto began = std::chrono::steady_clock::now();
  const Error error = failure_of([&] { Session::join(member(0, 2, port), patient); });
  BOOST_TEST((error.code() == ErrorCode::invalid_argument));
  BOOST_TEST(says(error, "not a member of a job"), error.what());
  BOOST_TEST((std::chrono::steady_clock::now() - began < 40s));
  // Other members cannot tell it from a member 0 that is stopped.
  patient.join_timeout = 500ms;
  const Error other = failure_of([&] { Session::join(member(1, 2, port), patient); });
  BOOST_TEST((other.code() == ErrorCode::timed_out), other.what());
  BOOST_TEST(says(other, "where member 0 has to be"), other.what());
  ::close(listener);
}

BOOST_AUTO_TEST_SUITE_END()

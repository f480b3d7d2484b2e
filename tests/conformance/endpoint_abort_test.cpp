// SPDX-License-Identifier: Apache-2.0
// Aborting an unresponsive peer's endpoint: operations in flight end, and their memory is the caller's again.
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include "conformance/pair.hpp"

BOOST_AUTO_TEST_SUITE(endpoint_abort)

using namespace shardwire;
using namespace shardwire::test;

namespace {

const std::size_t large = on_slow_machine() ? 1 << 20 : 8 << 20;

std::string protocol() {
  const char* name = std::getenv("SHARDWIRE_TEST_PROTOCOL");
  return name == nullptr ? "threads" : name;
}

bool all_done(const std::vector<Result>& results) {
  return std::all_of(results.begin(), results.end(), [](const Result& result) { return result.done; });
}

}  // namespace

BOOST_TEST_DECORATOR(*boost::unit_test::label("messages") * boost::unit_test::precondition(paths_have_messages))
BOOST_DATA_TEST_CASE(sends_under_way_end_with_a_fault, boost::unit_test::data::make({0UL, 100UL, large}), size) {
  const Deadline deadline(120s);
  Pair pair;
  std::vector<Result> sent(20);
  std::vector<Bytes> payloads(sent.size(), pattern(size));
  for (std::size_t i = 0; i < sent.size(); ++i) send(*pair.to_right, text("x"), payloads[i], sent[i].completion());
  for (int i = 0; i < 10; ++i) pair.left->progress();  // the peer does nothing
  const auto done = [&] { return std::count_if(sent.begin(), sent.end(), [](const Result& one) { return one.done; }); };
  const auto before = done();
  pair.to_right->abort();
  BOOST_TEST(done() == before);  // never inside abort()
  BOOST_REQUIRE(run_until([&] { pair.left->progress(); }, [&] { return all_done(sent); }, promptly));
  if (size == large) {
    for (const Result& result : sent) BOOST_TEST(!result.succeeded());
  }
  for (Bytes& payload : payloads) std::fill(payload.begin(), payload.end(), std::byte{0xee});
  run_until([&] { pair.step(); }, [] { return false; }, 200ms);
  // The peer receives the complete message or an error.
  for (const auto& message : pair.right_mail.messages) {
    if (message->result.succeeded()) BOOST_TEST(same_bytes(message->payload, pattern(size)));
  }
}

BOOST_AUTO_TEST_CASE(receives_under_way_end_and_are_not_written_any_more,
                     *boost::unit_test::label("messages") * boost::unit_test::precondition(paths_have_messages)) {
  const Deadline deadline(120s);
  Pair pair;
  std::vector<Result> sent(6);
  const Bytes payload = pattern(large);
  std::vector<Result> received;
  received.reserve(sent.size());
  std::vector<Bytes> into(sent.size(), Bytes(large));
  pair.left->on_message([&](transport::Incoming& incoming) {
    Bytes& place = into[received.size()];
    incoming.receive(transport::host_memory(place), received.emplace_back().completion());
  });
  for (Result& result : sent) send(*pair.to_left, text("x"), payload, result.completion());
  BOOST_REQUIRE(run_until(
      [&] {
        pair.left->progress();
        if (received.empty()) pair.right->progress();
      },
      [&] { return !received.empty(); }, promptly));
  pair.to_right->abort();
  BOOST_REQUIRE(run_until([&] { pair.left->progress(); }, [&] { return all_done(received); }, promptly));
  if (protocol().starts_with("tcp")) {  // its bytes arrive only while the peer makes progress
    BOOST_TEST(std::none_of(received.begin(), received.end(), [](const Result& one) { return one.succeeded(); }));
  }
  const std::size_t ended = received.size();
  for (std::size_t i = 0; i < ended; ++i) {
    if (received[i].succeeded()) BOOST_TEST(same_bytes(into[i], payload));
    std::fill(into[i].begin(), into[i].end(), std::byte{0x5a});
  }
  run_until([&] { pair.step(); }, [] { return false; }, 300ms);
  const Bytes untouched(large, std::byte{0x5a});
  for (std::size_t i = 0; i < ended; ++i) BOOST_TEST((into[i] == untouched));
}

BOOST_AUTO_TEST_CASE(other_endpoints_of_the_fabric_go_on,
                     *boost::unit_test::label("messages") * boost::unit_test::precondition(paths_have_messages)) {
  const Deadline deadline(120s);
  Pair pair;
  Mailbox other_mail;
  const auto other = open_fabric();
  other_mail.attach(*other);
  EndpointOwner back;
  const auto to_other = connect_anew(*pair.left, *other, back);
  const Bytes payload = pattern(large);
  std::vector<Result> lost(4);
  std::vector<Result> kept(4);
  for (std::size_t i = 0; i < lost.size(); ++i) {
    send(*pair.to_right, {}, payload, lost[i].completion());
    send(*to_other, {}, payload, kept[i].completion());
  }
  for (int i = 0; i < 10; ++i) pair.left->progress();
  pair.to_right->abort();
  const auto step = [&] {
    pair.left->progress();
    other->progress();
  };
  BOOST_REQUIRE(run_until(
      step, [&] { return all_done(lost) && all_done(kept) && other_mail.complete() == kept.size(); }, 20s));
  for (const Result& result : kept) BOOST_TEST(result.succeeded());
  for (const auto& message : other_mail.messages) BOOST_TEST(same_bytes(message->payload, payload));
  BOOST_TEST(!to_other->failed());
}

BOOST_AUTO_TEST_CASE(an_endpoint_may_be_aborted_twice_and_a_new_one_made,
                     *boost::unit_test::label("messages") * boost::unit_test::precondition(paths_have_messages)) {
  const Deadline deadline(120s);
  Pair pair;
  const Bytes payload = pattern(large);
  Result sent;
  send(*pair.to_right, {}, payload, sent.completion());
  pair.to_right->abort();
  pair.to_right->abort();
  BOOST_REQUIRE(run_until([&] { pair.left->progress(); }, [&] { return sent.done; }, promptly));
  BOOST_TEST(!sent.succeeded());
  pair.to_right->abort();
  pair.to_right.reset();
  pair.to_right = connect_anew(*pair.left, *pair.right, pair.to_left);
  Result again;
  send(*pair.to_right, text("again"), payload, again.completion());
  const auto arrived = [&] {
    const auto& messages = pair.right_mail.messages;
    return !messages.empty() && messages.back()->header == text("again") && messages.back()->result.done;
  };
  BOOST_REQUIRE(pair.until([&] { return again.done && arrived(); }));
  BOOST_TEST(again.succeeded());
  BOOST_TEST(same_bytes(pair.right_mail.messages.back()->payload, payload));
}

// Leftovers of the old endpoint end later, without ending operations of the new one.
BOOST_TEST_DECORATOR(*boost::unit_test::label("messages") * boost::unit_test::precondition(paths_have_messages))
BOOST_DATA_TEST_CASE(what_comes_after_a_new_endpoint_was_made_is_not_ended_with_the_old_one,
                     boost::unit_test::data::make({0, 50, 250}), pause_ms) {
  const Deadline deadline(120s);
  Pair pair;
  const Bytes payload = pattern(large);
  Result lost;
  send(*pair.to_right, {}, payload, lost.completion());
  for (int i = 0; i < 10; ++i) pair.left->progress();
  pair.to_right->abort();
  const auto left_alone = [&](std::chrono::milliseconds time) {
    run_until([&] { pair.left->progress(); }, [] { return false; }, time);
  };
  left_alone(std::chrono::milliseconds(pause_ms));
  pair.to_right.reset();
  pair.to_left.reset();
  connect_both(*pair.left, pair.to_right, *pair.right, pair.to_left);
  Result there;
  Result back;
  send(*pair.to_right, text("there"), payload, there.completion());
  send(*pair.to_left, text("back"), payload, back.completion());
  BOOST_REQUIRE(pair.until([&] { return !pair.left_mail.messages.empty(); }));
  left_alone(700ms);  // the peer pauses in between
  BOOST_REQUIRE(pair.until([&] { return there.done && back.done && pair.left_mail.complete() == 1; }));
  BOOST_TEST(there.succeeded());
  BOOST_TEST(back.succeeded());
  BOOST_TEST(same_bytes(pair.left_mail.messages.back()->payload, payload));
  BOOST_TEST(same_bytes(pair.right_mail.messages.back()->payload, payload));
}

BOOST_AUTO_TEST_CASE(destructors_are_fine_right_after_an_abort,
                     *boost::unit_test::label("messages") * boost::unit_test::precondition(paths_have_messages)) {
  const Deadline deadline(120s);
  for (const bool fabric_first : {false, true}) {
    const Bytes payload = pattern(large);
    Pair pair;
    Result there;
    Result back;
    send(*pair.to_right, {}, payload, there.completion());
    send(*pair.to_left, {}, payload, back.completion());
    for (int i = 0; i < 20; ++i) pair.step();
    pair.to_right->abort();
    if (fabric_first) {
      pair.to_right.reset();
      pair.left.reset();
    } else {
      pair.right_mail.messages.clear();
      pair.to_left.reset();
      pair.right.reset();
    }
  }
}

BOOST_AUTO_TEST_CASE(endpoints_tell_whether_bytes_stay_on_the_host) {
  const Deadline deadline(120s);
  Pair pair;
  const bool on_host = !protocol().starts_with("tcp") && !protocol().starts_with("verbs") &&
                       !protocol().starts_with("/");  // "/mlx5_0:1"
  BOOST_TEST((pair.to_right->path({}).reach != Reach::network) == on_host);
  EndpointOwner back;
  const auto far = connect_anew(*pair.left, *pair.right, back, false);
  BOOST_TEST((far->path({}).reach != Reach::network) == on_host);  // claims of the peer are not trusted
}

BOOST_AUTO_TEST_SUITE_END()

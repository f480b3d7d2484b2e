// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include "conformance/pair.hpp"

namespace messages {

using namespace shardwire;
using namespace shardwire::test;

namespace {

const std::size_t largest = on_slow_machine() ? 4 << 20 : 64 << 20;

}  // namespace

}  // namespace messages

BOOST_AUTO_TEST_SUITE(messages,
                      *boost::unit_test::label("messages") * boost::unit_test::precondition(paths_have_messages))

BOOST_DATA_TEST_CASE(a_message_of_any_size_arrives_intact,
                     boost::unit_test::data::make({0UL, 1UL, 4096UL, 65535UL, 65536UL, 1UL << 20, largest}), size) {
  const Deadline deadline(120s);
  Pair pair;
  const Bytes payload = pattern(size);
  Result sent;
  send(*pair.to_right, text("header"), payload, sent.completion());
  BOOST_TEST(!sent.done);  // never inside the posting call
  BOOST_REQUIRE(pair.until([&] { return sent.done && pair.right_mail.complete() == 1; }));
  BOOST_TEST(sent.succeeded());
  const auto& message = *pair.right_mail.messages.front();
  BOOST_TEST((message.header == text("header")));
  BOOST_TEST(message.result.succeeded());
  BOOST_TEST(same_bytes(message.payload, payload));
}

BOOST_AUTO_TEST_CASE(headers_may_be_empty_or_as_long_as_allowed) {
  const Deadline deadline(120s);
  Pair pair;
  const Bytes longest = pattern(transport::max_header_bytes);
  Result first;
  Result second;
  send(*pair.to_right, {}, {}, first.completion());
  send(*pair.to_right, longest, {}, second.completion());
  BOOST_REQUIRE(pair.until([&] { return first.done && second.done && pair.right_mail.complete() == 2; }));
  BOOST_TEST(pair.right_mail.messages[0]->header.empty());
  BOOST_TEST((pair.right_mail.messages[1]->header == longest));
  BOOST_CHECK_THROW(send(*pair.to_right, pattern(transport::max_header_bytes + 1), {}, {}), Error);
}

BOOST_AUTO_TEST_CASE(the_header_is_copied_by_send) {
  const Deadline deadline(120s);
  Pair pair;
  const Bytes payload = pattern(1 << 20);
  Result sent;
  {
    Bytes header = text("short-lived");
    send(*pair.to_right, header, payload, sent.completion());
    std::fill(header.begin(), header.end(), std::byte{0});
  }
  BOOST_REQUIRE(pair.until([&] { return sent.done && pair.right_mail.complete() == 1; }));
  BOOST_TEST((pair.right_mail.messages.front()->header == text("short-lived")));
}

// A restore takes copied messages for what was published, though the publisher's memory changes as soon as it may.
BOOST_AUTO_TEST_CASE(the_payload_of_a_copied_message_is_that_of_the_time_when_it_was_sent) {
  const Deadline deadline(120s);
  Pair pair;
  Result first;
  send(*pair.to_right, text("header"), {}, first.completion());
  BOOST_REQUIRE(pair.until([&] { return first.done && pair.right_mail.complete() == 1; }));
  const bool is_copied = pair.right_mail.messages.front()->is_copied;
  BOOST_TEST(is_copied == (fabric_under_test() == "tcp"));
  if (!is_copied) return;

  const Bytes small = pattern(32 << 10);
  Bytes memory = small;
  Result second;
  send(*pair.to_right, text("small"), memory, second.completion());
  BOOST_REQUIRE(run_until([&] { pair.left->progress(); }, [&] { return second.done; }, promptly));
  std::ranges::fill(memory, std::byte{0});
  BOOST_REQUIRE(pair.until([&] { return pair.right_mail.complete() == 2; }));
  BOOST_TEST(pair.right_mail.messages.back()->result.succeeded());
  BOOST_TEST(same_bytes(pair.right_mail.messages.back()->payload, small));

  const Bytes large = pattern(4 << 20);
  memory = large;
  Result third;
  send(*pair.to_right, text("large"), memory, third.completion());
  BOOST_REQUIRE(pair.until([&] { return pair.right_mail.messages.size() == 3; }));
  pair.to_right.reset();
  std::ranges::fill(memory, std::byte{0});
  const auto& message = *pair.right_mail.messages.back();
  BOOST_REQUIRE(pair.until([&] { return message.result.done; }));
  BOOST_TEST((!message.result.succeeded() || same_bytes(message.payload, large)));
}

BOOST_AUTO_TEST_CASE(a_discarded_message_completes_its_sender) {
  const Deadline deadline(120s);
  Pair pair;
  int discarded = 0;
  pair.right->on_message([&](transport::Incoming& incoming) {
    ++discarded;
    incoming.discard();
  });
  const Bytes small = pattern(100);
  const Bytes large = pattern(std::min<std::size_t>(8 << 20, largest));
  Result first;
  Result second;
  send(*pair.to_right, text("small"), small, first.completion());
  send(*pair.to_right, text("large"), large, second.completion());
  BOOST_REQUIRE(pair.until([&] { return first.done && second.done && discarded == 2; }));
  BOOST_TEST(first.succeeded());
  BOOST_TEST(second.succeeded());

  // The fabric still works.
  pair.right_mail.attach(*pair.right);
  Result third;
  send(*pair.to_right, text("next"), large, third.completion());
  BOOST_REQUIRE(pair.until([&] { return third.done && pair.right_mail.complete() == 1; }));
  BOOST_TEST((pair.right_mail.messages.front()->payload == large));
}

BOOST_AUTO_TEST_CASE(a_receive_buffer_of_the_wrong_size_is_refused) {
  const Deadline deadline(120s);
  Pair pair;
  int refused = 0;
  pair.right->on_message([&](transport::Incoming& incoming) {
    Bytes into(incoming.payload_bytes() + 1);
    try {
      incoming.receive(transport::host_memory(into), {});
    } catch (const Error& error) {
      refused += error.code() == ErrorCode::invalid_argument ? 1 : 0;
      incoming.discard();
    }
  });
  const Bytes payload = pattern(1 << 20);
  Result sent;
  send(*pair.to_right, {}, payload, sent.completion());
  BOOST_REQUIRE(pair.until([&] { return sent.done && refused == 1; }));
}

BOOST_AUTO_TEST_CASE(many_messages_both_ways_keep_the_order_of_their_headers) {
  const Deadline deadline(120s);
  Pair pair;
  constexpr std::size_t count = 400;
  std::vector<Bytes> payloads;
  for (std::size_t i = 0; i < count; ++i) payloads.push_back(pattern(i % 7 == 0 ? 300'000 : i % 5 * 3000, i));
  std::size_t sent = 0;
  const auto counted = [&](const transport::Outcome& outcome) {
    BOOST_TEST(!outcome);
    ++sent;
  };
  for (std::size_t i = 0; i < count; ++i) {
    const auto header = std::as_bytes(std::span(&i, 1));
    send(*pair.to_right, header, payloads[i], counted);
    send(*pair.to_left, header, payloads[count - 1 - i], counted);
  }
  BOOST_REQUIRE(pair.until(
      [&] { return sent == 2 * count && pair.left_mail.complete() == count && pair.right_mail.complete() == count; }));
  for (std::size_t i = 0; i < count; ++i) {
    const auto header = std::as_bytes(std::span(&i, 1));
    BOOST_TEST(same_bytes(pair.right_mail.messages[i]->header, header));
    BOOST_TEST(same_bytes(pair.right_mail.messages[i]->payload, payloads[i]));
    BOOST_TEST(same_bytes(pair.left_mail.messages[i]->header, header));
    BOOST_TEST(same_bytes(pair.left_mail.messages[i]->payload, payloads[count - 1 - i]));
  }
}

BOOST_AUTO_TEST_CASE(a_payload_is_gathered_from_ranges_and_scattered_into_others) {
  const Deadline deadline(120s);
  Pair pair;
  const std::size_t most = pair.to_right->path({}).max_message_ranges;
  const Bytes content = pattern(900'000);
  std::vector<transport::ConstMemory> from;
  Bytes expected;
  for (std::size_t i = 0; i < std::min<std::size_t>(most, 700); ++i) {  // some are empty
    const auto range = transport::host_memory(content).part(i * 1201, i % 5 == 0 ? 0 : i % 977);
    from.push_back(range);
    expected.insert(expected.end(), range.address, range.address + range.bytes);
  }
  Bytes place(2 * expected.size() + 8192);
  std::vector<transport::Memory> into;
  Result received;
  pair.right->on_message([&](transport::Incoming& incoming) {
    ByteCount left = incoming.payload_bytes();
    for (std::size_t i = 0; left > 0; ++i) {  // lengths differ from the other side's, with gaps between them
      const ByteCount bytes = i + 1 == most ? left : std::min<ByteCount>(left, i % 3 == 0 ? 0 : 1000 + i % 701);
      const ByteCount at =
          into.empty() ? 3 : static_cast<ByteCount>(into.back().address - place.data()) + into.back().bytes + 5;
      into.push_back(transport::host_memory(place).part(at, bytes));
      left -= bytes;
    }
    incoming.receive(into, received.completion());
  });
  Result sent;
  pair.to_right->send(text("list"), from, sent.completion());
  from.clear();  // send() has copied the list
  BOOST_REQUIRE(pair.until([&] { return sent.done && received.done; }));
  BOOST_TEST(sent.succeeded());
  BOOST_TEST(received.succeeded());
  Bytes gathered;
  Bytes untouched(place.size());
  for (const transport::Memory& range : into) {
    gathered.insert(gathered.end(), range.address, range.address + range.bytes);
    std::ranges::fill(range.span(), std::byte{0});
  }
  BOOST_TEST(same_bytes(gathered, expected));
  BOOST_TEST((place == untouched));  // bytes between the ranges are unchanged
  const std::vector<transport::ConstMemory> too_many(most + 1);
  BOOST_CHECK_THROW(pair.to_right->send({}, too_many, {}), Error);
}

BOOST_AUTO_TEST_CASE(handlers_and_completions_may_post) {
  const Deadline deadline(120s);
  Pair pair;
  const Bytes payload = pattern(200'000);
  Bytes received(payload.size());
  Result answered;
  pair.right->on_message([&](transport::Incoming& incoming) {
    incoming.receive(transport::host_memory(received), [&](const transport::Outcome&) {
      send(*pair.to_left, text("answer"), received, answered.completion());
    });
  });
  Result sent;
  send(*pair.to_right, text("question"), payload, sent.completion());
  BOOST_REQUIRE(pair.until([&] { return sent.done && answered.done && pair.left_mail.complete() == 1; }));
  BOOST_TEST(same_bytes(pair.left_mail.messages.front()->payload, payload));
}

BOOST_AUTO_TEST_CASE(a_fabric_can_talk_to_itself) {
  const Deadline deadline(120s);
  Mailbox mail;
  const auto fabric = open_fabric();
  mail.attach(*fabric);
  EndpointOwner back;
  const auto endpoint = connect_anew(*fabric, *fabric, back);
  const Bytes payload = pattern(1 << 20);
  Result sent;
  send(*endpoint, text("me"), payload, sent.completion());
  BOOST_REQUIRE(run_until([&] { fabric->progress(); }, [&] { return sent.done && mail.complete() == 1; }, promptly));
  BOOST_TEST(same_bytes(mail.messages.front()->payload, payload));
}

BOOST_AUTO_TEST_CASE(a_handler_that_throws_loses_its_own_message_only) {
  const Deadline deadline(120s);
  Pair pair;
  bool thrown = false;
  pair.right->on_message([&](transport::Incoming& incoming) {
    if (!std::exchange(thrown, true)) throw std::runtime_error("handler");
    auto& message = *pair.right_mail.messages.emplace_back(std::make_unique<Mailbox::Message>());
    message.payload.resize(incoming.payload_bytes());
    incoming.receive(transport::host_memory(message.payload), message.result.completion());
  });
  Result first;
  Result second;
  const Bytes payload = pattern(4096);
  send(*pair.to_right, {}, payload, first.completion());
  send(*pair.to_right, {}, payload, second.completion());
  int caught = 0;
  const auto step = [&] {
    try {
      pair.step();
    } catch (const std::runtime_error&) {
      ++caught;
    }
  };
  BOOST_REQUIRE(run_until(
      step, [&] { return first.done && second.done && pair.right_mail.complete() == 1; }, promptly));
  BOOST_TEST(caught == 1);
}

BOOST_AUTO_TEST_SUITE_END()

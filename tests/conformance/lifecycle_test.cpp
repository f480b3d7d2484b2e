// SPDX-License-Identifier: Apache-2.0
#include <poll.h>

#include <atomic>
#include <boost/test/unit_test.hpp>
#include <thread>

#include "conformance/pair.hpp"

BOOST_AUTO_TEST_SUITE(lifecycle)

using namespace shardwire;
using namespace shardwire::test;
using transport::WallClock;

BOOST_AUTO_TEST_CASE(two_fabrics_agree_on_name_and_domain) {
  const Deadline deadline(120s);
  Pair pair;
  BOOST_TEST(pair.left->name() == fabric_under_test());
  BOOST_TEST(pair.left->domain() == pair.right->domain());
  BOOST_TEST(!pair.left->version().empty());
  BOOST_TEST(pair.left->address().size() <= transport::max_address_bytes);
}

BOOST_AUTO_TEST_CASE(the_carrier_is_named_truthfully) {
  const Deadline deadline(120s);
  Pair pair;
  if (pair.to_right->path({}).message) {  // some paths are known only after connecting
    Result sent;
    send(*pair.to_right, {}, {}, sent.completion());
    BOOST_REQUIRE(pair.until([&] { return sent.done; }));
  }
  const std::string carrier = pair.to_right->path({}).carrier;
  BOOST_TEST_MESSAGE("carrier: " << carrier);
  const char* expected = std::getenv("SHARDWIRE_TEST_PROTOCOL");
  BOOST_TEST(carrier.find(expected == nullptr ? "threads" : expected) != std::string::npos, carrier);
}

// Labels exclude cases that a path cannot run: this list must be right.
BOOST_AUTO_TEST_CASE(the_path_lacks_what_its_run_leaves_out) {
  const char* const lacks = std::getenv("SHARDWIRE_TEST_LACKS");
  if (lacks == nullptr) return;
  Pair pair;
  const transport::Path path = pair.to_right->path({});
  std::string found;
  const auto lack = [&](bool able, const char* label) {
    if (!able) found += (found.empty() ? "" : " ") + std::string(label);
  };
  lack(path.message, "messages");
  lack(path.read, "reads");
  lack(path.read && !path.reads_need_peer, "reads-alone");
  BOOST_TEST(found == lacks);
}

BOOST_AUTO_TEST_CASE(garbled_addresses_are_refused) {
  const Deadline deadline(120s);
  Pair pair;
  const Bytes good = pair.left->address();
  const auto refused = [&](const Bytes& address) {
    SocketsBetween sockets = make_sockets(pair.right->sockets());
    BOOST_CHECK_EXCEPTION(
        pair.right->connect({.address = address, .same_host = true, .sockets = std::move(sockets.here)}), Error,
        [](const Error& e) { return e.code() == ErrorCode::transport_failed; });
  };
  refused({});
  refused(pattern(500));
  for (std::size_t size = 0; size < good.size(); size += 7)
    refused({good.begin(), good.begin() + static_cast<long>(size)});
  refused({good.begin(), good.end() - 1});
}

BOOST_AUTO_TEST_CASE(the_descriptor_wakes_a_sleeper,
                     *boost::unit_test::label("messages") * boost::unit_test::precondition(paths_have_messages)) {
  const Deadline deadline(120s);
  Pair pair;
  if (pair.right->event_descriptor() < 0) return;
  // Connect first, so that only the message can cause a wake-up.
  Result first;
  send(*pair.to_right, {}, {}, first.completion());
  BOOST_REQUIRE(pair.until([&] { return first.done && pair.right_mail.complete() == 1; }));

  const Bytes payload = pattern(500'000);
  for (int round = 0; round < 5; ++round) {
    const std::size_t before = pair.right_mail.complete();
    Result sent;
    send(*pair.to_right, text("wake"), payload, sent.completion());
    const bool arrived = run_until(
        [&] {
          pair.left->progress();
          if (pair.right->progress() || !pair.right->arm()) return;
          pollfd entry{.fd = pair.right->event_descriptor(), .events = POLLIN, .revents = 0};
          ::poll(&entry, 1, sent.done ? 1000 : 1);
        },
        [&] { return sent.done && pair.right_mail.complete() == before + 1; }, promptly);
    BOOST_REQUIRE(arrived);
  }
}

BOOST_AUTO_TEST_CASE(sleeping_on_both_sides_loses_no_wakeup,
                     *boost::unit_test::label("messages") * boost::unit_test::precondition(paths_have_messages)) {
  const Deadline deadline(120s);
  Pair pair;
  const Bytes payload = pattern(300'000);
  std::array<transport::Fabric*, 2> fabrics{pair.left.get(), pair.right.get()};
  if (pair.right->event_descriptor() < 0) return;
  Result sent;
  send(*pair.to_right, {}, payload, sent.completion());
  const auto started = WallClock::now();
  const bool done = run_until(
      [&] {
        bool idle = true;
        for (auto* fabric : fabrics) idle = !fabric->progress() && idle;
        for (auto* fabric : fabrics) idle = idle && fabric->arm();
        if (!idle) return;
        std::array<pollfd, 2> entries{};
        for (std::size_t i = 0; i < 2; ++i)
          entries[i] = {.fd = fabrics[i]->event_descriptor(), .events = POLLIN, .revents = 0};
        ::poll(entries.data(), entries.size(), 5000);
      },
      [&] { return sent.done && pair.right_mail.complete() == 1; }, 20s);
  BOOST_TEST(done);
  BOOST_TEST((WallClock::now() - started < promptly));
}

BOOST_AUTO_TEST_CASE(a_closed_fabric_fails_the_endpoints_of_its_peers,
                     *boost::unit_test::label("messages") * boost::unit_test::precondition(paths_have_messages)) {
  const Deadline deadline(120s);
  Pair pair;
  Result first;
  send(*pair.to_right, {}, {}, first.completion());
  BOOST_REQUIRE(pair.until([&] { return first.done && pair.right_mail.complete() == 1; }));
  BOOST_TEST(!pair.to_right->failed());
  const Bytes payload = pattern(on_slow_machine() ? 16 << 20 : 64 << 20);  // exceeds the system's buffers
  Result pending;
  send(*pair.to_right, {}, payload, pending.completion());
  // Closing exchanges messages with the peer, so the peer continues to make progress.
  std::atomic<bool> closed = false;
  std::thread closer([&] {
    pair.to_left.reset();
    pair.right.reset();
    closed = true;
  });
  while (!closed) pair.left->progress();
  closer.join();
  BOOST_REQUIRE(pair.until([&] { return pending.done && pair.to_right->failed(); }));
  BOOST_REQUIRE(pending.outcome.has_value());
  BOOST_TEST((pending.outcome->code == ErrorCode::peer_lost), pending.outcome->message);
  Result later;
  send(*pair.to_right, {}, payload, later.completion());
  BOOST_REQUIRE(pair.until([&] { return later.done; }));
  BOOST_REQUIRE(later.outcome.has_value());
  BOOST_TEST((later.outcome->code == ErrorCode::peer_lost));
}

BOOST_AUTO_TEST_CASE(completions_of_a_destroyed_endpoint_never_run,
                     *boost::unit_test::label("messages") * boost::unit_test::precondition(paths_have_messages)) {
  const Deadline deadline(120s);
  Pair pair;
  bool ran = false;
  {
    const Bytes payload = pattern(4 << 20);
    send(*pair.to_right, {}, payload, [&](const transport::Outcome&) { ran = true; });
    const auto started = WallClock::now();
    pair.to_right.reset();
    BOOST_TEST((WallClock::now() - started < promptly));
  }  // the payload is freed here
  run_until([&] { pair.step(); }, [] { return false; }, 300ms);
  BOOST_TEST(!ran);
}

BOOST_AUTO_TEST_CASE(an_endpoint_may_be_destroyed_by_a_completion,
                     *boost::unit_test::label("messages") * boost::unit_test::precondition(paths_have_messages)) {
  const Deadline deadline(120s);
  Pair pair;
  bool ran = false;
  const Bytes payload = pattern(100);
  send(*pair.to_right, {}, payload, [&](const transport::Outcome&) {
    ran = true;
    pair.to_right.reset();
  });
  BOOST_REQUIRE(pair.until([&] { return ran && pair.right_mail.complete() == 1; }));
  // A new endpoint replaces it.
  pair.to_right = connect_anew(*pair.left, *pair.right, pair.to_left);
  Result sent;
  send(*pair.to_right, {}, payload, sent.completion());
  BOOST_REQUIRE(pair.until([&] { return sent.done && pair.right_mail.complete() == 2; }));
}

BOOST_AUTO_TEST_CASE(what_was_sent_before_closing_arrives,
                     *boost::unit_test::label("messages") * boost::unit_test::precondition(paths_have_messages)) {
  const Deadline deadline(120s);
  Pair pair;
  const Bytes payload = pattern(4096);
  Result sent;
  send(*pair.to_right, text("last words"), payload, sent.completion());
  BOOST_REQUIRE(pair.until([&] { return sent.done; }));
  pair.to_right.reset();
  BOOST_REQUIRE(pair.until([&] { return pair.right_mail.complete() == 1; }));
  BOOST_TEST(same_bytes(pair.right_mail.messages.front()->payload, payload));
}

BOOST_AUTO_TEST_CASE(closing_with_everything_under_way_is_bounded,
                     *boost::unit_test::label("messages") * boost::unit_test::precondition(paths_have_messages)) {
  const Deadline deadline(120s);
  const Bytes payload = pattern(4 << 20);
  auto pair = std::make_unique<Pair>();
  for (int i = 0; i < 20; ++i) {
    send(*pair->to_right, {}, payload, [](const transport::Outcome&) {});
    send(*pair->to_left, {}, payload, [](const transport::Outcome&) {});
    if (i == 10) pair->step();
  }
  const auto started = WallClock::now();
  pair.reset();
  BOOST_TEST((WallClock::now() - started < promptly));
}

BOOST_AUTO_TEST_SUITE_END()

// SPDX-License-Identifier: Apache-2.0
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <csignal>
#include <thread>

#include "conformance/other_process.hpp"

// A peer is killed or hangs. The survivor notices it or at least is not blocked, and does not crash.
BOOST_AUTO_TEST_SUITE(departure)

using namespace shardwire;
using namespace shardwire::test;
using transport::WallClock;

namespace {

/// Sockets belong to an endpoint, so without one the fabric receives nothing.
inline bool needs_endpoint(const transport::Fabric& fabric) {
  if (fabric.sockets().count == 0) return false;
  BOOST_TEST_MESSAGE(fabric.name() << " receives only from peers that it has an endpoint to");
  return true;
}

struct Survivor {
  Child child;
  Mailbox mail;
  std::unique_ptr<transport::Fabric> fabric = open_fabric();
  std::unique_ptr<transport::Endpoint> endpoint;
  ReceivedKey told;

  explicit Survivor(const std::string& task, bool connects = true) : child({std::getenv("SHARDWIRE_TEST_PEER"), task}) {
    mail.attach(*fabric);
    const Bytes address = read_frame(child.socket());
    told = read_key(child.socket());
    auto sockets = accept_sockets(child.socket(), *fabric);
    if (connects) {
      endpoint = fabric->connect({.address = address, .same_host = true, .sockets = std::move(sockets)});
    }
    write_frame(child.socket(), fabric->address());
  }
  template <typename Met>
  bool until(Met met, std::chrono::milliseconds at_most = promptly) {
    return run_until([this] { fabric->progress(); }, met, at_most);
  }
};

// The peer's tasks, by the memory that it exports: the fabric's, or its own.
const char* const memories[] = {"answer", "adopted"};

}  // namespace

BOOST_AUTO_TEST_CASE(another_process_is_reached,
                     *boost::unit_test::label("messages") * boost::unit_test::precondition(paths_have_messages)) {
  const Deadline deadline(120s);
  Survivor survivor("answer");
  const Bytes payload = pattern(3 << 20);
  Result sent;
  send(*survivor.endpoint, text("hello"), payload, sent.completion());
  BOOST_REQUIRE(survivor.until([&] { return sent.done && survivor.mail.complete() == 1; }));
  BOOST_TEST(sent.succeeded());
}

BOOST_AUTO_TEST_CASE(memory_of_another_process_is_read) {
  const Deadline deadline(120s);
  Survivor survivor("answer");
  if (survivor.endpoint->path({}).message) {  // some paths are known only after connecting
    BOOST_REQUIRE(survivor.until([&] { return survivor.mail.complete() == 1; }));
  }
  const char* expected = std::getenv("SHARDWIRE_TEST_PROTOCOL");
  const std::string carrier = survivor.endpoint->path({}).carrier;
  BOOST_TEST_MESSAGE("carrier: " << carrier);
  BOOST_TEST(carrier.find(expected) != std::string::npos);
  if (survivor.told.bytes.empty()) {  // see regions_test.cpp
    BOOST_TEST(!survivor.endpoint->path({}).map);
    return;
  }
  const auto remote = survivor.endpoint->import_region(survivor.told.key(), 1 << 20);
  const auto mapped = remote->mapped().span();
  BOOST_TEST(mapped.size() == (survivor.endpoint->path({}).map ? 1 << 20 : 0));
  const Bytes content = pattern(1 << 20, 5);
  BOOST_TEST(same_bytes(mapped, std::span(content).first(mapped.size())));
  survivor.child.kill();
  survivor.child.reap();
  BOOST_TEST(same_bytes(mapped, std::span(content).first(mapped.size())));  // the mapping outlives its owner
}

BOOST_TEST_DECORATOR(*boost::unit_test::label("messages") * boost::unit_test::precondition(paths_have_messages))
BOOST_DATA_TEST_CASE(an_idle_peer_that_is_killed_is_noticed, boost::unit_test::data::make({true, false}), reaped) {
  const Deadline deadline(120s);
  Survivor survivor("answer");
  BOOST_REQUIRE(survivor.until([&] { return survivor.mail.complete() == 1; }));
  BOOST_TEST(!survivor.endpoint->failed());
  survivor.child.kill();
  if (reaped) survivor.child.reap();
  BOOST_REQUIRE(survivor.until([&] { return survivor.endpoint->failed(); }));
  const Bytes payload = pattern(1 << 20);
  for (const std::size_t size : {std::size_t{0}, payload.size()}) {
    Result sent;
    send(*survivor.endpoint, {}, std::span(payload).first(size), sent.completion());
    BOOST_REQUIRE(survivor.until([&] { return sent.done; }));
    BOOST_REQUIRE(sent.outcome.has_value());
    BOOST_TEST((sent.outcome->code == ErrorCode::peer_lost), sent.outcome->message);
  }
}

BOOST_TEST_DECORATOR(*boost::unit_test::label("messages") * boost::unit_test::precondition(paths_have_messages))
BOOST_DATA_TEST_CASE(a_peer_killed_while_it_receives_ends_every_send, boost::unit_test::data::xrange(6), round) {
  const Deadline deadline(120s);
  Survivor survivor("answer");
  BOOST_REQUIRE(survivor.until([&] { return survivor.mail.complete() == 1; }));
  const Bytes payload = pattern(32 << 20);
  constexpr int count = 8;
  int done = 0;
  int lost = 0;
  for (int i = 0; i < count; ++i) {
    send(*survivor.endpoint, text("bulk"), payload, [&](const transport::Outcome& outcome) {
      ++done;
      if (outcome && outcome->code == ErrorCode::peer_lost) ++lost;
    });
  }
  const auto kill_at = WallClock::now() + round * 3ms;
  survivor.until([&] { return WallClock::now() > kill_at; });
  survivor.child.kill();
  BOOST_REQUIRE(survivor.until([&] { return done == count; }));
  BOOST_REQUIRE(survivor.until([&] { return survivor.endpoint->failed(); }));
  BOOST_TEST_MESSAGE("lost " << lost << " of " << count);
}

BOOST_TEST_DECORATOR(*boost::unit_test::label("messages") * boost::unit_test::precondition(paths_have_messages))
BOOST_DATA_TEST_CASE(a_peer_killed_while_it_sends_ends_every_receive, boost::unit_test::data::xrange(6), round) {
  const Deadline deadline(120s);
  Survivor survivor("flood");
  BOOST_REQUIRE(survivor.until([&] { return survivor.mail.messages.size() > 3; }, 20s));
  const auto kill_at = WallClock::now() + round * 3ms;
  survivor.until([&] { return WallClock::now() > kill_at; });
  survivor.child.kill();
  const auto killed = WallClock::now();
  BOOST_REQUIRE(survivor.until([&] { return survivor.endpoint->failed(); }));
  // Messages in flight end too, with bytes or with an error.
  std::this_thread::sleep_for(50ms);
  BOOST_REQUIRE(survivor.until(
      [&] { return WallClock::now() - killed > 400ms && survivor.mail.complete() == survivor.mail.messages.size(); }));
  const Bytes content = pattern(32 << 20);
  for (const auto& message : survivor.mail.messages) {
    if (message->result.succeeded() && !message->payload.empty()) BOOST_TEST(same_bytes(message->payload, content));
  }
}

BOOST_TEST_DECORATOR(*boost::unit_test::label("messages") * boost::unit_test::precondition(paths_have_messages))
BOOST_DATA_TEST_CASE(a_sender_without_an_endpoint_back_is_killed, boost::unit_test::data::xrange(6), round) {
  const Deadline deadline(120s);
  if (needs_endpoint(*open_fabric())) return;
  Survivor survivor("flood", false);
  BOOST_REQUIRE(survivor.until([&] { return survivor.mail.messages.size() > 3; }, 20s));
  const auto kill_at = WallClock::now() + round * 3ms;
  survivor.until([&] { return WallClock::now() > kill_at; });
  survivor.child.kill();
  survivor.until([] { return false; }, round % 2 == 0 ? 0ms : 400ms);
  const auto started = WallClock::now();
  survivor.fabric.reset();
  BOOST_TEST((WallClock::now() - started < promptly));
}

BOOST_AUTO_TEST_CASE(receives_under_way_hold_no_destructor_up,
                     *boost::unit_test::label("messages") * boost::unit_test::precondition(paths_have_messages)) {
  const Deadline deadline(120s);
  for (const bool connects : {true, false}) {
    if (!connects && needs_endpoint(*open_fabric())) continue;
    Survivor survivor("flood", connects);
    BOOST_REQUIRE(survivor.until([&] { return survivor.mail.messages.size() > 3; }, 20s));
    survivor.child.freeze();
    survivor.until([] { return false; }, 50ms);
    const auto started = WallClock::now();
    survivor.endpoint.reset();
    survivor.fabric.reset();
    BOOST_TEST((WallClock::now() - started < promptly));
  }
}

BOOST_TEST_DECORATOR(*boost::unit_test::label("messages") * boost::unit_test::precondition(paths_have_messages))
BOOST_DATA_TEST_CASE(a_peer_that_hangs_holds_no_destructor_up, boost::unit_test::data::make({0UL, 100UL, 32UL << 20}),
                     size) {
  const Deadline deadline(120s);
  Survivor survivor("answer");
  BOOST_REQUIRE(survivor.until([&] { return survivor.mail.complete() == 1; }));
  survivor.child.freeze();
  bool late = false;
  bool destroyed = false;
  const auto started = [&] {
    const Bytes payload = pattern(size);
    for (int i = 0; i < 50; ++i) {
      send(*survivor.endpoint, text("x"), payload, [&](const transport::Outcome&) { late = late || destroyed; });
    }
    survivor.until([] { return false; }, 50ms);
    const auto before = WallClock::now();
    survivor.endpoint.reset();
    return before;
  }();  // the payload is freed here
  destroyed = true;
  survivor.until([] { return false; }, 100ms);
  survivor.fabric.reset();
  BOOST_TEST((WallClock::now() - started < promptly));
  BOOST_TEST(!late);
}

BOOST_AUTO_TEST_CASE(a_peer_that_leaves_in_good_order_is_noticed) {
  const Deadline deadline(120s);
  Survivor survivor("close");
  BOOST_REQUIRE(survivor.until([&] { return survivor.endpoint->failed(); }));
  BOOST_TEST(survivor.child.reap() == 0);
}

BOOST_AUTO_TEST_CASE(other_peers_stay_usable,
                     *boost::unit_test::label("messages") * boost::unit_test::precondition(paths_have_messages)) {
  const Deadline deadline(120s);
  Survivor survivor("flood");
  Child second({std::getenv("SHARDWIRE_TEST_PEER"), "answer"});
  const Bytes address = read_frame(second.socket());
  const ReceivedKey ignored = read_key(second.socket());
  auto sockets = accept_sockets(second.socket(), *survivor.fabric);
  const auto other = survivor.fabric->connect({.address = address, .same_host = true, .sockets = std::move(sockets)});
  write_frame(second.socket(), survivor.fabric->address());
  BOOST_REQUIRE(survivor.until([&] { return survivor.mail.messages.size() > 3; }, 20s));
  survivor.child.kill();
  const Bytes payload = pattern(20 << 20);
  Result sent;
  send(*other, text("still there"), payload, sent.completion());
  BOOST_REQUIRE(survivor.until([&] { return sent.done && survivor.endpoint->failed(); }));
  BOOST_TEST(sent.succeeded());
  BOOST_TEST(!other->failed());
}

BOOST_TEST_DECORATOR(*boost::unit_test::label("reads") * boost::unit_test::precondition(paths_read))
BOOST_DATA_TEST_CASE(a_peer_that_is_killed_is_noticed_and_ends_every_read,
                     boost::unit_test::data::xrange(6) * boost::unit_test::data::make(memories), round, memory) {
  const Deadline deadline(120s);
  Survivor survivor(memory);
  const auto remote = survivor.endpoint->import_region(survivor.told.key(), 1 << 20);
  const Bytes content = pattern(1 << 20, 5);
  std::vector<Bytes> into(40, Bytes(content.size()));
  std::vector<Result> results(into.size());
  BOOST_TEST(!survivor.endpoint->failed());
  for (std::size_t i = 0; i < into.size(); ++i) {
    if (i == into.size() / 2) {
      survivor.child.kill();
      if (round % 2 == 0) survivor.child.reap();
    }
    read(*survivor.endpoint, *remote, 0, into[i], results[i].completion());
    if (round > 2) survivor.fabric->progress();
  }
  const auto all_done = [&] { return std::ranges::all_of(results, &Result::done); };
  BOOST_REQUIRE(survivor.until([&] { return all_done() && survivor.endpoint->failed(); }));
  for (std::size_t i = 0; i < into.size(); ++i) {
    if (results[i].succeeded()) BOOST_TEST(same_bytes(into[i], content));
    if (!results[i].succeeded()) BOOST_TEST((results[i].outcome->code == ErrorCode::peer_lost));
  }
  Result late;
  read(*survivor.endpoint, *remote, 0, into[0], late.completion());
  BOOST_REQUIRE(survivor.until([&] { return late.done; }));
  BOOST_REQUIRE(late.outcome.has_value());
  BOOST_TEST((late.outcome->code == ErrorCode::peer_lost), late.outcome->message);
}

BOOST_TEST_DECORATOR(*boost::unit_test::label("reads") * boost::unit_test::precondition(paths_read))
BOOST_DATA_TEST_CASE(reads_from_a_peer_that_hangs_can_be_given_up, boost::unit_test::data::make(memories), memory) {
  const Deadline deadline(120s);
  Survivor survivor(memory);
  const auto remote = survivor.endpoint->import_region(survivor.told.key(), 1 << 20);
  std::vector<Bytes> into(40, Bytes(1 << 20));
  std::vector<Result> results(into.size());
  const auto post = [&](std::size_t i) { read(*survivor.endpoint, *remote, 0, into[i], results[i].completion()); };
  post(0);
  BOOST_REQUIRE(survivor.until([&] { return results[0].done; }));
  BOOST_TEST(results[0].succeeded());
  for (std::size_t i = 1; i < into.size() / 2; ++i) post(i);
  survivor.until([&] { return results[1].done; });  // in the middle of the others
  survivor.child.freeze();
  for (std::size_t i = into.size() / 2; i < into.size(); ++i) post(i);
  survivor.until([] { return false; }, 20ms);
  survivor.endpoint->abort();
  BOOST_REQUIRE(survivor.until([&] { return std::ranges::all_of(results, &Result::done); }));
  const Bytes content = pattern(1 << 20, 5);
  for (std::size_t i = 0; i < into.size(); ++i) {
    if (results[i].succeeded()) BOOST_TEST(same_bytes(into[i], content));
    std::ranges::fill(into[i], std::byte{0x5a});
  }
  ::kill(survivor.child.pid(), SIGCONT);
  survivor.until([] { return false; }, 200ms);
  const Bytes untouched(1 << 20, std::byte{0x5a});
  for (const Bytes& one : into) BOOST_TEST((one == untouched));
}

BOOST_TEST_DECORATOR(*boost::unit_test::label("reads-alone") * boost::unit_test::precondition(peers_are_read_alone))
BOOST_DATA_TEST_CASE(a_peer_that_hangs_is_read_all_the_same, boost::unit_test::data::make(memories), memory) {
  const Deadline deadline(120s);
  Survivor survivor(memory);
  const auto remote = survivor.endpoint->import_region(survivor.told.key(), 1 << 20);
  Bytes into(1 << 20);
  if (fabric_under_test() == "ucx") {  // its handshake needs both sides
    Result first;
    read(*survivor.endpoint, *remote, 0, std::span(into).first(10), first.completion());
    BOOST_REQUIRE(survivor.until([&] { return first.done; }));
  }
  survivor.child.freeze();
  Result result;
  read(*survivor.endpoint, *remote, 0, into, result.completion());
  BOOST_REQUIRE(survivor.until([&] { return result.done; }));
  BOOST_TEST(result.succeeded());
  BOOST_TEST(same_bytes(into, pattern(into.size(), 5)));
  const auto started = WallClock::now();
  read(*survivor.endpoint, *remote, 0, into, {});
  survivor.endpoint.reset();
  survivor.fabric.reset();
  BOOST_TEST((WallClock::now() - started < promptly));
}

BOOST_AUTO_TEST_SUITE_END()

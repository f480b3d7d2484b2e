// SPDX-License-Identifier: Apache-2.0
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <cstdint>
#include <optional>
#include <utility>

#include "fuzz/made_peer.hpp"

// When a connection takes a silent peer for hung, in made time.
BOOST_AUTO_TEST_SUITE(liveness)

using namespace shardwire;
using namespace shardwire::fuzz;
using namespace std::chrono_literals;

namespace {

constexpr auto limit = 5s;

struct Asked {
  explicit Asked(std::chrono::nanoseconds taking = {}) {
    Identity identity = identity_of(0);
    identity.liveness = {.idle = 10s, .limit = limit};
    Connection::Events events;
    events.message = [this, taking](Connection&, wire::Message&) { loop.clock.jump(taking); };
    connection = Connection::connect(loop, {"192.0.2.2", 1}, identity, std::move(events));
    loop.stream->establish();
    loop.stream->deliver(frame_of(peer_hello()));
    loop.stream->deliver(frame_of(proof_of(peer_hello(), true)));
    BOOST_REQUIRE(connection->ready());
  }
  ~Asked() { connection->drop(); }
  Asked(const Asked&) = delete;
  Asked& operator=(const Asked&) = delete;

  void ask() {
    connection->check_alive([this](bool answer) { alive = answer; });
  }

  MadeLoop loop;
  std::shared_ptr<Connection> connection;
  std::optional<bool> alive;
};

}  // namespace

BOOST_AUTO_TEST_CASE(a_peer_whose_system_takes_a_little_of_a_backlog_is_alive) {
  Asked peer;
  MadeStream& stream = *peer.loop.stream;
  stream.queued = 1 << 20;
  stream.untaken = 4 << 20;
  peer.ask();
  for (int i = 0; i < 20; ++i) {
    stream.untaken -= 1000;
    peer.loop.clock.advance(limit - 1s);
    BOOST_REQUIRE(!peer.alive);
  }
  peer.loop.clock.advance(3 * limit);
  BOOST_TEST((peer.alive == std::optional(false)));
}

BOOST_AUTO_TEST_CASE(a_peer_that_takes_a_backlog_between_two_looks_is_alive) {
  Asked peer;
  peer.ask();
  for (int i = 0; i < 20; ++i) {
    peer.connection->notify(Bytes(1 << 20));
    peer.loop.stream->drain();
    peer.loop.clock.advance(limit - 1s);
    BOOST_REQUIRE(!peer.alive);
  }
  peer.loop.clock.advance(3 * limit);
  BOOST_TEST((peer.alive == std::optional(false)));
}

BOOST_AUTO_TEST_CASE(a_peer_whose_answer_this_process_has_not_come_to_is_alive) {
  Asked peer(limit - 1s);
  peer.ask();
  Bytes all;
  for (std::uint64_t i = 1; i <= 20; ++i) {
    const Bytes frame = frame_of(wire::Confirm{i, "state", 1});
    all.insert(all.end(), frame.begin(), frame.end());
  }
  peer.loop.stream->deliver(all);
  for (int i = 0; i < 20; ++i) {
    peer.loop.clock.advance(50ms);
    BOOST_REQUIRE(!peer.alive);
  }
  peer.loop.clock.advance(3 * limit);
  BOOST_TEST((peer.alive == std::optional(false)));  // there was none
}

BOOST_AUTO_TEST_CASE(a_ping_that_leaves_is_no_answer) {
  Asked peer;
  MadeStream& stream = *peer.loop.stream;
  stream.untaken = 20;
  peer.ask();
  stream.untaken = 0;
  peer.loop.clock.advance(limit + 100ms);
  BOOST_TEST((peer.alive == std::optional(false)));
}

BOOST_AUTO_TEST_SUITE_END()

// SPDX-License-Identifier: Apache-2.0
#include <boost/test/unit_test.hpp>
#include <optional>

#include "fuzz/made_peer.hpp"

// When a connection takes a silent peer for hung, in made time.
BOOST_AUTO_TEST_SUITE(liveness)

using namespace shardwire;
using namespace shardwire::fuzz;
using namespace std::chrono_literals;

namespace {

constexpr auto limit = 5s;

struct Asked {
  Asked() {
    Identity identity = identity_of(0);
    identity.liveness = {.idle = 10s, .limit = limit};
    connection = Connection::connect(loop, {"192.0.2.2", 1}, identity, {});
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

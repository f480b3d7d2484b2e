// SPDX-License-Identifier: Apache-2.0
// When a link sends what it is asked to send: with its own proof, or after that of the source. What it opens beside
// that.
#include <boost/test/unit_test.hpp>

#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "fuzz/made_peer.hpp"
#include "paths/path_choice.hpp"
#include "peers/link.hpp"
#include "support/sockets.hpp"

BOOST_AUTO_TEST_SUITE(link_requests)

using namespace shardwire;
using namespace shardwire::fuzz;
using namespace std::chrono_literals;

namespace {

/// Keeps all streams that it has connected.
class Streams final : public MadeLoop {
 public:
  std::shared_ptr<Stream> connect(const SocketAddress& to, Stream::Events events) override {
    auto made = MadeLoop::connect(to, std::move(events));
    all.push_back(stream);
    return made;
  }
  std::shared_ptr<Stream> connect_local(const std::string& name, Stream::Events events) override {
    return connect({name, 0}, std::move(events));
  }

  std::vector<std::shared_ptr<MadeStream>> all;
};

/// A link to a source with two requests, one of which it had before the connection.
struct Asked {
  explicit Asked(const Bytes& key, bool local = false) : identity(identity_of(0)) {
    identity.job_key = key;
    link.request(7, wire::Confirm{7, "model", 3}, [this](wire::Message&) { ++answers; });
    link.connect(loop,
                 {.rank = 1,
                  .incarnation = peer_hello().incarnation,
                  .host = local ? identity.hello.host : "elsewhere",
                  .address = "192.0.2.2",
                  .port = 1,
                  .local_path = local ? "name" : ""},
                 identity);
    link.request(8, wire::Confirm{8, "model", 3}, [this](wire::Message&) { ++answers; });
    loop.all.back()->establish();
  }
  void hear(const wire::Message& message) { loop.all.back()->deliver(frame_of(message)); }
  void hear_proof(const wire::Hello& hello) { hear(wire::prove(identity.job_key, false, own_hello(), hello)); }
  /// Sent on the last connection.
  [[nodiscard]] std::size_t sent() const {
    const auto messages = messages_in(loop.all.back()->written());
    return static_cast<std::size_t>(std::ranges::count_if(
        messages, [](const wire::Message& one) { return std::holds_alternative<wire::Confirm>(one); }));
  }

  Streams loop;
  Fabrics fabrics{"tcp", 1, [](const std::string&) {}};
  FabricTable table = table_of(fabrics);
  Identity identity;
  Link link{fabrics, table, 1};
  int answers = 0;
};

/// The hello of a source with the same fabrics.
wire::Hello hello_with(const Fabrics& fabrics) {
  wire::Hello hello = peer_hello();
  hello.fabrics = fabrics.offers();
  return hello;
}

/// Has the source attach the socket that is being opened. Returns its other end.
support::Descriptor attach(Asked& source) {
  auto [socket, other_end] = test::local_sockets();
  MadeStream& stream = *source.loop.all.back();
  stream.socket = std::move(socket);
  stream.establish();
  source.hear(hello_with(source.fabrics));
  source.hear_proof(hello_with(source.fabrics));
  source.hear(wire::Attached{});
  return std::move(other_end);
}

bool is_closed(const support::Descriptor& other_end) {
  std::byte any{};
  return ::recv(other_end.get(), &any, 1, MSG_DONTWAIT) == 0;
}

/// The last of all that was sent.
template <typename Message>
bool ends_with(const MadeStream& stream) {
  return std::holds_alternative<Message>(messages_in(stream.written()).back());
}

}  // namespace

BOOST_AUTO_TEST_CASE(without_a_key_requests_follow_the_proof_of_this_end_and_are_sent_once) {
  Asked source{Bytes()};
  BOOST_TEST(source.sent() == 0U);
  source.hear(peer_hello());
  BOOST_TEST(source.sent() == 2U);
  source.link.post(wire::Confirm{9, "model", 3});
  BOOST_TEST(source.sent() == 3U);
  source.hear_proof(peer_hello());
  BOOST_TEST(source.sent() == 3U);
  source.link.post(wire::Confirm{10, "model", 3});
  BOOST_TEST(source.sent() == 4U);
  source.hear(wire::Released{7, true});
  source.hear(wire::Released{8, true});
  BOOST_TEST(source.answers == 2);
}

BOOST_AUTO_TEST_CASE(with_a_key_and_no_encryption_they_follow_the_proof_of_the_source) {
  Asked source(key_of_job());
  source.hear(peer_hello());
  source.link.post(wire::Confirm{9, "model", 3});
  BOOST_TEST(source.sent() == 0U);
  source.hear_proof(peer_hello());
  BOOST_TEST(source.sent() == 3U);
}

BOOST_AUTO_TEST_CASE(another_process_at_the_address_gets_none) {
  Asked source{Bytes()};
  wire::Hello other = peer_hello();
  ++other.incarnation;
  source.hear(other);
  BOOST_TEST(source.sent() == 0U);
  source.hear_proof(other);
  BOOST_TEST(source.sent() == 0U);
  BOOST_TEST(source.link.broken());
}

// A source drops local connections that have not proven themselves when there are too many.
BOOST_AUTO_TEST_CASE(a_connection_that_is_made_again_gets_them_all_again) {
  Asked source(Bytes(), true);
  source.hear(peer_hello());
  BOOST_TEST(source.sent() == 2U);
  source.loop.all.back()->end();
  BOOST_REQUIRE_EQUAL(source.loop.all.size(), 2U);
  source.loop.all.back()->establish();
  source.hear(peer_hello());
  BOOST_TEST(source.sent() == 2U);
  source.hear_proof(peer_hello());
  source.hear(wire::Released{7, true});
  source.hear(wire::Released{8, true});
  BOOST_TEST(source.sent() == 2U);
  BOOST_TEST(source.answers == 2);
}

// --- sockets ahead ---

BOOST_AUTO_TEST_CASE(sockets_are_opened_once_as_soon_as_the_source_says_hello) {
  Asked source(key_of_job());
  source.link.prepare_ahead();
  BOOST_TEST(source.loop.all.size() == 1U);
  source.hear(hello_with(source.fabrics));
  BOOST_REQUIRE_EQUAL(source.loop.all.size(), 2U);
  source.link.prepare_ahead();
  BOOST_TEST(source.loop.all.size() == 2U);
  source.loop.all.back()->establish();
  source.hear(hello_with(source.fabrics));
  BOOST_TEST(ends_with<wire::Attach>(*source.loop.all.back()));
}

BOOST_AUTO_TEST_CASE(an_operation_that_prepares_the_fabric_gets_the_sockets_that_are_being_opened) {
  Asked source(key_of_job());
  source.hear(hello_with(source.fabrics));
  source.link.prepare_ahead();
  int refused = 0;
  source.link.prepare(0, [&](const Error* why_not) { refused += why_not == nullptr ? 0 : 1; });
  BOOST_REQUIRE_EQUAL(source.loop.all.size(), 2U);
  source.loop.all.back()->establish();
  source.loop.all.back()->end();
  BOOST_TEST(refused == 1);
  source.link.prepare(0, [&](const Error*) {});
  BOOST_TEST(source.loop.all.size() == 3U);
}

BOOST_AUTO_TEST_CASE(sockets_that_cannot_be_opened_ahead_are_opened_when_they_are_needed) {
  Asked source(key_of_job());
  source.hear(hello_with(source.fabrics));
  source.link.prepare_ahead();
  BOOST_REQUIRE_EQUAL(source.loop.all.size(), 2U);
  source.loop.all.back()->establish();
  source.loop.all.back()->end();
  int prepared = 0;
  source.link.prepare(0, [&](const Error*) { ++prepared; });
  BOOST_TEST(prepared == 0);
  BOOST_TEST(source.loop.all.size() == 3U);
}

BOOST_AUTO_TEST_CASE(sockets_that_no_operation_asks_for_are_closed) {
  Asked source{Bytes()};
  source.hear(hello_with(source.fabrics));
  source.hear_proof(hello_with(source.fabrics));
  source.link.prepare_ahead();
  BOOST_REQUIRE_EQUAL(source.loop.all.size(), 2U);
  const support::Descriptor other_end = attach(source);
  source.loop.clock.advance(4s);
  BOOST_TEST(!is_closed(other_end));
  source.loop.clock.advance(2s);
  BOOST_TEST(is_closed(other_end));
  source.link.prepare_ahead();
  BOOST_TEST(source.loop.all.size() == 3U);
}

BOOST_AUTO_TEST_CASE(sockets_that_an_operation_has_asked_for_stay) {
  Asked source{Bytes()};
  source.hear(hello_with(source.fabrics));
  source.hear_proof(hello_with(source.fabrics));
  source.link.prepare_ahead();
  BOOST_REQUIRE_EQUAL(source.loop.all.size(), 2U);
  const support::Descriptor other_end = attach(source);
  int prepared = 0;
  source.link.prepare(0, [&](const Error* why_not) { prepared += why_not == nullptr ? 1 : 0; });
  BOOST_TEST(prepared == 1);
  BOOST_TEST(source.loop.all.size() == 2U);
  source.loop.clock.advance(9s);
  BOOST_TEST(!is_closed(other_end));
}

BOOST_AUTO_TEST_CASE(nothing_is_opened_for_another_process_or_without_a_common_fabric) {
  Asked other{Bytes()};
  other.link.prepare_ahead();
  wire::Hello another = hello_with(other.fabrics);
  ++another.incarnation;
  other.hear(another);
  BOOST_TEST(other.loop.all.size() == 1U);
  Asked without{Bytes()};
  without.link.prepare_ahead();
  wire::Hello hello = peer_hello();
  hello.fabrics.clear();
  without.hear(hello);
  BOOST_TEST(without.loop.all.size() == 1U);
}

BOOST_AUTO_TEST_SUITE_END()

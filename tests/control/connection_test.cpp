// SPDX-License-Identifier: Apache-2.0
// Messages that the two ends of a connection may send before both have proven the job key.
#include "control/connection.hpp"

#include <boost/test/unit_test.hpp>

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fuzz/made_peer.hpp"
#include "support/encryption_built.hpp"

BOOST_AUTO_TEST_SUITE(connection)

using namespace shardwire;
using namespace shardwire::fuzz;

namespace {

wire::Message question() {
  return wire::Confirm{7, "model", 3};
}
wire::Message reply() {
  return wire::Released{7, true};
}

/// Delivers what `from` has written since the last call; false: nothing.
bool carry(const MadeStream& from, std::size_t& carried, MadeStream& to) {
  const Bytes bytes(from.written().begin() + static_cast<std::ptrdiff_t>(carried), from.written().end());
  if (bytes.empty()) return false;
  carried += bytes.size();
  to.deliver(bytes);
  return true;
}

}  // namespace

BOOST_AUTO_TEST_CASE(what_the_connecting_side_sends_at_the_hello_follows_its_proof) {
  MadeLoop loop;
  Connection::Events events;
  events.greeted = [](Connection& to) { to.send(question()); };
  const auto connecting = Connection::connect(loop, {"192.0.2.2", 1}, identity_of(0), std::move(events));
  MadeStream& stream = *loop.stream;
  stream.establish();
  connecting->send(question());  // the peer has not said hello: it is dropped
  BOOST_TEST((messages_in(stream.written()) == std::vector<wire::Message>{own_hello()}));
  stream.deliver(frame_of(peer_hello()));
  const std::vector<wire::Message> expected{own_hello(), wire::prove(key_of_job(), true, own_hello(), peer_hello()),
                                            question()};
  BOOST_TEST((messages_in(stream.written()) == expected));
  BOOST_TEST(!connecting->ready());
  BOOST_TEST(!connecting->needs_no_proof());  // there is a key, and nothing is encrypted
  stream.deliver(frame_of(proof_of(peer_hello(), true)));
  BOOST_TEST(connecting->ready());
  BOOST_TEST((messages_in(stream.written()) == expected));
  connecting->drop();
}

BOOST_AUTO_TEST_CASE(the_accepting_side_sends_nothing_before_the_proof_of_the_other) {
  MadeLoop loop;
  bool greeted = false;
  Connection::Events events;
  events.greeted = [&](Connection&) { greeted = true; };
  std::shared_ptr<MadeStream> stream;
  const AcceptedStream open = [&](Stream::Events of_stream) {
    return stream = std::make_shared<MadeStream>(std::move(of_stream));
  };
  const auto accepted = Connection::accept(loop, open, identity_of(0), std::move(events));
  stream->deliver(frame_of(peer_hello()));
  accepted->send(reply());
  BOOST_TEST(!greeted);
  BOOST_TEST(!accepted->greeted());
  BOOST_TEST((messages_in(stream->written()) == std::vector<wire::Message>{own_hello()}));
  accepted->drop();
}

BOOST_AUTO_TEST_CASE(a_peer_that_connects_chooses_no_error_code_before_its_proof) {
  Bytes bytes = frame_of(peer_hello());
  const Bytes failure = frame_of(wire::Failure{0, ErrorCode::out_of_resources, "no memory"});
  bytes.insert(bytes.end(), failure.begin(), failure.end());
  BOOST_TEST((conversation(bytes, false, true).closed == ErrorCode::transport_failed));
  BOOST_TEST((conversation(bytes, true, true).closed == ErrorCode::out_of_resources));
}

BOOST_AUTO_TEST_CASE(what_is_sent_at_the_hello_arrives_once_and_encrypted,
                     *boost::unit_test::precondition(test::encryption_is_built)) {
  std::string why_not;
  Identity reader = identity_of(0);
  Identity source = identity_of(1);
  reader.tls = source.tls = load_tls(why_not);
  MadeLoop loop;
  std::vector<wire::Message> asked;
  std::vector<wire::Message> answered;
  Connection::Events of_source;
  of_source.message = [&](Connection& from, wire::Message& message) {
    asked.push_back(message);
    from.send(reply());
  };
  Connection::Events of_reader;
  of_reader.greeted = [](Connection& to) {
    BOOST_TEST(to.needs_no_proof());
    to.send(question());
  };
  of_reader.message = [&](Connection&, wire::Message& message) { answered.push_back(message); };
  const auto connecting = Connection::connect(loop, {"192.0.2.2", 1}, reader, std::move(of_reader));
  const std::shared_ptr<MadeStream> mine = loop.stream;
  std::shared_ptr<MadeStream> theirs;
  const AcceptedStream open = [&](Stream::Events of_stream) {
    return theirs = std::make_shared<MadeStream>(std::move(of_stream));
  };
  const auto accepted = Connection::accept(loop, open, source, std::move(of_source));
  mine->establish();
  std::size_t there = 0;
  std::size_t back = 0;
  while (carry(*mine, there, *theirs) || carry(*theirs, back, *mine)) {
  }
  BOOST_TEST(connecting->ready());
  BOOST_TEST(accepted->ready());
  BOOST_TEST((asked == std::vector<wire::Message>{question()}));
  BOOST_TEST((answered == std::vector<wire::Message>{reply()}));
  const Bytes& written = mine->written();
  const std::string_view seen(reinterpret_cast<const char*>(written.data()), written.size());
  BOOST_TEST((seen.find("model") == std::string_view::npos));
  connecting->drop();
  accepted->drop();
}

BOOST_AUTO_TEST_SUITE_END()

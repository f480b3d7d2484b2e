// SPDX-License-Identifier: Apache-2.0
#include "runtime/socket_listener.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <boost/test/unit_test.hpp>
#include <chrono>
#include <future>
#include <memory>
#include <string>

#include "runtime/uv_loop.hpp"
#include "support/deadline.hpp"
#include "support/job.hpp"

BOOST_AUTO_TEST_SUITE(socket_listener)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;

namespace {

/// How one connection to the address ends.
std::string end_of(UvLoop& loop, const SocketAddress& to) {
  std::promise<std::string> ended;
  std::shared_ptr<Stream> stream;
  loop.call([&] {
    Stream::Events events;
    events.connected = [&] { stream->start_reading(); };
    events.ended = [&](const std::string& why) { ended.set_value(why); };
    stream = loop.connect(to, std::move(events));
  });
  const std::string why = ended.get_future().get();
  loop.call([&] {
    stream->drop();
    stream.reset();
  });
  return why;
}

int option_of(int socket, int level, int option) {
  int value = -1;
  socklen_t length = sizeof value;
  BOOST_TEST(::getsockopt(socket, level, option, &value, &length) == 0);
  return value;
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_stream_that_is_not_opened_is_closed) {
  const Deadline deadline(120s);
  UvLoop loop;
  int accepted = 0;
  auto listener = loop.call([&] { return loop.listen({"127.0.0.1", 0}, [&](const AcceptedStream&) { ++accepted; }); });
  BOOST_TEST(end_of(loop, listener->address()) == "the peer closed its connection");
  loop.call([&] { listener.reset(); });
  BOOST_TEST(accepted == 1);
}

BOOST_AUTO_TEST_CASE(a_port_where_nobody_listens_refuses) {
  const Deadline deadline(120s);
  UvLoop loop;
  BOOST_TEST(end_of(loop, {"127.0.0.1", free_port()}) == uv_message(UV_ECONNREFUSED));
}

BOOST_AUTO_TEST_CASE(both_ends_send_at_once_and_notice_a_broken_network) {
  const Deadline deadline(120s);
  UvLoop loop;
  std::promise<int> near;
  std::promise<int> far;
  std::shared_ptr<Stream> opened;
  std::shared_ptr<Stream> connecting;
  std::unique_ptr<Listener> listener;
  loop.call([&] {
    listener = loop.listen({"127.0.0.1", 0}, [&](const AcceptedStream& open) {
      opened = open({});
      far.set_value(opened->release().release());
    });
    Stream::Events events;
    events.connected = [&] { near.set_value(connecting->release().release()); };
    connecting = loop.connect(listener->address(), std::move(events));
  });
  for (std::promise<int>* end : {&near, &far}) {
    const support::Descriptor socket(end->get_future().get());
    BOOST_TEST(option_of(socket.get(), IPPROTO_TCP, TCP_NODELAY) == 1);
    BOOST_TEST(option_of(socket.get(), SOL_SOCKET, SO_KEEPALIVE) == 1);
    BOOST_TEST(option_of(socket.get(), IPPROTO_TCP, TCP_KEEPIDLE) == 10);
    BOOST_TEST(option_of(socket.get(), IPPROTO_TCP, TCP_USER_TIMEOUT) == 30'000);
  }
  loop.call([&] {
    opened.reset();
    connecting.reset();
    listener.reset();
  });
}

BOOST_AUTO_TEST_CASE(a_port_or_name_that_is_taken_says_so) {
  UvLoop loop;
  loop.call([&] {
    const auto first = loop.listen({"127.0.0.1", 0}, [](const AcceptedStream&) {});
    BOOST_CHECK_THROW(loop.listen(first->address(), [](const AcceptedStream&) {}), PortTaken);
    const std::string name = "shardwire test listener " + std::to_string(loop.random_number());
    const auto local = loop.listen_local(name, [](const AcceptedStream&) {});
    BOOST_CHECK_THROW(loop.listen_local(name, [](const AcceptedStream&) {}), PortTaken);
  });
}

BOOST_AUTO_TEST_SUITE_END()

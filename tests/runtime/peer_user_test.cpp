// SPDX-License-Identifier: Apache-2.0
#include "runtime/peer_user.hpp"

#include <grp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <cstddef>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "runtime/addresses.hpp"
#include "runtime/uv_loop.hpp"
#include "support/deadline.hpp"
#include "support/descriptors.hpp"
#include "support/forked.hpp"

BOOST_AUTO_TEST_SUITE(users_of_peers)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;
using support::Descriptor;

namespace {

constexpr uid_t stranger = 65533;

boost::test_tools::assertion_result as_root(boost::unit_test::test_unit_id /*case*/) {
  boost::test_tools::assertion_result result(::geteuid() == 0);
  if (!result) result.message() << "only root can become another user";
  return result;
}

void become(uid_t user) {
  if (::setgroups(0, nullptr) != 0 || ::setresgid(user, user, user) != 0 || ::setresuid(user, user, user) != 0) {
    throw std::runtime_error("setresuid");
  }
}

// The port of a listener at this address.
std::pair<Descriptor, SocketAddress> listener_at(const std::string& host) {
  sockaddr_storage address = socket_address({host, 0});
  socklen_t length = sizeof address;
  Descriptor socket(::socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  auto* const raw = reinterpret_cast<sockaddr*>(&address);
  BOOST_REQUIRE(::bind(socket.get(), raw, address.ss_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in)) ==
                0);
  BOOST_REQUIRE(::listen(socket.get(), 8) == 0);
  BOOST_REQUIRE(::getsockname(socket.get(), raw, &length) == 0);
  const in_port_t port = address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                                       : reinterpret_cast<sockaddr_in&>(address).sin_port;
  return {std::move(socket), SocketAddress{host, ntohs(port)}};
}

Descriptor connected_to(const SocketAddress& at) {
  const sockaddr_storage address = socket_address(at);
  Descriptor socket(::socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const auto length =
      static_cast<socklen_t>(address.ss_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in));
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0)
    throw std::runtime_error("connect");
  return socket;
}

void await(int socket) {
  char byte = 0;
  if (::read(socket, &byte, 1) != 1) throw std::runtime_error("read");
}

void tell(int socket) {
  if (::write(socket, "x", 1) != 1) throw std::runtime_error("write");
}

boost::test_tools::assertion_result has_ipv6(boost::unit_test::test_unit_id /*case*/) {
  const Descriptor socket(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_storage address = socket_address({"::1", 0});
  boost::test_tools::assertion_result result(
      socket && ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(sockaddr_in6)) == 0);
  if (!result) result.message() << "nothing can listen at ::1 here";
  return result;
}

void require_known(const std::string& listens, const std::string& connects) {
  auto [listener, at] = listener_at(listens);
  const Descriptor connecting = connected_to({connects, at.port});
  // The kernel says that a connection is root's until it is accepted, so nothing is believed before.
  const Descriptor accepted(::accept(listener.get(), nullptr, nullptr));
  BOOST_TEST((user_of_peer(accepted.get()) == ::geteuid()));
  BOOST_TEST((user_of_peer(connecting.get()) == ::geteuid()));
  BOOST_TEST((peer_user(accepted.get()) == PeerUser::own));
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_process_of_this_host_is_known_by_its_user) {
  require_known("127.0.0.1", "127.0.0.1");
}

BOOST_AUTO_TEST_CASE(a_process_of_this_host_is_known_over_version_6, *boost::unit_test::precondition(has_ipv6)) {
  require_known("::1", "::1");
  require_known("::", "127.0.0.1");
  require_known("::ffff:127.0.0.1", "127.0.0.1");
}

BOOST_AUTO_TEST_CASE(nobody_is_known_at_an_end_that_is_closed_or_was_never_connected) {
  auto [listener, at] = listener_at("127.0.0.1");
  BOOST_TEST(!user_of_peer(listener.get()));
  Descriptor connecting = connected_to(at);
  const Descriptor accepted(::accept(listener.get(), nullptr, nullptr));
  connecting.reset();
  BOOST_TEST(!user_of_peer(accepted.get()));
  BOOST_TEST((peer_user(accepted.get()) == PeerUser::unknown));
}

BOOST_TEST_DECORATOR(*boost::unit_test::precondition(as_root))
BOOST_DATA_TEST_CASE(a_process_of_another_user_is_told_apart, boost::unit_test::data::make({false, true}), listens) {
  auto [listener, at] = listener_at("127.0.0.1");
  const Forked process([&, address = at, open = listener.get()](int socket) {
    become(stranger);
    if (listens) {  // its accepted socket belongs to it, although root has made the listener
      const Descriptor accepted(::accept(open, nullptr, nullptr));
      tell(socket);
      await(socket);
    } else {
      const Descriptor connecting = connected_to(address);
      tell(socket);
      await(socket);
    }
  });
  Descriptor own;
  if (listens) own = connected_to(at);
  await(process.socket());
  if (!listens) own.reset(::accept(listener.get(), nullptr, nullptr));
  BOOST_TEST((user_of_peer(own.get()) == stranger));
  BOOST_TEST((peer_user(own.get()) == PeerUser::other));
  tell(process.socket());
}

BOOST_AUTO_TEST_CASE(a_local_name_admits_no_process_of_another_user, *boost::unit_test::precondition(as_root)) {
  const Deadline deadline(60s);
  const std::string name = "shardwire-test-" + std::to_string(::getpid());
  const Forked process([&](int socket) {
    become(stranger);
    await(socket);
    const LocalAddress address(name);
    const Descriptor connecting(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (::connect(connecting.get(), address.raw(), address.length()) != 0) throw std::runtime_error("connect");
    char byte = 0;
    if (::read(connecting.get(), &byte, 1) > 0) throw std::runtime_error("was served");
    tell(socket);
    await(socket);
  });
  UvLoop loop;
  int accepted = 0;
  auto listener = loop.call([&] { return loop.listen_local(name, [&](const AcceptedStream&) { ++accepted; }); });
  tell(process.socket());
  await(process.socket());
  loop.call([&] { listener.reset(); });
  BOOST_TEST(accepted == 0);
  tell(process.socket());
}

BOOST_AUTO_TEST_CASE(a_local_name_on_which_another_user_listens_is_refused, *boost::unit_test::precondition(as_root)) {
  const Deadline deadline(60s);
  const std::string name = "shardwire-test-" + std::to_string(::getpid());
  const Forked process([&](int socket) {
    become(stranger);
    const LocalAddress address(name);
    const Descriptor listening(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (::bind(listening.get(), address.raw(), address.length()) != 0 || ::listen(listening.get(), 8) != 0) {
      throw std::runtime_error("listen");
    }
    tell(socket);
    await(socket);
  });
  await(process.socket());
  UvLoop loop;
  std::promise<std::string> ended;
  bool connected = false;
  std::shared_ptr<Stream> stream;
  loop.call([&] {
    Stream::Events events;
    events.connected = [&] { connected = true; };
    events.ended = [&](const std::string& why) { ended.set_value(why); };
    stream = loop.connect_local(name, std::move(events));
  });
  BOOST_TEST(ended.get_future().get() == "a process of another user listens there");
  BOOST_TEST(!connected);
  loop.call([&] {
    stream->drop();
    stream.reset();
  });
  tell(process.socket());
}

BOOST_AUTO_TEST_SUITE_END()

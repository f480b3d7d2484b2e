// SPDX-License-Identifier: Apache-2.0
// Streams of the control plane: bytes and descriptors in order, queued bytes, and the end of a stream.
#include "runtime/socket_stream.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <boost/test/unit_test.hpp>
#include <cstring>
#include <future>

#include "runtime/uv_handle.hpp"
#include "runtime/uv_loop.hpp"
#include "shardwire/error.hpp"
#include "support/deadline.hpp"

BOOST_AUTO_TEST_SUITE(socket_stream)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;

namespace {

/// A pair of local sockets: one end is a stream on a loop, the other is the test's.
struct Ends {
  explicit Ends(std::size_t buffer_bytes = 0) {
    std::array<int, 2> ends{};
    BOOST_REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) == 0);
    far.reset(ends[1]);
    if (buffer_bytes > 0) {
      const int size = static_cast<int>(buffer_bytes);
      ::setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    }
    loop.call([&] {
      Stream::Events events;
      events.data = [this](std::span<const std::byte> bytes) {
        received.insert(received.end(), bytes.begin(), bytes.end());
        while (stream && stream->descriptors_waiting() > 0) descriptors.push_back(stream->take_descriptor());
      };
      events.ended = [this](const std::string& why) { ended.set_value(why); };
      events.drained = [this] { ++drained; };
      stream = SocketStream::adopt(loop, support::Descriptor(ends[0]), std::move(events));
      stream->start_reading();
    });
  }
  ~Ends() {
    loop.call([this] {
      if (stream) stream->drop();
      stream.reset();
    });
  }
  Ends(const Ends&) = delete;
  Ends& operator=(const Ends&) = delete;

  template <typename Met>
  bool await(Met met) {
    return run_until([] { ::usleep(1000); }, [&] { return loop.call(met); }, promptly);
  }
  Bytes read(std::size_t size) const {
    Bytes out(size);
    std::size_t got = 0;
    while (got < size) {
      const ssize_t part = ::recv(far.get(), out.data() + got, size - got, 0);
      if (part <= 0) break;
      got += static_cast<std::size_t>(part);
    }
    out.resize(got);
    return out;
  }

  UvLoop loop;
  support::Descriptor far;
  std::shared_ptr<SocketStream> stream;  // owners: this and later callbacks; loop thread only
  Bytes received;
  std::vector<support::Descriptor> descriptors;
  std::promise<std::string> ended;
  std::atomic<int> drained = 0;
};

Bytes some_bytes(std::size_t size) {
  Bytes out(size);
  for (std::size_t i = 0; i < size; ++i) out[i] = static_cast<std::byte>(i * 7 + i / 256);
  return out;
}

// A file that contains only one number.
support::Descriptor numbered(int number) {
  support::Descriptor file(::memfd_create("shardwire test", MFD_CLOEXEC));
  BOOST_REQUIRE(::write(file.get(), &number, sizeof number) == sizeof number);
  return file;
}
int number_in(const support::Descriptor& file) {
  int number = -1;
  return ::pread(file.get(), &number, sizeof number, 0) == sizeof number ? number : -1;
}

// Sends bytes with descriptors from the far end.
void send_with(int socket, std::string_view bytes, const std::vector<int>& numbers) {
  iovec range{const_cast<char*>(bytes.data()), bytes.size()};
  std::vector<char> control(CMSG_SPACE(numbers.size() * sizeof(int)));
  msghdr message{};
  message.msg_iov = &range;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(numbers.size() * sizeof(int));
  std::memcpy(CMSG_DATA(header), numbers.data(), numbers.size() * sizeof(int));
  BOOST_REQUIRE(::sendmsg(socket, &message, 0) == static_cast<ssize_t>(bytes.size()));
}

}  // namespace

BOOST_AUTO_TEST_CASE(what_is_written_arrives_in_order_however_slowly_it_is_read) {
  const Deadline deadline(120s);
  Ends ends(4096);
  Bytes expected;
  ends.loop.call([&] {
    for (std::size_t i = 0; i < 300; ++i) {
      const Bytes part = some_bytes(i % 7 == 0 ? 70'000 : i + 1);
      expected.insert(expected.end(), part.begin(), part.end());
      ends.stream->write(part, {}, i % 2 == 0);
    }
    BOOST_TEST(ends.stream->queued_bytes() > 0U);
    BOOST_TEST(ends.stream->queued_notice_bytes() > 0U);
    BOOST_TEST(ends.stream->queued_notice_bytes() <= ends.stream->queued_bytes());
  });
  BOOST_TEST((ends.read(expected.size()) == expected));
  BOOST_TEST(ends.await([&] { return ends.stream->queued_bytes() == 0 && ends.stream->queued_notice_bytes() == 0; }));
  BOOST_TEST(ends.drained > 0);
}

BOOST_AUTO_TEST_CASE(what_comes_is_handed_out_in_order_and_not_while_reading_is_stopped) {
  const Deadline deadline(120s);
  Ends ends;
  const Bytes all = some_bytes(3'000'000);
  ends.loop.call([&] { ends.stream->stop_reading(); });
  auto sending = std::async(std::launch::async, [&] {
    std::size_t sent = 0;
    while (sent < all.size()) {
      const ssize_t part = ::send(ends.far.get(), all.data() + sent, all.size() - sent, 0);
      if (part <= 0) break;
      sent += static_cast<std::size_t>(part);
    }
    return sent;
  });
  std::this_thread::sleep_for(50ms);
  BOOST_TEST(ends.loop.call([&] { return ends.received.size(); }) == 0U);
  ends.loop.call([&] { ends.stream->start_reading(); });
  BOOST_TEST(sending.get() == all.size());
  BOOST_TEST(ends.await([&] { return ends.received.size() == all.size(); }));
  BOOST_TEST((ends.received == all));
}

BOOST_AUTO_TEST_CASE(descriptors_go_along_in_order_and_are_closed_on_exec) {
  const Deadline deadline(120s);
  Ends ends;
  ends.loop.call([&] { ends.stream->accept_descriptors(); });
  for (int i = 0; i < 20; ++i) {
    const support::Descriptor one = numbered(2 * i);
    const support::Descriptor other = numbered(2 * i + 1);
    send_with(ends.far.get(), "ab", {one.get(), other.get()});
    BOOST_REQUIRE(::send(ends.far.get(), "c", 1, 0) == 1);
  }
  BOOST_REQUIRE(ends.await([&] { return ends.received.size() == 60 && ends.descriptors.size() == 40; }));
  for (int i = 0; i < 40; ++i) {
    const support::Descriptor& file = ends.descriptors[static_cast<std::size_t>(i)];
    BOOST_TEST(number_in(file) == i);
    BOOST_TEST((::fcntl(file.get(), F_GETFD) & FD_CLOEXEC) != 0);
  }
}

BOOST_AUTO_TEST_CASE(descriptors_that_nobody_asked_for_end_the_stream) {
  const Deadline deadline(120s);
  Ends ends;
  const support::Descriptor file = numbered(1);
  send_with(ends.far.get(), "ab", {file.get()});
  BOOST_TEST(ends.ended.get_future().get() == uv_message(UV_EPROTO));
  BOOST_TEST(ends.loop.call([&] { return ends.received.size(); }) == 0U);
}

BOOST_AUTO_TEST_CASE(descriptors_are_sent_with_the_bytes_that_they_belong_to) {
  const Deadline deadline(120s);
  Ends ends(4096);
  ends.loop.call([&] {
    ends.stream->write(some_bytes(100'000));  // the next writes wait behind these
    const support::Descriptor file = numbered(7);
    const std::array numbers{file.get()};
    ends.stream->write(some_bytes(10), numbers, false);  // the file may be closed at once
    ends.stream->write(some_bytes(5));
  });
  BOOST_TEST(ends.read(100'000).size() == 100'000U);
  std::array<char, 64> bytes{};
  iovec range{bytes.data(), bytes.size()};
  std::array<char, 256> control{};
  msghdr message{};
  message.msg_iov = &range;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  BOOST_TEST(::recvmsg(ends.far.get(), &message, MSG_CMSG_CLOEXEC) >= 10);
  const cmsghdr* const header = CMSG_FIRSTHDR(&message);
  BOOST_REQUIRE(header != nullptr);
  BOOST_TEST(header->cmsg_len == CMSG_LEN(sizeof(int)));
  int number = -1;
  std::memcpy(&number, CMSG_DATA(header), sizeof number);
  BOOST_TEST(number_in(support::Descriptor(number)) == 7);
}

// No protocol needs as many; a peer that sends them loses its connection.
BOOST_AUTO_TEST_CASE(descriptors_that_nobody_takes_are_bounded) {
  const Deadline deadline(120s);
  Ends ends;
  ends.loop.call([&] { ends.stream->stop_reading(); });
  const support::Descriptor file = numbered(1);
  const std::vector<int> many(60, file.get());
  for (int i = 0; i < 5; ++i) send_with(ends.far.get(), "x", many);
  ends.loop.call([&] {
    Stream::Events events;
    events.ended = [&](const std::string& why) { ends.ended.set_value(why); };
    ends.stream = SocketStream::adopt(ends.loop, ends.stream->release(), std::move(events));  // accepts no descriptors
    ends.stream->start_reading();
  });
  auto ended = ends.ended.get_future();
  BOOST_REQUIRE((ended.wait_for(promptly) == std::future_status::ready));
  BOOST_TEST(ended.get() == uv_message(UV_EPROTO));
}

BOOST_AUTO_TEST_CASE(the_end_comes_after_what_was_sent_before_it) {
  const Deadline deadline(120s);
  Ends ends;
  const Bytes last = some_bytes(150'000);
  std::size_t sent = 0;
  while (sent < last.size()) {
    const ssize_t part = ::send(ends.far.get(), last.data() + sent, last.size() - sent, 0);
    BOOST_REQUIRE(part > 0);
    sent += static_cast<std::size_t>(part);
  }
  ends.far.reset();
  auto ended = ends.ended.get_future();
  BOOST_REQUIRE((ended.wait_for(promptly) == std::future_status::ready));
  BOOST_TEST(ended.get() == "the peer closed its connection");
  BOOST_TEST((ends.loop.call([&] { return ends.received; }) == last));
}

BOOST_AUTO_TEST_CASE(a_stream_that_finishes_sends_what_is_queued_and_one_that_is_dropped_does_not) {
  const Deadline deadline(120s);
  for (const bool finishes : {true, false}) {
    Ends ends(4096);
    ends.loop.call([&] {
      ends.stream->write(some_bytes(500'000));
      finishes ? ends.stream->finish(promptly) : ends.stream->drop();
      ends.stream.reset();
    });
    const std::size_t got = ends.read(500'000).size();
    BOOST_TEST((finishes ? got == 500'000 : got < 500'000));
  }
}

BOOST_AUTO_TEST_CASE(finishing_is_bounded_when_the_peer_takes_nothing) {
  const Deadline deadline(120s);
  Ends ends(4096);
  const auto began = std::chrono::steady_clock::now();
  ends.loop.call([&] {
    ends.stream->write(some_bytes(5'000'000));
    ends.stream->finish(200ms);
    ends.stream.reset();
  });
  pollfd closed{ends.far.get(), POLLRDHUP, 0};
  BOOST_REQUIRE(::poll(&closed, 1, static_cast<int>(std::chrono::milliseconds(promptly).count())) == 1);
  std::size_t got = 0;
  while (ends.read(1).size() == 1) ++got;  // returns once the stream has ended
  BOOST_TEST(got < 5'000'000U);
  BOOST_TEST((std::chrono::steady_clock::now() - began < 20s));
}

BOOST_AUTO_TEST_CASE(a_name_connects_within_the_host_and_one_that_is_not_there_is_refused) {
  const Deadline deadline(120s);
  const std::string name = "shardwire test " + std::to_string(::getpid());
  const LocalAddress address(name);
  const support::Descriptor listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  BOOST_REQUIRE(::bind(listener.get(), address.raw(), address.length()) == 0);
  BOOST_REQUIRE(::listen(listener.get(), 4) == 0);
  UvLoop loop;
  const auto failure_of = [&](const std::string& to) {
    std::promise<std::string> connected;
    std::shared_ptr<SocketStream> stream;
    loop.call([&] {
      Stream::Events events;
      events.connected = [&] { connected.set_value({}); };
      events.ended = [&](const std::string& why) { connected.set_value(why); };
      stream = SocketStream::connect_local(loop, to, std::move(events));
      BOOST_TEST(stream->is_local());
    });
    const std::string why = connected.get_future().get();
    loop.call([&] {
      BOOST_TEST(stream->peer_host() == (why.empty() ? "process " + std::to_string(::getpid()) : std::string()));
      stream->drop();
      stream.reset();
    });
    return why;
  };
  BOOST_TEST(failure_of(name).empty());
  BOOST_TEST(failure_of(name + " that nobody has") == uv_message(UV_ECONNREFUSED));
  loop.call([&] {
    BOOST_CHECK_THROW(SocketStream::connect_local(loop, std::string(200, 'x'), {}), Error);
    BOOST_CHECK_THROW(SocketStream::connect_local(loop, "", {}), Error);
  });
}

// Unlike a listener of the network it refuses at once, which says nothing about the process that listens.
BOOST_AUTO_TEST_CASE(a_local_listener_whose_queue_is_full_is_asked_again) {
  const Deadline deadline(120s);
  const std::string name = "shardwire test full " + std::to_string(::getpid());
  const LocalAddress address(name);
  const support::Descriptor listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  BOOST_REQUIRE(::bind(listener.get(), address.raw(), address.length()) == 0);
  BOOST_REQUIRE(::listen(listener.get(), 0) == 0);
  std::vector<support::Descriptor> waiting;
  do {
    waiting.emplace_back(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  } while (::connect(waiting.back().get(), address.raw(), address.length()) == 0);
  BOOST_REQUIRE(errno == EAGAIN);
  UvLoop loop;
  std::promise<std::string> connected;
  std::shared_ptr<SocketStream> stream;
  loop.call([&] {
    Stream::Events events;
    events.connected = [&] { connected.set_value({}); };
    events.ended = [&](const std::string& why) { connected.set_value(why); };
    stream = SocketStream::connect_local(loop, name, std::move(events));
  });
  auto result = connected.get_future();
  std::vector<support::Descriptor> accepted;
  while (result.wait_for(1ms) != std::future_status::ready) {
    if (support::Descriptor one(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC)); one) {
      accepted.push_back(std::move(one));
    }
  }
  BOOST_TEST(result.get().empty());
  loop.call([&] {
    stream->drop();
    stream.reset();
  });
}

BOOST_AUTO_TEST_SUITE_END()

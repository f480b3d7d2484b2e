// SPDX-License-Identifier: Apache-2.0
// Behaviour of the tcp transport beyond the contract that tests/conformance checks for all transports.
#include <poll.h>
#include <sys/wait.h>

#include <atomic>
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <cstring>
#include <random>
#include <thread>

#include "conformance/pair.hpp"
#include "support/resident_bytes.hpp"
#include "support/seed.hpp"

BOOST_AUTO_TEST_SUITE(tcp)

using namespace shardwire;
using namespace shardwire::test;

namespace {

enum class Family : std::uint8_t { ipv4, ipv6, local };

std::ostream& operator<<(std::ostream& out, Family family) {
  switch (family) {
    case Family::ipv4: return out << "IPv4";
    case Family::ipv6: return out << "IPv6";
    case Family::local: return out << "local sockets";
  }
  return out;
}

std::unique_ptr<transport::Fabric> open_tcp() {
  return transport::choose("tcp").open();
}

/// Two fabrics with streams between them.
struct Joined {
  std::unique_ptr<transport::Fabric> left = open_tcp();
  std::unique_ptr<transport::Fabric> right = open_tcp();
  EndpointOwner to_right;
  EndpointOwner to_left;

  explicit Joined(int streams, Family family = Family::ipv4) { join(streams, family); }
  void join(int streams, Family family) {
    std::array<std::vector<transport::OpenSocket>, 2> sockets;
    for (int i = 0; i < streams; ++i) {
      SocketEnds ends =
          family == Family::local ? local_sockets() : *tcp_sockets(family == Family::ipv4 ? AF_INET : AF_INET6);
      for (std::size_t side : {0, 1}) sockets[side].push_back(std::move(ends[side]));
    }
    to_right = left->connect({.address = right->address(), .sockets = std::move(sockets[0])});
    to_left = right->connect({.address = left->address(), .sockets = std::move(sockets[1])});
  }
  bool until(const std::function<bool()>& met, std::chrono::milliseconds at_most = 20s) {
    return run_until(
        [this] {
          left->progress();
          right->progress();
        },
        met, at_most);
  }
};

/// Ranges of 1 to 600 bytes, `bytes` in all, with gaps of 0 to 7 bytes, so that some are adjacent.
std::vector<transport::Memory> cut(Bytes& memory, ByteCount bytes, std::mt19937_64& random) {
  std::vector<transport::Memory> ranges;
  ByteCount at = random() % 8;
  while (bytes > 0) {
    const ByteCount length = std::min<ByteCount>(bytes, random() % 600 + 1);
    ranges.push_back(transport::host_memory(memory).part(at, length));
    at += length + random() % 8;
    bytes -= length;
  }
  return ranges;
}

struct Streams {
  int count;
  Family family;
};
std::ostream& operator<<(std::ostream& out, const Streams& streams) {
  return out << streams.count << " over " << streams.family;
}
const std::vector<Streams> kinds{{1, Family::ipv4}, {4, Family::ipv4},  {16, Family::ipv4},
                                 {2, Family::ipv6}, {1, Family::local}, {3, Family::local}};

bool has_family(Family family) {
  if (family != Family::ipv6 || tcp_sockets(AF_INET6)) return true;
  BOOST_TEST_MESSAGE("there is no ::1 here");
  return false;
}

}  // namespace

BOOST_DATA_TEST_CASE(long_lists_of_short_ranges_arrive_byte_by_byte, boost::unit_test::data::make(kinds), streams) {
  const Deadline deadline(120s);
  if (!has_family(streams.family)) return;
  std::mt19937_64 random(test_seed());
  Joined pair(streams.count, streams.family);
  constexpr ByteCount room = 10'000 * 700;
  Bytes source = pattern(room, 3);
  Bytes target;
  Bytes expected;
  Result received;
  pair.right->on_message([&](transport::Incoming& incoming) {
    incoming.receive(cut(target, incoming.payload_bytes(), random), received.completion());
  });
  for (int round = 0; round < 8; ++round) {
    const ByteCount bytes = round == 0 ? 3'000'000 : random() % 3'000'000;  // 10,000 ranges in the first round
    const auto from = cut(source, bytes, random);
    const std::vector<transport::ConstMemory> payload(from.begin(), from.end());
    target.assign(room, std::byte{0x77});
    expected = target;
    received = {};
    Result sent;
    // The oracle draws the same numbers as the handler.
    std::mt19937_64 same = random;
    const auto into = cut(expected, bytes, same);
    std::size_t range = 0;
    ByteCount filled = 0;
    for (const transport::Memory& part : from) {
      for (ByteCount i = 0; i < part.bytes;) {
        if (filled == into[range].bytes) {
          ++range;
          filled = 0;
        }
        const ByteCount fits = std::min(part.bytes - i, into[range].bytes - filled);
        std::memcpy(into[range].address + filled, part.address + i, fits);
        i += fits;
        filled += fits;
      }
    }
    pair.to_right->send(text("list"), payload, sent.completion());
    BOOST_REQUIRE(pair.until([&] { return sent.done && received.done; }));
    BOOST_TEST((sent.succeeded() && received.succeeded()));
    BOOST_TEST(same_bytes(target, expected));
  }
}

BOOST_DATA_TEST_CASE(a_path_says_what_carries_bytes, boost::unit_test::data::make(kinds), streams) {
  const Deadline deadline(120s);
  if (!has_family(streams.family)) return;
  const Joined pair(streams.count, streams.family);
  const transport::Path path = pair.to_right->path({});
  BOOST_TEST_MESSAGE(path.carrier);
  const char* const where = streams.family == Family::ipv4   ? "tcp 127.0.0.1 -> 127.0.0.1 (lo)"
                            : streams.family == Family::ipv6 ? "tcp ::1 -> ::1 (lo)"
                                                             : "local sockets";
  BOOST_TEST(path.carrier.find(where) != std::string::npos);
  BOOST_TEST(path.carrier.find(std::to_string(streams.count) + " stream") != std::string::npos);
  BOOST_TEST((path.message && !path.map && !path.read));
  BOOST_TEST((path.reach == (streams.family == Family::local ? Reach::host : Reach::network)));
  BOOST_TEST(!pair.to_right->path({MemoryKind::cuda, 0}).message);
  Bytes memory(10);
  const transport::ConstMemory elsewhere{memory.data(), 10, {MemoryKind::cuda, 0}};
  BOOST_CHECK_EXCEPTION(pair.to_right->send({}, elsewhere, {}), Error,
                        [](const Error& e) { return e.code() == ErrorCode::unsupported; });
}

BOOST_AUTO_TEST_CASE(the_number_of_streams_is_taken_from_the_environment) {
  const char* const before = std::getenv("SHARDWIRE_TCP_STREAMS");
  const std::string restore = before == nullptr ? "" : before;
  ::unsetenv("SHARDWIRE_TCP_STREAMS");
  BOOST_TEST(open_tcp()->sockets().count == 1);
  BOOST_TEST((open_tcp()->sockets().kind == transport::SocketNeeds::Kind::network));
  for (const char* good : {"1", "4", "16"}) {
    ::setenv("SHARDWIRE_TCP_STREAMS", good, 1);
    BOOST_TEST(open_tcp()->sockets().count == std::atoi(good));
  }
  for (const char* bad : {"0", "17", "-1", "4 ", "many", "1e1", "99999999999999999999"}) {
    ::setenv("SHARDWIRE_TCP_STREAMS", bad, 1);
    BOOST_CHECK_EXCEPTION(open_tcp(), Error, [&](const Error& e) {
      const std::string what = e.what();
      return e.code() == ErrorCode::invalid_argument && what.find("SHARDWIRE_TCP_STREAMS") != std::string::npos &&
             what.find(bad) != std::string::npos;
    });
  }
  ::setenv("SHARDWIRE_TCP_STREAMS", restore.c_str(), 1);
}

BOOST_AUTO_TEST_CASE(sockets_that_will_not_do_are_refused) {
  const auto left = open_tcp();
  const auto right = open_tcp();
  const Bytes address = right->address();
  const auto refused = [&](std::vector<transport::OpenSocket> sockets, ErrorCode code) {
    BOOST_CHECK_EXCEPTION(left->connect({.address = address, .sockets = std::move(sockets)}), Error,
                          [&](const Error& e) { return e.code() == code; });
  };
  const auto one = [](int number) {
    std::vector<transport::OpenSocket> sockets;
    sockets.emplace_back(support::Descriptor(number));
    return sockets;
  };
  refused({}, ErrorCode::unsupported);
  refused(one(::socket(AF_INET, SOCK_DGRAM, 0)), ErrorCode::invalid_argument);
  refused(one(::socket(AF_INET, SOCK_STREAM, 0)), ErrorCode::invalid_argument);
  refused(one(::dup(0)), ErrorCode::invalid_argument);
  std::vector<transport::OpenSocket> many;
  std::vector<transport::OpenSocket> others;
  for (int i = 0; i < 17; ++i) {
    SocketEnds ends = local_sockets();
    many.push_back(std::move(ends[0]));
    others.push_back(std::move(ends[1]));
  }
  refused(std::move(many), ErrorCode::invalid_argument);
  // If the peer has closed already, it is lost, not refused.
  SocketEnds ends = *tcp_sockets();
  const linger cut{.l_onoff = 1, .l_linger = 0};
  ::setsockopt(ends[1].get(), SOL_SOCKET, SO_LINGER, &cut, sizeof cut);
  ends[1].reset();
  const auto endpoint = left->connect({.address = address, .sockets = one(ends[0].release())});
  BOOST_TEST(run_until([&] { left->progress(); }, [&] { return endpoint->failed(); }, promptly));
}

BOOST_DATA_TEST_CASE(what_was_posted_before_the_endpoint_goes_leaves, boost::unit_test::data::make(kinds), streams) {
  const Deadline deadline(120s);
  if (!has_family(streams.family)) return;
  const Bytes payload = pattern(100'000);
  Joined pair(streams.count, streams.family);
  Mailbox mail;
  mail.attach(*pair.right);
  // Unread bytes must not make the kernel discard sent bytes at the close.
  Result unread;
  send(*pair.to_left, {}, payload, unread.completion());
  pair.right->progress();
  for (std::size_t i = 0; i < 30; ++i) {
    send(*pair.to_right, {}, std::span(payload).first(i == 7 ? payload.size() : i * 50), {});
  }
  pair.to_right.reset();
  BOOST_REQUIRE(pair.until([&] { return pair.to_left->failed(); }));
  BOOST_REQUIRE(pair.until([&] { return mail.complete() == 30; }));
  for (std::size_t i = 0; i < 30; ++i) {
    const auto& message = *mail.messages[i];
    BOOST_TEST(message.result.succeeded());
    BOOST_TEST(same_bytes(message.payload, std::span(payload).first(i == 7 ? payload.size() : i * 50)));
  }
}

BOOST_DATA_TEST_CASE(a_short_message_passes_a_long_one, boost::unit_test::data::make({1, 4}), streams) {
  const Deadline deadline(120s);
  Bytes place(128 << 20);
  const Bytes payload(place.size());
  Joined pair(streams);
  std::vector<std::string> order;
  pair.right->on_message([&](transport::Incoming& incoming) {
    const bool is_long = incoming.payload_bytes() == place.size();
    incoming.receive(transport::host_memory(place).part(0, incoming.payload_bytes()),
                     [&, is_long](const transport::Outcome&) { order.push_back(is_long ? "long" : "short"); });
  });
  send(*pair.to_right, {}, payload, {});
  for (int i = 0; i < 3; ++i) send(*pair.to_right, {}, std::span(payload).first(1000), {});
  BOOST_REQUIRE(pair.until([&] { return order.size() == 4; }));
  BOOST_TEST(order.back() == "long");
}

BOOST_AUTO_TEST_CASE(peers_that_send_without_end_are_heard_in_turn) {
  const Deadline deadline(120s);
  constexpr std::size_t peers = 4;
  const auto fabric = open_tcp();
  std::array<std::size_t, peers> heard{};
  Bytes place(200'000);
  fabric->on_message([&](transport::Incoming& incoming) {
    ++heard[static_cast<std::size_t>(incoming.header()[0])];
    incoming.receive(transport::host_memory(place), {});
  });
  std::vector<std::unique_ptr<transport::Fabric>> others;
  std::vector<EndpointOwner> endpoints;
  std::vector<EndpointOwner> back(peers);
  std::array<int, peers> under_way{};
  for (std::size_t i = 0; i < peers; ++i) {
    others.push_back(open_tcp());
    endpoints.push_back(connect_anew(*others[i], *fabric, back[i]));
  }
  while (heard[0] + heard[1] + heard[2] + heard[3] < 2000) {
    for (std::size_t i = 0; i < peers; ++i) {
      const auto name = static_cast<std::byte>(i);
      for (; under_way[i] < 20; ++under_way[i]) {
        send(*endpoints[i], {&name, 1}, place, [&under_way, i](const auto&) { --under_way[i]; });
      }
      others[i]->progress();
    }
    fabric->progress();
  }
  for (const std::size_t count : heard) BOOST_TEST((count > 300 && count < 700), "heard " << count);
}

// Each side sleeps whenever it may, so a lost wake-up shows as an endless sleep.
BOOST_DATA_TEST_CASE(sleepers_are_always_woken, boost::unit_test::data::make(kinds), streams) {
  const Deadline deadline(120s);
  if (!has_family(streams.family)) return;
  const std::uint64_t seed = test_seed();
  Joined pair(streams.count, streams.family);
  constexpr std::size_t count = 300;
  std::atomic<int> overslept = 0;
  std::atomic<int> wrong = 0;
  const auto side = [&](transport::Fabric& fabric, transport::Endpoint& endpoint) {
    std::mt19937_64 random(seed);
    std::size_t sent = 0;
    std::size_t received = 0;
    std::vector<Bytes> places(count);
    fabric.on_message([&](transport::Incoming& incoming) {
      std::size_t number = 0;
      std::memcpy(&number, incoming.header().data(), sizeof number);
      Bytes& place = places[number];
      place.resize(incoming.payload_bytes());
      incoming.receive(transport::host_memory(place), [&, number](const transport::Outcome& outcome) {
        if (outcome || !same_bytes(places[number], pattern(places[number].size(), number))) ++wrong;
        ++received;
      });
    });
    std::vector<Bytes> payloads;
    for (std::size_t i = 0; i < count; ++i) {
      payloads.push_back(pattern(random() % 4 == 0 ? random() % 1'500'000 : random() % 3000, i));
    }
    std::size_t next = 0;
    while (sent < count || received < count) {
      for (; next < count && next < sent + 5; ++next) {
        send(endpoint, std::as_bytes(std::span(&next, 1)), payloads[next], [&](const auto& outcome) {
          if (outcome) ++wrong;
          ++sent;
        });
      }
      if (fabric.progress() || !fabric.arm()) continue;
      pollfd entry{.fd = fabric.event_descriptor(), .events = POLLIN, .revents = 0};
      if (::poll(&entry, 1, 10'000) != 1) ++overslept;
    }
  };
  std::thread other([&] { side(*pair.right, *pair.to_left); });
  side(*pair.left, *pair.to_right);
  other.join();
  BOOST_TEST(overslept == 0);
  BOOST_TEST(wrong == 0);
}

BOOST_AUTO_TEST_CASE(a_peer_that_does_not_read_costs_no_memory) {
  const Deadline deadline(120s);
  const Bytes payload(8 << 20, std::byte{1});  // borrowed until the endpoint ends
  Joined pair(4);
  pair.until([] { return false; }, 20ms);
  const auto before = resident_bytes();
  for (int i = 0; i < 500; ++i) send(*pair.to_right, {}, payload, {});
  run_until([&] { pair.left->progress(); }, [] { return false; }, 200ms);
  BOOST_TEST(resident_bytes() < before + (16u << 20));
  // The same if the receiver discards the payloads.
  pair.right->on_message([](transport::Incoming& incoming) { incoming.discard(); });
  Result last;
  send(*pair.to_right, {}, {}, last.completion());
  BOOST_REQUIRE(pair.until([&] { return last.done; }, 50s));
  BOOST_TEST(resident_bytes() < before + (16u << 20));
}

BOOST_AUTO_TEST_CASE(a_child_of_fork_keeps_no_connection_open) {
  const Deadline deadline(120s);
  Joined pair(2);
  pair.until([] { return false; }, 20ms);
  const pid_t child = ::fork();
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  pair.to_right.reset();
  BOOST_TEST(pair.until([&] { return pair.to_left->failed(); }, promptly));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

BOOST_AUTO_TEST_SUITE_END()

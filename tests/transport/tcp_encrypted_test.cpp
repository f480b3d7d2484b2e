// SPDX-License-Identifier: Apache-2.0
// Somebody carries the bytes of an encrypted connection, and reads along or alters them.
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "conformance/pair.hpp"
#include "support/deadline.hpp"
#include "support/encrypted.hpp"
#include "support/encryption_built.hpp"
#include "support/sockets.hpp"
#include "transport/tcp/handles.hpp"
#include "transport/transport.hpp"

namespace shardwire::transport::tcp {
std::unique_ptr<Fabric> open();
}

BOOST_AUTO_TEST_SUITE(tcp_encrypted)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;

namespace {

/// Two fabrics, and between them a carrier that the test drives.
struct Carried {
  explicit Carried(bool encrypted) {
    SocketEnds left_ends = *tcp_sockets();
    SocketEnds right_ends = *tcp_sockets();
    std::vector<transport::OpenSocket> of_left;
    std::vector<transport::OpenSocket> of_right;
    of_left.emplace_back(std::move(left_ends[0]));
    of_right.emplace_back(std::move(right_ends[1]));
    at_left = std::move(left_ends[1]);
    at_right = std::move(right_ends[0]);
    if (encrypted) {
      auto both = encrypted_ends();
      of_left.back().encryption = std::move(both[0]);
      of_right.back().encryption = std::move(both[1]);
    }
    mailbox.attach(*right);
    to_right = left->connect({.address = right->address(), .sockets = std::move(of_left)});
    to_left = right->connect({.address = left->address(), .sockets = std::move(of_right)});
  }

  bool until(const std::function<bool()>& met) {
    return run_until(
        [this] {
          left->progress();
          right->progress();
          carry(at_left, at_right, true);
          carry(at_right, at_left, false);
        },
        met, 20s);
  }

  void carry(const support::Descriptor& from, const support::Descriptor& to, bool forth) {
    std::array<std::byte, 16384> bytes;
    const ssize_t got = ::recv(from.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got <= 0) return;
    const auto size = static_cast<std::size_t>(got);
    if (forth) {
      if (alter_at && *alter_at >= passed && *alter_at < passed + size) bytes[*alter_at - passed] ^= std::byte{32};
      passed += size;
    }
    seen.insert(seen.end(), bytes.begin(), bytes.begin() + got);
    for (std::size_t sent = 0; sent < size;) {
      const ssize_t more = ::send(to.get(), bytes.data() + sent, size - sent, MSG_NOSIGNAL);
      if (more <= 0) return;
      sent += static_cast<std::size_t>(more);
    }
  }

  Mailbox mailbox;  ///< of the right one
  std::unique_ptr<transport::Fabric> left = transport::tcp::open();
  std::unique_ptr<transport::Fabric> right = transport::tcp::open();
  support::Descriptor at_left;
  support::Descriptor at_right;
  EndpointOwner to_right;
  EndpointOwner to_left;
  Bytes seen;
  std::size_t passed = 0;  ///< from left to right
  std::optional<std::size_t> alter_at;
};

bool contains(const Bytes& bytes, const Bytes& all, std::size_t from, std::size_t size) {
  const auto part = all.begin() + static_cast<std::ptrdiff_t>(from);
  return std::search(bytes.begin(), bytes.end(), part, part + static_cast<std::ptrdiff_t>(size)) != bytes.end();
}

constexpr std::size_t payload_bytes = 300'000;

}  // namespace

BOOST_TEST_DECORATOR(*boost::unit_test::precondition(test::encryption_is_built))
BOOST_DATA_TEST_CASE(who_carries_the_bytes_reads_them_only_if_they_are_not_encrypted,
                     boost::unit_test::data::make({false, true}), encrypted) {
  const Deadline deadline(60s);
  const Bytes payload = pattern(payload_bytes);
  Carried pair(encrypted);
  const Mailbox& mailbox = pair.mailbox;
  Result sent;
  send(*pair.to_right, text("a header"), payload, sent.completion());
  BOOST_TEST(pair.until([&] { return sent.done && mailbox.complete() == 1; }));
  BOOST_TEST(same_bytes(mailbox.messages[0]->payload, payload));
  BOOST_TEST((mailbox.messages[0]->header == text("a header")));
  BOOST_TEST(contains(pair.seen, payload, 200'000, 64) == !encrypted);
  BOOST_TEST(contains(pair.seen, text("a header"), 0, 8) == !encrypted);
  const std::string carrier = pair.to_right->path({}).carrier;
  BOOST_TEST((carrier.find("encrypted (TLS 1.3)") != std::string::npos) == encrypted, carrier);
}

// A bit in a header of a record, in the first bytes, in the middle, near the end: no message is complete but with what was
// sent, and the connection ends.
BOOST_TEST_DECORATOR(*boost::unit_test::precondition(test::encryption_is_built))
BOOST_DATA_TEST_CASE(an_altered_byte_ends_the_connection_and_nothing_wrong_is_delivered,
                     boost::unit_test::data::make({0, 3, 4, 7, 60, 5'000, 150'000, 299'000}), where) {
  const Deadline deadline(60s);
  const Bytes payload = pattern(payload_bytes);  // an endpoint that ends still sends for a while
  Carried pair(true);
  pair.alter_at = static_cast<std::size_t>(where);
  const Mailbox& mailbox = pair.mailbox;
  Result sent;
  send(*pair.to_right, text("a header"), payload, sent.completion());
  // A longer length makes the receiver wait for bytes, which further messages bring.
  int more = 0;
  BOOST_TEST(pair.until([&] {
    if (more < 8 && !pair.to_right->failed()) {
      ++more;
      send(*pair.to_right, text("more"), payload, {});
    }
    return pair.to_left->failed();
  }));
  std::size_t whole = 0;
  for (const auto& message : mailbox.messages) {
    whole += message->result.succeeded() ? 1 : 0;
    BOOST_TEST((!message->result.succeeded() || same_bytes(message->payload, payload)));
  }
  BOOST_TEST(whole == 0U);  // the byte is in the first message, and later ones come after it
}

BOOST_AUTO_TEST_SUITE_END()

// SPDX-License-Identifier: Apache-2.0
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>
#include <boost/test/unit_test.hpp>

#include <chrono>
#include <random>

#include "support/job.hpp"
#include "support/seed.hpp"
#include "wire/messages.hpp"

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;

namespace {

// A plain socket to the control port, without any of our code behind it.
class Stranger {
 public:
  explicit Stranger(std::uint16_t port) : descriptor_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const timeval patience{5, 0};
    setsockopt(descriptor_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    BOOST_REQUIRE_EQUAL(connect(descriptor_, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  }
  ~Stranger() { close(descriptor_); }
  Stranger(const Stranger&) = delete;
  Stranger& operator=(const Stranger&) = delete;

  void send(const Bytes& bytes) { static_cast<void>(::send(descriptor_, bytes.data(), bytes.size(), MSG_NOSIGNAL)); }
  void send_frame(const Bytes& message) {
    Bytes frame(8);
    const std::uint64_t length = message.size();
    std::memcpy(frame.data(), &length, sizeof length);
    frame.insert(frame.end(), message.begin(), message.end());
    send(frame);
  }
  /// All that comes until the other end closes; fails the test when it does not.
  Bytes until_closed() {
    Bytes all;
    std::byte buffer[4096];
    while (true) {
      const ssize_t count = recv(descriptor_, buffer, sizeof buffer, 0);
      BOOST_REQUIRE_MESSAGE(count >= 0 || errno == ECONNRESET, "the member did not close the connection");
      if (count <= 0) return all;
      all.insert(all.end(), buffer, buffer + count);
    }
  }
  wire::Message next() {
    Bytes header = exactly(8);
    std::uint64_t length = 0;
    std::memcpy(&length, header.data(), sizeof length);
    return wire::decode(exactly(static_cast<std::size_t>(length)));
  }

 private:
  Bytes exactly(std::size_t count) {
    Bytes bytes(count);
    const ssize_t got = recv(descriptor_, bytes.data(), count, MSG_WAITALL);
    BOOST_REQUIRE_EQUAL(got, static_cast<ssize_t>(count));
    return bytes;
  }
  int descriptor_;
};

struct Job {
  std::uint16_t port = free_port();
  Session host = Session::join(member(0, 2, port), [] {
    SessionOptions options;
    options.transport = "loopback";
    return options;
  }());

  // The job still takes members.
  void still_works() const {
    SessionOptions options;
    options.transport = "loopback";
    options.join_timeout = 10s;
    Session::join(member(1, 2, port), options).close(1s);
  }
};

wire::Hello hello() {
  wire::Hello hello;
  hello.rank = 1;
  hello.world_size = 2;
  hello.host = "elsewhere";
  return hello;
}

// The whole handshake, so that what follows comes from a member.
void introduce(Stranger& stranger) {
  const wire::Hello mine = hello();
  stranger.send_frame(wire::encode(mine));
  const wire::Message theirs = stranger.next();
  stranger.send_frame(wire::encode(wire::prove({}, true, mine, std::get<wire::Hello>(theirs))));
  BOOST_REQUIRE(std::holds_alternative<wire::Proof>(stranger.next()));
}

}  // namespace

BOOST_AUTO_TEST_SUITE(stranger)

BOOST_AUTO_TEST_CASE(random_bytes_are_cut_off) {
  const Job job;
  std::mt19937_64 random(test_seed());
  for (int round = 0; round < 20; ++round) {
    Stranger stranger(job.port);
    Bytes bytes(4096);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() | 0x80);
    stranger.send(bytes);
    stranger.until_closed();
  }
  job.still_works();
}

BOOST_AUTO_TEST_CASE(a_long_message_before_the_proof_is_cut_off) {
  const Job job;
  Stranger stranger(job.port);
  Bytes header(8);
  const std::uint64_t length = wire::max_hello_bytes + 8;
  std::memcpy(header.data(), &length, sizeof length);
  stranger.send(header);
  stranger.until_closed();
  job.still_works();
}

BOOST_AUTO_TEST_CASE(half_a_hello_and_a_close_leave_nothing_behind) {
  const Job job;
  for (int round = 0; round < 20; ++round) {
    Stranger stranger(job.port);
    Bytes encoded = wire::encode(hello());
    encoded.resize(encoded.size() / 2);
    stranger.send_frame(encoded);
  }
  job.still_works();
}

BOOST_AUTO_TEST_CASE(requests_before_the_proof_are_refused) {
  const Job job;
  Stranger stranger(job.port);
  stranger.send_frame(wire::encode(hello()));
  stranger.send_frame(wire::encode(wire::Watch{"state"}));
  BOOST_TEST(std::holds_alternative<wire::Hello>(stranger.next()));
  const wire::Message answer = stranger.next();
  BOOST_REQUIRE(std::holds_alternative<wire::Failure>(answer));
  stranger.until_closed();
  job.still_works();
}

BOOST_AUTO_TEST_CASE(a_proof_replayed_from_the_other_role_is_refused) {
  const Job job;
  Stranger stranger(job.port);
  wire::Hello mine = hello();
  stranger.send_frame(wire::encode(mine));
  const wire::Message theirs = stranger.next();
  stranger.send_frame(wire::encode(wire::prove({}, false, mine, std::get<wire::Hello>(theirs))));
  BOOST_TEST(std::holds_alternative<wire::Failure>(stranger.next()));
  stranger.until_closed();
  job.still_works();
}

BOOST_AUTO_TEST_CASE(a_member_may_not_join_or_publish_for_another) {
  const std::vector<wire::Message> forbidden{
      wire::Join{wire::MemberRecord{.rank = 0}},
      wire::Publish{"state", wire::PublicationRecord{.member = 1}},  // it has not joined
      wire::Watch{"state"}, wire::Lookup{{0}}, wire::GatherQuit{"all"}};
  const Job job;
  for (const wire::Message& message : forbidden) {
    Stranger stranger(job.port);
    introduce(stranger);
    stranger.send_frame(wire::encode(message));
    const wire::Message answer = stranger.next();
    BOOST_REQUIRE(std::holds_alternative<wire::Failure>(answer));
    BOOST_TEST((std::get<wire::Failure>(answer).code == ErrorCode::invalid_argument));
  }
  job.still_works();
}

BOOST_AUTO_TEST_CASE(requests_about_nothing_are_answered_with_their_number) {
  const Job job;
  Stranger stranger(job.port);
  introduce(stranger);
  const std::vector<wire::Message> requests{
      wire::Lease{7, "state", 1, {}}, wire::Release{8, 99}, wire::Bind{9, 99, "loopback", "", {}},
      wire::PackRequest{10, 99, {{0, Box{{0}, {1}}}}}, wire::DigestRequest{11, 99, {{0, Box{{0}, {1}}}}}};
  std::uint64_t number = 7;
  for (const wire::Message& request : requests) {
    stranger.send_frame(wire::encode(request));
    const wire::Message answer = stranger.next();
    BOOST_REQUIRE(std::holds_alternative<wire::Failure>(answer));
    BOOST_TEST(std::get<wire::Failure>(answer).request == number++);
  }
}

// What may be asked for without a lease is checked as it is under one.
BOOST_AUTO_TEST_CASE(requests_without_a_lease_are_held_to_what_is_live) {
  Job job;
  std::vector<float> memory(6);
  Catalog held(Rank{0}, 1);
  held.add({{"w", "exp_avg"}, DType::f32, {6}}, Layout::replicated(), View{.data = memory.data()});
  Publication publication = job.host.publish(held);
  Stranger stranger(job.port);
  introduce(stranger);
  const auto asked = [&](const wire::Part& part, const char* name, std::uint64_t generation, bool each) {
    stranger.send_frame(wire::encode(
        wire::PackRequest{.request = 5, .parts = {part}, .each = each, .publication = name, .generation = generation}));
    const wire::Message answer = stranger.next();
    BOOST_REQUIRE(std::holds_alternative<wire::Failure>(answer));
    return std::get<wire::Failure>(answer);
  };
  const wire::Part all{0, Box{{0}, {6}}};
  BOOST_TEST(asked(all, "state", 1, false).message.find("before bind") != std::string::npos);  // nothing else is wrong
  BOOST_TEST((asked(all, "state", 2, false).code == ErrorCode::layout_mismatch));
  BOOST_TEST((asked(all, "other", 1, false).code == ErrorCode::layout_mismatch));
  BOOST_TEST((asked(all, "", 0, false).code == ErrorCode::layout_mismatch));
  BOOST_TEST(asked(all, "state", 1, true).message.find("without a lease") != std::string::npos);
  BOOST_TEST(asked({1, Box{{0}, {6}}}, "state", 1, false).message.find("no tensor 1") != std::string::npos);
  BOOST_TEST(asked({0, Box{{3}, {4}}}, "state", 1, false).message.find("not held here") != std::string::npos);
  publication.retire(5s);
  BOOST_TEST((asked(all, "state", 1, false).code == ErrorCode::layout_mismatch));
}

BOOST_AUTO_TEST_SUITE_END()

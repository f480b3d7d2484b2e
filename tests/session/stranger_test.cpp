// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <boost/test/unit_test.hpp>

#include <chrono>
#include <future>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <string_view>

#include "control/connection.hpp"
#include "runtime/uv_loop.hpp"
#include "session/stranger.hpp"
#include "support/job.hpp"
#include "support/seed.hpp"

BOOST_AUTO_TEST_SUITE(stranger)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;

namespace {

struct Job {
  std::uint16_t port = free_port();
  mutable std::mutex mutex;
  std::string log;  // guarded by mutex
  Session host = Session::join(member(0, 2, port), [this] {
    SessionOptions options;
    options.transport = "loopback";
    options.log = [this](LogLevel, std::string_view text) {
      const std::lock_guard lock(mutex);
      log.append(text).append("\n");
    };
    return options;
  }());

  /// Whether the member has logged a line with these words.
  [[nodiscard]] bool has_logged(std::string_view words) const {
    const std::lock_guard lock(mutex);
    return log.find(words) != std::string::npos;
  }

  // Checks that the job still accepts members.
  void still_works() const {
    SessionOptions options;
    options.transport = "loopback";
    options.join_timeout = 10s;
    Session::join(member(1, 2, port), options).close(1s);
  }
};

// Joins as member 1, as far as the rendezvous can tell, until it is pinged.
void join(Stranger& stranger) {
  introduce(stranger);
  stranger.send_frame(wire::encode(wire::Join{{.rank = 1, .host = "elsewhere", .address = "127.0.0.1", .port = 9}}));
}

std::uint64_t await_ping(Stranger& stranger) {
  for (;;) {
    const wire::Message message = stranger.next();
    if (const auto* ping = std::get_if<wire::Ping>(&message)) return ping->number;
  }
}

int option_of(int descriptor, int level, int name) {
  int value = 0;
  socklen_t size = sizeof value;
  return getsockopt(descriptor, level, name, &value, &size) == 0 ? value : -1;
}

}  // namespace

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
  BOOST_TEST(job.has_logged("announced a message"));  // its time to prove itself was not over yet
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

BOOST_AUTO_TEST_CASE(members_of_another_version_are_refused_in_words) {
  const Job job;
  Stranger stranger(job.port);
  wire::Hello mine = hello();
  mine.version = wire::protocol_version - 1;
  stranger.send_frame(wire::encode(mine));
  const wire::Message answer = stranger.next();
  const auto* refusal = std::get_if<wire::Failure>(&answer);
  BOOST_REQUIRE(refusal != nullptr);
  BOOST_TEST((refusal->code == ErrorCode::unsupported));
  BOOST_TEST(
      refusal->message ==
      fmt::format("member 1 runs a version of shardwire that speaks protocol {}, member 0 one that speaks protocol "
                  "{}: all members of a job need the same",
                  mine.version, wire::protocol_version));
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

// Without this bound they would stay until the handshake's limit, and use up the descriptors that a member needs.
BOOST_AUTO_TEST_CASE(idle_connections_of_one_address_are_bounded_and_the_oldest_goes_first) {
  const Job job;
  std::vector<std::unique_ptr<Stranger>> idle;
  for (int i = 0; i < 256; ++i) idle.push_back(std::make_unique<Stranger>(job.port));
  job.still_works();
  int open = 0;
  for (std::size_t i = 0; i < 190; ++i) BOOST_REQUIRE_MESSAGE(idle[i]->closed(), "connection " << i << " is open");
  for (const auto& one : idle) open += one->still_open() ? 1 : 0;
  BOOST_TEST(open > 32);  // the newest connections are kept
}

BOOST_AUTO_TEST_CASE(members_that_come_together_from_one_address_are_all_heard) {
  constexpr int members = 100;
  const auto port = free_port();
  Session host = Session::join(member(0, members, port), quick());
  std::vector<std::unique_ptr<Stranger>> others;
  for (int rank = 1; rank < members; ++rank) others.push_back(std::make_unique<Stranger>(port));
  for (int rank = 1; rank < members; ++rank) {
    wire::Hello mine = hello();
    mine.rank = rank;
    mine.world_size = members;
    introduce(*others[static_cast<std::size_t>(rank - 1)], mine);
  }
}

BOOST_AUTO_TEST_CASE(a_member_that_answers_keeps_its_seat) {
  const Job job;
  Stranger first(job.port);
  join(first);
  BOOST_TEST(std::holds_alternative<wire::Joined>(first.next()));
  Stranger second(job.port);
  join(second);
  first.send_frame(wire::encode(wire::Pong{await_ping(first)}));
  const wire::Message answer = second.next();
  BOOST_REQUIRE(std::holds_alternative<wire::Failure>(answer));
  BOOST_TEST(std::get<wire::Failure>(answer).message.find("is alive") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(who_comes_later_takes_the_seat_of_a_member_that_does_not_answer) {
  const Job job;
  Stranger first(job.port);
  join(first);
  BOOST_TEST(std::holds_alternative<wire::Joined>(first.next()));
  Stranger second(job.port);
  join(second);
  await_ping(first);
  const wire::Message answer = second.next();
  BOOST_REQUIRE(std::holds_alternative<wire::Joined>(answer));
  BOOST_TEST(std::get<wire::Joined>(answer).epoch == 2U);
  const wire::Message farewell = first.next();
  BOOST_REQUIRE(std::holds_alternative<wire::Failure>(farewell));
  BOOST_TEST(std::get<wire::Failure>(farewell).message.find("another process has taken the seat of member 1") !=
             std::string::npos);
  first.until_closed();
}

BOOST_AUTO_TEST_CASE(a_silent_peer_is_pinged_and_counts_as_hung_until_it_answers) {
  UvLoop loop;
  Identity identity;
  identity.hello.world_size = 2;
  identity.liveness = {20ms, 50ms};
  std::shared_ptr<Connection> connection;  // loop thread only, like the next one
  std::unique_ptr<Listener> listener;
  const std::uint16_t port = loop.call([&] {
    listener = loop.listen({"127.0.0.1", 0}, [&](const AcceptedStream& open) {
      connection = Connection::accept(loop, open, identity, {});
    });
    return listener->address().port;
  });
  const auto alive = [&] {
    const auto verdict = std::make_shared<std::promise<bool>>();  // owners: the test and the connection
    loop.call([&] { connection->check_alive([verdict](bool is) { verdict->set_value(is); }); });
    return verdict->get_future();
  };
  Stranger stranger(port);
  introduce(stranger);
  const std::uint64_t unanswered = await_ping(stranger);  // an unsolicited ping
  BOOST_TEST(!alive().get());
  stranger.send_frame(wire::encode(wire::Pong{unanswered}));
  BOOST_TEST(await_ping(stranger) > unanswered);  // only an answer causes another ping
  loop.call([&] {
    connection->drop();
    connection.reset();
    listener.reset();
  });
}

BOOST_AUTO_TEST_CASE(control_connections_find_out_that_a_peer_is_cut_off) {
  const Job job;
  Stranger stranger(job.port);
  introduce(stranger);
  int watched = 0;
  for (int descriptor = 0; descriptor < 1024; ++descriptor) {  // the member's end is in this process
    sockaddr_in address{};
    socklen_t size = sizeof address;
    if (getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &size) != 0) continue;
    if (address.sin_family != AF_INET || address.sin_port != htons(job.port)) continue;
    if (option_of(descriptor, SOL_SOCKET, SO_ACCEPTCONN) == 1) continue;
    ++watched;
    BOOST_TEST(option_of(descriptor, SOL_SOCKET, SO_KEEPALIVE) == 1);
    BOOST_TEST(option_of(descriptor, IPPROTO_TCP, TCP_KEEPIDLE) <= 30);
    BOOST_TEST(option_of(descriptor, IPPROTO_TCP, TCP_USER_TIMEOUT) > 0);
  }
  BOOST_TEST(watched == 1);
}

BOOST_AUTO_TEST_CASE(a_member_may_not_join_or_publish_for_another) {
  const std::vector<wire::Message> forbidden{
      wire::Join{wire::MemberRecord{.rank = 0}},
      wire::Publish{"state", wire::PublicationRecord{.member = 1}},  // it has not joined
      wire::Watch{"state"},
      wire::Lookup{{0}},
      wire::GatherQuit{"all"},
      wire::ExchangeGivenUp{1, 0, {}, {}, {}, {}},
      wire::AttemptRaised{1}};
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
      wire::Lease{7, "state", 1, {}}, wire::Release{8, 99}, wire::Bind{9, 99, {{"loopback", "", {}}}},
      wire::PackRequest{10, 99, {{0, Box{{0}, {1}}}}}, wire::DigestRequest{11, 99, {{0, Box{{0}, {1}}}}}};
  std::uint64_t number = 7;
  for (const wire::Message& request : requests) {
    stranger.send_frame(wire::encode(request));
    const wire::Message answer = stranger.next();
    BOOST_REQUIRE(std::holds_alternative<wire::Failure>(answer));
    BOOST_TEST(std::get<wire::Failure>(answer).request == number++);
  }
}

// Requests without a lease are checked like requests with one.
BOOST_AUTO_TEST_CASE(requests_without_a_lease_are_held_to_what_is_live) {
  Job job;
  std::vector<float> memory(6);
  Catalog held(Rank{0}, 1);
  held.add({{"w", "exp_avg"}, DType::f32, {6}}, Layout::replicated(), View{.data = memory.data()});
  Publication publication = job.host.publish(held);
  Stranger stranger(job.port);
  introduce(stranger);
  const auto asked = [&](const wire::RequestedBox& part, const char* name, std::uint64_t generation, bool each) {
    stranger.send_frame(wire::encode(
        wire::PackRequest{.request = 5, .parts = {part}, .each = each, .publication = name, .generation = generation}));
    const wire::Message answer = stranger.next();
    BOOST_REQUIRE(std::holds_alternative<wire::Failure>(answer));
    return std::get<wire::Failure>(answer);
  };
  const wire::RequestedBox all{0, Box{{0}, {6}}};
  BOOST_TEST(asked(all, "state", 1, false).message.find("before bind") != std::string::npos);  // nothing else is wrong
  BOOST_TEST((asked(all, "state", 2, false).code == ErrorCode::withdrawn));
  BOOST_TEST((asked(all, "other", 1, false).code == ErrorCode::withdrawn));
  BOOST_TEST((asked(all, "", 0, false).code == ErrorCode::withdrawn));
  BOOST_TEST(asked(all, "state", 1, true).message.find("without a lease") != std::string::npos);
  BOOST_TEST(asked({1, Box{{0}, {6}}}, "state", 1, false).message.find("no tensor 1") != std::string::npos);
  BOOST_TEST(asked({0, Box{{3}, {4}}}, "state", 1, false).message.find("not held here") != std::string::npos);
  publication.retire(5s);
  BOOST_TEST((asked(all, "state", 1, false).code == ErrorCode::withdrawn));
}

BOOST_AUTO_TEST_SUITE_END()

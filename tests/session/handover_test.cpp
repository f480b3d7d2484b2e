// SPDX-License-Identifier: Apache-2.0
// Members with the job key that misbehave when sockets and handles are transferred.
#include <boost/test/unit_test.hpp>

#include <memory>
#include <random>

#include "session/stranger.hpp"
#include "support/deadline.hpp"
#include "support/job.hpp"
#include "support/open_descriptors.hpp"
#include "support/seed.hpp"
#include "support/sockets.hpp"
#include "transport/bytes.hpp"
#include "transport/transport.hpp"

BOOST_AUTO_TEST_SUITE(handover)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;

namespace {

constexpr std::uint64_t incarnation = 77;  // of the misbehaving member

/// A source with an arena and ordinary memory, and a correct reader.
struct Job {
  std::uint16_t port = free_port();
  Session source = Session::join(member(0, 2, port), quick());
  std::vector<Listening> listening = listening_sockets();  // of the source alone
  Session reader = Session::join(member(1, 2, port), quick());
  TestShard in_arena{{{"a", "exp_avg"}, DType::f32, {1000}}, Layout::replicated(), Rank{0}};
  TestShard ordinary{{{"o", "exp_avg"}, DType::f32, {1000}}, Layout::replicated(), Rank{0}};
  Arena arena = source.allocate(in_arena.size_bytes());
  Publication publication;

  Job() {
    in_arena.use(arena.data());
    in_arena.fill(1);
    ordinary.fill(2);
    Catalog held(Rank{0}, 1);
    in_arena.add_to(held);
    ordinary.add_to(held);
    publication = source.publish(held);
    check_restore();  // opens all that the job itself needs
  }
  [[nodiscard]] const Listening& listener(bool local) const {
    for (const Listening& one : listening) {
      if (one.local() == local) return one;
    }
    throw std::runtime_error("no such listening socket");
  }
  void check_restore() {
    TestShard a{{{"a", "exp_avg"}, DType::f32, {1000}}, Layout::replicated(), Rank{0}};
    TestShard o{{{"o", "exp_avg"}, DType::f32, {1000}}, Layout::replicated(), Rank{0}};
    Catalog wanted(Rank{0}, 1);
    a.add_to(wanted);
    o.add_to(wanted);
    reader.restore(wanted, within(patience)).wait();
    BOOST_TEST(a.wrong(1) == 0U);
    BOOST_TEST(o.wrong(2) == 0U);
  }
};

/// Fails unless all descriptors opened since are closed again.
class NothingLeaks {
 public:
  ~NothingLeaks() {
    const auto same = [&] { return open_descriptors() <= before_; };
    BOOST_TEST(run_until([] { std::this_thread::sleep_for(10ms); }, same, 10s));
  }

 private:
  std::size_t before_ = open_descriptors();
};

wire::Failure failure_in(const wire::Message& message) {
  BOOST_REQUIRE(std::holds_alternative<wire::Failure>(message));
  return std::get<wire::Failure>(message);
}

/// A member driven by hand.
class Member {
 public:
  Member(const Job& job, bool local) : job_(job), control_(job.listener(local)) {
    source_ = introduce(control_, mine());
    control_.send_frame(wire::encode(wire::Lease{1, "state", 1, {{0, {}}, {1, {}}}}));
    const wire::Message answer = control_.next();
    BOOST_REQUIRE(std::holds_alternative<wire::Leased>(answer));
    lease_ = std::get<wire::Leased>(answer).lease;
  }
  static wire::Hello mine() {
    wire::Hello mine = hello();
    mine.incarnation = incarnation;
    return mine;
  }
  [[nodiscard]] const std::vector<wire::FabricOffer>& fabrics() const { return source_.fabrics; }
  [[nodiscard]] std::uint64_t lease() const { return lease_; }
  Stranger& control() { return control_; }

  /// Opens another connection; returns the answer to its Attach.
  wire::Message attach(std::uint64_t token, std::uint8_t index, bool local) {
    sockets.push_back(std::make_unique<Stranger>(job_.listener(local)));
    introduce(*sockets.back(), mine());
    sockets.back()->send_frame(wire::encode(wire::Attach{token, index}));
    return sockets.back()->next();
  }
  void attach_well(std::uint64_t token, std::uint8_t index, bool local) {
    BOOST_REQUIRE(std::holds_alternative<wire::Attached>(attach(token, index, local)));
  }
  /// The answer to Bind, after any descriptors that precede it.
  wire::Message bind(const wire::FabricHandle& fabric) {
    control_.send_frame(wire::encode(wire::Bind{2, lease_, {fabric}}));
    for (;;) {
      wire::Message answer = control_.next();
      if (!std::holds_alternative<wire::Descriptors>(answer)) return answer;
    }
  }

  std::vector<std::unique_ptr<Stranger>> sockets;

 private:
  const Job& job_;
  Stranger control_;
  wire::Hello source_;
  std::uint64_t lease_ = 0;
};

bool lives_on_local_sockets(const std::string& fabric) {
  return transport::choose(fabric).open()->sockets().kind == transport::SocketNeeds::Kind::local;
}
Bytes good_address(const std::string& fabric) {
  return transport::choose(fabric).open()->address();
}

/// Invalid addresses: empty, random, truncated, and random with a correct checksum.
std::vector<Bytes> garbage(const std::string& fabric) {
  static std::mt19937_64 random(test_seed());
  const auto any = [&](std::size_t count) {
    Bytes bytes(count);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    return bytes;
  };
  std::vector<Bytes> all{{}, any(1), any(24), any(60'000)};
  all.push_back(good_address(fabric));
  all.back().pop_back();
  for (const std::size_t count : {0UL, 8UL, 16UL, 24UL, 32UL, 1000UL}) {
    all.push_back(any(count));
    transport::seal(all.back());
  }
  return all;
}

boost::test_tools::assertion_result with_shm(boost::unit_test::test_unit_id /*case*/) {
  boost::test_tools::assertion_result result(transport_under_test().find("shm") != std::string::npos);
  if (!result) result.message() << "without shm there are no descriptors to hand over";
  return result;
}

}  // namespace

BOOST_AUTO_TEST_CASE(an_attach_that_makes_no_sense_is_refused_with_a_reason) {
  const Deadline deadline(120s);
  Job job;
  {
    const NothingLeaks check;
    Member member(job, false);
    BOOST_TEST(failure_in(member.attach(0, 0, false)).message.find("there is no socket 0 of token 0") !=
               std::string::npos);
    BOOST_TEST(failure_in(member.attach(5, 64, false)).message.find("no socket 64 of token 5") != std::string::npos);
    BOOST_TEST(failure_in(member.attach(5, 255, false)).message.find("no socket 255") != std::string::npos);
    member.attach_well(5, 63, false);
    member.attach_well(5, 0, false);
    const wire::Failure again = failure_in(member.attach(5, 0, false));
    BOOST_TEST((again.code == ErrorCode::invalid_argument));
    BOOST_TEST(again.message.find("is there already") != std::string::npos, again.message);
    BOOST_TEST(member.sockets[3]->still_open());  // the failure leaves correctly attached sockets open
    BOOST_TEST(member.sockets[4]->still_open());
    // Indexes between 0 and 63 are missing, so none of the sockets can be used.
    const wire::FabricOffer& fabric = member.fabrics().back();
    const wire::Failure gaps = failure_in(member.bind({fabric.name, fabric.domain, good_address(fabric.name), 5}));
    BOOST_TEST((gaps.code == ErrorCode::peer_lost), gaps.message);
    member.sockets[3]->until_closed();
    member.sockets[4]->until_closed();
  }
  job.check_restore();
}

BOOST_AUTO_TEST_CASE(a_bind_with_garbage_is_refused_with_a_reason_over_our_own_fabrics) {
  const Deadline deadline(120s);
  Job job;
  {
    const NothingLeaks check;
    Member member(job, false);
    std::uint64_t token = 100;
    for (const wire::FabricOffer& fabric : member.fabrics()) {
      const bool local = lives_on_local_sockets(fabric.name);
      for (const Bytes& address : garbage(fabric.name)) {
        member.attach_well(++token, 0, local);
        const wire::Failure failure = failure_in(member.bind({fabric.name, fabric.domain, address, token}));
        BOOST_TEST((failure.code == ErrorCode::transport_failed), fabric.name << ": " << failure.message);
        member.sockets.back()->until_closed();
        const wire::Failure without = failure_in(member.bind({fabric.name, fabric.domain, address, 0}));
        BOOST_TEST((without.code == ErrorCode::transport_failed), fabric.name << ": " << without.message);
      }
    }
  }
  job.check_restore();
}

BOOST_AUTO_TEST_CASE(a_bind_with_sockets_that_are_not_there_or_of_another_kind_is_refused) {
  const Deadline deadline(120s);
  Job job;
  {
    const NothingLeaks check;
    Member member(job, false);
    std::uint64_t token = 100;
    for (const wire::FabricOffer& fabric : member.fabrics()) {
      const Bytes address = good_address(fabric.name);
      const wire::Failure nobody = failure_in(member.bind({fabric.name, fabric.domain, address, 99}));
      BOOST_TEST((nobody.code == ErrorCode::peer_lost));
      BOOST_TEST(nobody.message.find("are not there") != std::string::npos, nobody.message);
      const wire::Failure none = failure_in(member.bind({fabric.name, fabric.domain, address, 0}));
      BOOST_TEST((none.code == ErrorCode::unsupported), none.message);
      if (lives_on_local_sockets(fabric.name)) {  // other fabrics accept any stream
        member.attach_well(++token, 0, false);
        const wire::Failure other = failure_in(member.bind({fabric.name, fabric.domain, address, token}));
        BOOST_TEST((other.code == ErrorCode::unsupported), other.message);
        member.sockets.back()->until_closed();
      }
      const wire::Failure elsewhere = failure_in(member.bind({fabric.name, "another domain", address, 0}));
      BOOST_TEST((elsewhere.code == ErrorCode::unsupported), elsewhere.message);
    }
    const wire::Failure unknown = failure_in(member.bind({"pigeon", "post", {}, 0}));
    BOOST_TEST((unknown.code == ErrorCode::unsupported), unknown.message);
  }
  job.check_restore();
}

BOOST_AUTO_TEST_CASE(descriptors_are_handed_over_local_connections_only,
                     *boost::unit_test::label("shm") * boost::unit_test::precondition(with_shm)) {
  const Deadline deadline(120s);
  Job job;
  {
    const NothingLeaks check;
    for (const bool local : {false, true}) {
      Member member(job, local);
      const wire::FabricOffer& shm = member.fabrics().front();
      BOOST_REQUIRE(shm.name == "shm");
      const auto fabric = transport::choose("shm").open();
      member.attach_well(5, 0, true);
      const wire::Message answer = member.bind({shm.name, shm.domain, fabric->address(), 5});
      if (local) {
        BOOST_TEST(std::holds_alternative<wire::Bound>(answer));
      } else {
        const std::string said = failure_in(answer).message;
        BOOST_TEST(said.find("descriptors are handed over local connections only") != std::string::npos, said);
      }
    }
  }
  job.check_restore();
}

// Sockets of a valid bind that are then left half-open, truncated or fed with garbage.
BOOST_AUTO_TEST_CASE(streams_that_end_halfway_harm_nobody) {
  const Deadline deadline(120s);
  Job job;
  {
    const NothingLeaks check;
    for (const int what : {0, 1, 2, 3}) {
      Member member(job, false);
      const wire::FabricOffer tcp = member.fabrics().back();
      BOOST_REQUIRE(tcp.name == "tcp");
      member.attach_well(5, 0, false);
      if (what == 0) member.sockets.back()->shut_down();
      const wire::Message answer = member.bind({tcp.name, tcp.domain, good_address("tcp"), 5});
      BOOST_TEST(std::holds_alternative<wire::Bound>(answer));
      if (what == 1) member.sockets.back()->shut_down();
      if (what == 2) member.sockets.back()->send(Bytes(3, std::byte{1}));  // part of a first message
      if (what == 3) member.sockets.back()->send(Bytes(4096, std::byte{0xff}));
      for (const bool each : {false, true}) {
        member.control().send_frame(wire::encode(
            wire::PackRequest{.request = 3, .lease = member.lease(), .parts = {{1, Box{{0}, {1000}}}}, .each = each}));
      }
      // Another Bind of the same sockets is answered, whatever their state.
      const wire::Message again = member.bind({tcp.name, tcp.domain, good_address("tcp"), 5});
      BOOST_TEST((std::holds_alternative<wire::Bound>(again) || std::holds_alternative<wire::Failure>(again)));
    }
  }
  job.check_restore();
}

BOOST_AUTO_TEST_CASE(a_member_that_binds_again_and_again_takes_no_more_than_one_that_binds_once) {
  const Deadline deadline(120s);
  Job job;
  {
    const NothingLeaks check;
    Member member(job, !job.listening.empty() && job.listening.back().local());
    const auto fabrics = member.fabrics();
    std::vector<std::unique_ptr<transport::Fabric>> mine;
    for (const wire::FabricOffer& fabric : fabrics) mine.push_back(transport::choose(fabric.name).open());
    std::size_t after_first = 0;
    for (std::uint64_t token = 1; token <= 40; ++token) {
      for (std::size_t i = 0; i < fabrics.size(); ++i) {
        member.attach_well(token, 0, lives_on_local_sockets(fabrics[i].name));
        const wire::Message answer = member.bind({fabrics[i].name, fabrics[i].domain, mine[i]->address(), token});
        BOOST_TEST(std::holds_alternative<wire::Bound>(answer));
      }
      member.sockets.clear();
      if (token == 1) after_first = open_descriptors();
    }
    const auto same = [&] { return open_descriptors() <= after_first; };
    BOOST_TEST(run_until([] { std::this_thread::sleep_for(10ms); }, same, 10s));
  }
  job.check_restore();
}

BOOST_AUTO_TEST_SUITE_END()

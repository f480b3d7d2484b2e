// SPDX-License-Identifier: Apache-2.0
// Strangers connect to every listening socket of a job: no member ends, and the job restores.
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <memory>
#include <optional>
#include <random>

#include "session/stranger.hpp"
#include "support/deadline.hpp"
#include "support/job.hpp"
#include "support/open_descriptors.hpp"
#include "support/sanitizer.hpp"
#include "support/seed.hpp"

BOOST_AUTO_TEST_SUITE(intrusion)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;

namespace {

/// A source with an arena and ordinary memory, and a reader.
struct Job {
  std::uint16_t port = free_port();
  Session source = Session::join(member(0, 2, port), quick());
  Session reader = Session::join(member(1, 2, port), quick());
  TestShard in_arena{{{"a", "exp_avg"}, DType::f32, {100'000}}, Layout::replicated(), Rank{0}};
  TestShard ordinary{{{"o", "exp_avg"}, DType::f32, {100'000}}, Layout::replicated(), Rank{0}};
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
  }
  void check_restore() {
    TestShard a{{{"a", "exp_avg"}, DType::f32, {100'000}}, Layout::replicated(), Rank{0}};
    TestShard o{{{"o", "exp_avg"}, DType::f32, {100'000}}, Layout::replicated(), Rank{0}};
    Catalog wanted(Rank{0}, 1);
    a.add_to(wanted);
    o.add_to(wanted);
    reader.restore(wanted, within(patience)).wait();
    BOOST_TEST(a.wrong(1) == 0U);
    BOOST_TEST(o.wrong(2) == 0U);
  }
};

Bytes random_bytes(std::size_t count) {
  static std::mt19937_64 random(test_seed());
  Bytes bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

Bytes framed(const Bytes& message) {
  Bytes frame;
  Stranger::append_frame(frame, message);
  return frame;
}

wire::Hello unproven_hello() {
  wire::Hello mine = hello();
  std::ranges::copy(random_bytes(mine.nonce.size()), mine.nonce.begin());
  return mine;
}

// Bytes that other libraries' fabrics would read as the beginning of a 4 GiB message, and other garbage.
std::vector<Bytes> intrusions() {
  Bytes thirteen(13, std::byte{0xff});
  const std::uint64_t magic = 0xCAFEBABE12345678ULL;
  std::memcpy(thirteen.data(), &magic, sizeof magic);
  std::vector<Bytes> all{thirteen, Bytes(13), random_bytes(13), random_bytes(100'000)};
  const Bytes greeting = framed(wire::encode(unproven_hello()));
  all.push_back(greeting);
  const auto after_hello = [&](const Bytes& frame) {
    Bytes bytes = greeting;
    bytes.insert(bytes.end(), frame.begin(), frame.end());
    all.push_back(bytes);
  };
  after_hello(framed(wire::encode(wire::Proof{})));
  after_hello(framed(wire::encode(wire::Attach{5, 0})));
  after_hello(framed(wire::encode(wire::Lease{1, "state", 1, {{0, {}}}})));
  after_hello(framed(wire::encode(wire::Descriptors{1, 3})));
  after_hello(random_bytes(1000));
  return all;
}

std::optional<Listening> local_listening() {
  for (const Listening& one : listening_sockets()) {
    if (one.local() && one.name().starts_with("shardwire-")) return one;
  }
  return std::nullopt;
}

/// A process that keeps as many connections to a local name open as it may, and replaces them without end.
class LocalFlood {
 public:
  explicit LocalFlood(const Listening& listening) {
    process_ = ::fork();
    BOOST_REQUIRE(process_ >= 0);
    if (process_ == 0) run(listening);
  }
  ~LocalFlood() {
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
  }
  LocalFlood(const LocalFlood&) = delete;
  LocalFlood& operator=(const LocalFlood&) = delete;

 private:
  // The other threads of the test do not exist here, so it calls only what is safe after fork().
  [[noreturn]] static void run(const Listening& listening) {
    ::alarm(300);
    ::close_range(3, ~0U, 0);
    std::array<int, 512> open{};
    open.fill(-1);
    for (std::size_t i = 0;; i = (i + 1) % open.size()) {
      if (open[i] >= 0) ::close(open[i]);
      open[i] = ::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
      static_cast<void>(::connect(open[i], listening.raw(), listening.length));
    }
  }
  pid_t process_ = -1;
};

boost::test_tools::assertion_result with_local_sockets(boost::unit_test::test_unit_id /*case*/) {
  boost::test_tools::assertion_result result(transport_under_test().find("shm") != std::string::npos);
  if (!result) result.message() << "sessions without shm listen for no local connections";
  return result;
}

}  // namespace

BOOST_AUTO_TEST_CASE(every_listening_socket_is_known) {
  const Job job;
  std::size_t network = 0;
  std::size_t local = 0;
  for (const Listening& one : listening_sockets()) {
    if (one.local()) BOOST_TEST(one.name().starts_with("shardwire-"), one.name());
    ++(one.local() ? local : network);
  }
  BOOST_TEST(network == 2U);
  BOOST_TEST(local == (transport_under_test().find("shm") != std::string::npos ? 2U : 0U));
}

BOOST_DATA_TEST_CASE(a_job_restores_whatever_a_stranger_sends_to_any_listening_socket,
                     boost::unit_test::data::make({true, false}), stays) {
  const Deadline deadline(120s);
  Job job;
  job.check_restore();  // opens all that the job itself needs
  const std::size_t before = open_descriptors();
  {
    std::vector<std::unique_ptr<Stranger>> strangers;
    for (const Listening& listening : listening_sockets()) {
      for (const Bytes& said : intrusions()) {
        strangers.push_back(std::make_unique<Stranger>(listening));
        strangers.back()->send(said);
        if (!stays) strangers.pop_back();
      }
    }
    job.check_restore();
  }
  const auto same = [&] { return open_descriptors() <= before; };
  BOOST_TEST(run_until([] { std::this_thread::sleep_for(10ms); }, same, 15s));
  job.check_restore();
}

// Another process opens connections to one local name as fast as it can, and never proves anything.
BOOST_AUTO_TEST_CASE(a_flood_of_strangers_at_a_local_name_ends_no_restore,
                     *boost::unit_test::label("shm") * boost::unit_test::precondition(with_local_sockets)) {
  const Deadline deadline(240s);
  constexpr int readers = with_sanitizer ? 6 : 24;
  const auto port = free_port();
  Session source = Session::join(member(0, readers + 1, port), quick());
  const auto listening = local_listening();
  BOOST_REQUIRE(listening);
  TestShard held({{"a", "exp_avg"}, DType::f32, {1000}}, Layout::replicated(), Rank{0});
  held.fill(1);
  Catalog catalog(Rank{0}, 1);
  held.add_to(catalog);
  const Publication publication = source.publish(catalog);
  const LocalFlood flood(*listening);
  int lost = 0;
  for (int rank = 1; rank <= readers; ++rank) {
    Session reader = Session::join(member(rank, readers + 1, port), quick());
    TestShard wanted({{"a", "exp_avg"}, DType::f32, {1000}}, Layout::replicated(), Rank{0});
    Catalog target(Rank{0}, 1);
    wanted.add_to(target);
    try {
      reader.restore(target, within(patience)).wait();
      BOOST_TEST(wanted.wrong(1) == 0U);
    } catch (const Error& error) {
      BOOST_TEST_MESSAGE(error.what());
      ++lost;
    }
  }
  BOOST_TEST(lost == 0);
}

BOOST_AUTO_TEST_CASE(a_stranger_in_the_middle_of_the_handshake_is_cut_off_with_a_reason) {
  const Deadline deadline(120s);
  Job job;
  for (const Listening& listening : listening_sockets()) {
    for (const wire::Message& message : {wire::Message(wire::Proof{}), wire::Message(wire::Attach{5, 0}),
                                         wire::Message(wire::Lease{1, "state", 1, {}})}) {
      Stranger stranger(listening);
      stranger.send_frame(wire::encode(unproven_hello()));
      BOOST_TEST(std::holds_alternative<wire::Hello>(stranger.next()));
      stranger.send_frame(wire::encode(message));
      const wire::Message answer = stranger.next();
      BOOST_REQUIRE(std::holds_alternative<wire::Failure>(answer));
      BOOST_TEST((std::get<wire::Failure>(answer).code == ErrorCode::invalid_argument));
      stranger.until_closed();
    }
  }
  job.check_restore();
}

BOOST_AUTO_TEST_CASE(descriptors_that_nobody_wants_are_closed_with_their_connection,
                     *boost::unit_test::label("shm") * boost::unit_test::precondition(with_local_sockets)) {
  const Deadline deadline(120s);
  Job job;
  job.check_restore();  // opens all that the job itself needs
  const auto listening = local_listening();
  BOOST_REQUIRE(listening.has_value());
  const std::array<support::Descriptor, 3> given{support::Descriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC)),
                                                 support::Descriptor(::open("/", O_PATH | O_CLOEXEC)),
                                                 support::Descriptor(::open("/dev/zero", O_RDWR | O_CLOEXEC))};
  const std::array<int, 3> numbers{given[0].get(), given[1].get(), given[2].get()};
  const std::size_t before = open_descriptors();
  const Bytes announced = framed(wire::encode(wire::Descriptors{1, 3}));
  for (int round = 0; round < 10; ++round) {
    Stranger unproven(*listening);
    unproven.send(framed(wire::encode(unproven_hello())), numbers);
    unproven.until_closed();
    Stranger at_once(*listening);
    at_once.send(random_bytes(13), numbers);
    at_once.until_closed();
    Stranger proven(*listening);
    introduce(proven);
    proven.send(announced, numbers);  // sources send handles, readers have none
    proven.until_closed();
  }
  const auto same = [&] { return open_descriptors() <= before; };
  BOOST_TEST(run_until([] { std::this_thread::sleep_for(10ms); }, same, 10s));
  BOOST_TEST(open_descriptors() == before);
  job.check_restore();
}

BOOST_AUTO_TEST_SUITE_END()

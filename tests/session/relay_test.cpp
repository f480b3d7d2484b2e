// SPDX-License-Identifier: Apache-2.0
// Somebody stands between a member and member 0, without the job key: reads along, and alters what passes, of control
// connections and of those that carry the payload.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "handles/session_state.hpp"
#include "runtime/uv_loop.hpp"
#include "session/surroundings.hpp"
#include "shardwire/shardwire.hpp"
#include "support/deadline.hpp"
#include "support/descriptors.hpp"
#include "support/encryption_built.hpp"
#include "support/job.hpp"

BOOST_AUTO_TEST_SUITE(relay)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;
using support::Descriptor;
using transport::ByteView;

namespace {

constexpr std::string_view secret = "a value that only members may read";

Bytes bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

/// Passes connections on to the port, in both directions.
class Relay {
 public:
  explicit Relay(std::uint16_t to) : to_(to), listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = loopback(0);
    socklen_t length = sizeof address;
    if (::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), length) != 0 ||
        ::listen(listener_.get(), 8) != 0 ||
        ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) {
      throw std::runtime_error("the relay cannot listen");
    }
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { run(); });
  }
  ~Relay() {
    ended_ = true;
    thread_.join();
  }
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  [[nodiscard]] std::uint16_t port() const { return port_; }
  /// Makes the offer of encryption, in the hello that goes in this direction, another one.
  void strip_offer(bool to_member_0) { (to_member_0 ? strip_to_ : strip_from_) = true; }
  /// Alters a bit of the next bytes in this direction: to member 0, or from it.
  void alter(bool to_member_0) { (to_member_0 ? alter_to_ : alter_from_) = true; }
  /// Alters the lowest bit of this byte, counted from 0, on the first so many connections that carry as many from member 0.
  void alter_byte(std::size_t number, int connections) {
    alter_at_ = number;
    to_alter_ = connections;
  }
  [[nodiscard]] bool stripped() const { return stripped_; }
  /// Connections that alter_byte() has still to find.
  [[nodiscard]] int to_alter() const { return to_alter_; }
  /// Whether these bytes have passed, in one direction of one connection.
  [[nodiscard]] bool saw(ByteView bytes) const {
    const std::lock_guard lock(mutex_);
    return std::ranges::any_of(connections_, [&](const Passed& one) {
      return std::ranges::any_of(one.seen, [&](const Bytes& seen) {
        return std::search(seen.begin(), seen.end(), bytes.begin(), bytes.end()) != seen.end();
      });
    });
  }
  [[nodiscard]] bool saw(std::string_view text) const { return saw(ByteView(std::as_bytes(std::span(text)))); }
  /// Most bytes that one connection has carried from member 0.
  [[nodiscard]] std::size_t most_from_member_0() const {
    const std::lock_guard lock(mutex_);
    std::size_t most = 0;
    for (const Passed& one : connections_) most = std::max(most, one.seen[1].size());
    return most;
  }

 private:
  /// A connection: ends and bytes by direction, first to member 0.
  struct Passed {
    std::array<Descriptor, 2> from;
    std::array<Bytes, 2> seen;
  };

  void run() {
    while (!ended_) {
      std::vector<pollfd> wait{{listener_.get(), POLLIN, 0}};
      for (const Passed& one : connections_) {
        for (const Descriptor& from : one.from) wait.push_back({from.get(), POLLIN, 0});  // closed ones are passed over
      }
      if (::poll(wait.data(), wait.size(), 20) <= 0) continue;
      for (std::size_t i = 1; i < wait.size(); ++i) {
        Passed& one = connections_[(i - 1) / 2];
        if (wait[i].revents == 0 || !one.from[0] || pass(one, (i - 1) % 2)) continue;
        for (Descriptor& from : one.from) from.reset();
      }
      if (wait[0].revents != 0 && !accept()) return;
    }
  }

  bool accept() {
    Passed one;
    one.from[0].reset(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    one.from[1].reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const sockaddr_in address = loopback(to_);
    if (::connect(one.from[1].get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return false;
    const std::lock_guard lock(mutex_);
    connections_.push_back(std::move(one));
    return true;
  }

  bool pass(Passed& one, std::size_t direction) {
    const bool to_member_0 = direction == 0;
    std::array<std::byte, 4096> bytes{};
    const ssize_t got = ::recv(one.from[direction].get(), bytes.data(), bytes.size(), 0);
    if (got <= 0) return false;
    const auto size = static_cast<std::size_t>(got);
    Bytes& seen = one.seen[direction];
    {
      const std::lock_guard lock(mutex_);
      seen.insert(seen.end(), bytes.begin(), bytes.begin() + got);
    }
    const Bytes offer = bytes_of("tls-1.3");
    const auto at = std::search(bytes.begin(), bytes.begin() + got, offer.begin(), offer.end());
    if ((to_member_0 ? strip_to_ : strip_from_) && at != bytes.begin() + got) {
      *at = std::byte{'T'};
      stripped_ = true;
    }
    if ((to_member_0 ? alter_to_ : alter_from_).exchange(false)) bytes[size / 2] ^= std::byte{4};
    const std::size_t before = seen.size() - size;
    if (!to_member_0 && to_alter_ > 0 && alter_at_ >= before && alter_at_ < seen.size()) {
      bytes[alter_at_ - before] ^= std::byte{1};
      --to_alter_;
    }
    return ::send(one.from[1 - direction].get(), bytes.data(), size, MSG_NOSIGNAL) == got;
  }

  const std::uint16_t to_;
  Descriptor listener_;
  std::uint16_t port_ = 0;
  std::atomic<bool> ended_ = false;
  std::atomic<bool> alter_to_ = false;
  std::atomic<bool> alter_from_ = false;
  std::atomic<bool> strip_to_ = false;
  std::atomic<bool> strip_from_ = false;
  std::atomic<bool> stripped_ = false;
  std::atomic<std::size_t> alter_at_ = 0;
  std::atomic<int> to_alter_ = 0;
  mutable std::mutex mutex_;
  std::vector<Passed> connections_;  // changed by the thread only, and then under mutex_
  std::thread thread_;
};

/// A loop whose connections to one port go to another, as behind a translator of addresses.
class Redirected final : public Loop {
 public:
  Redirected(std::uint16_t from, std::uint16_t to) : from_(from), to_(to) {}

  std::shared_ptr<Stream> connect(const SocketAddress& to, Stream::Events events) override {
    return loop_.connect({to.host, to.port == from_ ? to_ : to.port}, std::move(events));
  }

  void end(std::function<void()> last) override { loop_.end(std::move(last)); }
  void post(std::function<void()> task) override { loop_.post(std::move(task)); }
  [[nodiscard]] bool is_current() const override { return loop_.is_current(); }
  [[nodiscard]] Time now() const override { return loop_.now(); }
  std::unique_ptr<Alarm> make_alarm() override { return loop_.make_alarm(); }
  void fill_random(std::span<std::byte> into) override { loop_.fill_random(into); }
  std::shared_ptr<Stream> connect_local(const std::string& name, Stream::Events events) override {
    return loop_.connect_local(name, std::move(events));
  }
  std::unique_ptr<Listener> listen(const SocketAddress& at, Incoming incoming) override {
    return loop_.listen(at, std::move(incoming));
  }
  std::unique_ptr<Listener> listen_local(const std::string& name, Incoming incoming) override {
    return loop_.listen_local(name, std::move(incoming));
  }
  [[nodiscard]] std::string interface_of(const std::string& address) const override {
    return loop_.interface_of(address);
  }
  [[nodiscard]] unsigned copy_threads(unsigned wanted) const override { return loop_.copy_threads(wanted); }
  std::unique_ptr<Polling> poll(std::function<void()> task) override { return loop_.poll(std::move(task)); }

 private:
  const std::uint16_t from_;
  const std::uint16_t to_;
  UvLoop loop_;
};

/// Members 0 and 1, which talk through the relay.
struct Job {
  explicit Job(const Bytes& key) : Job(key, nullptr) {}
  Job(const Bytes& key, const std::function<void(Relay&)>& before) {
    Bootstrap bootstrap = member(0, 2, free_port());
    bootstrap.job_key = key;
    zero.emplace(Session::join(bootstrap, options()));
    relay.emplace(bootstrap.port);
    if (before) before(*relay);
    bootstrap.rank = 1;
    bootstrap.port = relay->port();
    const auto began = std::chrono::steady_clock::now();
    try {
      one.emplace(Session::join(bootstrap, options(before ? 3s : patience)));
    } catch (const Error& error) {
      refused = error;
    }
    join_took = std::chrono::steady_clock::now() - began;
  }
  static SessionOptions options(Duration join_timeout = patience) {
    SessionOptions options = quick();
    options.transport = "tcp";
    options.join_timeout = join_timeout;
    return options;
  }
  /// Both gather `secret`. Returns what member 1 gets.
  std::vector<Bytes> gather(Duration timeout) {
    std::vector<Bytes> result;
    on_members(2, [&](int rank) {
      const std::vector<Bytes> all = (rank == 0 ? *zero : *one).gather("round", bytes_of(secret), timeout);
      if (rank == 1) result = all;
    });
    return result;
  }

  std::optional<Error> refused;
  Duration join_took{};
  std::optional<Session> zero;
  std::optional<Relay> relay;
  std::optional<Session> one;
};

// Within the first request, far from its ends: a connection that is altered there has delivered nothing.
constexpr std::size_t in_the_payload = 100'000;

/// Member 1 reads a tensor of member 0 over tcp. All its connections to member 0 pass the relay, those of the payload too.
struct Payload {
  explicit Payload(bool encrypted, int altered_connections = 0) {
    Bootstrap bootstrap = member(0, 2, free_port());
    bootstrap.job_key = Bytes(32, std::byte{7});
    SessionOptions options = Job::options();
    options.encrypt_payload = encrypted;
    options.log = [this](LogLevel, std::string_view text) {
      const std::lock_guard lock(mutex);
      logged.append(text).append("\n");
    };
    zero.emplace(Session::join(bootstrap, options));
    relay.emplace(bootstrap.port);
    relay->alter_byte(in_the_payload, altered_connections);
    const auto around = [&, port = bootstrap.port] {
      detail::Surroundings made = detail::surroundings_of_process();
      made.loop = std::make_shared<Redirected>(port, relay->port());
      return made;
    };
    bootstrap.rank = 1;
    one.emplace(detail::SessionState::join_in(around, bootstrap, options));
    held.fill(5);
    Catalog catalog(Rank{0}, 1);
    held.add_to(catalog);
    publication = zero->publish(catalog);
    untouched.assign(wanted.data(), wanted.data() + wanted.size_bytes());
  }

  void restore(Verify verify = Verify::generation) {
    Catalog catalog(Rank{0}, 1);
    wanted.add_to(catalog);
    RestoreOptions options = within(60s);
    options.verify = verify;
    one->restore(catalog, options).wait();
  }
  /// 4 KiB of the payload from this byte on.
  ByteView part(std::size_t at) { return {held.data() + at, 4096}; }
  /// Bytes of the destination that are neither the source's nor as before the restore.
  std::size_t wrong_bytes() {
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < untouched.size(); ++i) {
      if (wanted.data()[i] != held.data()[i] && wanted.data()[i] != untouched[i]) ++wrong;
    }
    return wrong;
  }

  std::mutex mutex;
  std::string logged;  // guarded by mutex
  std::optional<Session> zero;
  std::optional<Relay> relay;
  std::optional<Session> one;
  TestShard held{TensorSpec{{"w", "m"}, DType::f32, {1 << 19}}, Layout::replicated(), Rank{0}};
  TestShard wanted{TensorSpec{{"w", "m"}, DType::f32, {1 << 19}}, Layout::replicated(), Rank{0}};
  Bytes untouched;
  Publication publication;
};

}  // namespace

BOOST_AUTO_TEST_CASE(without_a_key_who_stands_between_reads_along) {
  const Deadline deadline(120s);
  Job job({});
  for (const Bytes& value : job.gather(patience)) BOOST_TEST((value == bytes_of(secret)));
  BOOST_TEST(job.relay->saw(secret));
}

BOOST_AUTO_TEST_CASE(with_a_key_who_stands_between_learns_nothing,
                     *boost::unit_test::precondition(test::encryption_is_built)) {
  const Deadline deadline(120s);
  Job job(Bytes(32, std::byte{7}));
  for (const Bytes& value : job.gather(patience)) BOOST_TEST((value == bytes_of(secret)));
  BOOST_TEST(job.relay->most_from_member_0() > 200U);
  BOOST_TEST(!job.relay->saw(secret));
  BOOST_TEST(!job.relay->saw("round"));
}

BOOST_TEST_DECORATOR(*boost::unit_test::precondition(test::encryption_is_built))
BOOST_DATA_TEST_CASE(who_stands_between_cannot_talk_them_out_of_it, boost::unit_test::data::make({true, false}),
                     to_member_0) {
  const Deadline deadline(120s);
  Job job(Bytes(32, std::byte{7}), [&](Relay& relay) { relay.strip_offer(to_member_0); });
  BOOST_TEST(job.relay->stripped());
  BOOST_REQUIRE(job.refused.has_value());
  BOOST_TEST((job.join_took < 30s));
}

// A connection that was altered counts as lost.
BOOST_TEST_DECORATOR(*boost::unit_test::precondition(test::encryption_is_built))
BOOST_DATA_TEST_CASE(with_a_key_who_stands_between_alters_nothing_unnoticed,
                     boost::unit_test::data::make({true, false}), to_member_0) {
  const Deadline deadline(120s);
  Job job(Bytes(32, std::byte{7}));
  job.relay->alter(to_member_0);
  const auto began = std::chrono::steady_clock::now();
  BOOST_CHECK_THROW(job.gather(60s), std::exception);
  BOOST_TEST((std::chrono::steady_clock::now() - began < 30s));
}

BOOST_TEST_DECORATOR(*boost::unit_test::precondition(test::encryption_is_built))
BOOST_DATA_TEST_CASE(who_stands_between_sees_the_payload_only_if_it_is_not_encrypted,
                     boost::unit_test::data::make({false, true}), encrypted) {
  const Deadline deadline(120s);
  Payload job(encrypted);
  job.restore();
  BOOST_TEST(job.wanted.wrong(5) == 0U);
  BOOST_TEST(job.relay->most_from_member_0() > job.held.size_bytes());
  for (const std::size_t at : {0U, 10'000U, 1'000'000U, 2'000'000U}) {
    BOOST_TEST(job.relay->saw(job.part(at)) == !encrypted);
    BOOST_TEST(job.relay->saw(job.part(at).first(16)) == !encrypted);
  }
}

// The connection ends, and another one delivers what it has not.
BOOST_AUTO_TEST_CASE(an_altered_bit_of_an_encrypted_payload_ends_its_connection,
                     *boost::unit_test::precondition(test::encryption_is_built)) {
  const Deadline deadline(120s);
  Payload job(true, 1);
  job.restore();
  BOOST_TEST(job.relay->to_alter() == 0);
  BOOST_TEST(job.wanted.wrong(5) == 0U);
  const std::lock_guard lock(job.mutex);
  BOOST_TEST(job.logged.find("not what the peer has sent") != std::string::npos, job.logged);
}

BOOST_AUTO_TEST_CASE(who_alters_every_connection_of_an_encrypted_payload_ends_the_restore_and_nothing_else,
                     *boost::unit_test::precondition(test::encryption_is_built)) {
  const Deadline deadline(120s);
  constexpr int all = 1000;
  Payload job(true, all);
  const Error error = failure_of([&] { job.restore(); });
  BOOST_TEST(job.relay->to_alter() < all);
  BOOST_TEST((error.code() == ErrorCode::transport_failed), error.what());
  BOOST_TEST(says(error, "not what the peer has sent"), error.what());
  BOOST_TEST(job.wrong_bytes() == 0U);
}

// An open payload arrives altered, and only a digest shows it.
BOOST_AUTO_TEST_CASE(who_alters_an_open_payload_is_noticed_by_digests_only,
                     *boost::unit_test::precondition(test::encryption_is_built)) {
  const Deadline deadline(120s);
  {
    Payload job(false, 1);
    job.restore();
    BOOST_TEST(job.relay->to_alter() == 0);
    BOOST_TEST(job.wanted.wrong(5) == 1U);
  }
  Payload job(false, 1);
  const Error error = failure_of([&] { job.restore(Verify::digest); });
  BOOST_TEST(job.relay->to_alter() == 0);
  BOOST_TEST((error.code() == ErrorCode::transport_failed), error.what());
  BOOST_TEST(says(error, "differ from their source"), error.what());
}

BOOST_AUTO_TEST_SUITE_END()

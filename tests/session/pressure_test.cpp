// SPDX-License-Identifier: Apache-2.0
// Costs that a member can impose on another by connections, requests and unread replies.
#include <sys/resource.h>
#include <unistd.h>
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <utility>

#include "control/connection.hpp"
#include "runtime/uv_loop.hpp"
#include "session/stranger.hpp"
#include "support/deadline.hpp"
#include "support/descriptor_limit.hpp"
#include "support/job.hpp"
#include "support/resident_bytes.hpp"
#include "support/sanitizer.hpp"
#include "transport/transport.hpp"

BOOST_AUTO_TEST_SUITE(pressure)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t mib = 1u << 20;
constexpr int members = 3;  // a source, one that overloads it, and one that needs it as well

SessionOptions loopback() {
  SessionOptions options;
  options.transport = "loopback";
  options.join_timeout = 20s;
  return options;
}

wire::Hello hello_of(int rank) {
  wire::Hello mine = hello();
  mine.rank = rank;
  mine.world_size = members;
  mine.incarnation = static_cast<std::uint64_t>(rank);
  return mine;
}

// A member that passes the key handshake and then breaks the protocol's rules.
struct Reader : Stranger {
  Reader(std::uint16_t port, int rank) : Stranger(port) { introduce(*this, hello_of(rank)); }

  void ask(const wire::Message& message) { send_frame(wire::encode(message)); }
  /// The next message other than a ping; it answers pings.
  wire::Message next() {
    while (true) {
      wire::Message message = Stranger::next();
      const auto* ping = std::get_if<wire::Ping>(&message);
      if (ping == nullptr) return message;
      ask(wire::Pong{ping->number});
    }
  }
  template <typename Reply>
  Reply answer() {
    const wire::Message message = next();
    const auto* failure = std::get_if<wire::Failure>(&message);
    BOOST_REQUIRE_MESSAGE(std::holds_alternative<Reply>(message), (failure ? failure->message : "another answer"));
    return std::get<Reply>(message);
  }
};

// A source with one tensor, and a member that restores it.
struct Source {
  explicit Source(Layout layout = Layout::replicated(), Extent elements = 1 << 16)
      : spec{{"w", "exp_avg"}, DType::f32, {elements}}, held(spec, layout, Rank{0}), wanted(spec, layout, Rank{0}) {
    held.fill(1);
  }
  void publish(const Bytes& value = {}) {
    Catalog catalog(Rank{0}, 1);
    held.add_to(catalog);
    if (!value.empty()) catalog.add_value({"blob", "bytes"}, value);
    publication = host.publish(catalog);
  }
  void check_others_are_served() {
    Session other = Session::join(member(1, members, port), loopback());
    Catalog catalog(Rank{0}, 1);
    wanted.add_to(catalog);
    RestoreOptions options = within(patience);
    options.method = RestoreMethod::packed;
    other.restore(catalog, options).wait();
    BOOST_TEST(wanted.wrong(1) == 0U);
  }

  std::uint16_t port = free_port();
  TensorSpec spec;
  TestShard held;
  TestShard wanted;
  Session host = Session::join(member(0, members, port), loopback());
  Publication publication;
};

Identity identity_with(const Backlog& backlog, const Liveness& liveness = {}) {
  Identity identity;
  identity.hello.world_size = members;
  identity.backlog = backlog;
  identity.liveness = liveness;
  return identity;
}

// The accepting side alone: answers each Confirm with some bytes. All members except the loop belong to its thread.
struct Server {
  explicit Server(const Identity& with, std::size_t answer_bytes) : identity(with), digests(answer_bytes / 16) {
    port = loop.call([&] {
      listener = loop.listen({"127.0.0.1", 0}, [this](const AcceptedStream& open) {
        Connection::Events events;
        events.message = [this](Connection& peer, wire::Message& message) { serve(peer, message); };
        events.closed = [this](Connection&, const Error& reason, bool orderly) {
          if (!std::exchange(has_ended, true)) ended.set_value({reason, orderly});
        };
        connection = Connection::accept(loop, open, identity, std::move(events));
      });
      return listener->address().port;
    });
  }
  ~Server() {
    loop.call([&] {
      if (connection) connection->drop();
      connection.reset();
      listener.reset();
    });
  }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  void serve(Connection& peer, const wire::Message& message) {
    if (const auto* asked = std::get_if<wire::Confirm>(&message)) {
      peer.send(wire::Digests{asked->request, std::vector<Digest128>(digests)});
    }
    peak_bytes = std::max(peak_bytes, peer.unread_bytes());
  }
  std::size_t unread_bytes() {
    return loop.call([&] { return connection->unread_bytes(); });
  }
  bool await_unread(std::size_t bytes) {
    return run_until([] { std::this_thread::sleep_for(1ms); }, [&] { return unread_bytes() > bytes; }, patience);
  }

  struct End {
    Error reason;
    bool orderly;
  };
  Identity identity;
  std::size_t digests;
  std::uint16_t port = 0;
  std::shared_ptr<Connection> connection;
  std::unique_ptr<Listener> listener;
  std::size_t peak_bytes = 0;
  bool has_ended = false;
  std::promise<End> ended;  // set when the first connection ends
  UvLoop loop;
};

// A server that sends requests to another server.
struct Flooder : Server {
  using Server::Server;
  ~Flooder() {
    loop.call([&] {
      if (asking) asking->drop();
      asking.reset();
    });
  }
  void flood(std::uint16_t other, std::size_t requests) {
    loop.call([&] {
      Connection::Events events;
      events.ready = [requests](Connection& peer) {
        for (std::size_t i = 1; i <= requests; ++i) peer.send(wire::Confirm{i, "state", 1});
      };
      events.message = [this, requests](Connection&, wire::Message& message) {
        const auto& reply = std::get<wire::Digests>(message);
        if (reply.request != ++answered) in_order = false;
        if (answered == requests) done.set_value();
      };
      asking = Connection::connect(loop, {"127.0.0.1", other}, identity, std::move(events));
    });
  }

  std::shared_ptr<Connection> asking;
  std::size_t answered = 0;
  bool in_order = true;
  std::promise<void> done;
};

// Holds every file descriptor that is or becomes free during its lifetime.
class Shortage {
 public:
  Shortage() {
    getrlimit(RLIMIT_NOFILE, &before_);
    rlimit few = before_;
    few.rlim_cur = 512;
    setrlimit(RLIMIT_NOFILE, &few);
    thread_ = std::jthread([this](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        const int one = ::dup(STDERR_FILENO);
        if (one >= 0) taken_.push_back(one);
        if (one < 0) complete_ = true;
      }
    });
    while (!complete_) std::this_thread::yield();
  }
  ~Shortage() {
    thread_.request_stop();
    thread_.join();
    for (const int one : taken_) ::close(one);
    setrlimit(RLIMIT_NOFILE, &before_);
  }
  Shortage(const Shortage&) = delete;
  Shortage& operator=(const Shortage&) = delete;

 private:
  rlimit before_{};
  std::vector<int> taken_;
  std::atomic<bool> complete_ = false;
  std::jthread thread_;
};

constexpr Backlog small{64u << 10, 16u << 10, 256u << 10};

}  // namespace

BOOST_AUTO_TEST_CASE(a_member_that_asks_and_never_reads_costs_little_and_others_are_served) {
  const int requests = on_slow_machine() || with_sanitizer ? 25 : 100;
  const Bytes value(4 * mib, std::byte{7});
  Source source;
  source.publish(value);
  source.check_others_are_served();
  Reader reader(source.port, 2);
  const wire::Digest digest = wire::digest_of(wire::encode_values({{{"blob", "bytes"}, value}}));
  const std::size_t before = resident_bytes();
  for (int i = 0; i < requests; ++i) reader.ask(wire::ValuesRequest{digest});
  source.check_others_are_served();
  BOOST_TEST(resident_bytes() < before + 64 * mib);
  for (int i = 0; i < requests; ++i) {  // when it finally reads, no reply is missing
    BOOST_REQUIRE(reader.answer<wire::ValuesReply>().encoded.size() >= value.size());
  }
}

BOOST_AUTO_TEST_CASE(requests_wait_until_their_sender_has_read) {
  constexpr std::size_t answer_bytes = 32u << 10;
  constexpr std::uint64_t requests = 2000;  // exceeds the kernel's buffers
  Server server(identity_with(small), answer_bytes);
  Reader reader(server.port, 1);
  for (std::uint64_t i = 1; i <= requests; ++i) reader.ask(wire::Confirm{i, "state", 1});
  BOOST_TEST(server.await_unread(small.pause));
  for (std::uint64_t i = 1; i <= requests; ++i) BOOST_REQUIRE(reader.answer<wire::Digests>().request == i);
  BOOST_TEST(server.loop.call([&] { return server.peak_bytes; }) <= small.pause + answer_bytes + 1024);
}

BOOST_AUTO_TEST_CASE(two_members_that_flood_each_other_finish) {
  constexpr std::size_t answer_bytes = 4u << 10;
  constexpr std::size_t requests = with_sanitizer ? 5000 : 20000;  // exceeds the kernel's buffers
  Flooder one(identity_with(small), answer_bytes);
  Flooder other(identity_with(small), answer_bytes);
  one.flood(other.port, requests);
  other.flood(one.port, requests);
  for (Flooder* flooder : {&one, &other}) {
    BOOST_REQUIRE(flooder->done.get_future().wait_for(60s) == std::future_status::ready);
    BOOST_TEST(flooder->loop.call([&] { return flooder->in_order; }));
    BOOST_TEST(flooder->loop.call([&] { return flooder->peak_bytes; }) <= small.pause + answer_bytes + 1024);
  }
}

BOOST_DATA_TEST_CASE(the_end_of_a_peer_that_is_not_read_is_noticed, boost::unit_test::data::make({true, false}),
                     goodbye) {
  constexpr std::size_t answer_bytes = 60u << 10;  // after one answer, the remaining budget is too small to continue
  Server server(identity_with(small), answer_bytes);
  {
    Reader reader(server.port, 1);
    Bytes all;  // in one call: closing a socket discards unsent bytes
    for (std::uint64_t i = 1; i <= 400; ++i) Stranger::append_frame(all, wire::encode(wire::Confirm{i, "state", 1}));
    if (goodbye) Stranger::append_frame(all, wire::encode(wire::Goodbye{}));
    reader.send(all);
    BOOST_REQUIRE(server.await_unread(small.pause));
  }
  auto ended = server.ended.get_future();
  BOOST_REQUIRE(ended.wait_for(30s) == std::future_status::ready);
  BOOST_TEST(ended.get().orderly == goodbye);
}

// Its answer to a ping is queued behind requests that are not read or not served yet, and the ping behind unread replies.
BOOST_AUTO_TEST_CASE(a_peer_that_reads_slowly_is_alive) {
  constexpr std::size_t answer_bytes = 1u << 20;
  constexpr std::uint64_t requests = 100;
  constexpr std::chrono::milliseconds limit = with_thread_sanitizer || with_address_sanitizer ? 15s : 5s;
  // Not pinged before it is asked about: until there is a backlog, which may take a busy machine that long, nobody reads.
  Server server(identity_with(small, {patience, limit}), answer_bytes);
  Stranger reader;
  reader.receive_at_most(64 << 10);  // else the server sees no progress while the kernel's megabytes are read
  reader.connect(server.port);
  introduce(reader, hello_of(1));
  for (std::uint64_t i = 1; i <= requests; ++i) reader.send_frame(wire::encode(wire::Confirm{i, "state", 1}));
  BOOST_REQUIRE(server.await_unread(small.pause));
  std::promise<bool> verdict;
  server.loop.call([&] { server.connection->check_alive([&](bool alive) { verdict.set_value(alive); }); });
  std::uint64_t answers = 0;
  while (answers < requests) {
    const wire::Message message = reader.next();
    if (std::holds_alternative<wire::Digests>(message)) ++answers;
    if (const auto* ping = std::get_if<wire::Ping>(&message)) reader.send_frame(wire::encode(wire::Pong{ping->number}));
    std::this_thread::sleep_for((limit + 1s) / requests);  // the total exceeds the limit
  }
  auto alive = verdict.get_future();
  BOOST_REQUIRE(alive.wait_for(30s) == std::future_status::ready);
  BOOST_TEST(alive.get());
}

BOOST_AUTO_TEST_CASE(notices_for_a_peer_that_never_reads_are_bounded_and_its_connection_ends_by_name) {
  constexpr std::size_t notice_bytes = 32u << 10;
  Server server(identity_with(small), 16);
  const Reader reader(server.port, 2);
  auto ended = server.ended.get_future();
  std::size_t peak = 0;
  for (int i = 0; i < 10000 && ended.wait_for(0s) != std::future_status::ready; ++i) {
    server.loop.call([&] {
      server.connection->notify(Bytes(notice_bytes));
      peak = std::max(peak, server.connection->unread_bytes());
    });
  }
  BOOST_REQUIRE(ended.wait_for(30s) == std::future_status::ready);
  const Error reason = ended.get().reason;
  BOOST_TEST((reason.code() == ErrorCode::out_of_resources));
  BOOST_TEST(says(reason, "member 2 at 127.0.0.1"));
  BOOST_TEST(peak <= small.notices + 2 * notice_bytes);
}

// Comparing box by box would take a minute, during which no other member is served.
BOOST_AUTO_TEST_CASE(many_parts_of_many_boxes_keep_nobody_waiting) {
  // A sanitizer makes each comparison ten to twenty times as slow.
  constexpr Extent count = with_thread_sanitizer || with_address_sanitizer ? 10'000 : 100'000;
  std::vector<Box> boxes;
  std::vector<wire::RequestedBox> parts;
  for (Extent i = 0; i < count; ++i) {
    boxes.push_back(Box{{2 * i}, {1}});
    parts.push_back({0, boxes.back()});
  }
  Source source(Layout::boxes({{Rank{0}, boxes}}), 2 * count);
  source.publish();
  Reader reader(source.port, 2);
  reader.ask(wire::Lease{1, "state", 1, {{0, boxes}}});
  reader.ask(wire::DigestRequest{2, reader.answer<wire::Leased>().lease, parts});
  // It reads on meanwhile: on a busy machine the others take longer than a peer may be silent.
  auto answer = std::async(std::launch::async, [&] { return reader.answer<wire::Digests>(); });
  source.check_others_are_served();
  BOOST_TEST(answer.get().digests.size() == parts.size());
}

BOOST_AUTO_TEST_CASE(leases_of_one_reader_are_limited_and_those_of_others_are_not) {
  constexpr std::uint64_t limit = 4096;
  Source source;
  source.publish();
  Reader reader(source.port, 2);
  for (std::uint64_t i = 1; i <= limit; ++i) reader.ask(wire::Lease{i, "state", 1, {{0, {}}}});
  std::uint64_t lease = 0;
  for (std::uint64_t i = 1; i <= limit; ++i) lease = reader.answer<wire::Leased>().lease;
  reader.ask(wire::Lease{limit + 1, "state", 1, {{0, {}}}});
  const auto refusal = reader.answer<wire::Failure>();
  BOOST_TEST((refusal.code == ErrorCode::out_of_resources));
  BOOST_TEST(refusal.message.find("4096") != std::string::npos, refusal.message);
  source.check_others_are_served();
  reader.ask(wire::Release{1, lease});
  reader.answer<wire::Released>();
  reader.ask(wire::Lease{2, "state", 1, {{0, {}}}});
  reader.answer<wire::Leased>();
}

// The reader's fabric accepts nothing, so packed bytes stay in their slots, and later requests wait.
BOOST_AUTO_TEST_CASE(requests_in_flight_of_one_reader_are_limited_and_those_of_others_are_not) {
  constexpr std::uint64_t limit = 4096;
  Source source;
  source.publish();
  const auto fabric = transport::choose("loopback").open();
  Reader reader(source.port, 2);
  reader.ask(wire::Lease{1, "state", 1, {{0, {}}}});
  const std::uint64_t lease = reader.answer<wire::Leased>().lease;
  reader.ask(wire::Bind{2, lease, {{"loopback", fabric->domain(), fabric->address()}}});
  reader.answer<wire::Bound>();
  for (std::uint64_t i = 0; i <= limit; ++i) reader.ask(wire::PackRequest{i, lease, {{0, Box{{0}, {1}}}}});
  const auto refusal = reader.answer<wire::Failure>();
  BOOST_TEST(refusal.request == limit);
  BOOST_TEST((refusal.code == ErrorCode::out_of_resources));
  BOOST_TEST(refusal.message.find("4096 requests") != std::string::npos, refusal.message);
  source.check_others_are_served();
}

BOOST_AUTO_TEST_CASE(leases_on_whole_tensors_of_one_reader_are_limited) {
  constexpr std::uint32_t tensors = 1024;
  constexpr std::size_t limit = (1u << 20) / tensors;
  Source source;
  std::vector<float> memory(2);
  Catalog catalog(Rank{0}, 1);
  wire::Lease lease{1, "state", 1, {}};
  for (std::uint32_t i = 0; i < tensors; ++i) {
    catalog.add({{std::to_string(i), "exp_avg"}, DType::f32, {2}}, Layout::replicated(), View{.data = memory.data()});
    lease.ranges.push_back({i, {}});
  }
  source.publication = source.host.publish(catalog);
  Reader reader(source.port, 2);
  const Bytes encoded = wire::encode(lease);
  for (std::size_t i = 0; i <= limit; ++i) reader.send_frame(encoded);
  for (std::size_t i = 0; i < limit; ++i) reader.answer<wire::Leased>();
  const auto refusal = reader.answer<wire::Failure>();
  BOOST_TEST((refusal.code == ErrorCode::out_of_resources));
  BOOST_TEST(refusal.message.find(std::to_string(1u << 20)) != std::string::npos, refusal.message);
}

// Run one at a time, these digests take minutes.
BOOST_AUTO_TEST_CASE(digests_for_one_reader_hold_up_neither_others_nor_the_end_of_a_publication) {
  constexpr Extent elements = 1 << 20;
  constexpr std::uint64_t requests = 4000;
  Source source(Layout::replicated(), elements);
  source.publish();
  Reader reader(source.port, 2);
  reader.ask(wire::Lease{1, "state", 1, {{0, {}}}});
  wire::DigestRequest request{0, reader.answer<wire::Leased>().lease, {}};
  request.parts.assign(64, {0, Box{{0}, {elements}}});
  for (; request.request < requests; ++request.request) reader.ask(request);
  source.check_others_are_served();
  const auto began = std::chrono::steady_clock::now();
  const Error error = failure_of([&] { source.publication.retire(100ms); });
  BOOST_TEST((std::chrono::steady_clock::now() - began < 20s));
  BOOST_TEST((error.code() == ErrorCode::timed_out));
  BOOST_TEST((error.ranks() == std::vector<Rank>{Rank{2}}));
  bool revoked = false;
  for (std::uint64_t i = 0; i < requests; ++i) {  // each gets an answer
    const wire::Message answer = reader.next();
    const auto* failure = std::get_if<wire::Failure>(&answer);
    revoked = revoked || (failure != nullptr && failure->code == ErrorCode::withdrawn);
  }
  BOOST_TEST(revoked);
}

BOOST_AUTO_TEST_CASE(what_is_refused_again_and_again_does_not_fill_the_log) {
  std::atomic<int> lines = 0;
  SessionOptions options = loopback();
  options.log = [&](LogLevel, std::string_view text) { lines += text.find("refused member 2") == 0 ? 1 : 0; };
  const auto port = free_port();
  const Session host = Session::join(member(0, members, port), options);
  Reader reader(port, 2);
  for (int i = 0; i < 1000; ++i) reader.ask(wire::Lease{1, "state", 1, {}});
  for (int i = 0; i < 1000; ++i) reader.answer<wire::Failure>();
  BOOST_TEST(lines == 16);
}

BOOST_TEST_DECORATOR(*boost::unit_test::precondition(descriptors_may_run_out))
BOOST_AUTO_TEST_CASE(a_listener_without_descriptors_leaves_the_loop_to_others_and_recovers) {
  constexpr int count = 64;
  Server server(identity_with(small), 16);
  std::vector<std::unique_ptr<Stranger>> strangers;
  for (int i = 0; i < count; ++i) strangers.push_back(std::make_unique<Stranger>());
  {
    const Shortage shortage;
    for (const auto& stranger : strangers) {  // two threads may compete for the last descriptor at any of them
      stranger->connect(server.port);
      const auto turn = std::async(std::launch::async, [&] { server.loop.call([] {}); });
      BOOST_REQUIRE((turn.wait_for(10s) == std::future_status::ready));
    }
  }
  strangers.clear();
  const Reader reader(server.port, 1);
}

BOOST_TEST_DECORATOR(*boost::unit_test::precondition(descriptors_may_run_out))
BOOST_AUTO_TEST_CASE(members_join_once_descriptors_are_free_again) {
  const Source source;
  std::vector<std::unique_ptr<Stranger>> strangers;
  for (int i = 0; i < 8; ++i) strangers.push_back(std::make_unique<Stranger>());
  {
    const Shortage shortage;
    for (const auto& stranger : strangers) stranger->connect(source.port);
  }
  Session::join(member(1, members, source.port), loopback()).close(1s);
}

BOOST_AUTO_TEST_SUITE_END()

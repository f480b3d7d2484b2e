// SPDX-License-Identifier: Apache-2.0
// Broken, hostile or slow peers of the tcp transport: the tests write frames into its sockets.
#include <poll.h>

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <random>

#include "conformance/pair.hpp"
#include "support/seed.hpp"
#include "transport/tcp/frame.hpp"

BOOST_AUTO_TEST_SUITE(tcp_hostile)

using namespace shardwire;
using namespace shardwire::test;
using transport::tcp::Frame;
using transport::tcp::FrameKind;
using transport::tcp::make_frame;

namespace {

constexpr std::byte guard{0xa5};

/// A fabric, and the other ends of its sockets.
class ByHand {
 public:
  explicit ByHand(std::size_t streams = 2, bool greets = true) {
    transport::PeerAddress peer;
    const Bytes address = stranger_->address();
    peer.address = address;
    for (std::size_t i = 0; i < streams; ++i) {
      SocketEnds ends = local_sockets();
      peer.sockets.push_back(std::move(ends[0]));
      sockets_.push_back(std::move(ends[1]));
    }
    std::memcpy(&id_, address.data() + sizeof(std::uint64_t), sizeof id_);
    endpoint = fabric->connect(std::move(peer));
    fabric->on_message([this](transport::Incoming& incoming) {
      Message& message = *messages.emplace_back(std::make_unique<Message>());
      if (incoming.payload_bytes() > max_bytes) return incoming.discard();
      message.place.assign(incoming.payload_bytes() + 2 * margin, guard);
      incoming.receive(transport::host_memory(message.place).part(margin, incoming.payload_bytes()),
                       message.result.completion());
    });
    if (!greets) return;
    for (std::size_t i = 0; i < streams; ++i) write(i, hello(i));
  }

  struct Message {
    Bytes place;
    Result result;
    [[nodiscard]] Bytes payload() const { return {place.begin() + margin, place.end() - margin}; }
    [[nodiscard]] bool margins_are_intact() const {
      const auto intact = [](std::byte one) { return one == guard; };
      return std::all_of(place.begin(), place.begin() + std::min<long>(margin, static_cast<long>(place.size())),
                         intact) &&
             std::all_of(place.end() - std::min<long>(margin, static_cast<long>(place.size())), place.end(), intact);
    }
  };

  [[nodiscard]] Frame hello(std::size_t stream) const {
    Frame frame = make_frame(FrameKind::hello);
    frame.number = id_;
    frame.offset = stream;
    frame.payload_bytes = sockets_.size();
    return frame;
  }
  void write(std::size_t stream, const Frame& frame) { write(stream, std::as_bytes(std::span(&frame, 1))); }
  /// Writes as much as fits: the fabric need not read all of an invalid stream.
  void write(std::size_t stream, transport::ByteView bytes) {
    [[maybe_unused]] const auto sent =
        ::send(sockets_[stream].get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  void close(std::size_t stream) { sockets_[stream].reset(); }
  void step(int times = 20) {
    for (int i = 0; i < times; ++i) fabric->progress();
  }
  bool until(const std::function<bool()>& met) {
    return run_until([this] { fabric->progress(); }, met, promptly);
  }
  /// Whether there is no work, and nothing that would wake a sleeper.
  [[nodiscard]] bool is_idle() {
    step();
    pollfd entry{.fd = fabric->event_descriptor(), .events = POLLIN, .revents = 0};
    return !fabric->progress() && fabric->arm() && ::poll(&entry, 1, 20) == 0;
  }

  static constexpr long margin = 64;
  static constexpr ByteCount max_bytes = 1 << 20;
  std::unique_ptr<transport::Fabric> fabric = transport::choose("tcp").open();
  std::unique_ptr<transport::Endpoint> endpoint;
  std::vector<std::unique_ptr<Message>> messages;

 private:
  std::unique_ptr<transport::Fabric> stranger_ = transport::choose("tcp").open();
  std::uint64_t id_ = 0;
  std::vector<support::Descriptor> sockets_;
};

inline Frame message_frame(std::uint64_t number, ByteCount payload_bytes, ByteCount bytes = 0) {
  Frame frame = make_frame(FrameKind::message);
  frame.number = number;
  frame.payload_bytes = payload_bytes;
  frame.bytes = bytes;
  return frame;
}
inline Frame chunk_frame(std::uint64_t number, ByteCount offset, ByteCount bytes) {
  Frame frame = make_frame(FrameKind::chunk);
  frame.number = number;
  frame.offset = offset;
  frame.bytes = bytes;
  return frame;
}

/// A peer's fault after 100 bytes of a message of 1000.
struct Wrong {
  const char* what;
  std::size_t stream;
  Frame frame;
};
inline std::ostream& operator<<(std::ostream& out, const Wrong& wrong) {
  return out << wrong.what;
}

inline std::vector<Wrong> all_wrong() {
  Frame garbage = message_frame(1, 10);
  garbage.magic = 0x12345678;
  Frame unknown = message_frame(1, 10);
  unknown.kind = static_cast<FrameKind>(9);
  Frame long_header = message_frame(1, 10);
  long_header.header_bytes = transport::max_header_bytes + 1;
  Frame chunk_with_header = chunk_frame(0, 100, 10);
  chunk_with_header.header_bytes = 8;
  Frame with_offset = message_frame(1, 10);
  with_offset.offset = 3;
  Frame hello = make_frame(FrameKind::hello);
  hello.payload_bytes = 2;
  return {{"no frame", 0, garbage},
          {"an unknown kind", 0, unknown},
          {"a header that is too long", 0, long_header},
          {"a payload that is too long", 0, message_frame(1, ~0ULL)},
          {"more bytes than the payload has", 0, message_frame(1, 10, 11)},
          {"a message that begins in its middle", 0, with_offset},
          {"a message twice", 0, message_frame(0, 10)},
          {"a message too early", 0, message_frame(2, 10)},
          {"a message on another stream", 1, message_frame(1, 10)},
          {"a chunk with a header", 0, chunk_with_header},
          {"a chunk of nothing", 0, chunk_frame(0, 100, 0)},
          {"a chunk before its message", 0, chunk_frame(1, 0, 10)},
          {"a chunk past the end", 1, chunk_frame(0, 995, 6)},
          {"a chunk that is past the end by far", 1, chunk_frame(0, ~0ULL - 3, 10)},
          {"a chunk with more than is missing", 1, chunk_frame(0, 0, 901)},
          {"a chunk longer than any payload", 1, chunk_frame(0, 0, ~0ULL)},
          {"a second hello", 1, hello}};
}

}  // namespace

BOOST_DATA_TEST_CASE(what_breaks_the_protocol_ends_the_endpoint_with_a_fault, boost::unit_test::data::make(all_wrong()),
                     wrong) {
  const Deadline deadline(120s);
  ByHand peer;
  Result sent;
  const Bytes large = pattern(32 << 20);
  send(*peer.endpoint, {}, large, sent.completion());
  peer.write(0, message_frame(0, 1000, 100));
  peer.write(0, pattern(100));
  peer.step();
  BOOST_REQUIRE(peer.messages.size() == 1U);
  BOOST_TEST(!peer.endpoint->failed());
  peer.write(wrong.stream, wrong.frame);
  peer.write(wrong.stream, pattern(5000));
  BOOST_REQUIRE(peer.until([&] { return sent.done && peer.messages[0]->result.done; }));
  BOOST_TEST(peer.endpoint->failed());
  for (const Result* result : {&sent, &peer.messages[0]->result}) {
    BOOST_REQUIRE(result->outcome.has_value());
    BOOST_TEST((result->outcome->code == ErrorCode::peer_lost));
    BOOST_TEST(result->outcome->message.find("protocol") != std::string::npos, result->outcome->message);
  }
  BOOST_TEST(peer.messages.size() == 1U);
  BOOST_TEST(peer.messages[0]->margins_are_intact());
  const Bytes payload = peer.messages[0]->payload();
  BOOST_TEST(same_bytes(std::span(payload).first(100), pattern(100)));
  BOOST_TEST(std::ranges::count(std::span(payload).subspan(100), guard) == 900);
  BOOST_TEST(peer.is_idle());
}

BOOST_AUTO_TEST_CASE(a_hello_of_somebody_else_is_refused) {
  const Deadline deadline(120s);
  const auto refused = [](const std::function<void(Frame&)>& change) {
    ByHand peer(2, false);
    Frame frame = peer.hello(0);
    change(frame);
    peer.write(0, frame);
    peer.step();
    return peer.endpoint->failed();
  };
  BOOST_TEST(!refused([](Frame&) {}));
  BOOST_TEST(refused([](Frame& frame) { ++frame.number; }));
  BOOST_TEST(refused([](Frame& frame) { frame.payload_bytes = 3; }));
  BOOST_TEST(refused([](Frame& frame) { frame.payload_bytes = 0; }));
  BOOST_TEST(refused([](Frame& frame) { frame.offset = 2; }));
  BOOST_TEST(refused([](Frame& frame) { frame.magic ^= 1; }));
  BOOST_TEST(refused([](Frame& frame) { frame.bytes = 1; }));
  ByHand twice(2, false);
  twice.write(0, twice.hello(1));
  twice.write(1, twice.hello(1));
  twice.step();
  BOOST_TEST(twice.endpoint->failed());
  ByHand silent(2, false);
  silent.write(0, message_frame(0, 0));
  silent.step();
  BOOST_TEST(silent.endpoint->failed());
}

BOOST_AUTO_TEST_CASE(random_frames_neither_crash_nor_write_where_they_may_not) {
  const Deadline deadline(240s);
  std::mt19937_64 random(test_seed());
  const auto below = [&](std::uint64_t limit) { return random() % limit; };
  constexpr int frames = 300'000;
  const Bytes content = pattern(70'000);
  int sent = 0;
  int failed = 0;
  int complete = 0;
  while (sent < frames) {
    ByHand peer(1 + below(3));
    const std::size_t streams = peer.hello(0).payload_bytes;
    struct Open {
      std::uint64_t number;
      ByteCount at;
      ByteCount end;
    };
    std::vector<Open> open;
    std::uint64_t next = 0;
    // Mostly valid frames with a few flipped bits.
    for (int i = 0; i < 1000 && !peer.endpoint->failed(); ++i, ++sent) {
      std::size_t stream = 0;
      Frame frame{};
      if (open.empty() || (open.size() < 20 && below(2) == 0)) {
        frame = message_frame(next++, below(300) == 0 ? random() >> below(64) : below(3000));
        frame.header_bytes = static_cast<std::uint16_t>(below(transport::max_header_bytes + 1));
        frame.bytes = std::min<ByteCount>(below(frame.payload_bytes + 1), 60'000);
        if (frame.bytes < frame.payload_bytes) open.push_back({next - 1, frame.bytes, frame.payload_bytes});
      } else {
        stream = below(streams);
        Open& message = open[below(open.size())];
        frame = chunk_frame(message.number, message.at, 1 + below(std::min<ByteCount>(message.end - message.at, 1000)));
        message.at += frame.bytes;
        if (message.at == message.end) std::erase_if(open, [](const Open& one) { return one.at == one.end; });
      }
      if (below(200) == 0) {
        auto* const raw = reinterpret_cast<unsigned char*>(&frame);
        for (std::size_t flips = 1 + below(4); flips > 0; --flips) raw[below(sizeof frame)] ^= 1u << below(8);
      }
      peer.write(stream, frame);
      const std::size_t behind = std::min<std::size_t>(frame.header_bytes + frame.bytes, content.size());
      peer.write(stream, std::span(content).first(below(2000) == 0 ? behind / 2 : behind));
      if (below(4) == 0) peer.step(1);
    }
    peer.step(5);
    failed += peer.endpoint->failed() ? 1 : 0;
    for (const auto& message : peer.messages) {
      if (!message->margins_are_intact()) BOOST_FAIL("a byte outside of a message's memory was written");
      complete += message->result.succeeded() ? 1 : 0;
    }
    peer.endpoint->abort();
    peer.step(2);
    for (const auto& message : peer.messages) {
      if (!message->place.empty() && !message->result.done) BOOST_FAIL("a receive did not end");
    }
  }
  BOOST_TEST_MESSAGE(sent << " frames, " << failed << " endpoints failed, " << complete << " messages complete");
  BOOST_TEST(failed > 100);
  BOOST_TEST(complete > 1000);
}

BOOST_AUTO_TEST_CASE(a_chunk_that_comes_before_its_message_waits_in_the_socket) {
  const Deadline deadline(120s);
  ByHand peer(3);
  const Bytes payload = pattern(3000);
  const auto part = [&](std::size_t stream, std::uint64_t number, std::size_t offset, std::size_t bytes) {
    peer.write(stream, chunk_frame(number, offset, bytes));
    peer.write(stream, std::span(payload).subspan(offset, bytes));
  };
  part(2, 1, 2000, 1000);  // of a message that was not announced
  part(1, 0, 1500, 1500);
  BOOST_TEST(peer.is_idle());  // they do not wake the fabric repeatedly
  peer.write(0, message_frame(0, 3000, 500));
  peer.write(0, std::span(payload).first(500));
  BOOST_TEST(peer.is_idle());
  BOOST_REQUIRE(peer.messages.size() == 1U);
  peer.write(0, message_frame(1, 3000, 2000));
  peer.write(0, std::span(payload).first(2000));
  part(0, 0, 500, 1000);
  BOOST_REQUIRE(peer.until([&] { return peer.messages.size() == 2 && peer.messages[1]->result.done; }));
  BOOST_REQUIRE(peer.until([&] { return peer.messages[0]->result.done; }));
  for (const auto& message : peer.messages) BOOST_TEST(same_bytes(message->payload(), payload));
  BOOST_TEST(!peer.endpoint->failed());
}

BOOST_AUTO_TEST_CASE(a_stream_that_stalls_holds_up_its_own_messages_only) {
  const Deadline deadline(120s);
  ByHand peer(2);
  const Bytes payload = pattern(2000);
  peer.write(0, message_frame(0, 2000, 1000));
  peer.write(0, std::span(payload).first(1000));
  peer.write(1, chunk_frame(0, 1000, 1000));
  peer.write(1, std::span(payload).subspan(1000, 1));
  for (std::uint64_t number = 1; number < 50; ++number) {
    peer.write(0, message_frame(number, 2000, 2000));
    peer.write(0, payload);
    peer.step(1);
  }
  BOOST_REQUIRE(peer.until([&] { return peer.messages.size() == 50 && peer.messages.back()->result.done; }));
  BOOST_TEST(!peer.messages[0]->result.done);
  BOOST_TEST(peer.is_idle());
  peer.write(1, std::span(payload).subspan(1001));
  BOOST_REQUIRE(peer.until([&] { return peer.messages[0]->result.done; }));
  for (const auto& message : peer.messages) BOOST_TEST(same_bytes(message->payload(), payload));
}

BOOST_AUTO_TEST_CASE(a_peer_that_announces_without_end_is_not_read_any_more) {
  const Deadline deadline(120s);
  ByHand peer(2);
  std::vector<Frame> frames;
  for (std::uint64_t number = 0; number < 500; ++number) frames.push_back(message_frame(number, 10));
  peer.write(0, std::as_bytes(std::span(frames)));
  BOOST_TEST(peer.is_idle());
  const std::size_t open = peer.messages.size();
  BOOST_TEST(open < 500U);
  BOOST_TEST(!peer.endpoint->failed());
  // Each message that ends makes room for another one, and all arrive.
  for (std::uint64_t number = 0; number < 500; ++number) {
    peer.write(1, chunk_frame(number, 0, 10));
    peer.write(1, pattern(10));
    BOOST_REQUIRE(peer.until([&] { return peer.messages.size() > number && peer.messages[number]->result.done; }));
    peer.step(3);
    BOOST_TEST(peer.messages.size() == std::min<std::size_t>(500, open + number + 1));
  }
}

BOOST_DATA_TEST_CASE(one_stream_that_ends_ends_them_all, boost::unit_test::data::make({0, 1, 2}), ended) {
  const Deadline deadline(120s);
  ByHand peer(3);
  const Bytes payload = pattern(900);
  for (std::uint64_t number = 0; number < 2; ++number) {
    peer.write(0, message_frame(number, 900, 300));
    peer.write(0, std::span(payload).first(300));
  }
  for (const std::size_t stream : {1, 2}) {  // all of the first message, part of the second
    peer.write(stream, chunk_frame(0, 300 * stream, 300));
    peer.write(stream, std::span(payload).subspan(300 * stream, 300));
  }
  peer.close(static_cast<std::size_t>(ended));
  Result sent;
  const Bytes large = pattern(32 << 20);
  send(*peer.endpoint, {}, large, sent.completion());
  const auto all_done = [&] {
    return sent.done && peer.messages.size() == 2 && peer.messages[0]->result.done && peer.messages[1]->result.done;
  };
  // The same for a fabric that is polled only after a wake-up.
  const auto sleep = [](transport::Fabric& fabric) {
    if (fabric.progress() || !fabric.arm()) return;
    pollfd entry{.fd = fabric.event_descriptor(), .events = POLLIN, .revents = 0};
    BOOST_REQUIRE(::poll(&entry, 1, 5000) == 1);
  };
  BOOST_REQUIRE(run_until([&] { sleep(*peer.fabric); }, all_done, promptly));
  BOOST_TEST(peer.endpoint->failed());
  BOOST_TEST((sent.outcome && sent.outcome->code == ErrorCode::peer_lost));
  BOOST_TEST(peer.messages[0]->result.succeeded());  // received bytes were accepted
  BOOST_TEST(same_bytes(peer.messages[0]->payload(), payload));
  BOOST_TEST((peer.messages[1]->result.outcome && peer.messages[1]->result.outcome->code == ErrorCode::peer_lost));
}

BOOST_AUTO_TEST_CASE(nothing_is_written_after_an_abort_in_the_middle_of_a_payload) {
  const Deadline deadline(120s);
  for (const bool discards : {false, true}) {
    ByHand peer(2);
    const Bytes payload = pattern(40'000);
    if (discards) {
      peer.fabric->on_message([](transport::Incoming& incoming) { incoming.discard(); });
    }
    peer.write(0, message_frame(0, 80'000, 40'000));
    peer.write(0, std::span(payload).first(10'000));
    peer.write(1, chunk_frame(0, 40'000, 40'000));
    peer.write(1, std::span(payload).first(20'000));
    peer.step();
    peer.endpoint->abort();
    peer.step();
    peer.write(0, std::span(payload).subspan(10'000));
    peer.write(1, std::span(payload).subspan(20'000));
    if (!discards) {
      BOOST_REQUIRE(peer.messages.size() == 1U);
      auto& message = *peer.messages[0];
      BOOST_TEST((message.result.outcome && message.result.outcome->code == ErrorCode::cancelled));
      std::ranges::fill(message.place, guard);
      peer.step(100);
      BOOST_TEST(std::ranges::count(message.place, guard) == static_cast<long>(message.place.size()));
    }
    BOOST_TEST(peer.is_idle());
  }
}

BOOST_AUTO_TEST_SUITE_END()

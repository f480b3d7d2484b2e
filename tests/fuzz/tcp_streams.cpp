// SPDX-License-Identifier: Apache-2.0
// Frames of the transport tcp, on the sockets of one to four streams. The first byte is the number of streams less one.
// Then follow steps of a peer, each a byte: its stream in the low two bits, and one of
//   0x80  closes that socket
//   0x40  lets the fabric run
//   0x20  writes a frame: bytes kind, header bytes, number, then two bytes each for offset, bytes, bytes of the payload
//   0     writes the bytes that follow, as many as the next byte says
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <list>
#include <map>
#include <memory>
#include <vector>

#include "fuzz/target.hpp"
#include "transport/bytes.hpp"
#include "transport/tcp/frame.hpp"
#include "transport/tcp/handles.hpp"

namespace shardwire::transport::tcp {
std::unique_ptr<Fabric> open();
}

namespace shardwire::fuzz {

namespace {

using transport::tcp::Frame;
using transport::tcp::FrameKind;

constexpr std::uint64_t peer_fabric = 0x1234;
constexpr std::size_t margin = 16;
constexpr std::byte guard{0xa5};
constexpr ByteCount max_received_bytes = 4096;  // larger messages are discarded

/// A message as the handler sees it.
struct Received {
  Bytes header;
  ByteCount payload_bytes = 0;
  bool discarded = false;
  Bytes place{};
  int ends = 0;
  bool succeeded = false;

  [[nodiscard]] Input payload() const { return Input(place).subspan(margin, place.size() - 2 * margin); }
};

Bytes address_of_peer() {
  struct {
    std::uint64_t magic = 0x73736572646461ULL;
    std::uint64_t fabric = peer_fabric;
  } address;
  Bytes out;
  transport::append(out, address);
  transport::seal(out);
  return out;
}

class Peer {
 public:
  explicit Peer(std::size_t streams) {
    const Bytes address = address_of_peer();
    transport::PeerAddress at;
    at.address = address;
    for (std::size_t i = 0; i < streams; ++i) {
      std::array<int, 2> ends{};
      require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) == 0, "there are sockets");
      at.sockets.emplace_back(support::Descriptor(ends[0]));
      sockets_.emplace_back(ends[1]);
    }
    sent.resize(streams);
    fabric_ = transport::tcp::open();
    fabric_->on_message([this](transport::Incoming& incoming) { take(incoming); });
    endpoint_ = fabric_->connect(std::move(at));
  }

  void write(std::size_t stream, Input bytes) {
    if (!sockets_[stream]) return;
    const auto count = ::send(sockets_[stream].get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count <= 0) return;
    sent[stream].insert(sent[stream].end(), bytes.begin(), bytes.begin() + count);
  }
  void close(std::size_t stream) { sockets_[stream].reset(); }
  void run() {
    for (int turn = 0; turn < 4; ++turn) fabric_->progress();
  }
  void run_until_idle() {
    for (int turn = 0; turn < 10'000; ++turn) {
      if (!fabric_->progress() && fabric_->arm()) return;
    }
    require(false, "a fabric comes to rest");
  }
  /// After this, no receive is under way.
  void abort() {
    endpoint_->abort();
    run();
  }
  [[nodiscard]] bool failed() const { return endpoint_->failed(); }

  std::vector<Bytes> sent;  ///< by stream
  std::list<Received> messages;

 private:
  void take(transport::Incoming& incoming) {
    const auto header = incoming.header();
    Received& message = messages.emplace_back(Received{{header.begin(), header.end()}, incoming.payload_bytes()});
    message.discarded = incoming.payload_bytes() > max_received_bytes;
    if (message.discarded) return incoming.discard();
    message.place.assign(static_cast<std::size_t>(incoming.payload_bytes()) + 2 * margin, guard);
    // Two ranges, so that payloads cross from one to the other.
    const auto first = static_cast<std::size_t>(incoming.payload_bytes() / 3);
    const std::span<std::byte> all = std::span(message.place).subspan(margin, message.place.size() - 2 * margin);
    const std::array ranges{transport::Memory{all.data(), first, {}},
                            transport::Memory{all.data() + first, all.size() - first, {}}};
    incoming.receive(ranges, [&message](const transport::Outcome& outcome) {
      ++message.ends;
      message.succeeded = !outcome;
    });
  }

  std::vector<support::Descriptor> sockets_;
  std::unique_ptr<transport::Fabric> fabric_;
  std::unique_ptr<transport::Endpoint> endpoint_;
};

/// The meaning of the frames on a single stream, read in the plainest way.
struct Meaning {
  struct Message {
    Bytes header;
    ByteCount payload_bytes = 0;
    ByteCount expected = 0;
    ByteCount arrived = 0;
    std::map<ByteCount, std::byte> payload{};  // of messages that are received
  };
  std::vector<Message> messages;
  bool refused = false;

  explicit Meaning(Input bytes) {
    constexpr std::size_t max_under_way = 64;
    bool first = true;
    while (bytes.size() >= sizeof(Frame) && !refused) {
      Frame frame;
      std::memcpy(&frame, bytes.data(), sizeof frame);
      const std::size_t header_bytes = transport::tcp::header_bytes_of(frame);
      if (bytes.size() < sizeof frame + header_bytes) return;
      const Input header = bytes.subspan(sizeof frame, header_bytes);
      refused = !transport::tcp::defect_of(frame, first).empty();
      if (refused) return;
      Message* message = nullptr;
      if (first) {
        refused = frame.number != peer_fabric || frame.payload_bytes != 1;
      } else if (frame.kind == FrameKind::message) {
        refused = frame.number != messages.size();
        const auto under_way =
            std::ranges::count_if(messages, [](const Message& one) { return one.arrived < one.payload_bytes; });
        if (refused || std::cmp_greater_equal(under_way, max_under_way)) return;
        message = &messages.emplace_back(Message{{header.begin(), header.end()}, frame.payload_bytes});
      } else {
        refused = frame.number >= messages.size();
        if (refused) return;
        message = &messages[static_cast<std::size_t>(frame.number)];
        refused = message->arrived == message->payload_bytes || frame.offset > message->payload_bytes ||
                  frame.bytes > message->payload_bytes - frame.offset ||
                  frame.bytes > message->payload_bytes - message->expected;
      }
      if (refused) return;
      first = false;
      bytes = bytes.subspan(sizeof frame + header_bytes);
      if (message == nullptr) continue;
      message->expected += frame.bytes;
      const Input part = bytes.first(static_cast<std::size_t>(std::min<ByteCount>(frame.bytes, bytes.size())));
      message->arrived += part.size();
      for (std::size_t i = 0; i < part.size() && message->payload_bytes <= max_received_bytes; ++i) {
        message->payload[frame.offset + i] = part[i];
      }
      bytes = bytes.subspan(part.size());
      if (part.size() < frame.bytes) return;
    }
  }
};

void compare(const Peer& peer) {
  const Meaning meaning(peer.sent.front());
  require(peer.messages.size() == meaning.messages.size(), "every announced message reaches the handler");
  auto expected = meaning.messages.begin();
  for (const Received& message : peer.messages) {
    require(message.header == expected->header && message.payload_bytes == expected->payload_bytes,
            "a message has the header and the size that were sent");
    if (!message.discarded) {
      require(message.succeeded == (expected->arrived == expected->payload_bytes),
              "a message succeeds if it is complete");
      for (const auto& [at, byte] : expected->payload) {
        require(message.payload()[static_cast<std::size_t>(at)] == byte, "a payload is what was sent");
      }
    }
    ++expected;
  }
  require(!meaning.refused || peer.failed(), "a peer that breaks the protocol is cut off");
}

class Steps {
 public:
  explicit Steps(Input left) : left_(left) {}
  [[nodiscard]] bool done() const { return left_.empty(); }
  std::size_t byte() { return left_.empty() ? 0 : std::to_integer<std::size_t>(bytes(1).front()); }
  std::size_t two_bytes() {
    const std::size_t low = byte();
    return low | byte() << 8;
  }
  Input bytes(std::size_t at_most) {
    const Input taken = left_.first(std::min(at_most, left_.size()));
    left_ = left_.subspan(taken.size());
    return taken;
  }

 private:
  Input left_;
};

Frame next_frame(Steps& steps) {
  Frame frame = transport::tcp::make_frame(static_cast<FrameKind>(steps.byte()));
  frame.header_bytes = static_cast<std::uint16_t>(steps.byte());
  frame.number = steps.byte();
  frame.offset = steps.two_bytes();
  frame.bytes = steps.two_bytes();
  frame.payload_bytes = steps.two_bytes();
  if (frame.kind == FrameKind::hello && frame.number == 0) frame.number = peer_fabric;
  return frame;
}

}  // namespace

void tcp_streams(Input input) {
  Steps steps(input);
  const std::size_t streams = 1 + steps.byte() % 4;
  const Allocation allocation;
  Peer peer(streams);
  while (!steps.done()) {
    const std::size_t step = steps.byte();
    const std::size_t stream = step % 4 % streams;
    if ((step & 0x80) != 0) {
      peer.close(stream);
    } else if ((step & 0x40) != 0) {
      peer.run();
    } else if ((step & 0x20) != 0) {
      const Frame frame = next_frame(steps);
      peer.write(stream, std::as_bytes(std::span(&frame, 1)));
    } else {
      const std::size_t count = steps.byte();
      peer.write(stream, steps.bytes(count));
    }
  }
  peer.run_until_idle();
  for (const Received& message : peer.messages) require(message.ends <= 1, "a receive ends once");
  const bool failed = peer.failed();
  if (streams == 1 && !failed) compare(peer);
  peer.abort();
  if (streams == 1 && failed) compare(peer);
  for (const Received& message : peer.messages) {
    require(message.ends == (message.discarded ? 0 : 1), "every receive ends");
    if (message.discarded) continue;
    const auto is_guard = [](std::byte one) { return one == guard; };
    require(std::all_of(message.place.begin(), message.place.begin() + margin, is_guard) &&
                std::all_of(message.place.end() - margin, message.place.end(), is_guard),
            "nothing is written beside a payload's memory");
  }
  // A message may take 4 KiB here for a frame of a few bytes.
  allocation.require_at_most(input.size(), 2000, 2u << 20);
}

}  // namespace shardwire::fuzz

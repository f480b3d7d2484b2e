// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/connection.hpp"

#include <fmt/core.h>
#include <poll.h>

#include <algorithm>
#include <utility>

#include "transport/tcp/socket.hpp"

namespace shardwire::transport::tcp {
namespace {

// per stream, direction and progress()
constexpr ByteCount turn_bytes = 1u << 20;
// Data that a peer sent before it closed may still arrive on other streams.
constexpr auto grace = std::chrono::milliseconds(200);

class Arrival final : public Incoming {
 public:
  Arrival(Connection& connection, const Frame& frame, ByteView header)
      : connection_(connection), frame_(frame), header_(header) {}

  [[nodiscard]] ByteView header() const override { return header_; }
  [[nodiscard]] ByteCount payload_bytes() const override { return frame_.payload_bytes; }

  using Incoming::receive;
  void receive(std::span<const Memory> into, Completion done) override {
    if (into.size() > max_ranges) throw Error(ErrorCode::invalid_argument, "receive() into too many ranges");
    for (const Memory& range : into) {
      if (range.place.kind == MemoryKind::host) continue;
      throw Error(ErrorCode::unsupported, "the tcp transport receives into host memory only");
    }
    if (total_bytes(into) != frame_.payload_bytes) {
      throw Error(ErrorCode::invalid_argument, "receive() needs memory of exactly the payload's size");
    }
    connection_.receive(frame_.number, frame_.payload_bytes, into, std::move(done));
  }
  void discard() override {}  // a message that is not received is discarded
  // The sender's kernel has copied the bytes before sendmsg() returned, and nothing is sent for an endpoint that is gone.
  [[nodiscard]] bool is_copied() const override { return true; }

 private:
  Connection& connection_;
  const Frame& frame_;
  ByteView header_;
};

}  // namespace

Connection::Connection(Engine& engine, std::vector<OpenSocket> sockets, std::uint64_t own_fabric,
                       std::uint64_t peer_fabric)
    : engine_(engine), peer_fabric_(peer_fabric), outgoing_(sockets.size()) {
  const Route route = route_of(sockets.front().descriptor.get());
  encrypted_ = std::ranges::all_of(sockets, [](const OpenSocket& one) { return one.encryption != nullptr; });
  carrier_ = fmt::format("{}, {} stream{}{}", route.carrier, sockets.size(), sockets.size() == 1 ? "" : "s",
                         encrypted_ ? ", encrypted (TLS 1.3)" : "");
  on_host_ = route.on_host;
  for (std::size_t number = 0; number < sockets.size(); ++number) {
    streams_.push_back(std::make_unique<Stream>(*this, std::move(sockets[number]), number));
    streams_.back()->enqueue(hello_frame(own_fabric, number, sockets.size()));
  }
}

void Connection::open() {
  engine_.add(shared_from_this());
  for (const auto& stream : streams_) engine_.watch(*stream);
  engine_.wake(*this);
}

void Connection::send(ByteView header, std::span<const ConstMemory> payload, Completion done) {
  if (state_ != State::open) return engine_.finish(std::move(done), fault_, shared_from_this());
  outgoing_.post(header, payload, std::move(done));
  engine_.wake(*this);
}

bool Connection::progress() {
  bool moved = false;
  for (const auto& stream : streams_) {
    if (stream->can_read()) moved = stream->read(turn_bytes) || moved;
  }
  for (const auto& stream : streams_) {
    if (state_ == State::open && stream->can_write(outgoing_)) moved = stream->write(outgoing_, turn_bytes) || moved;
  }
  if (moved && state_ == State::ending) grace_ends_at_ = WallClock::now() + grace;
  return moved;
}

bool Connection::has_work() const {
  return std::any_of(streams_.begin(), streams_.end(), [this](const auto& stream) {
    return stream->can_read() || (state_ == State::open && stream->can_write(outgoing_));
  });
}

// --- receiving ---

Connection::Intake Connection::take(Stream& stream, const Frame& frame, Target& target) {
  if (const std::string defect = defect_of(frame, !stream.peer_number); !defect.empty()) return refuse(defect);
  switch (frame.kind) {
    case FrameKind::hello: return take_hello(stream, frame);
    case FrameKind::message: return take_message(stream, frame, target);
    case FrameKind::chunk: return take_chunk(stream, frame, target);
  }
  return Intake::closed;
}

Connection::Intake Connection::take_hello(Stream& stream, const Frame& frame) {
  if (frame.number != peer_fabric_) return refuse("the hello of another fabric");
  if (frame.payload_bytes != streams_.size()) {
    return refuse(fmt::format("the hello of {} streams instead of {}", frame.payload_bytes, streams_.size()));
  }
  const bool twice = std::any_of(streams_.begin(), streams_.end(),
                                 [&](const auto& other) { return other->peer_number == std::size_t{frame.offset}; });
  if (twice) return refuse(fmt::format("a second stream {}", frame.offset));
  stream.peer_number = frame.offset;
  return Intake::taken;
}

Connection::Intake Connection::take_message(Stream& stream, const Frame& frame, Target& target) {
  if (stream.peer_number != std::size_t{0}) return refuse("a message on another stream than the first");
  if (frame.number != incoming_.next()) return refuse("a message out of its turn");
  if (incoming_.full()) return Intake::blocked;
  IncomingMessage* const message = incoming_.announce(frame.payload_bytes);
  if (frame.bytes > 0) {
    IncomingMessages::expect(*message, 0, frame.bytes);
    target = {.number = frame.number, .message = message, .bytes = frame.bytes};
  }
  unblock_streams();
  return Intake::taken;
}

Connection::Intake Connection::take_chunk(Stream& stream, const Frame& frame, Target& target) {
  if (frame.number >= incoming_.next()) {
    // The announcement arrives on the first stream.
    return stream.peer_number == std::size_t{0} ? refuse("a chunk before its message") : Intake::blocked;
  }
  IncomingMessage* const message = incoming_.find(frame.number);
  if (message == nullptr) return refuse("a chunk of a message that is complete");
  if (!IncomingMessages::expect(*message, frame.offset, frame.bytes)) return refuse("a chunk outside of its message");
  target = {.number = frame.number, .message = message, .offset = frame.offset, .bytes = frame.bytes};
  return Intake::taken;
}

void Connection::handle(const Frame& frame, ByteView header) {
  Arrival arrival(*this, frame, header);
  if (engine_.handler) engine_.handler(arrival);
}

void Connection::receive(std::uint64_t number, ByteCount payload_bytes, std::span<const Memory> into, Completion done) {
  if (payload_bytes == 0) return engine_.finish(std::move(done), std::nullopt);
  IncomingMessage* const message = incoming_.find(number);
  if (message == nullptr) return engine_.finish(std::move(done), fault_);  // closed by the handler
  message->discarded = false;
  message->into = Ranges(std::span<const Memory>(into));
  message->done = std::move(done);
}

void Connection::arrived(std::uint64_t number, ByteCount bytes) {
  IncomingMessage& message = *incoming_.find(number);
  message.arrived += bytes;
  if (message.arrived < message.payload_bytes) return;
  if (!message.discarded) engine_.finish(std::move(message.done), std::nullopt);
  if (incoming_.full()) unblock_streams();
  incoming_.end(number);
}

void Connection::written(const OutgoingFrame& frame) {
  if (auto done = outgoing_.written(frame)) engine_.finish(std::move(*done), std::nullopt, shared_from_this());
}

void Connection::unblock_streams() {
  for (const auto& stream : streams_) stream->unblock();
}

// --- closing ---

Connection::Intake Connection::refuse(const std::string& what) {
  state_ = State::closed;
  fault_ = {ErrorCode::peer_lost, fmt::format("the peer does not keep to the protocol: it has sent {}", what)};
  fail_sends(fault_);
  fail_receives(fault_);
  close_streams(true);
  return Intake::closed;
}

void Connection::end_stream(const std::string& why) {
  if (state_ == State::open) {
    state_ = State::ending;
    fault_ = {ErrorCode::peer_lost, "the peer is gone: " + why};
    grace_ends_at_ = WallClock::now() + grace;
    engine_.await_end(*this);
    fail_sends(fault_);
  }
  const bool all = std::all_of(streams_.begin(), streams_.end(), [](const auto& stream) { return stream->ended(); });
  if (state_ == State::ending && all) end_grace();
}

void Connection::end_grace() {
  state_ = State::closed;
  fail_receives(fault_);
  close_streams(false);
}

void Connection::abort() {
  if (state_ == State::closed) return;
  state_ = State::closed;
  fault_ = {ErrorCode::cancelled, "the connection was aborted from this side"};
  fail_sends(fault_);
  fail_receives(fault_);
  close_streams(true);
}

void Connection::close(WallClock::time_point until) {
  endpoint_gone_ = true;
  outgoing_.forget_completions();
  if (state_ == State::closed) return;
  fault_ = {ErrorCode::cancelled, "the endpoint to the peer was closed"};
  fail_receives(fault_);
  const bool all_left = state_ == State::open && flush(until);
  state_ = State::closed;
  for (const auto& stream : streams_) stream->forget_output();
  outgoing_.clear();
  close_streams(!all_left);
}

// False: not everything was sent, or the peer is gone.
bool Connection::flush(WallClock::time_point until) {
  while (true) {
    bool waits = false;
    for (const auto& stream : streams_) {
      stream->write(outgoing_, turn_bytes);
      // Unread input would make the kernel reset the connection and drop data under way.
      if (state_ != State::open || !stream->drop_input()) return false;
      waits = waits || stream->has_output() || unsent_bytes(stream->descriptor()) > 0;
    }
    if (!waits && outgoing_.empty()) return true;
    const auto now = WallClock::now();
    if (now >= until) return false;
    std::vector<pollfd> entries;
    for (const auto& stream : streams_) {
      const bool full = stream->has_output() && !stream->can_write(outgoing_);
      const short wanted = full ? POLLIN | POLLOUT : POLLIN;
      entries.push_back({.fd = stream->descriptor(), .events = wanted, .revents = 0});
    }
    // The kernel does not signal when its send buffer is empty.
    ::poll(entries.data(), entries.size(), 1);
    for (std::size_t i = 0; i < entries.size(); ++i) streams_[i]->note(static_cast<std::uint32_t>(entries[i].revents));
  }
}

void Connection::fail_sends(const Fault& fault) {
  for (const auto& stream : streams_) stream->forget_output();
  for (Completion& done : outgoing_.clear()) engine_.finish(std::move(done), fault, shared_from_this());
}

void Connection::fail_receives(const Fault& fault) {
  for (const auto& stream : streams_) stream->forget_input();
  for (Completion& done : incoming_.clear()) engine_.finish(std::move(done), fault);
}

void Connection::close_streams(bool reset) {
  for (const auto& stream : streams_) {
    if (reset && stream->descriptor() >= 0) reset_on_close(stream->descriptor());
    stream->close();
  }
  engine_.remove(*this);
}

}  // namespace shardwire::transport::tcp

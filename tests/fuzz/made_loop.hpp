// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "runtime/loop.hpp"
#include "support/made_clock.hpp"

// A loop whose only stream carries what a target writes into it, and keeps what the library writes.
namespace shardwire::fuzz {

class MadeStream final : public Stream {
 public:
  explicit MadeStream(Events events) : events_(std::move(events)) {}

  /// As the peer: sends bytes, or ends the stream.
  void deliver(std::span<const std::byte> bytes) {
    if (reading_ && events_.data) events_.data(bytes);
  }
  void end() {
    if (reading_ && events_.ended) events_.ended("the peer has ended the stream");
  }
  void establish() {
    if (events_.connected) events_.connected();
  }
  void drain() {
    if (events_.drained) events_.drained();
  }
  std::size_t queued = 0;      ///< bytes that the stream says it has queued
  std::size_t untaken = 0;     ///< bytes that it says the peer's system has not taken
  support::Descriptor socket;  ///< that it hands over
  /// The bytes that the library has written.
  [[nodiscard]] const Bytes& written() const { return written_; }

  void start_reading() override { reading_ = !dropped_; }
  void stop_reading() override { reading_ = false; }
  using Stream::write;
  void write(Bytes bytes, std::span<const int>, bool) override {
    written_.insert(written_.end(), bytes.begin(), bytes.end());
  }
  [[nodiscard]] std::size_t queued_bytes() const override { return queued; }
  [[nodiscard]] std::size_t untaken_bytes() const override { return untaken; }
  [[nodiscard]] std::size_t queued_notice_bytes() const override { return 0; }
  void accept_descriptors() override {}
  support::Descriptor take_descriptor() override { throw std::logic_error("a made stream has no descriptors"); }
  [[nodiscard]] std::size_t descriptors_waiting() const override { return 0; }
  // Events stay where they are, because one of them may be running.
  void drop() override {
    reading_ = false;
    dropped_ = true;
  }
  void finish(std::chrono::nanoseconds) override { drop(); }
  support::Descriptor release() override {
    if (!socket) throw std::logic_error("a made stream has no socket");
    drop();
    return std::move(socket);
  }
  [[nodiscard]] bool is_local() const override { return false; }
  [[nodiscard]] PeerUser peer_user() const override { return PeerUser::own; }
  [[nodiscard]] std::string own_host() const override { return "192.0.2.1"; }
  [[nodiscard]] std::string peer_host() const override { return "192.0.2.2"; }

 private:
  Events events_;
  Bytes written_;
  bool reading_ = false;
  bool dropped_ = false;
};

/// Random numbers are all the same byte; time passes in clock.advance() only.
class MadeLoop : public Loop {
 public:
  test::MadeClock clock;
  std::shared_ptr<MadeStream> stream;  ///< of the last connect()

  [[nodiscard]] Time now() const override { return clock.now(); }
  std::unique_ptr<Alarm> make_alarm() override { return clock.make_alarm(); }
  void fill_random(std::span<std::byte> into) override { std::ranges::fill(into, std::byte{7}); }
  std::shared_ptr<Stream> connect(const SocketAddress&, Stream::Events events) override {
    return stream = std::make_shared<MadeStream>(std::move(events));
  }

  std::shared_ptr<Stream> connect_local(const std::string&, Stream::Events) override { refuse(); }
  std::unique_ptr<Listener> listen(const SocketAddress&, Sockets::Incoming) override { refuse(); }
  std::unique_ptr<Listener> listen_local(const std::string&, Sockets::Incoming) override { refuse(); }
  [[nodiscard]] std::string interface_of(const std::string&) const override { return {}; }
  std::unique_ptr<Polling> poll(std::function<void()>) override { refuse(); }
  void end(std::function<void()>) override { refuse(); }
  void post(std::function<void()>) override { refuse(); }
  [[nodiscard]] bool is_current() const override { return true; }
  [[nodiscard]] unsigned copy_threads(unsigned) const override { return 0; }

 private:
  [[noreturn]] static void refuse() { throw std::logic_error("a made loop has one stream"); }
};

}  // namespace shardwire::fuzz

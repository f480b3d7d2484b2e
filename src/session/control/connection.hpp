// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "session/control/addresses.hpp"
#include "session/control/loop.hpp"
#include "session/control/socket_stream.hpp"
#include "support/descriptors.hpp"
#include "wire/messages.hpp"

namespace shardwire {

/// When a silent peer is asked for a sign of life.
struct Liveness {
  std::chrono::nanoseconds idle = std::chrono::seconds(10);  ///< after this long without a word it is pinged
  std::chrono::nanoseconds limit = std::chrono::seconds(5);  ///< without an answer for this long it counts as hung
};

/// How many bytes may wait for one peer to read them.
struct Backlog {
  std::size_t pause = 1u << 20;     ///< beyond this, nothing more is read from a peer that is served
  std::size_t resume = 256u << 10;  ///< until it has read down to this
  std::size_t notices = 64u << 20;  ///< beyond this, of what the peer has not asked for, its connection ends
};

/// What this member says of itself on every connection.
struct Identity {
  wire::Hello hello;  ///< nonce left empty: each connection draws its own
  Bytes job_key;
  Liveness liveness{};
  Backlog backlog{};
};

/// One control connection: frames of [64-bit length, message], a handshake in which both sides prove the job key, then any
/// messages. The end of the stream is how the death of the peer shows; a peer that is cut off shows by keepalive and by what
/// it does not acknowledge, one that hangs by the pings that it does not answer.
///
/// The side that has accepted serves: it reads no further requests while too much of what it has answered is unread. The
/// side that has connected asks, and always reads, so that no two ends can wait for each other.
/// Threads: loop thread only.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  /// What a peer may take beside its connection: the fabric's sockets in both directions, a process to watch, and what
  /// looking at files takes for a moment. Fabrics do not all live through a refusal.
  static constexpr int descriptors_per_peer = 16;
  struct Events {
    std::function<void(Connection&)> ready;  ///< both sides have proven the key
    std::function<void(Connection&, wire::Message&)> message;
    /// Called once, last. `orderly`: the peer said goodbye first.
    std::function<void(Connection&, const Error& reason, bool orderly)> closed;
  };

  static std::shared_ptr<Connection> connect(Loop& loop, const SocketAddress& to, const Identity& identity,
                                             Events events);
  /// Within this host and network namespace, see SocketStream::connect_local().
  static std::shared_ptr<Connection> connect_local(Loop& loop, const std::string& name, const Identity& identity,
                                                   Events events);
  static std::shared_ptr<Connection> accept(Loop& loop, support::Descriptor socket, const Identity& identity,
                                            Events events);
  ~Connection();

  void send(const wire::Message& message);
  /// Hands these over to the peer as well; see wire::Descriptors. Requires: is_local().
  /// Errors: throws Error{out_of_resources}.
  void send(const wire::Descriptors& message, std::span<const int> descriptors);
  /// The oldest of those that have come. Errors: throws Error{transport_failed} when there are not as many.
  std::vector<support::Descriptor> take_descriptors(std::size_t count);
  /// The socket, for somebody else to use; this ends without a word. Requires: nothing is being written.
  /// Errors: throws Error{transport_failed} when the peer has sent something that nobody has read.
  support::Descriptor release();
  /// The same for a message that is encoded already, because it goes to many.
  void send_encoded(const Bytes& encoded);
  /// The same for what the peer has not asked for. When too much of that is unread, `closed` runs on a later turn.
  void notify(const Bytes& encoded);
  /// Says goodbye, flushes and closes; no further events.
  void leave();
  /// Tells the peer why, flushes and closes; `closed` runs.
  void dismiss(const Error& why);
  using Verdict = std::function<void(bool alive)>;
  /// Finds out whether the peer still answers: at once if it does, else once it has left a ping unanswered for the limit,
  /// this one or an earlier one. A peer that knows no pings is taken to be alive.
  /// Requires: the connection is ready. The verdict is not given when it is dropped or left first.
  void check_alive(Verdict verdict);
  /// Closes without a word; `closed` does not run.
  void drop();

  [[nodiscard]] bool ready() const { return state_ == State::open; }
  /// Somebody has answered there.
  [[nodiscard]] bool reached() const { return reached_; }
  /// Both ends are on one host; the kernel says so.
  [[nodiscard]] bool is_local() const { return stream_ && stream_->is_local(); }
  [[nodiscard]] const wire::Hello& peer() const { return peer_; }
  [[nodiscard]] std::uint64_t id() const { return id_; }
  /// Bytes that wait for the peer to read them, beyond what the kernel has taken.
  [[nodiscard]] std::size_t unread_bytes() const;
  /// Address of this end. Requires: connected.
  [[nodiscard]] std::string local_host() const;
  /// Address of the other end; empty when that is gone.
  [[nodiscard]] std::string remote_host() const;

 private:
  using Clock = std::chrono::steady_clock;
  enum class State : std::uint8_t { connecting, greeting, proving, open, closed };
  /// Why nothing is read and no frame taken: until the peer has read, or until others have had their turn.
  enum class Pause : std::uint8_t { none, unread, turn };

  Connection(Loop& loop, const Identity& identity, Events events, bool initiator);
  [[nodiscard]] SocketStream::Events stream_events();
  void connected();
  void pause(Pause why);
  void resume();
  void read(std::span<const std::byte> bytes);
  void take_frames();
  [[nodiscard]] bool has_frame();
  void take(std::span<const std::byte> frame);
  void take_hello(const wire::Message& message);
  void take_proof(const wire::Message& message);
  void write(const wire::Message& message);
  void write_frame(const Bytes& encoded, bool notice = false, std::span<const int> descriptors = {});
  void drained();
  void fail(const Error& reason);
  void fail_after(std::chrono::nanoseconds delay, const Error& reason);
  void close_stream();
  void close_flushed();
  [[nodiscard]] bool answers_pings() const;
  void ping();
  void pong(std::uint64_t number);
  void watch_silence();
  void note_progress();
  void settle(bool alive);

  std::uint64_t id_;
  const bool initiator_;
  State state_ = State::connecting;
  wire::Hello mine_;
  wire::Hello peer_;
  Bytes job_key_;
  Events events_;
  bool goodbye_ = false;
  bool reached_ = false;
  Bytes inbox_;            // bytes not yet taken as frames
  std::size_t taken_ = 0;  // of inbox_
  Backlog backlog_;
  Pause pause_ = Pause::none;
  bool ending_ = false;  // too much is unread: nothing is served or sent any more
  std::uint64_t sent_bytes_ = 0;
  std::uint64_t passed_bytes_ = 0;  // of these, had left when last looked at
  bool had_unread_ = false;         // likewise
  Liveness liveness_;
  Clock::time_point last_heard_{};
  std::optional<Clock::time_point> pinged_;  // since when an answer is awaited
  std::uint64_t last_ping_ = 0;
  bool overdue_ = false;  // what has come meanwhile is still to be read
  std::vector<Verdict> verdicts_;
  Timer timer_;                           // of the handshake, then of silence
  Timer turn_;                            // resumes when others have had theirs
  std::shared_ptr<SocketStream> stream_;  // owners: this, and the stream itself during its callbacks; null once closed
};

}  // namespace shardwire

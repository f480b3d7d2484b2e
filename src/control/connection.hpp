// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "control/tls.hpp"
#include "runtime/addresses.hpp"
#include "runtime/loop.hpp"
#include "runtime/stream.hpp"
#include "support/descriptors.hpp"
#include "wire/messages.hpp"

namespace shardwire {

/// When a silent peer is pinged.
struct Liveness {
  std::chrono::nanoseconds idle = std::chrono::seconds(10);  ///< silence before a ping
  std::chrono::nanoseconds limit =
      std::chrono::seconds(5);  ///< a peer that has not answered for this long counts as hung
};

/// Limits of the bytes that a peer has not read.
struct Backlog {
  std::size_t pause = 1u << 20;     ///< above this, no further requests of a served peer are read
  std::size_t resume = 256u << 10;  ///< reading resumes at or below this
  std::size_t notices = 64u << 20;  ///< above this, of unrequested messages, the connection ends
};

/// This member's description of itself, sent on every connection.
struct Identity {
  wire::Hello hello;  ///< nonce left empty: each connection draws its own
  Bytes job_key;
  std::string domain{};       ///< of this host: what fails together; empty: the host alone
  bool open_network = false;  ///< without a key: any process may be the peer, not only one of this user on this host
  const TlsModule* tls = nullptr;  ///< null: nothing is encrypted
  bool encrypt_payload = false;    ///< sockets of the network that fabrics get have to be encrypted
  Liveness liveness{};
  Backlog backlog{};
};

/// One control connection: frames of [64-bit length, message], a handshake in which both sides prove the job key, then
/// any messages. With a key, a connection of the network is encrypted from the hellos on, if both ends can (TLS 1.3); the proof
/// covers the hellos, so nobody between the ends can talk them out of it. End of file shows the death of the peer. Keepalive and missing acknowledgements show a broken network;
/// unanswered pings show a hung peer.
/// The accepting side serves; it reads no further requests while too many of its answers are unread. The connecting
/// side sends requests and always reads, so the two ends cannot wait for each other.
/// Threads: loop thread only.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  /// Maximum number of further descriptors per peer: fabric sockets in both directions, and files
  /// opened temporarily. Reserved, because some fabrics do not survive a failed open.
  static constexpr int descriptors_per_peer = 16;
  struct Events {
    std::function<void(Connection&)> ready;  ///< both sides have proven the key
    /// The connecting side only: the peer has said hello and has proven nothing yet, and this end has sent its own proof,
    /// which send() follows from here on. The peer reads nothing before it has checked that proof.
    std::function<void(Connection&)> greeted{};
    std::function<void(Connection&, wire::Message&)> message;
    /// Called once, last. `orderly`: the peer said goodbye first.
    std::function<void(Connection&, const Error& reason, bool orderly)> closed;
  };

  enum class Encrypt : bool { never, if_both_can };
  static std::shared_ptr<Connection> connect(Loop& loop, const SocketAddress& to, const Identity& identity,
                                             Events events, Encrypt encrypt = Encrypt::if_both_can);
  /// Connects within this host and network namespace, see Sockets::connect_local().
  static std::shared_ptr<Connection> connect_local(Loop& loop, const std::string& name, const Identity& identity,
                                                   Events events);
  static std::shared_ptr<Connection> accept(Loop& loop, const AcceptedStream& open, const Identity& identity,
                                            Events events);
  ~Connection();

  /// Does nothing before the connection is ready or, on the connecting side, greeted().
  void send(const wire::Message& message);
  /// Also hands the descriptors over to the peer; see wire::Descriptors. Requires: is_local().
  /// Errors: throws Error{out_of_resources}.
  void send(const wire::Descriptors& message, std::span<const int> descriptors);
  /// The oldest descriptors received. Errors: throws Error{transport_failed} if there are fewer.
  std::vector<support::Descriptor> take_descriptors(std::size_t count);
  /// A socket, with the encryption of all that passes it from now on; null: none.
  struct Released {
    support::Descriptor socket;
    std::unique_ptr<support::Encryption> encryption;
  };
  /// Hands over the socket; this connection ends without a goodbye. Requires: no write is pending.
  /// Errors: throws Error{transport_failed} if bytes from the peer are still unread.
  Released release();
  /// Sends an already encoded message, for messages to many peers.
  void send_encoded(const Bytes& encoded);
  /// Sends an encoded message that the peer has not requested. If too many of these are unread, `closed` runs in a
  /// later loop iteration.
  void notify(const Bytes& encoded);
  /// Sends a goodbye, flushes and closes; no further events.
  void leave();
  /// Sends the reason to the peer, flushes and closes; `closed` runs.
  void dismiss(const Error& why);
  using Verdict = std::function<void(bool alive)>;
  /// Checks whether the peer still answers. Calls `verdict` with true as soon as it does, or with false once a ping,
  /// this one or an earlier one, has been unanswered for the limit.
  /// Requires: the connection is ready. The verdict is not given if the connection is dropped or left first.
  void check_alive(Verdict verdict);
  /// When anything last came from the peer, or was read by it; the earliest time if nothing has. Pings it if that is
  /// `quiet` ago.
  [[nodiscard]] Clock::Time heard(std::chrono::nanoseconds quiet);
  /// Closes without a goodbye; `closed` does not run.
  void drop();

  [[nodiscard]] bool ready() const { return state_ == State::open; }
  /// The connecting side only: ready, or the peer has said hello. See Events.
  [[nodiscard]] bool greeted() const { return initiator_ && (ready() || state_ == State::proving); }
  /// What is sent may go before the peer's proof: only a process with the job key can decrypt it, or the job has none.
  /// Requires: the peer has said hello.
  [[nodiscard]] bool needs_no_proof() const { return encrypted() || job_key_.empty(); }
  /// A process has answered at the address.
  [[nodiscard]] bool reached() const { return reached_; }
  [[nodiscard]] bool encrypted() const { return tls_ != nullptr; }
  /// Both ends are on one host, as reported by the kernel.
  [[nodiscard]] bool is_local() const { return stream_ && stream_->is_local(); }
  [[nodiscard]] const wire::Hello& peer() const { return peer_; }
  [[nodiscard]] std::uint64_t id() const { return id_; }
  /// Bytes that the peer has not read, apart from those in kernel buffers.
  [[nodiscard]] std::size_t unread_bytes() const;
  /// Address of this end. Requires: connected.
  [[nodiscard]] std::string local_host() const;
  /// Address of the other end; empty after the connection has ended.
  [[nodiscard]] std::string remote_host() const;

 private:
  enum class State : std::uint8_t { connecting, greeting, proving, open, closed };
  /// Why reading and frames are paused: until the peer has read, or until other peers were served.
  enum class Pause : std::uint8_t { none, unread, turn };

  Connection(Loop& loop, const Identity& identity, Events events, bool initiator);
  [[nodiscard]] Stream::Events stream_events();
  void connected();
  void pause(Pause why);
  void resume();
  void read(std::span<const std::byte> bytes);
  void decrypt(std::span<const std::byte> bytes);
  [[nodiscard]] std::unique_ptr<support::Encryption> begin_encryption() const;
  void take_frames();
  [[nodiscard]] bool has_frame();
  void take(std::span<const std::byte> frame);
  void take_hello(const wire::Message& message);
  void take_proof(const wire::Message& message);
  void require_key_or_own_user() const;
  void write(const wire::Message& message);
  void write_frame(const Bytes& encoded, bool notice = false, std::span<const int> descriptors = {});
  void drained();
  void fail(const Error& reason);
  void fail_after(std::chrono::nanoseconds delay, const Error& reason);
  void close_stream();
  void close_flushed();
  void ping();
  void pong(std::uint64_t number);
  void watch_silence();
  void note_progress();
  void resolve_ping(bool alive);

  Clock& clock_;
  std::uint64_t id_;
  const bool initiator_;
  State state_ = State::connecting;
  wire::Hello mine_;
  wire::Hello peer_;
  Bytes job_key_;
  bool open_network_;
  const TlsModule* tls_module_;               // null: this connection is not encrypted
  bool must_encrypt_;                         // where tls_module_ is there
  std::unique_ptr<support::Encryption> tls_;  // from the hellos on
  Events events_;
  bool goodbye_ = false;
  bool reached_ = false;
  Bytes inbox_;            // bytes not yet taken as frames
  std::size_t taken_ = 0;  // of inbox_
  Backlog backlog_;
  Pause pause_ = Pause::none;
  bool ending_ = false;  // too many unread bytes: nothing is served or sent any more
  std::uint64_t sent_bytes_ = 0;
  std::uint64_t passed_bytes_ = 0;  // of sent_bytes_: number that had left at the last look
  bool had_unread_ = false;         // at the last look
  Liveness liveness_;
  Clock::Time last_received_{};
  std::optional<Clock::Time> pinged_;  // time of the unanswered ping
  std::uint64_t last_ping_ = 0;
  bool overdue_ = false;  // late: data that has arrived is read first
  std::vector<Verdict> verdicts_;
  Timer timer_;                     // for the handshake, then for silence
  Timer turn_;                      // resumes after other peers were served
  std::shared_ptr<Stream> stream_;  // owners: this, and the stream itself during its callbacks; null once closed
};

}  // namespace shardwire

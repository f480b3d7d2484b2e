// SPDX-License-Identifier: Apache-2.0
#include "control/connection.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

namespace shardwire {

namespace {

constexpr std::chrono::seconds handshake_limit(10);
constexpr std::size_t frame_header_bytes = 8;
// After the (possibly late) timer, one iteration of the loop still has to read data that has arrived.
constexpr std::chrono::milliseconds reading_time(20);
constexpr std::chrono::seconds flush_limit(2);
constexpr std::size_t max_unsent_pong_bytes = 64 * 1024;  // a peer that pings but does not read gets no further answers
// Time for one peer's messages before other peers are served.
constexpr std::chrono::milliseconds turn_limit(5);
constexpr std::size_t max_idle_inbox_bytes = 1u << 20;  // a larger one is freed when it is empty

std::uint64_t next_connection_id() {
  static std::atomic<std::uint64_t> next{1};
  return next++;
}

// In the hello of the initiator: it asks for it. In that of the acceptor: it agrees.
const std::string tls_capability = "tls-1.3";

bool can_encrypt(const wire::Hello& hello) {
  return std::ranges::find(hello.capabilities, tls_capability) != hello.capabilities.end();
}

std::string job_name(const std::string& run_id) {
  return run_id.empty() ? "a job without a run id" : fmt::format("job '{}'", run_id);
}

}  // namespace

Connection::Connection(Loop& loop, const Identity& identity, Events events, bool initiator)
    : clock_(loop),
      id_(next_connection_id()),
      initiator_(initiator),
      mine_(identity.hello),
      job_key_(identity.job_key),
      open_network_(identity.open_network),
      tls_module_(identity.job_key.empty() ? nullptr : identity.tls),
      must_encrypt_(initiator && identity.encrypt_payload),
      events_(std::move(events)),
      backlog_(identity.backlog),
      liveness_(identity.liveness),
      timer_(loop),
      turn_(loop) {
  loop.fill_random(mine_.nonce);
}

Connection::~Connection() {
  close_stream();
}

Stream::Events Connection::stream_events() {
  Stream::Events events;
  events.connected = [this] {
    const auto keep = shared_from_this();
    connected();
  };
  events.data = [this](std::span<const std::byte> bytes) {
    const auto keep = shared_from_this();
    read(bytes);
  };
  events.ended = [this](const std::string& why) {
    const auto keep = shared_from_this();
    fail(Error(ErrorCode::peer_lost, why));
  };
  events.drained = [this] {
    const auto keep = shared_from_this();
    drained();
  };
  return events;
}

std::shared_ptr<Connection> Connection::connect(Loop& loop, const SocketAddress& to, const Identity& identity,
                                                Events events, Encrypt encrypt) {
  support::require_descriptors(descriptors_per_peer, "connecting to a member");
  const std::shared_ptr<Connection> self(new Connection(loop, identity, std::move(events), true));
  if (encrypt == Encrypt::never) self->tls_module_ = nullptr;
  if (self->tls_module_ != nullptr) self->mine_.capabilities.push_back(tls_capability);
  self->stream_ = loop.connect(to, self->stream_events());
  return self;
}

std::shared_ptr<Connection> Connection::connect_local(Loop& loop, const std::string& name, const Identity& identity,
                                                      Events events) {
  support::require_descriptors(descriptors_per_peer, "connecting to a member");
  const std::shared_ptr<Connection> self(new Connection(loop, identity, std::move(events), true));
  self->tls_module_ = nullptr;
  self->stream_ = loop.connect_local(name, self->stream_events());
  return self;
}

std::shared_ptr<Connection> Connection::accept(Loop& loop, const AcceptedStream& open, const Identity& identity,
                                               Events events) {
  std::shared_ptr<Connection> self(new Connection(loop, identity, std::move(events), false));
  self->stream_ = open(self->stream_events());
  try {
    support::require_descriptors(descriptors_per_peer,
                                 fmt::format("member {} accepting a connection", self->mine_.rank));
  } catch (const Error& error) {
    // Sent while a descriptor is left to send it: otherwise the peer would retry forever.
    self->state_ = State::closed;
    self->write(wire::Failure{0, error.code(), error.what()});
    throw;
  }
  self->connected();
  return self;
}

void Connection::connected() {
  state_ = State::greeting;
  reached_ = true;
  fail_after(handshake_limit, Error(ErrorCode::timed_out, "the peer did not complete the handshake"));
  stream_->start_reading();
  if (initiator_) write(mine_);
}

void Connection::pause(Pause why) {
  pause_ = why;
  stream_->stop_reading();
}

void Connection::resume() {
  pause_ = Pause::none;
  take_frames();
  if (state_ != State::closed && pause_ == Pause::none) stream_->start_reading();
}

void Connection::read(std::span<const std::byte> bytes) {
  last_received_ = clock_.now();
  if (tls_) {
    try {
      decrypt(bytes);
    } catch (const Error& error) {
      return fail(error);
    }
  } else {
    inbox_.insert(inbox_.end(), bytes.begin(), bytes.end());
  }
  take_frames();
}

// A failed handshake means different keys, like a false proof.
void Connection::decrypt(std::span<const std::byte> bytes) {
  const auto flush = [&] {
    Bytes output;
    tls_->output(output);
    sent_bytes_ += output.size();
    if (!output.empty()) stream_->write(std::move(output));
  };
  try {
    tls_->receive(bytes, inbox_);
  } catch (const Error& error) {
    flush();
    if (state_ == State::open || error.code() != ErrorCode::invalid_argument) throw;
    throw Error(error.code(),
                fmt::format("members {} and {} have different job keys ({})", mine_.rank, peer_.rank, error.what()));
  }
  flush();
}

void Connection::take_frames() {
  const auto turn_ends = clock_.now() + turn_limit;
  while (has_frame()) {
    if (!initiator_ && ready() && !ending_ && unread_bytes() > backlog_.pause) {
      pause(Pause::unread);
      break;
    }
    const auto now = clock_.now();
    if (now > turn_ends) {
      pause(Pause::turn);
      turn_.start({}, [this] {
        const auto keep = shared_from_this();
        resume();
      });
      break;
    }
    std::uint64_t length = 0;
    std::memcpy(&length, inbox_.data() + taken_, sizeof length);
    const std::size_t begin = taken_ + frame_header_bytes;
    taken_ = begin + static_cast<std::size_t>(length);
    last_received_ = now;  // as if it came now: a peer is silent only once all that it has sent is taken
    take(std::span(inbox_).subspan(begin, static_cast<std::size_t>(length)));
  }
  inbox_.erase(inbox_.begin(), inbox_.begin() + static_cast<std::ptrdiff_t>(taken_));
  taken_ = 0;
  if (inbox_.empty() && inbox_.capacity() > max_idle_inbox_bytes) Bytes().swap(inbox_);
}

// Whether a complete frame has arrived. Ends the connection if a frame exceeds the permitted length.
bool Connection::has_frame() {
  const std::size_t there = inbox_.size() - taken_;
  if (state_ == State::closed || there < frame_header_bytes) return false;
  std::uint64_t length = 0;
  std::memcpy(&length, inbox_.data() + taken_, sizeof length);
  const std::size_t limit = ready() ? wire::max_message_bytes : wire::max_hello_bytes;
  if (length <= limit) return there - frame_header_bytes >= length;
  fail(Error(ErrorCode::transport_failed,
             fmt::format("the peer announced a message of {} bytes, more than {}", length, limit)));
  return false;
}

void Connection::take(std::span<const std::byte> frame) {
  try {
    wire::Message message = wire::decode(frame);
    if (const auto* failure = std::get_if<wire::Failure>(&message); failure != nullptr && failure->request == 0) {
      const bool may_choose = initiator_ || ready();  // any process can connect, and codes decide what is logged
      return fail(Error(may_choose ? failure->code : ErrorCode::transport_failed, failure->message));
    }
    switch (state_) {
      case State::greeting: return take_hello(message);
      case State::proving: return take_proof(message);
      case State::open:
        if (std::holds_alternative<wire::Goodbye>(message)) {
          goodbye_ = true;
        } else if (const auto* asked = std::get_if<wire::Ping>(&message)) {
          pong(asked->number);
        } else if (const auto* answer = std::get_if<wire::Pong>(&message)) {
          if (answer->number == last_ping_) resolve_ping(true);
        } else if (!ending_) {
          events_.message(*this, message);
        }
        return;
      case State::connecting:
      case State::closed: return;
    }
  } catch (const Error& error) {
    if (state_ != State::closed && state_ != State::connecting) write(wire::Failure{0, error.code(), error.what()});
    fail(error);
  }
}

void Connection::take_hello(const wire::Message& message) {
  const auto* hello = std::get_if<wire::Hello>(&message);
  if (hello == nullptr)
    throw Error(ErrorCode::transport_failed, "the peer is no member of a shardwire job: it did not begin with hello");
  peer_ = *hello;
  if (peer_.version != wire::protocol_version) {
    throw Error(ErrorCode::unsupported,
                fmt::format("member {} runs a version of shardwire that speaks protocol {}, member {} one that speaks "
                            "protocol {}: all members of a job need the same",
                            peer_.rank, peer_.version, mine_.rank, mine_.version));
  }
  require_key_or_own_user();
  if (peer_.run_id != mine_.run_id) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("this is {}, the member {} that connects comes from {}: give each job a port of its own, or all "
                    "members of one the same SHARDWIRE_RUN_ID",
                    job_name(mine_.run_id), peer_.rank, job_name(peer_.run_id)));
  }
  const bool know_size = peer_.world_size != 0 && mine_.world_size != 0;
  if (know_size && peer_.world_size != mine_.world_size) {
    throw Error(ErrorCode::invalid_argument, fmt::format("member {} expects {} members, member {} expects {}",
                                                         peer_.rank, peer_.world_size, mine_.rank, mine_.world_size));
  }
  state_ = State::proving;
  if (tls_module_ != nullptr && must_encrypt_ && !can_encrypt(peer_)) {
    throw Error(
        ErrorCode::unsupported,
        fmt::format("encryption was asked for (SessionOptions::encrypt_payload), and member {} has no OpenSSL 3",
                    peer_.rank));
  }
  auto encryption = can_encrypt(peer_) ? begin_encryption() : nullptr;
  if (!initiator_) {
    if (encryption) mine_.capabilities.push_back(tls_capability);
    write(mine_);
  }
  tls_ = std::move(encryption);
  if (!initiator_) return;
  write(wire::prove(job_key_, true, mine_, peer_));
  if (events_.greeted) events_.greeted(*this);
}

// Nothing that is not encrypted may follow the hellos.
std::unique_ptr<support::Encryption> Connection::begin_encryption() const {
  if (tls_module_ == nullptr) return nullptr;
  if (taken_ != inbox_.size()) throw Error(ErrorCode::transport_failed, "the peer goes on talking before it encrypts");
  return tls_module_->begin(initiator_ ? TlsModule::Side::initiator : TlsModule::Side::acceptor, job_key_,
                            tls_records_per_key);
}

// Without a key, the kernel vouches at least for the user.
void Connection::require_key_or_own_user() const {
  if (!job_key_.empty() || open_network_) return;
  const PeerUser user = stream_->peer_user();
  if (user == PeerUser::own) return;
  if (user == PeerUser::unknown) {
    throw Error(ErrorCode::peer_lost,
                fmt::format("member {} has ended its connection before the kernel could say whose process it is; a job "
                            "key (`shardwire key FILE`, SHARDWIRE_JOB_KEY_FILE) makes that unnecessary",
                            peer_.rank));
  }
  throw Error(
      ErrorCode::invalid_argument,
      fmt::format("the job has no key, and member {} at {} is not known to member {} as a process of the same user on "
                  "the same host: give all members a key (`shardwire key FILE` makes one, SHARDWIRE_JOB_KEY_FILE names "
                  "it), or let any process join (SHARDWIRE_ALLOW_OPEN_NETWORK=1, Bootstrap::allow_open_network)",
                  peer_.rank, remote_host(), mine_.rank));
}

void Connection::take_proof(const wire::Message& message) {
  const auto* proof = std::get_if<wire::Proof>(&message);
  const auto expected =
      initiator_ ? wire::prove(job_key_, false, mine_, peer_) : wire::prove(job_key_, true, peer_, mine_);
  if (proof == nullptr || !wire::same_digest(proof->digest, expected.digest)) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("members {} and {} have different job keys", mine_.rank, peer_.rank));
  }
  state_ = State::open;
  timer_.stop();
  if (initiator_) stream_->accept_descriptors();  // a source sends handles, a reader never does
  if (!initiator_) write(wire::prove(job_key_, false, peer_, mine_));
  watch_silence();
  if (events_.ready) events_.ready(*this);
}

void Connection::send(const wire::Message& message) {
  if ((ready() || greeted()) && !ending_) write(message);
}

void Connection::send(const wire::Descriptors& message, std::span<const int> descriptors) {
  if (state_ == State::open && !ending_) write_frame(wire::encode(message), false, descriptors);
}

std::vector<support::Descriptor> Connection::take_descriptors(std::size_t count) {
  if (!stream_ || stream_->descriptors_waiting() < count) {
    throw Error(ErrorCode::transport_failed, "the peer has announced descriptors that have not come");
  }
  std::vector<support::Descriptor> taken;
  taken.reserve(count);
  for (std::size_t i = 0; i < count; ++i) taken.push_back(stream_->take_descriptor());
  return taken;
}

Connection::Released Connection::release() {
  if (inbox_.size() != taken_ || !stream_ || stream_->queued_bytes() > 0) {
    throw Error(ErrorCode::transport_failed,
                "protocol error: the peer sent more on a connection that it had handed over");
  }
  timer_.stop();
  turn_.stop();
  state_ = State::closed;
  verdicts_.clear();
  return {std::exchange(stream_, nullptr)->release(), std::move(tls_)};
}

void Connection::send_encoded(const Bytes& encoded) {
  if (state_ == State::open && !ending_) write_frame(encoded);
}

void Connection::notify(const Bytes& encoded) {
  if (state_ != State::open || ending_) return;
  const std::size_t waiting = stream_->queued_notice_bytes();
  if (waiting <= backlog_.notices) return write_frame(encoded, true);
  ending_ = true;
  turn_.stop();
  pause(Pause::unread);
  fail_after({}, Error(ErrorCode::out_of_resources,
                       fmt::format("member {} at {} does not read its messages: {} bytes are queued, the limit is {}",
                                   peer_.rank, remote_host(), waiting, backlog_.notices)));
}

void Connection::write(const wire::Message& message) {
  write_frame(wire::encode(message));
}

void Connection::write_frame(const Bytes& encoded, bool notice, std::span<const int> descriptors) {
  Bytes frame(frame_header_bytes + encoded.size());
  const std::uint64_t length = encoded.size();
  std::memcpy(frame.data(), &length, sizeof length);
  std::memcpy(frame.data() + frame_header_bytes, encoded.data(), encoded.size());
  if (tls_) {
    tls_->send(frame);
    frame = Bytes();  // its memory is not kept: it may have been large
    tls_->output(frame);
    if (frame.empty()) return;  // it waits for the end of the handshake
  }
  sent_bytes_ += frame.size();
  stream_->write(std::move(frame), descriptors, notice);
}

std::size_t Connection::unread_bytes() const {
  return stream_ ? stream_->queued_bytes() : 0;
}

// Queued data for a vanished peer is dropped; then the loop reads the data the peer sent before, and its end of file.
void Connection::drained() {
  if (state_ == State::closed || ending_) return;
  had_unread_ = true;  // until now: a backlog may come and leave between two looks
  note_progress();
  if (pause_ == Pause::unread && unread_bytes() <= backlog_.resume) resume();
}

// --- silence ---

void Connection::ping() {
  overdue_ = false;
  pinged_ = clock_.now();
  write(wire::Ping{++last_ping_});
}

void Connection::pong(std::uint64_t number) {
  if (unread_bytes() <= max_unsent_pong_bytes) write(wire::Pong{number});
}

// Runs when the peer has been silent long enough to be pinged, or to count as hung. Bytes of any kind postpone both: an
// answer may follow a long message, or requests that are not read because the peer reads slowly.
void Connection::watch_silence() {
  if (ending_) return;
  note_progress();
  const auto now = clock_.now();
  const auto again_at = [&](Clock::Time at) {
    timer_.start(at - now, [this] {
      const auto keep = shared_from_this();
      watch_silence();
    });
  };
  if (!pinged_) {
    const auto due = last_received_ + liveness_.idle;
    if (now < due) return again_at(due);
    ping();
    return again_at(*pinged_ + liveness_.limit);
  }
  const auto due = std::max(*pinged_, last_received_) + liveness_.limit;
  if (now < due || pause_ == Pause::turn) {  // its answer may be among the frames that wait for their turn
    overdue_ = false;
    return again_at(std::max(due, now + reading_time));
  }
  if (!std::exchange(overdue_, true)) return again_at(now + reading_time);
  resolve_ping(false);  // the ping stays unanswered, for later callers
}

// A shrinking backlog is a sign of life as well, and so is what the kernel holds of it: the kernel takes more only once a third of its
// megabytes is free, for which a slow peer may need longer than the limit. Without a backlog, a ping that leaves is no sign.
void Connection::note_progress() {
  const std::size_t unread = unread_bytes();
  const std::uint64_t passed = sent_bytes_ - unread - (unread > 0 ? stream_->untaken_bytes() : 0);
  if (had_unread_ && passed != passed_bytes_) last_received_ = clock_.now();
  had_unread_ = unread > 0;
  passed_bytes_ = passed;
}

void Connection::resolve_ping(bool alive) {
  overdue_ = false;
  if (alive) {
    pinged_.reset();
    watch_silence();
  }
  for (const Verdict& verdict : std::exchange(verdicts_, {})) verdict(alive);
}

void Connection::check_alive(Verdict verdict) {
  verdicts_.push_back(std::move(verdict));
  if (!pinged_) ping();
  watch_silence();
}

Clock::Time Connection::heard(std::chrono::nanoseconds quiet) {
  note_progress();
  if (state_ == State::open && !ending_ && !pinged_ && clock_.now() - last_received_ >= quiet) {
    ping();
    watch_silence();
  }
  return last_received_;
}

// --- the end ---

void Connection::leave() {
  if (state_ != State::open) return drop();
  write(wire::Goodbye{});
  state_ = State::closed;
  close_flushed();
}

void Connection::dismiss(const Error& why) {
  if (state_ != State::open) return fail(why);
  write(wire::Failure{0, why.code(), why.what()});
  state_ = State::closed;
  const auto keep = shared_from_this();
  close_flushed();
  if (events_.closed) events_.closed(*this, why, false);
  resolve_ping(false);
}

// Flushes queued data before it closes the stream, unless the peer does not read.
void Connection::close_flushed() {
  timer_.stop();
  turn_.stop();
  stream_->finish(flush_limit);
  stream_.reset();
}

void Connection::drop() {
  state_ = State::closed;
  verdicts_.clear();
  close_stream();
}

void Connection::close_stream() {
  timer_.stop();
  turn_.stop();
  if (stream_) stream_->drop();
  stream_.reset();
}

void Connection::fail(const Error& reason) {
  if (state_ == State::closed) return;
  state_ = State::closed;
  const auto keep = shared_from_this();
  close_stream();
  if (events_.closed) events_.closed(*this, reason, goodbye_);
  resolve_ping(false);
}

void Connection::fail_after(std::chrono::nanoseconds delay, const Error& reason) {
  timer_.start(delay, [this, reason] {
    const auto keep = shared_from_this();
    fail(reason);
  });
}

std::string Connection::remote_host() const {
  return stream_ ? stream_->peer_host() : std::string();
}

std::string Connection::local_host() const {
  return stream_->own_host();
}

}  // namespace shardwire

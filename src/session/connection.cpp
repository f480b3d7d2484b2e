// SPDX-License-Identifier: Apache-2.0
#include "session/connection.hpp"

#include <fmt/core.h>

#include <atomic>
#include <cstring>

#include "session/uv_error.hpp"
#include "support/descriptors.hpp"

namespace shardwire {

namespace {

constexpr std::chrono::seconds handshake_limit(10);
constexpr std::size_t frame_header_bytes = 8;
// What a peer may take beside its connection: the fabric's sockets in both directions, a process to watch, and what
// looking at files takes for a moment. Fabrics do not all live through a refusal.
constexpr int descriptors_per_peer = 16;

std::uint64_t next_connection_id() {
  static std::atomic<std::uint64_t> next{1};
  return next++;
}

// A frame on its way out; libuv borrows the bytes until the write is done.
struct Write {
  uv_write_t request{};
  Bytes bytes;
};

std::string host_of(const sockaddr_storage& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  uv_ip_name(reinterpret_cast<const sockaddr*>(&address), text.data(), text.size());
  return text.data();
}

sockaddr_storage socket_address(const SocketAddress& from) {
  sockaddr_storage address{};
  if (uv_ip4_addr(from.host.c_str(), from.port, reinterpret_cast<sockaddr_in*>(&address)) == 0) return address;
  if (uv_ip6_addr(from.host.c_str(), from.port, reinterpret_cast<sockaddr_in6*>(&address)) == 0) return address;
  throw Error(ErrorCode::invalid_argument, fmt::format("'{}' is not a numeric address", from.host));
}

}  // namespace

Connection::Connection(Loop& loop, const Identity& identity, Events events, bool initiator)
    : id_(next_connection_id()),
      initiator_(initiator),
      mine_(identity.hello),
      job_key_(identity.job_key),
      events_(std::move(events)),
      handshake_timer_(loop) {
  mine_.nonce = wire::random_nonce();
  auto stream = std::make_unique<uv_tcp_t>();
  check_uv(uv_tcp_init(loop.raw(), stream.get()), "uv_tcp_init");
  stream_.reset(stream.release());
  stream_->data = this;
}

Connection::~Connection() = default;

std::shared_ptr<Connection> Connection::connect(Loop& loop, const SocketAddress& to, const Identity& identity,
                                                Events events) {
  support::require_descriptors(descriptors_per_peer, "connecting to a member");
  const std::shared_ptr<Connection> self(new Connection(loop, identity, std::move(events), true));
  const sockaddr_storage address = socket_address(to);
  auto* request = new uv_connect_t;
  // The stream's data pointer tells whether the connection is still there when libuv answers.
  const int status = uv_tcp_connect(request, self->stream_.get(), reinterpret_cast<const sockaddr*>(&address),
                                    [](uv_connect_t* done, int result) {
                                      auto* connection = static_cast<Connection*>(done->handle->data);
                                      delete done;
                                      if (connection == nullptr) return;
                                      const auto keep = connection->shared_from_this();
                                      if (result < 0) {
                                        connection->fail(Error(ErrorCode::peer_lost, uv_message(result)));
                                      } else {
                                        connection->connected();
                                      }
                                    });
  if (status < 0) delete request;
  check_uv(status, "uv_tcp_connect");
  return self;
}

std::shared_ptr<Connection> Connection::accept(Loop& loop, uv_stream_t* listener, const Identity& identity,
                                               Events events) {
  std::shared_ptr<Connection> self(new Connection(loop, identity, std::move(events), false));
  check_uv(uv_accept(listener, reinterpret_cast<uv_stream_t*>(self->stream_.get())), "uv_accept");
  try {
    support::require_descriptors(descriptors_per_peer,
                                 fmt::format("member {} accepting a connection", self->mine_.rank));
  } catch (const Error& error) {
    // Said to the peer while there is still a descriptor to say it through: it would try again and again.
    self->state_ = State::closed;
    self->write(wire::Failure{0, error.code(), error.what()});
    throw;
  }
  self->connected();
  return self;
}

void Connection::connected() {
  state_ = State::greeting;
  uv_tcp_nodelay(stream_.get(), 1);
  handshake_timer_.start(handshake_limit, [this] {
    const auto keep = shared_from_this();
    fail(Error(ErrorCode::timed_out, "the peer did not complete the handshake"));
  });
  uv_read_start(
      reinterpret_cast<uv_stream_t*>(stream_.get()),
      [](uv_handle_t* stream, std::size_t, uv_buf_t* buffer) { *buffer = Loop::input_of(*stream->loop); },
      [](uv_stream_t* stream, ssize_t count, const uv_buf_t* buffer) {
        auto* connection = static_cast<Connection*>(stream->data);
        if (connection == nullptr) return;
        const auto keep = connection->shared_from_this();
        connection->read(count, buffer);
      });
  if (initiator_) write(mine_);
}

void Connection::read(ssize_t count, const uv_buf_t* buffer) {
  if (count < 0) {
    return fail(Error(ErrorCode::peer_lost,
                      count == UV_EOF ? "the peer closed its connection" : uv_message(static_cast<int>(count))));
  }
  const auto* bytes = reinterpret_cast<const std::byte*>(buffer->base);
  inbox_.insert(inbox_.end(), bytes, bytes + count);
  take_frames();
}

void Connection::take_frames() {
  while (state_ != State::closed && inbox_.size() - taken_ >= frame_header_bytes) {
    std::uint64_t length = 0;
    std::memcpy(&length, inbox_.data() + taken_, sizeof length);
    const std::size_t limit = ready() ? wire::max_message_bytes : wire::max_hello_bytes;
    if (length > limit) {
      return fail(Error(ErrorCode::transport_failed,
                        fmt::format("the peer announced a message of {} bytes, more than {}", length, limit)));
    }
    if (inbox_.size() - taken_ - frame_header_bytes < length) break;
    const std::size_t begin = taken_ + frame_header_bytes;
    taken_ = begin + static_cast<std::size_t>(length);
    take(std::span(inbox_).subspan(begin, static_cast<std::size_t>(length)));
  }
  inbox_.erase(inbox_.begin(), inbox_.begin() + static_cast<std::ptrdiff_t>(taken_));
  taken_ = 0;
}

void Connection::take(std::span<const std::byte> frame) {
  try {
    wire::Message message = wire::decode(frame);
    if (const auto* failure = std::get_if<wire::Failure>(&message); failure != nullptr && failure->request == 0) {
      return fail(Error(failure->code, failure->message));
    }
    switch (state_) {
      case State::greeting: return take_hello(message);
      case State::proving: return take_proof(message);
      case State::open:
        if (std::holds_alternative<wire::Goodbye>(message)) {
          goodbye_ = true;
        } else {
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
  if (hello == nullptr) throw Error(ErrorCode::transport_failed, "the peer did not begin with hello");
  peer_ = *hello;
  if (peer_.version != wire::protocol_version) {
    throw Error(ErrorCode::unsupported, fmt::format("member {} speaks protocol {}, member {} speaks {}", peer_.rank,
                                                    peer_.version, mine_.rank, mine_.version));
  }
  if (peer_.world_size != mine_.world_size) {
    throw Error(ErrorCode::invalid_argument, fmt::format("member {} expects {} members, member {} expects {}",
                                                         peer_.rank, peer_.world_size, mine_.rank, mine_.world_size));
  }
  state_ = State::proving;
  if (initiator_) {
    write(wire::prove(job_key_, true, mine_, peer_));
  } else {
    write(mine_);
  }
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
  handshake_timer_.stop();
  if (!initiator_) write(wire::prove(job_key_, false, peer_, mine_));
  if (events_.ready) events_.ready(*this);
}

void Connection::send(const wire::Message& message) {
  if (state_ == State::open) write(message);
}

void Connection::send_encoded(const Bytes& encoded) {
  if (state_ == State::open) write_frame(encoded);
}

void Connection::write(const wire::Message& message) {
  write_frame(wire::encode(message));
}

void Connection::write_frame(const Bytes& encoded) {
  auto owner = std::make_unique<Write>();
  const std::uint64_t length = encoded.size();
  owner->bytes.resize(frame_header_bytes + encoded.size());
  std::memcpy(owner->bytes.data(), &length, sizeof length);
  std::memcpy(owner->bytes.data() + frame_header_bytes, encoded.data(), encoded.size());
  uv_buf_t buffer =
      uv_buf_init(reinterpret_cast<char*>(owner->bytes.data()), static_cast<unsigned>(owner->bytes.size()));
  owner->request.data = owner.get();
  // A failed write shows as a failed read as well, which is where the connection is ended.
  const int status = uv_write(&owner->request, reinterpret_cast<uv_stream_t*>(stream_.get()), &buffer, 1,
                              [](uv_write_t* request, int) { delete static_cast<Write*>(request->data); });
  if (status >= 0) static_cast<void>(owner.release());
}

void Connection::leave() {
  if (state_ == State::open) {
    write(wire::Goodbye{});
    // What is queued leaves before the stream is closed.
    struct Shutdown {
      uv_shutdown_t request{};
      HandleOwner<uv_tcp_t> stream;
    };
    state_ = State::closed;
    auto* shutdown = new Shutdown;
    stream_->data = nullptr;
    shutdown->stream = std::move(stream_);
    shutdown->request.data = shutdown;
    const int status = uv_shutdown(&shutdown->request, reinterpret_cast<uv_stream_t*>(shutdown->stream.get()),
                                   [](uv_shutdown_t* done, int) { delete static_cast<Shutdown*>(done->data); });
    if (status < 0) delete shutdown;
    return;
  }
  drop();
}

void Connection::drop() {
  state_ = State::closed;
  close_stream();
}

void Connection::close_stream() {
  handshake_timer_.stop();
  stream_.reset();
}

void Connection::fail(const Error& reason) {
  if (state_ == State::closed) return;
  state_ = State::closed;
  const auto keep = shared_from_this();
  close_stream();
  if (events_.closed) events_.closed(*this, reason, goodbye_);
}

std::string Connection::local_host() const {
  sockaddr_storage address{};
  int length = sizeof address;
  check_uv(uv_tcp_getsockname(stream_.get(), reinterpret_cast<sockaddr*>(&address), &length), "uv_tcp_getsockname");
  return host_of(address);
}

Listener::Listener(Loop& loop, const SocketAddress& at, std::function<void(uv_stream_t*)> incoming)
    : address_(at), incoming_(std::move(incoming)) {
  auto stream = std::make_unique<uv_tcp_t>();
  check_uv(uv_tcp_init(loop.raw(), stream.get()), "uv_tcp_init");
  stream_.reset(stream.release());
  stream_->data = this;
  const sockaddr_storage wanted = socket_address(at);
  int status = uv_tcp_bind(stream_.get(), reinterpret_cast<const sockaddr*>(&wanted), 0);
  if (status >= 0) {
    status = uv_listen(reinterpret_cast<uv_stream_t*>(stream_.get()), 1024, [](uv_stream_t* listener, int result) {
      if (result >= 0 && listener->data != nullptr) static_cast<Listener*>(listener->data)->incoming_(listener);
    });
  }
  if (status < 0) {
    throw Error(uv_error_code(status, ErrorCode::invalid_argument),
                fmt::format("cannot listen on {} port {}: {}", at.host, at.port, uv_message(status)));
  }
  sockaddr_storage bound{};
  int length = sizeof bound;
  check_uv(uv_tcp_getsockname(stream_.get(), reinterpret_cast<sockaddr*>(&bound), &length), "uv_tcp_getsockname");
  address_.port = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6*>(&bound)->sin6_port
                                                    : reinterpret_cast<const sockaddr_in*>(&bound)->sin_port);
}

std::string resolve(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int status = getaddrinfo(host.c_str(), nullptr, &hints, &found);
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, &freeaddrinfo);
  if (status != 0) {
    throw Error(ErrorCode::invalid_argument, fmt::format("cannot resolve host '{}': {}", host, gai_strerror(status)));
  }
  // IPv4 first: it is what launchers hand out, and both ends have to pick the same family.
  const addrinfo* chosen = found;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    if (one->ai_family == AF_INET) {
      chosen = one;
      break;
    }
  }
  sockaddr_storage address{};
  std::memcpy(&address, chosen->ai_addr, std::min<std::size_t>(chosen->ai_addrlen, sizeof address));
  return host_of(address);
}

std::string interface_address(const std::string& interface_or_address) {
  uv_interface_address_t* list = nullptr;
  int count = 0;
  check_uv(uv_interface_addresses(&list, &count), "uv_interface_addresses");
  std::string result;
  std::string known;
  for (int i = 0; i < count; ++i) {
    sockaddr_storage address{};
    std::memcpy(&address, &list[i].address, sizeof list[i].address);
    const std::string text = host_of(address);
    known += fmt::format("{}{} ({})", known.empty() ? "" : ", ", list[i].name, text);
    const bool matches = interface_or_address == list[i].name || interface_or_address == text;
    if (matches && (result.empty() || list[i].address.address4.sin_family == AF_INET)) result = text;
  }
  uv_free_interface_addresses(list, count);
  if (result.empty()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("no network interface '{}' here; there are: {}", interface_or_address, known));
  }
  return result;
}

}  // namespace shardwire

// SPDX-License-Identifier: Apache-2.0
#include "runtime/socket_stream.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <utility>

#include "runtime/peer_user.hpp"
#include "support/descriptor_messages.hpp"

namespace shardwire {

namespace {

constexpr int max_reads_in_a_turn = 16;
constexpr int max_reads_at_the_end = 64;
constexpr std::size_t max_chunks_in_a_call = 64;
// The kernel closes the connection after this long without an acknowledgement, of data or of a keepalive probe.
constexpr int unacknowledged_limit_ms = 30'000;
constexpr int keepalive_idle_s = 10;
constexpr int keepalive_interval_s = 5;
constexpr int keepalive_probes = 4;
// Attempts at a local listener whose queue is full: for about five seconds.
constexpr int max_refusals = 2500;
constexpr std::chrono::milliseconds refusal_wait(2);

int status_of_errno() {
  return uv_translate_sys_error(errno);
}
bool would_block() {
  return errno == EAGAIN || errno == EWOULDBLOCK;
}

support::Descriptor open_socket(int family) {
  support::Descriptor socket(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket) check_uv(status_of_errno(), "socket");
  return socket;
}

// A name for the other end of a local connection. Processes count apart, so that a stranger among them cannot use up what the
// others may have.
std::string local_peer(int socket) {
  ucred peer{};
  socklen_t length = sizeof peer;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) return {};
  if (peer.uid == static_cast<uid_t>(-1)) return {};  // not connected
  return fmt::format("process {}", peer.pid);
}

std::string host_of_end(int socket, int (*get)(int, sockaddr*, socklen_t*)) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (get(socket, reinterpret_cast<sockaddr*>(&address), &length) != 0) return {};
  return address.ss_family == AF_INET || address.ss_family == AF_INET6 ? host_of(address) : std::string();
}

}  // namespace

SocketStream::SocketStream(UvLoop& loop, support::Descriptor socket, Events events)
    : loop_(loop), socket_(std::move(socket)), events_(std::move(events)), later_(loop) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  local_ =
      ::getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&address), &length) == 0 && address.ss_family == AF_UNIX;
  poll_ = make_handle<uv_poll_t>([&](auto* h) { return uv_poll_init(loop.raw(), h, socket_.get()); }, "uv_poll_init");
  poll_->data = this;
  closed_on_fork_.emplace(socket_.get());
}

SocketStream::~SocketStream() = default;

std::shared_ptr<SocketStream> SocketStream::connect(UvLoop& loop, const SocketAddress& to, Events events) {
  const sockaddr_storage address = socket_address(to);
  const std::shared_ptr<SocketStream> self(new SocketStream(loop, open_socket(address.ss_family), std::move(events)));
  self->begin_connecting(address, address.ss_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in));
  return self;
}

std::shared_ptr<SocketStream> SocketStream::connect_local(UvLoop& loop, const std::string& name, Events events) {
  const LocalAddress address(name);
  const std::shared_ptr<SocketStream> self(new SocketStream(loop, open_socket(AF_UNIX), std::move(events)));
  sockaddr_storage raw{};
  std::memcpy(&raw, address.raw(), address.length());
  self->begin_connecting(raw, address.length());
  return self;
}

std::shared_ptr<SocketStream> SocketStream::adopt(UvLoop& loop, support::Descriptor socket, Events events) {
  const int flags = ::fcntl(socket.get(), F_GETFL);
  if (flags < 0 || ::fcntl(socket.get(), F_SETFL, flags | O_NONBLOCK) != 0) check_uv(status_of_errno(), "fcntl");
  std::shared_ptr<SocketStream> self(new SocketStream(loop, std::move(socket), std::move(events)));
  self->set_options();
  return self;
}

// Ignores errors of kernels without an option. Local sockets do not have these options.
void SocketStream::set_options() const {
  if (local_) return;
  const auto set = [&](int level, int option, int value) {
    static_cast<void>(::setsockopt(socket_.get(), level, option, &value, sizeof value));
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, keepalive_idle_s);
  set(IPPROTO_TCP, TCP_KEEPINTVL, keepalive_interval_s);
  set(IPPROTO_TCP, TCP_KEEPCNT, keepalive_probes);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, unacknowledged_limit_ms);
}

void SocketStream::begin_connecting(const sockaddr_storage& address, unsigned length) {
  connecting_ = true;
  const int result = ::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address), length);
  if (result == 0 || errno == EINPROGRESS) return watch();
  const int status = status_of_errno();
  // A local listener whose queue is full refuses at once, unlike one of the network.
  if (local_ && would_block() && ++refusals_ <= max_refusals) {
    return later_.start(refusal_wait, [this, address, length] { begin_connecting(address, length); });
  }
  later_.start({}, [this, status] {
    connecting_ = false;
    end(uv_message(status));
  });
}

void SocketStream::watch() {
  const int wanted =
      (reading_ && !connecting_ ? UV_READABLE : 0) | (connecting_ || (!queue_.empty() && !broken_) ? UV_WRITABLE : 0);
  if (wanted == watched_ || !poll_) return;
  watched_ = wanted;
  if (wanted == 0) {
    uv_poll_stop(poll_.get());
    return;
  }
  uv_poll_start(poll_.get(), wanted, [](uv_poll_t* poll, int status, int events) {
    if (poll->data == nullptr) return;
    const auto keep = static_cast<SocketStream*>(poll->data)->shared_from_this();
    keep->ready(status, events);
  });
}

void SocketStream::ready(int status, int events) {
  if (status < 0) watched_ = 0;
  if (connecting_) {
    int error = 0;
    socklen_t length = sizeof error;
    ::getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    connecting_ = false;
    if (error != 0) return end(uv_message(uv_translate_sys_error(error)));
    if (local_ && shardwire::peer_user(socket_.get()) == PeerUser::other)
      return end("a process of another user listens there");
    set_options();
    watch();
    const auto notify = events_.connected;  // it may drop the stream, as may the callbacks below
    if (notify) notify();
    return;
  }
  if (status < 0) {  // reset: libuv has stopped watching, but earlier data can still be read
    if (!queue_.empty()) discard_queue();
    if (reading_) read_some();
    return watch();
  }
  if ((events & UV_WRITABLE) != 0) {
    flush();
    notify_drained();
    if (poll_ && finishing_ && queue_.empty()) return finished();
  }
  if (poll_ && (events & UV_READABLE) != 0) read_some();
}

void SocketStream::notify_drained() {
  const auto notify = events_.drained;
  if (std::exchange(passed_, false) && notify) notify();
}

void SocketStream::start_reading() {
  reading_ = true;
  watch();
}

void SocketStream::stop_reading() {
  reading_ = false;
  watch();
}

// --- reading ---

void SocketStream::read_some() {
  const uv_buf_t buffer = UvLoop::input_of(*loop_.raw());
  const std::span<std::byte> into = std::as_writable_bytes(std::span(buffer.base, buffer.len));
  for (int turn = 0; turn < max_reads_in_a_turn && poll_ && reading_; ++turn) {
    const Arrived arrived = local_ ? receive_local(into) : receive(into);
    if (arrived.status == UV_EOF) return end("the peer closed its connection");
    if (arrived.status != 0) return end(uv_message(arrived.status));
    if (arrived.bytes == 0) return;
    const auto notify = events_.data;
    if (notify) notify(into.first(arrived.bytes));
    if (arrived.bytes < into.size()) return;
  }
}

SocketStream::Arrived SocketStream::receive(std::span<std::byte> into) const {
  ssize_t got = -1;
  do {
    got = ::recv(socket_.get(), into.data(), into.size(), 0);
  } while (got < 0 && errno == EINTR);
  if (got < 0) return {0, would_block() ? 0 : status_of_errno()};
  return {static_cast<std::size_t>(got), got == 0 ? UV_EOF : 0};
}

// Receives at most as many descriptors as the queue has room for. If some were lost, this process may be out of
// descriptors.
SocketStream::Arrived SocketStream::receive_local(std::span<std::byte> into) {
  try {
    const std::size_t wanted = accepts_descriptors_ ? max_descriptors - descriptors_.size() : 0;
    support::ReceivedMessage received = support::receive_with_descriptors(socket_.get(), into, wanted);
    std::ranges::move(received.descriptors, std::back_inserter(descriptors_));
    return {received.bytes, received.closed ? UV_EOF : 0};
  } catch (const Error& error) {
    switch (error.code()) {
      case ErrorCode::peer_lost: return {0, UV_ECONNRESET};
      case ErrorCode::out_of_resources: return {0, UV_EMFILE};
      default: return {0, UV_EPROTO};
    }
  }
}

support::Descriptor SocketStream::take_descriptor() {
  support::Descriptor first = std::move(descriptors_.front());
  descriptors_.pop_front();
  return first;
}

// --- writing ---

void SocketStream::write(Bytes bytes, std::span<const int> descriptors, bool notice) {
  if (broken_ || !poll_ || bytes.empty()) return;
  Chunk chunk{std::move(bytes), {}, notice};
  for (const int number : descriptors) {
    support::Descriptor copy(::fcntl(number, F_DUPFD_CLOEXEC, 0));
    if (!copy) check_uv(status_of_errno(), "fcntl");
    chunk.descriptors.push_back(std::move(copy));
  }
  queued_bytes_ += chunk.bytes.size();
  if (notice) queued_notice_bytes_ += chunk.bytes.size();
  queue_.push_back(std::move(chunk));
  // Writes at once if the queue was empty: most messages fit, which saves an iteration of the loop.
  if (queue_.size() == 1 && !connecting_) flush();
  watch();
}

std::size_t SocketStream::untaken_bytes() const {
  int bytes = 0;
  return socket_ && ::ioctl(socket_.get(), SIOCOUTQ, &bytes) == 0 ? static_cast<std::size_t>(bytes) : 0;
}

void SocketStream::flush() {
  while (!queue_.empty() && !broken_) {
    std::array<iovec, max_chunks_in_a_call> ranges{};
    std::size_t count = 0;
    for (Chunk& chunk : queue_) {
      const bool goes_alone = !chunk.descriptors.empty();
      if (count == ranges.size() || (count > 0 && goes_alone)) break;
      const std::size_t sent = count == 0 ? sent_of_first_ : 0;
      ranges[count++] = {chunk.bytes.data() + sent, chunk.bytes.size() - sent};
    }
    Chunk& first = queue_.front();
    const ssize_t result = first.descriptors.empty() ? send(std::span(ranges).first(count)) : send_first();
    if (result == 0) break;  // the socket buffer is full
    if (result < 0) {
      discard_queue();  // the end of file is read after the data the peer sent before it
      break;
    }
    first.descriptors.clear();
    passed_ = true;
    auto left = static_cast<std::size_t>(result);
    queued_bytes_ -= left;
    while (left > 0) {
      Chunk& chunk = queue_.front();
      const std::size_t part = std::min(left, chunk.bytes.size() - sent_of_first_);
      left -= part;
      sent_of_first_ += part;
      if (sent_of_first_ < chunk.bytes.size()) break;
      if (chunk.notice) queued_notice_bytes_ -= chunk.bytes.size();
      queue_.pop_front();
      sent_of_first_ = 0;
    }
  }
  watch();
}

// Number of bytes sent, 0 if the buffer is full, negative on error.
ssize_t SocketStream::send(std::span<iovec> ranges) const {
  msghdr message{};
  message.msg_iov = ranges.data();
  message.msg_iovlen = ranges.size();
  ssize_t sent = -1;
  do {
    sent = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent < 0 && would_block() ? 0 : sent;
}

// Sends the first chunk and its descriptors.
ssize_t SocketStream::send_first() const {
  const Chunk& first = queue_.front();
  std::vector<int> numbers;
  for (const support::Descriptor& descriptor : first.descriptors) numbers.push_back(descriptor.get());
  try {
    const auto left = std::span(first.bytes).subspan(sent_of_first_);
    return static_cast<ssize_t>(support::send_with_descriptors(socket_.get(), left, numbers));
  } catch (const Error&) {
    return -1;
  }
}

void SocketStream::discard_queue() {
  broken_ = true;
  passed_ = true;
  queued_notice_bytes_ = 0;
  queued_bytes_ = 0;
  sent_of_first_ = 0;
  queue_.clear();
  later_.start({}, [this] {
    const auto keep = shared_from_this();
    notify_drained();
    if (poll_ && finishing_) finished();
  });
}

// --- the end ---

void SocketStream::end(const std::string& why) {
  stop_reading();
  if (finishing_) return finished();
  const auto notify = events_.ended;
  if (notify) notify(why);
}

void SocketStream::drop() {
  later_.stop();
  events_ = {};
  closed_on_fork_.reset();
  poll_.reset();
  socket_.reset();
  queue_.clear();
  descriptors_.clear();
}

void SocketStream::finish(std::chrono::nanoseconds limit) {
  events_ = {};
  descriptors_.clear();
  closed_on_fork_.reset();  // the parent sends the rest; the child's copy of the connection ends
  if (queue_.empty()) return finished();
  finishing_ = true;
  until_flushed_ = shared_from_this();
  start_reading();
  later_.start(limit, [this] {
    const auto keep = shared_from_this();
    finished();
  });
}

void SocketStream::finished() {
  const auto keep = std::move(until_flushed_);
  if (socket_) {
    ::shutdown(socket_.get(), SHUT_WR);
    forget_input();
  }
  drop();
}

// Closing with unread input would reset the connection and discard data that the peer has not read.
void SocketStream::forget_input() const {
  const uv_buf_t buffer = UvLoop::input_of(*loop_.raw());
  for (int i = 0; i < max_reads_at_the_end; ++i) {
    if (::recv(socket_.get(), buffer.base, buffer.len, MSG_DONTWAIT) <= 0) return;
  }
}

support::Descriptor SocketStream::release() {
  support::Descriptor socket = std::move(socket_);
  drop();
  return socket;
}

PeerUser SocketStream::peer_user() const {
  return shardwire::peer_user(socket_.get());
}

std::string SocketStream::own_host() const {
  return host_of_end(socket_.get(), ::getsockname);
}
std::string SocketStream::peer_host() const {
  return local_ ? local_peer(socket_.get()) : host_of_end(socket_.get(), ::getpeername);
}

}  // namespace shardwire

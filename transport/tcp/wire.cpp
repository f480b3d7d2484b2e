// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/wire.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <exception>
#include <utility>

namespace shardwire::transport::tcp {
namespace {

// Of one call. Records have 16 KiB at most, and small ranges share them.
constexpr std::size_t sealed_at_once = 128u << 10;
constexpr std::size_t received_at_once = 64u << 10;

}  // namespace

Wire::Wire(OpenSocket socket) : socket_(std::move(socket.descriptor)), encryption_(std::move(socket.encryption)) {
  closed_on_fork_.emplace(socket_.get());
}

void Wire::close() {
  closed_on_fork_.reset();
  socket_.reset();
  Bytes().swap(open_);
  Bytes().swap(sealed_);
  open_taken_ = sealed_sent_ = 0;
}

ssize_t Wire::receive(IoVectors& into) {
  if (encryption_) return receive_encrypted(into);
  msghdr call{};
  call.msg_iov = into.data();
  call.msg_iovlen = into.count();
  return ::recvmsg(socket_.get(), &call, MSG_DONTWAIT);
}

ssize_t Wire::send(IoVectors& from) {
  if (encryption_) return send_encrypted(from);
  msghdr call{};
  call.msg_iov = from.data();
  call.msg_iovlen = from.count();
  return ::sendmsg(socket_.get(), &call, MSG_DONTWAIT | MSG_NOSIGNAL);
}

bool Wire::is_drained(std::size_t got, std::size_t asked) const {
  return encryption_ ? open_taken_ == open_.size() && socket_is_empty_ : got < asked;
}

bool Wire::is_full(std::size_t sent, std::size_t offered) const {
  return encryption_ ? holds_output() : sent < offered;
}

// The next call looks at the socket again, unless this one has: the kernel reports bytes that come between two calls once.
ssize_t Wire::receive_encrypted(IoVectors& into) {
  socket_is_empty_ = false;
  while (open_taken_ == open_.size()) {
    open_.clear();
    open_taken_ = 0;
    std::array<std::byte, received_at_once> arrived;  // NOLINT(cppcoreguidelines-pro-type-member-init)
    const ssize_t got = ::recv(socket_.get(), arrived.data(), arrived.size(), MSG_DONTWAIT);
    if (got <= 0) return got;
    socket_is_empty_ = static_cast<std::size_t>(got) < arrived.size();
    try {
      encryption_->receive(ByteView(arrived).first(static_cast<std::size_t>(got)), open_);
    } catch (const std::exception&) {
      errno = EBADMSG;
      return -1;
    }
  }
  std::size_t moved = 0;
  for (std::size_t i = 0; i < into.count() && open_taken_ < open_.size(); ++i) {
    const iovec& range = into.data()[i];
    const std::size_t part = std::min(range.iov_len, open_.size() - open_taken_);
    std::memcpy(range.iov_base, open_.data() + open_taken_, part);
    open_taken_ += part;
    moved += part;
  }
  return static_cast<ssize_t>(moved);
}

ssize_t Wire::send_encrypted(IoVectors& from) {
  if (holds_output() && flush() < 0) return -1;
  gathered_.clear();
  for (std::size_t i = 0; i < from.count() && gathered_.size() < sealed_at_once; ++i) {
    const iovec& range = from.data()[i];
    const auto* const begin = static_cast<const std::byte*>(range.iov_base);
    gathered_.insert(gathered_.end(), begin, begin + std::min(range.iov_len, sealed_at_once - gathered_.size()));
  }
  try {
    encryption_->send(gathered_);
    encryption_->output(sealed_);
  } catch (const std::exception&) {
    errno = ENOMEM;  // nothing else fails
    return -1;
  }
  sealed_sent_ = 0;
  const int earlier = errno;
  if (flush() < 0 && errno != EAGAIN && errno != EWOULDBLOCK) return -1;
  errno = earlier;
  return static_cast<ssize_t>(gathered_.size());
}

ssize_t Wire::flush() {
  while (holds_output()) {
    const ssize_t sent = ::send(socket_.get(), sealed_.data() + sealed_sent_, sealed_.size() - sealed_sent_,
                                MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return -1;
    sealed_sent_ += static_cast<std::size_t>(sent);
  }
  return 0;
}

}  // namespace shardwire::transport::tcp

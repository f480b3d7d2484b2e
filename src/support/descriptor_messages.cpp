// SPDX-License-Identifier: Apache-2.0
#include "support/descriptor_messages.hpp"

#include <fmt/core.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "shardwire/error.hpp"

namespace shardwire::support {
namespace {

// Room for one more than allowed, to distinguish a sender of too many from a process that may not open so many.
struct ControlBuffer {
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE((max_passed_descriptors + 1) * sizeof(int))> bytes{};
};

[[noreturn]] void refuse_message(ErrorCode code, const std::string& why) {
  throw Error(code, "descriptors over a local socket: " + why);
}

// Takes ownership of all descriptors before any check.
bool take_descriptors(msghdr& message, std::vector<Descriptor>& descriptors) {
  bool nothing_else = true;
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr; part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) {
      nothing_else = false;
      continue;
    }
    const std::size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int number = -1;
      std::memcpy(&number, CMSG_DATA(part) + i * sizeof number, sizeof number);
      descriptors.emplace_back(number);
    }
  }
  return nothing_else;
}

}  // namespace

std::size_t send_with_descriptors(int socket, std::span<const std::byte> bytes, std::span<const int> descriptors) {
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  ControlBuffer control;
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    message.msg_control = control.bytes.data();
    message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(header), descriptors.data(), descriptors.size_bytes());
  }
  while (true) {
    const ssize_t sent = ::sendmsg(socket, &message, MSG_NOSIGNAL);
    if (sent >= 0) return static_cast<std::size_t>(sent);
    switch (errno) {
      case EINTR: continue;
      case EAGAIN: return 0;
      case EPIPE:
      case ECONNRESET: refuse_message(ErrorCode::peer_lost, "the peer has gone");
      case ETOOMANYREFS: refuse_message(ErrorCode::out_of_resources, "too many are on their way (ulimit -n)");
      default: refuse_message(ErrorCode::transport_failed, std::strerror(errno));
    }
  }
}

ReceivedMessage receive_with_descriptors(int socket, std::span<std::byte> into, std::size_t max_descriptors) {
  iovec part{into.data(), into.size()};
  ControlBuffer control;
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes.data();
  message.msg_controllen = CMSG_SPACE((std::min(max_descriptors, max_passed_descriptors) + 1) * sizeof(int));
  ssize_t got = -1;
  do {
    got = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  if (got < 0) {
    if (errno == EAGAIN) return {};
    refuse_message(errno == ECONNRESET ? ErrorCode::peer_lost : ErrorCode::transport_failed, std::strerror(errno));
  }
  ReceivedMessage received{.bytes = static_cast<std::size_t>(got), .closed = got == 0};
  const bool nothing_else = take_descriptors(message, received.descriptors);
  if (received.descriptors.size() > max_descriptors) {
    refuse_message(ErrorCode::transport_failed, fmt::format("more than {} came", max_descriptors));
  }
  if ((message.msg_flags & MSG_CTRUNC) != 0) {
    refuse_message(ErrorCode::out_of_resources,
                   "not all could be taken; this process may not have so many (ulimit -n)");
  }
  if (!nothing_else) refuse_message(ErrorCode::transport_failed, "something else came to the side of the bytes");
  return received;
}

}  // namespace shardwire::support

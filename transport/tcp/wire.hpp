// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <optional>

#include "support/descriptors.hpp"
#include "support/encryption.hpp"
#include "support/fork.hpp"
#include "transport/tcp/ranges.hpp"
#include "transport/transport.hpp"

namespace shardwire::transport::tcp {

/// A socket, and the encryption of what passes it, if there is one. Never waits.
class Wire {
 public:
  explicit Wire(OpenSocket socket);

  [[nodiscard]] int descriptor() const { return socket_.get(); }
  explicit operator bool() const { return static_cast<bool>(socket_); }
  void close();

  /// As recvmsg(2) and sendmsg(2). An encrypted wire may move less than it could, and fails with EBADMSG once something has
  /// come that the peer has not sent.
  ssize_t receive(IoVectors& into);
  ssize_t send(IoVectors& from);
  /// After receive() has moved `got` bytes of `asked`: the next call would move none until the kernel reports more.
  [[nodiscard]] bool is_drained(std::size_t got, std::size_t asked) const;
  /// After send() has moved `sent` bytes of `offered`: the next call would move none until the kernel reports room.
  [[nodiscard]] bool is_full(std::size_t sent, std::size_t offered) const;
  /// Bytes that send() has taken and the kernel has not. flush() hands them over; -1 as send().
  [[nodiscard]] bool holds_output() const { return sealed_.size() > sealed_sent_; }
  ssize_t flush();

 private:
  ssize_t receive_encrypted(IoVectors& into);
  ssize_t send_encrypted(IoVectors& from);

  support::Descriptor socket_;
  std::optional<support::ClosedOnFork> closed_on_fork_;
  std::unique_ptr<support::Encryption> encryption_;  // null: none
  Bytes open_;                                       // received and decrypted
  std::size_t open_taken_ = 0;                       // of it
  bool socket_is_empty_ = false;
  Bytes sealed_;  // encrypted, to be sent
  std::size_t sealed_sent_ = 0;
  Bytes gathered_;  // kept for its memory
};

}  // namespace shardwire::transport::tcp

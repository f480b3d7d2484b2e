// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "control/connection.hpp"
#include "shardwire/options.hpp"

namespace shardwire {

/// The local name on which the keeper of a job listens, unless the options name a socket.
std::string keeper_socket(const KeeperOptions& options);
/// This process's description of itself to a keeper. `job_key`: as both got it.
Identity keeper_identity(const KeeperOptions& options, int member, std::uint64_t incarnation, const Bytes& job_key);

/// This member's connection to the keeper of its host. Connects on the first request, and again after the connection has
/// ended; the keeper forgets buffers that were not complete.
/// Threads: loop thread only.
class KeeperLink {
 public:
  /// Receives the answer, or the error that ended the request.
  using OnReply = std::function<void(wire::Message* answer, const std::exception_ptr& error)>;

  /// Ownership: borrows the loop.
  KeeperLink(Loop& loop, KeeperOptions options, Identity identity);
  ~KeeperLink();
  KeeperLink(const KeeperLink&) = delete;
  KeeperLink& operator=(const KeeperLink&) = delete;

  /// Sends what `message_for` makes of the number of the request. Errors come with the answer.
  void request(const std::function<wire::Message(std::uint64_t request)>& message_for, OnReply answer);
  /// Sends a message that gets no answer, if there is a connection.
  void notify(const wire::Message& message);
  /// Descriptors that came with the answer that is being given. Errors: throws Error{transport_failed} if there are fewer.
  std::vector<support::Descriptor> take_descriptors(std::size_t count);
  /// Counts the connections so far: buffers are known by number within one.
  [[nodiscard]] std::uint64_t connections() const { return connections_; }
  [[nodiscard]] bool connected() const { return connection_ != nullptr; }
  void leave();

 private:
  void connect();
  void send(const wire::Message& message);
  void answered(wire::Message& message);
  void ended(const Error& reason);

  Loop& loop_;
  KeeperOptions options_;
  Identity identity_;
  std::shared_ptr<Connection> connection_;  // owners: this and its own callbacks; null: there is none
  std::uint64_t connections_ = 0;
  std::uint64_t next_request_ = 1;
  std::map<std::uint64_t, OnReply> answers_;
  std::vector<wire::Message> waiting_;  // until it is ready
};

}  // namespace shardwire

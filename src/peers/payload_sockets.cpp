// SPDX-License-Identifier: Apache-2.0
#include "peers/payload_sockets.hpp"

#include <fmt/core.h>

#include <algorithm>

namespace shardwire {

namespace {

constexpr std::size_t max_waiting_sockets = 65536;  // as many as are accepted: each reader of a publication has some
constexpr std::uint8_t max_index = 63;

}  // namespace

OpeningSockets::OpeningSockets(Loop& loop, const wire::MemberRecord& to, const transport::SocketNeeds& wanted,
                               std::uint64_t token, const Identity& identity, Done done)
    : connections_(static_cast<std::size_t>(wanted.count)),
      sockets_(connections_.size()),
      missing_(connections_.size()),
      must_be_encrypted_(identity.encrypt_payload && wanted.encrypt),
      done_(std::move(done)) {
  const bool local = wanted.kind == transport::SocketNeeds::Kind::local;
  for (std::size_t i = 0; i < connections_.size(); ++i) {
    Connection::Events events;
    // A token is of use to a process that has proven the key as this one, and to no other.
    events.greeted = [this, i, token, incarnation = to.incarnation](Connection& connection) {
      if (connection.peer().incarnation == incarnation) attach(i, token, connection);
    };
    events.ready = [this, incarnation = to.incarnation](const Connection& connection) {
      if (connection.peer().incarnation != incarnation) {
        fail(Error(ErrorCode::peer_lost, "another process has taken its address"));
      }
    };
    events.message = [this, i](Connection& connection, const wire::Message& message) {
      if (std::holds_alternative<wire::Attached>(message)) return attached(i, connection);
      const auto* failure = std::get_if<wire::Failure>(&message);
      fail(failure != nullptr ? Error(failure->code, failure->message)
                              : Error(ErrorCode::transport_failed, "the peer sent a reply without a request"));
    };
    events.closed = [this](Connection&, const Error& reason, bool) { fail(reason); };
    connections_[i] =
        local ? Connection::connect_local(loop, to.local_path, identity, std::move(events))
              : Connection::connect(loop, {to.address, to.port}, identity, std::move(events),
                                    must_be_encrypted_ ? Connection::Encrypt::if_both_can : Connection::Encrypt::never);
  }
}

OpeningSockets::~OpeningSockets() {
  for (const auto& connection : connections_) {
    if (connection) connection->drop();
  }
}

void OpeningSockets::attach(std::size_t index, std::uint64_t token, Connection& connection) {
  if (must_be_encrypted_ && !connection.encrypted()) {
    return fail(Error(ErrorCode::unsupported,
                      fmt::format("bytes have to be encrypted (SessionOptions::encrypt_payload), and member {} cannot",
                                  connection.peer().rank)));
  }
  connection.send(wire::Attach{token, static_cast<std::uint8_t>(index)});
}

void OpeningSockets::attached(std::size_t index, Connection& connection) {
  const auto keep = std::exchange(connections_[index], nullptr);
  try {
    auto [socket, encryption] = connection.release();
    sockets_[index] = {std::move(socket), std::move(encryption)};
  } catch (const Error& error) {
    keep->drop();
    return fail(error);
  }
  if (--missing_ > 0) return;
  const auto done = std::move(done_);
  done(std::move(sockets_), nullptr);  // this object may be destroyed now
}

void OpeningSockets::fail(const Error& why) {
  const Done done = std::exchange(done_, nullptr);
  if (!done) return;
  for (const auto& connection : connections_) {
    if (connection) connection->drop();
  }
  done({}, &why);
}

void AttachedSockets::check(const wire::Hello& reader, const wire::Attach& attach) {
  if (attach.token == 0 || attach.index > max_index) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("there is no socket {} of token {}", attach.index, attach.token));
  }
  close_old();
  if (count_ >= max_waiting_sockets) {
    throw Error(ErrorCode::out_of_resources, fmt::format("{} sockets wait to be used already", count_));
  }
  const auto found = waiting_.find(Key{reader.incarnation, attach.token});
  if (found != waiting_.end() && found->second.sockets.contains(attach.index)) {
    throw Error(ErrorCode::invalid_argument, fmt::format("socket {} is there already", attach.index));
  }
}

void AttachedSockets::add(const wire::Hello& reader, const wire::Attach& attach, transport::OpenSocket socket) {
  const auto [entry, fresh] = waiting_.try_emplace(Key{reader.incarnation, attach.token});
  if (fresh) entry->second.since = clock_.now();
  entry->second.sockets.emplace(attach.index, std::move(socket));
  ++count_;
  close_old();
}

std::vector<transport::OpenSocket> AttachedSockets::take(const wire::Hello& reader, std::uint64_t token) {
  auto found = waiting_.extract(Key{reader.incarnation, token});
  if (found.empty()) return {};
  auto& sockets = found.mapped().sockets;
  count_ -= sockets.size();
  if (sockets.rbegin()->first + std::size_t{1} != sockets.size()) return {};
  std::vector<transport::OpenSocket> taken;
  for (auto& [index, socket] : sockets) taken.push_back(std::move(socket));
  return taken;
}

void AttachedSockets::close_old() {
  const auto now = clock_.now();
  if (now < next_close_) return;  // the timer runs
  std::erase_if(waiting_, [&](const auto& entry) {
    if (now - entry.second.since < limit_) return false;
    count_ -= entry.second.sockets.size();
    return true;
  });
  next_close_ = {};
  if (waiting_.empty()) return timer_.stop();
  // The timer may fire early by the lag of the loop's clock.
  const auto oldest = std::ranges::min_element(waiting_, {}, [](const auto& entry) { return entry.second.since; });
  next_close_ = oldest->second.since + limit_;
  timer_.start(next_close_ - now + std::chrono::milliseconds(1), [this] { close_old(); });
}

}  // namespace shardwire

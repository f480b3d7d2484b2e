// SPDX-License-Identifier: Apache-2.0
#include "peers/keeper_link.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include <chrono>
#include <utility>

#include "shardwire/error.hpp"

namespace shardwire {

namespace {

// A keeper takes the pages of a snapshot before it answers: seconds for each ten gigabytes.
constexpr std::chrono::seconds silence_limit(60);

}  // namespace

std::string keeper_socket(const KeeperOptions& options) {
  if (!options.socket.empty()) return options.socket;
  return fmt::format("shardwire-keep-{}-{}", ::getuid(), options.job);
}

Identity keeper_identity(const KeeperOptions& options, int member, std::uint64_t incarnation, const Bytes& job_key) {
  Identity identity;
  identity.hello.rank = member;
  identity.hello.incarnation = incarnation;
  identity.hello.run_id = options.job;
  identity.job_key = job_key;
  identity.liveness.limit = silence_limit;
  return identity;
}

KeeperLink::KeeperLink(Loop& loop, KeeperOptions options, Identity identity)
    : loop_(loop), options_(std::move(options)), identity_(std::move(identity)) {
}

KeeperLink::~KeeperLink() {
  if (connection_) connection_->drop();
}

void KeeperLink::connect() {
  Connection::Events events;
  events.ready = [this](Connection&) {
    for (const wire::Message& message : std::exchange(waiting_, {})) send(message);
  };
  events.message = [this](Connection&, wire::Message& message) { answered(message); };
  events.closed = [this](Connection&, const Error& reason, bool) { ended(reason); };
  ++connections_;
  connection_ = Connection::connect_local(loop_, keeper_socket(options_), identity_, std::move(events));
}

void KeeperLink::request(const std::function<wire::Message(std::uint64_t request)>& message_for, OnReply answer) {
  const std::uint64_t number = next_request_++;
  answers_[number] = std::move(answer);
  const wire::Message message = message_for(number);
  try {
    if (!connection_) connect();
  } catch (const Error& error) {
    return ended(error);
  }
  if (connection_->ready()) {
    send(message);
  } else {
    waiting_.push_back(message);
  }
}

// A keeper that is stopped must not stop its trainers.
void KeeperLink::send(const wire::Message& message) {
  connection_->send(message);
  connection_->check_alive([this, connection = connections_](bool alive) {
    if (alive || connection != connections_ || !connection_ || answers_.empty()) return;
    connection_->drop();
    ended(Error(ErrorCode::timed_out, fmt::format("it has not answered for {} s", silence_limit.count())));
  });
}

void KeeperLink::notify(const wire::Message& message) {
  if (connection_ && connection_->ready()) connection_->send(message);
}

std::vector<support::Descriptor> KeeperLink::take_descriptors(std::size_t count) {
  return connection_ ? connection_->take_descriptors(count) : std::vector<support::Descriptor>();
}

void KeeperLink::answered(wire::Message& message) {
  if (std::holds_alternative<wire::Descriptors>(message)) return;  // taken with the answer that follows
  const auto request = wire::request_of(message);
  if (!request) return;
  const auto found = answers_.extract(*request);
  if (found.empty()) return;
  const OnReply answer = std::move(found.mapped());
  if (const auto* failure = std::get_if<wire::Failure>(&message)) {
    return answer(nullptr, std::make_exception_ptr(
                               Error(failure->code, fmt::format("the keeper of this host: {}", failure->message))));
  }
  answer(&message, nullptr);
}

void KeeperLink::ended(const Error& reason) {
  connection_.reset();
  waiting_.clear();
  const auto error =
      std::make_exception_ptr(Error(reason.code(), fmt::format("the keeper of job '{}' on this host ({}): {}",
                                                               options_.job, keeper_socket(options_), reason.what())));
  for (auto& [number, answer] : std::exchange(answers_, {})) answer(nullptr, error);
}

void KeeperLink::leave() {
  if (connection_) std::exchange(connection_, nullptr)->leave();
}

}  // namespace shardwire

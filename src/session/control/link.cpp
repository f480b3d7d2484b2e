// SPDX-License-Identifier: Apache-2.0
#include "session/control/link.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

namespace shardwire {

namespace {

// A publisher that makes a new arena for every step must not leave its old ones mapped here for ever.
constexpr std::size_t max_cached_regions = 64;

}  // namespace

void Link::connect(Loop& loop, const wire::MemberRecord& member, const Identity& identity) {
  same_host_ = member.host == identity.hello.host;
  Connection::Events events;
  events.ready = [this, incarnation = member.incarnation](Connection& connection) {
    if (connection.peer().incarnation != incarnation) {
      connection.drop();
      return ended(Error(ErrorCode::peer_lost, "another process has taken its address"));
    }
    for (const wire::Message& message : waiting_) connection.send(message);
    waiting_.clear();
  };
  events.message = [this](Connection&, wire::Message& message) { answered(message); };
  events.closed = [this](Connection&, const Error& reason, bool) { ended(reason); };
  connection_ = Connection::connect(loop, {member.address, member.port}, identity, std::move(events));
}

Link::~Link() {
  if (connection_) connection_->drop();
}

void Link::request(std::uint64_t number, const wire::Message& message, Answer answer) {
  by_number_[number] = std::move(answer);
  send(message);
}

void Link::request(const wire::Digest& digest, const wire::Message& message, Answer answer) {
  by_digest_[digest].push_back(std::move(answer));
  send(message);
}

void Link::send(const wire::Message& message) {
  if (broken_) return;
  if (connection_ && connection_->ready()) {
    connection_->send(message);
  } else {
    waiting_.push_back(message);
  }
}

void Link::answered(wire::Message& message) {
  std::vector<Answer> answers;
  std::visit(
      [&](const auto& value) {
        using Type = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<Type, wire::ManifestReply> || std::is_same_v<Type, wire::ValuesReply>) {
          if (auto found = by_digest_.extract(value.digest)) answers = std::move(found.mapped());
        } else if constexpr (requires { value.request; }) {
          if (auto found = by_number_.extract(value.request)) answers.push_back(std::move(found.mapped()));
        }
      },
      message);
  for (const Answer& answer : answers) answer(message);
}

void Link::ended(const Error& reason) {
  if (broken_) return;
  broken_ = Error(ErrorCode::peer_lost, fmt::format("member {} is lost: {}", rank_, reason.what()),
                  std::vector<Rank>{Rank{rank_}});
  const auto watchers = watchers_;  // a watcher may remove itself
  for (const auto& [number, watcher] : watchers) watcher(*broken_);
}

void Link::abort(const Error& reason) {
  if (endpoint_) endpoint_->abort();
  if (connection_) connection_->drop();
  ended(reason);
}

bool Link::peer_can(std::string_view capability) const {
  if (!connection_) return false;
  const auto& all = connection_->peer().capabilities;
  return std::find(all.begin(), all.end(), capability) != all.end();
}

std::uint64_t Link::watch(Broken broken) {
  const std::uint64_t watcher = next_watcher_++;
  watchers_.emplace(watcher, std::move(broken));
  return watcher;
}

transport::Endpoint& Link::endpoint(const Bytes& address) {
  if (!endpoint_ || endpoint_->failed() || address != address_) {
    regions_.clear();
    bindings_.clear();
    endpoint_.reset();
    endpoint_ = fabric_.connect({.address = address, .same_host = same_host_});
    address_ = address;
  }
  return *endpoint_;
}

std::shared_ptr<transport::RemoteRegion> Link::region(const wire::RegionHandle& handle) {
  if (const auto found = regions_.find(handle.key); found != regions_.end()) return found->second;
  if (regions_.size() >= max_cached_regions) {
    std::erase_if(regions_, [](const auto& entry) { return entry.second.use_count() == 1; });
  }
  std::shared_ptr<transport::RemoteRegion> region = endpoint_->import_region({handle.key}, handle.size_bytes);
  regions_.emplace(handle.key, region);
  return region;
}

void Link::bound(const std::string& publication, std::uint64_t generation, std::set<Bytes> keys) {
  Binding& binding = bindings_[publication];
  const std::set<Bytes> before = std::exchange(binding.keys, std::move(keys));
  binding.generation = generation;
  drop_unbound(before);
}

bool Link::is_bound(const std::string& publication, std::uint64_t generation) const {
  const auto found = bindings_.find(publication);
  return found != bindings_.end() && found->second.generation == generation;
}

std::vector<Link::Idle> Link::idle(
    const std::function<bool(const std::string& publication, std::uint64_t generation)>& live) const {
  std::vector<Idle> result;
  for (const auto& [name, binding] : bindings_) {
    if (live(name, binding.generation)) continue;
    Idle idle{name, 0};
    for (const Bytes& key : binding.keys) {
      if (const auto found = regions_.find(key); found != regions_.end()) idle.bytes += found->second->mapped().bytes;
    }
    result.push_back(std::move(idle));
  }
  return result;
}

void Link::unbind(const std::string& publication) {
  if (const auto gone = bindings_.extract(publication)) drop_unbound(gone.mapped().keys);
}

void Link::drop_unbound(const std::set<Bytes>& keys) {
  for (const Bytes& key : keys) {
    const bool bound = std::any_of(bindings_.begin(), bindings_.end(),
                                   [&](const auto& entry) { return entry.second.keys.contains(key); });
    if (!bound) regions_.erase(key);
  }
}

}  // namespace shardwire

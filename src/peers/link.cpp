// SPDX-License-Identifier: Apache-2.0
#include "peers/link.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace shardwire {

namespace {

// Bounds mappings of old arenas, for publishers that create a new arena at every step.
constexpr std::size_t max_cached_regions = 64;
// Limit per Bound message: enough for arenas of several terabytes.
constexpr std::size_t max_descriptors_of_answer = 4096;
// Shorter than the limit after which the source closes waiting sockets.
constexpr std::chrono::seconds sockets_limit(5);
constexpr int max_local_attempts = 3;

}  // namespace

void Link::connect(Loop& loop, const wire::MemberRecord& member, const Identity& identity) {
  loop_ = &loop;
  identity_ = &identity;
  member_ = member;
  if (member.host != identity.hello.host) {
    why_not_local_ = {FallbackReason::other_host, "it is on another host"};
  } else if (member.local_path.empty()) {
    why_not_local_ = {FallbackReason::peer_without, "it listens for no local connections"};
  }
  dial();
}

// Processes of one host in different network namespaces cannot reach each other's local sockets.
void Link::dial() {
  const bool locally = why_not_local_.empty();
  const auto proven = std::make_shared<bool>(false);  // owners: the two callbacks
  Connection::Events events;
  // Waiting requests are kept until the peer's proof: the next connection needs them if this one ends before that. Leases
  // that the source has granted on a connection end with it.
  events.greeted = [this](Connection& connection) {
    if (sends_early(connection)) send_waiting(connection);
    open_ahead();
  };
  events.ready = [this, proven](Connection& connection) {
    *proven = true;
    if (connection.peer().incarnation != member_.incarnation) {
      connection.drop();
      return ended(Error(ErrorCode::peer_lost, "another process has taken its address"));
    }
    if (!sends_early(connection)) send_waiting(connection);
    waiting_.clear();
  };
  events.message = [this](Connection& connection, wire::Message& message) {
    if (const auto* received = std::get_if<wire::Descriptors>(&message)) {
      take_descriptors_in(connection, *received);
    } else {
      answered(message);
    }
  };
  events.closed = [this, locally, proven](const Connection& connection, const Error& reason, bool) {
    if (!locally || *proven) return ended(reason);
    const bool dropped = connection.reached() && reason.code() == ErrorCode::peer_lost;
    if (connection.reached() && !dropped) return ended(reason);
    // Strangers may have used up the connections that a source keeps without a proof.
    if (!dropped || ++local_attempts_ == max_local_attempts) {
      why_not_local_ = {
          FallbackReason::other_namespace,
          fmt::format("its local socket cannot be reached ({}): another network namespace?", reason.what())};
    }
    try {
      dial();
    } catch (const Error& error) {
      ended(error);
    }
  };
  connection_ = locally ? Connection::connect_local(*loop_, member_.local_path, *identity_, std::move(events))
                        : Connection::connect(*loop_, {member_.address, member_.port}, *identity_, std::move(events));
}

Link::~Link() {
  if (connection_) connection_->drop();
}

void Link::request(std::uint64_t number, const wire::Message& message, OnReply answer) {
  if (broken_) return;
  by_number_[number] = std::move(answer);
  send(message);
}

void Link::request(const wire::Digest& digest, const wire::Message& message, OnReply answer) {
  if (broken_) return;
  by_digest_[digest].push_back(std::move(answer));
  send(message);
}

void Link::send(const wire::Message& message) {
  if (broken_) return;
  if (connection_ && connection_->ready()) return connection_->send(message);
  waiting_.push_back(message);
  if (connection_ && sends_early(*connection_)) connection_->send(message);
}

void Link::send_waiting(Connection& connection) const {
  for (const wire::Message& message : waiting_) connection.send(message);
}

// Names and digests are shown to no process that could lack the key. The answers come after the peer's proof.
bool Link::sends_early(const Connection& connection) const {
  return connection.greeted() && connection.needs_no_proof() && connection.peer().incarnation == member_.incarnation;
}

void Link::answered(wire::Message& message) {
  std::vector<OnReply> answers;
  const auto take_described = [&](const wire::Digest& digest) {
    if (auto found = by_digest_.extract(digest)) answers = std::move(found.mapped());
  };
  const auto request = wire::request_of(message);
  if (const auto* manifest = std::get_if<wire::ManifestReply>(&message)) {
    take_described(manifest->digest);
  } else if (const auto* values = std::get_if<wire::ValuesReply>(&message)) {
    take_described(values->digest);
  } else if (request) {
    if (auto found = by_number_.extract(*request)) answers.push_back(std::move(found.mapped()));
  }
  for (const OnReply& answer : answers) answer(message);
  if (request) descriptors_.erase(*request);
}

void Link::ended(const Error& reason) {
  if (broken_) return;
  // These would not change by themselves.
  const bool lasts = reason.code() == ErrorCode::out_of_resources || reason.code() == ErrorCode::unsupported;
  broken_ = Error(lasts ? reason.code() : ErrorCode::peer_lost,
                  fmt::format("member {} is lost: {}", rank_, reason.what()), std::vector<Rank>{Rank{rank_}});
  // No answer follows, and a broken link may stay for a while. The answers' captures end after this function has.
  const auto by_number = std::exchange(by_number_, {});
  const auto by_digest = std::exchange(by_digest_, {});
  waiting_.clear();
  const auto watchers = watchers_;  // a watcher may remove itself
  for (const auto& [number, watcher] : watchers) watcher(*broken_);
}

void Link::abort(const Error& reason) {
  abort_channels();
  if (connection_) connection_->drop();
  ended(reason);
}

std::uint64_t Link::watch(Broken broken) {
  const std::uint64_t watcher = next_watcher_++;
  watchers_.emplace(watcher, std::move(broken));
  return watcher;
}

void Link::take_descriptors_in(Connection& connection, const wire::Descriptors& message) {
  auto taken = connection.take_descriptors(message.count);
  if (!by_number_.contains(message.request)) return;  // no operation waits for them any more
  auto& all = descriptors_[message.request];
  if (all.size() + taken.size() > max_descriptors_of_answer) {
    throw Error(ErrorCode::transport_failed, "a source hands over more descriptors than one answer can need");
  }
  std::ranges::move(taken, std::back_inserter(all));
}

std::vector<support::Descriptor> Link::take_descriptors(std::uint64_t number) {
  auto found = descriptors_.extract(number);
  return found.empty() ? std::vector<support::Descriptor>{} : std::move(found.mapped());
}

void Link::prepare(std::size_t fabric, Prepared prepared) {
  FabricState& state = fabric_states_[fabric];
  if (state.ruled_out) return prepared(&*state.ruled_out);
  state.ahead = false;
  const bool needs_none = fabrics_.sockets(fabric).kind == transport::SocketNeeds::Kind::none;
  const bool fresh = !state.sockets.empty() && loop_->now() - state.opened_at < sockets_limit;
  if (connected(fabric) || needs_none || fresh) return prepared(nullptr);
  state.waiting.push_back(std::move(prepared));
  if (!state.opening) open_sockets(fabric);
}

void Link::prepare_ahead() {
  ahead_ = true;
  open_ahead();
}

// A guess: whether the fabric carries bytes is known once the source is bound. Sockets within a host cost next to no
// time.
void Link::open_ahead() {
  if (!ahead_ || broken_ || !connection_ || !connection_->greeted()) return;
  if (connection_->peer().incarnation != member_.incarnation) return;
  ahead_ = false;
  const auto common = common_fabrics(table_.open, connection_->peer().fabrics, is_local());
  if (common.empty() || fabrics_.sockets(common.front()).kind != transport::SocketNeeds::Kind::network) return;
  const std::size_t fabric = common.front();
  FabricState& state = fabric_states_[fabric];
  if (state.ruled_out || connected(fabric) || state.opening || !state.sockets.empty()) return;
  state.ahead = true;
  open_sockets(fabric);
}

void Link::open_sockets(std::size_t fabric) {
  FabricState& state = fabric_states_[fabric];
  state.sockets.clear();
  state.token = loop_->random_number() | 1;  // 0 stands for none
  try {
    state.opening = std::make_unique<OpeningSockets>(
        *loop_, member_, fabrics_.sockets(fabric), state.token, *identity_,
        [this, fabric](std::vector<transport::OpenSocket> sockets, const Error* why_not) {
          sockets_opened(fabric, std::move(sockets), why_not);
        });
  } catch (const Error& error) {
    sockets_opened(fabric, {}, &error);
  }
}

void Link::sockets_opened(std::size_t fabric, std::vector<transport::OpenSocket> sockets, const Error* why_not) {
  FabricState& state = fabric_states_[fabric];
  const auto opening = std::move(state.opening);  // it is on the call stack
  state.sockets = std::move(sockets);
  state.opened_at = loop_->now();
  if (state.ahead && !state.sockets.empty()) {
    if (!ahead_timer_) ahead_timer_.emplace(*loop_);
    ahead_timer_->start(sockets_limit, [this] { close_unused(); });
  }
  for (const Prepared& prepared : std::exchange(state.waiting, {})) prepared(why_not);
}

void Link::close_unused() {
  for (FabricState& state : fabric_states_) {
    if (state.ahead && !state.opening) state.sockets.clear();
  }
}

void Link::replace_sockets(std::size_t fabric, std::uint64_t sockets) {
  FabricState& state = fabric_states_[fabric];
  if (state.token != sockets) return;
  state.sockets.clear();
  if (state.channel) state.channel->abort();
}

void Link::rule_out(std::size_t fabric, FabricChannel& channel, const Error& why) {
  channel.abort();
  FabricState& state = fabric_states_[fabric];
  if (state.channel.get() == &channel) state.ruled_out = why;
}

void Link::abort_channels() {
  for (const FabricState& state : fabric_states_) {
    if (state.channel) state.channel->abort();
  }
}

wire::FabricHandle Link::handle(std::size_t fabric) const {
  const transport::Fabric& mine = fabrics_[fabric];
  return {std::string(mine.name()), mine.domain(), mine.address(), fabric_states_[fabric].token};
}

std::shared_ptr<FabricChannel> Link::channel(std::size_t fabric, const Bytes& address) {
  FabricState& state = fabric_states_[fabric];
  if (connected(fabric) && address == state.address) return state.channel;
  const bool needs_sockets = fabrics_.sockets(fabric).kind != transport::SocketNeeds::Kind::none;
  if (needs_sockets && state.sockets.empty()) return nullptr;
  if (state.channel) bindings_.clear();  // their regions are destroyed with it
  state.regions.clear();
  state.channel.reset();
  state.channel =
      std::make_shared<FabricChannel>(fabrics_[fabric].connect({.address = address,
                                                                .same_host = member_.host == identity_->hello.host,
                                                                .sockets = std::exchange(state.sockets, {})}));
  state.address = address;
  return state.channel;
}

std::shared_ptr<transport::RemoteRegion> Link::region(std::size_t fabric, const Bytes& key, ByteCount size_bytes,
                                                      std::vector<support::Descriptor> descriptors) {
  FabricState& state = fabric_states_[fabric];
  if (const auto found = state.regions.find(key); found != state.regions.end()) return found->second;
  if (state.regions.size() >= max_cached_regions) {
    std::erase_if(state.regions, [](const auto& entry) { return entry.second.use_count() == 1; });
  }
  // A region lives no longer than its endpoint.
  std::shared_ptr<transport::RemoteRegion> region(
      state.channel->endpoint->import_region({key, std::move(descriptors)}, size_bytes).release(),
      [channel = state.channel](const transport::RemoteRegion* gone) { delete gone; });
  state.regions.emplace(key, region);
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
      for (const FabricState& state : fabric_states_) {
        if (const auto found = state.regions.find(key); found != state.regions.end()) {
          idle.bytes += found->second->mapped().bytes;
        }
      }
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
    if (bound) continue;
    for (FabricState& state : fabric_states_) state.regions.erase(key);
  }
}

}  // namespace shardwire

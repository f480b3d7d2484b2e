// SPDX-License-Identifier: Apache-2.0
#include "session/path_survey.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "memory/device.hpp"
#include "session/path_reasons.hpp"

namespace shardwire {

namespace {

double seconds(Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

// Where this process works with none yet, the first stands for all.
std::vector<int> devices_worked_with() {
  std::vector<int> devices;
  const memory::FoundRuntime found = memory::device_runtime();
  for (int device = 0; found.runtime && device < found.runtime->device_count(); ++device) {
    if (found.runtime->in_use(device)) devices.push_back(device);
  }
  if (devices.empty()) devices.push_back(0);
  return devices;
}

}  // namespace

PathSurvey::PathSurvey(Core& core, std::string from, Duration timeout, Done done)
    : core_(core),
      from_(std::move(from)),
      timeout_(timeout),
      done_(std::move(done)),
      timer_(core.loop()),
      next_request_(first_request()) {
}

PathSurvey::~PathSurvey() = default;

template <typename Body>
auto PathSurvey::for_peer(std::size_t index, Body body) {
  return [this, index, alive = std::weak_ptr<bool>(alive_), body = std::move(body)](auto&&... arguments) {
    if (alive.expired() || peers_[index].settled) return;
    try {
      body(std::forward<decltype(arguments)>(arguments)...);
    } catch (const std::exception& error) {
      settle(index, error.what());
    }
  };
}

void PathSurvey::start() {
  timer_.start(timeout_, [this] { timed_out(); });
  directory_changed();
}

void PathSurvey::directory_changed() {
  if (surveying_ || !done_) return;
  try {
    core_.membership().watch(from_);
    if (core_.directory().knows(from_)) survey();
  } catch (const Error&) {
    end({}, std::current_exception());
  }
}

// What this process has published itself the rendezvous may not have said yet.
std::vector<wire::PublicationRecord> PathSurvey::publications() const {
  auto records = core_.directory().publications(from_);
  std::erase_if(records, [&](const auto& record) { return record.member == core_.member(); });
  if (const auto own = core_.publisher().live(from_)) {
    records.push_back({.member = core_.member(), .layout_rank = to_int(own->layout_rank)});
  }
  std::ranges::sort(records, {}, &wire::PublicationRecord::layout_rank);
  return records;
}

void PathSurvey::survey() {
  surveying_ = true;
  for (wire::PublicationRecord& record : publications()) peers_.emplace_back().record = std::move(record);
  pending_ = peers_.size() + 1;
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    if (peers_[i].record.member == core_.member()) {
      settle(i, {});
    } else {
      for_peer(i, [this, i] { lease_from(i); })();
    }
  }
  if (--pending_ == 0) end(paths(), nullptr);
}

void PathSurvey::lease_from(std::size_t index) {
  Peer& peer = peers_[index];
  peer.link = core_.links().link(peer.record);
  peer.watcher =
      peer.link->watch(for_peer(index, [this, index](const Error& reason) { settle(index, reason.what()); }));
  const wire::Lease lease{next_request_++, from_, peer.record.generation, {}};
  auto answered = for_peer(index, [this, index](const wire::Message& reply) { leased(index, reply); });
  peer.link->request(lease.request, lease,
                     [this, index, alive = std::weak_ptr<bool>(alive_), link = std::weak_ptr<Link>(peer.link),
                      answered = std::move(answered)](wire::Message& reply) {
                       const auto* granted = std::get_if<wire::Leased>(&reply);
                       const bool late = alive.expired() || peers_[index].settled;
                       if (!late || granted == nullptr) return answered(reply);
                       if (const auto still = link.lock()) still->post(wire::Release{0, granted->lease});
                     });
}

void PathSurvey::leased(std::size_t index, const wire::Message& reply) {
  Peer& peer = peers_[index];
  if (const auto* failure = std::get_if<wire::Failure>(&reply)) {
    const auto now = core_.directory().publication(from_, peer.record.member);
    if (!now || now->generation == peer.record.generation) return settle(index, failure->message);
    peer.link->unwatch(peer.watcher);
    peer.record = *now;  // it has published anew
    return lease_from(index);
  }
  const auto* granted = std::get_if<wire::Leased>(&reply);
  if (granted == nullptr) return settle(index, "it gave an answer of another kind");
  peer.lease = granted->lease;
  peer.candidates = common_fabrics(core_.traits(), peer.link->peer().fabrics, peer.link->is_local());
  connect_next(index);
}

void PathSurvey::connect_next(std::size_t index) {
  Peer& peer = peers_[index];
  if (peer.candidates.empty()) return settle(index, {});
  const std::size_t fabric = peer.candidates.front();
  peer.candidates.erase(peer.candidates.begin());
  peer.link->prepare(fabric, for_peer(index, [this, index, fabric](const Error* why_not) {
                       if (why_not == nullptr) return bind_over(index, fabric);
                       peers_[index].failed[fabric] = why_not->what();
                       connect_next(index);
                     }));
}

void PathSurvey::bind_over(std::size_t index, std::size_t fabric) {
  Peer& peer = peers_[index];
  const wire::Bind request{next_request_++, peer.lease, {peer.link->handle(fabric)}};
  peer.link->request(request.request, request, for_peer(index, [this, index, fabric](const wire::Message& reply) {
                       bound_over(index, fabric, reply);
                     }));
}

void PathSurvey::bound_over(std::size_t index, std::size_t fabric, const wire::Message& reply) {
  Peer& peer = peers_[index];
  if (const auto* failure = std::get_if<wire::Failure>(&reply)) {
    peer.failed[fabric] = failure->message;
    return connect_next(index);
  }
  const auto* bound = std::get_if<wire::Bound>(&reply);
  if (bound == nullptr || bound->addresses.size() != 1) return settle(index, "it gave an answer of another kind");
  try {
    const auto channel = peer.link->channel(fabric, bound->addresses.front());
    if (!channel) throw Error(ErrorCode::peer_lost, "the connection has ended as soon as it was there");
    peer.connected.push_back({fabric, channel->endpoint->path({}), channel});
  } catch (const Error& error) {
    peer.failed[fabric] = error.what();
  }
  connect_next(index);
}

void PathSurvey::settle(std::size_t index, const std::string& why_not) {
  Peer& peer = peers_[index];
  if (std::exchange(peer.settled, true)) return;
  peer.why_not = why_not;
  if (peer.link) {
    peer.link->unwatch(peer.watcher);
    if (peer.lease != 0) peer.link->post(wire::Release{next_request_++, peer.lease});  // not awaited
  }
  if (--pending_ == 0) end(paths(), nullptr);
}

void PathSurvey::timed_out() {
  if (!surveying_) {
    return end({}, std::make_exception_ptr(
                       Error(ErrorCode::timed_out,
                             fmt::format("the rendezvous (member 0) has not said within {:.3g} s who publishes '{}'",
                                         seconds(timeout_), from_),
                             std::vector<Rank>{Rank{0}})));
  }
  const std::string why = fmt::format("it has not answered within {:.3g} s", seconds(timeout_));
  for (std::size_t i = 0; i < peers_.size() && done_; ++i) settle(i, why);
}

void PathSurvey::abandon() {
  if (!done_) return;
  std::exchange(done_, nullptr)(
      {}, std::make_exception_ptr(Error(ErrorCode::cancelled, "the session was closed while paths were looked for")));
}

void PathSurvey::end(std::vector<PeerPath> paths, const std::exception_ptr& error) {
  const Done done = std::exchange(done_, nullptr);
  if (!done) return;
  timer_.stop();
  alive_.reset();  // answers that are still to come are for nobody
  for (Peer& peer : peers_) {
    if (peer.settled || !peer.link) continue;
    peer.link->unwatch(peer.watcher);
    if (peer.lease != 0) peer.link->post(wire::Release{next_request_++, peer.lease});
  }
  done(std::move(paths), error);
  core_.finished(*this);
}

// --- what it comes to ---

std::vector<PeerPath> PathSurvey::paths() const {
  std::vector<PeerPath> paths;
  Devices devices;
  if (memory::devices_in_use()) devices = {devices_worked_with(), devices_out_of_reach()};
  for (const Peer& peer : peers_) paths.push_back(path_of(peer, devices));
  return paths;
}

PeerPath PathSurvey::path_of(const Peer& peer, const Devices& devices) const {
  PeerPath result{.member = peer.record.member, .rank = Rank{peer.record.layout_rank}, .why_not = peer.why_not};
  if (peer.record.member == core_.member()) {
    result.memory.push_back(
        {.fabrics = {{.transport = "local", .carrier = "this process", .reach = Reach::process, .map = true}}});
    if (!devices.used.empty()) {
      result.memory.push_back({.memory = MemoryKind::cuda,
                               .fabrics = {{.transport = "local",
                                            .carrier = "this process",
                                            .reach = Reach::process,
                                            .map = true,
                                            .gpu_direct = true,
                                            .why_not = devices.out_of_reach}}});
    }
    return result;
  }
  if (const auto* at = core_.directory().address(peer.record.member, peer.record.epoch)) {
    const bool colons = at->address.find(':') != std::string::npos;
    result.address = fmt::format("{}{}{}:{}", colons ? "[" : "", at->address, colons ? "]" : "", at->port);
  }
  std::vector<ConnectedFabric> connected = peer.connected;
  const auto rank_of = [&](const ConnectedFabric& one) {
    return best_path(core_.fabrics().row(one.fabric).preference, one.path);
  };
  std::ranges::stable_sort(connected, {}, rank_of);
  MemoryPaths host;
  for (const ConnectedFabric& one : connected) {
    const transport::Path& path = one.path;
    host.fabrics.push_back({.transport = std::string(core_.fabrics()[one.fabric].name()),
                            .carrier = path.carrier,
                            .reach = path.reach,
                            .map = path.map,
                            .read = path.read,
                            .message = path.message,
                            .gpu_direct = path.gpu_direct,
                            .max_message_ranges = path.message ? path.max_message_ranges : 0,
                            .max_read_ranges = path.read ? path.max_read_ranges : 0,
                            .max_read_bytes = path.max_read_bytes,
                            .max_reads = path.max_reads,
                            .why_not = path.why_not});
  }
  if (peer.lease != 0) {
    host.not_better = reasons_against_better(core_.fabrics(), core_.traits(), {*peer.link, peer.connected, peer.failed},
                                             connected.empty() ? no_path : rank_of(connected.front()));
  }
  if (connected.empty() && result.why_not.empty()) result.why_not = "no transport that both sides have open reaches it";
  MemoryPaths cuda{.memory = MemoryKind::cuda};
  for (std::size_t i = 0; i < connected.size() && !devices.used.empty(); ++i) {
    for (FabricPath& one : paths_of_devices(*connected[i].channel->endpoint, devices.used, host.fabrics[i])) {
      if (one.map && !devices.out_of_reach.empty()) {
        one.why_not += (one.why_not.empty() ? "" : "; ") + devices.out_of_reach;
      }
      cuda.fabrics.push_back(std::move(one));
    }
  }
  result.memory.push_back(std::move(host));
  if (!devices.used.empty()) result.memory.push_back(std::move(cuda));
  return result;
}

}  // namespace shardwire

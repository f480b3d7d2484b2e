// SPDX-License-Identifier: Apache-2.0
#include "restore/path_survey.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "memory/device.hpp"
#include "paths/path_reasons.hpp"

namespace shardwire::restore {

namespace {

// If this process uses no device yet, the first one stands for all.
std::vector<int> devices_worked_with() {
  std::vector<int> devices;
  const memory::FoundRuntime found = memory::device_runtime();
  for (int device = 0; found.runtime && device < found.runtime->device_count(); ++device) {
    if (found.runtime->in_use(device)) devices.push_back(device);
  }
  if (devices.empty()) devices.push_back(0);
  return devices;
}

TransportPath path_over(const std::string& name, const transport::Path& path) {
  return {.transport = name,
          .device = path.carrier,
          .reach = path.reach,
          .map = path.map,
          .read = path.read,
          .message = path.message,
          .gpu_direct = path.gpu_direct,
          .max_message_ranges = path.message ? path.max_message_ranges : 0,
          .max_read_ranges = path.read ? path.max_read_ranges : 0,
          .max_read_bytes = path.max_read_bytes,
          .max_reads = path.max_reads,
          .fallback_reason = path.why_not.reason,
          .fallback_detail = path.why_not.detail};
}

}  // namespace

PathSurvey::PathSurvey(const Context& context, std::string from, Duration timeout, Done done)
    : Question(context, std::move(from), timeout),
      deadline_(context.clock.now() + timeout),
      done_(std::move(done)),
      reach_(nothing_, no_places_) {
}

PathSurvey::~PathSurvey() = default;

void PathSurvey::look() {
  if (!surveying_ && roster_.is_known()) survey();
}

// The rendezvous may not have forwarded this process's own publications yet.
std::vector<wire::PublicationRecord> PathSurvey::publications() const {
  auto records = roster_.publications();
  std::erase_if(records, [&](const auto& record) { return record.member == context_.member; });
  if (const auto own = context_.own_publication(roster_.name())) {
    records.push_back({.member = context_.member, .layout_rank = to_int(own->layout_rank)});
  }
  std::ranges::sort(records, {}, &wire::PublicationRecord::layout_rank);
  return records;
}

void PathSurvey::survey() {
  surveying_ = true;
  for (wire::PublicationRecord& record : publications()) peers_.emplace_back().record = std::move(record);
  pending_ = peers_.size() + 1;
  for (std::size_t i = 0; i < peers_.size() && done_; ++i) {
    if (peers_[i].record.member == context_.member) {
      resolve(i, {});
    } else {
      ask(i);
    }
  }
  if (done_ && --pending_ == 0) end(paths(), nullptr);
}

void PathSurvey::ask(std::size_t index) {
  Peer& peer = peers_[index];
  Binding nothing;
  nothing.layout_rank = Rank{peer.record.layout_rank};
  nothing.record = peer.record;
  Source::Listener& listener = *this;
  peer.source = std::make_unique<Source>(
      context_, listener, PathInputs{context_.fabrics, reach_},
      Source::Options{.from = roster_.name(),
                      .fabrics = {.deadline = deadline_, .connect = SourceFabrics::Connect::every}},
      index, std::move(nothing));
  peer.source->start(Source::Leasing::first);
}

void PathSurvey::on_lost(Source& source, const std::exception_ptr& error) {
  Peer& peer = peers_[source.index()];
  const auto now = context_.directory.publication(roster_.name(), peer.record.member);
  const bool replaced = source.state() == Source::State::withdrawn && now && now->generation != peer.record.generation;
  if (replaced && !peer.resolved) {
    source.release();
    replaced_.push_back(std::move(peer.source));
    peer.record = *now;
    return ask(source.index());
  }
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& reason) {
    resolve(source.index(), reason.what());
  }
}

void PathSurvey::resolve(std::size_t index, const std::string& failure) {
  Peer& peer = peers_[index];
  if (!done_ || std::exchange(peer.resolved, true)) return;
  peer.failure = failure;
  if (peer.source) peer.source->release();
  if (--pending_ == 0) end(paths(), nullptr);
}

void PathSurvey::timed_out() {
  if (!surveying_) {
    return end({}, std::make_exception_ptr(Error(
                       ErrorCode::timed_out,
                       fmt::format("the rendezvous (member 0) did not name the publishers of '{1}' within {0:.3g} s",
                                   seconds_of(timeout_), roster_.name()),
                       std::vector<Rank>{Rank{0}})));
  }
  const std::string why = fmt::format("it has not answered within {:.3g} s", seconds_of(timeout_));
  for (std::size_t i = 0; i < peers_.size() && done_; ++i) resolve(i, why);
}

void PathSurvey::end(std::vector<PeerPath> paths, const std::exception_ptr& error) {
  const Done done = std::exchange(done_, nullptr);
  if (!done) return;
  timer_.stop();
  for (Peer& peer : peers_) {
    if (peer.source) peer.source->release();
  }
  done(std::move(paths), error);
  context_.finished(*this);
}

// --- the result ---

std::vector<PeerPath> PathSurvey::paths() const {
  std::vector<PeerPath> paths;
  Devices devices;
  if (memory::devices_in_use()) devices = {devices_worked_with(), devices_out_of_reach()};
  for (const Peer& peer : peers_) paths.push_back(peer.source ? path_of(peer, devices) : path_of_own(peer, devices));
  return paths;
}

PeerPath PathSurvey::path_of_own(const Peer& peer, const Devices& devices) const {
  PeerPath result{.member = peer.record.member, .rank = Rank{peer.record.layout_rank}, .failure = peer.failure};
  result.memory.push_back(
      {.transports = {{.transport = "local", .device = "this process", .reach = Reach::process, .map = true}}});
  if (devices.used.empty()) return result;
  result.memory.push_back(
      {.memory = MemoryKind::cuda,
       .transports = {
           {.transport = "local",
            .device = "this process",
            .reach = Reach::process,
            .map = true,
            .gpu_direct = true,
            .fallback_reason = devices.out_of_reach.empty() ? FallbackReason::none : FallbackReason::no_peer_access,
            .fallback_detail = devices.out_of_reach}}});
  return result;
}

PeerPath PathSurvey::path_of(const Peer& peer, const Devices& devices) const {
  PeerPath result{.member = peer.record.member, .rank = Rank{peer.record.layout_rank}, .failure = peer.failure};
  if (const auto* at = context_.directory.address(peer.record.member, peer.record.epoch)) {
    const bool colons = at->address.find(':') != std::string::npos;
    result.address = fmt::format("{}{}{}:{}", colons ? "[" : "", at->address, colons ? "]" : "", at->port);
  }
  const FabricTable& fabrics = context_.fabrics;
  const Binding& binding = peer.source->binding();
  std::vector<ConnectedFabric> connected = binding.connected;
  const auto rank_of = [&](const ConnectedFabric& one) { return best_path(fabrics.preference(one.fabric), one.path); };
  std::ranges::stable_sort(connected, {}, rank_of);
  MemoryPaths host;
  for (const ConnectedFabric& one : connected) host.transports.push_back(path_over(fabrics.name(one.fabric), one.path));
  if (peer.source->requests().was_leased()) {
    const int best = connected.empty() ? no_path : rank_of(connected.front());
    for (RejectedPath& one : rejected_before(fabrics, fabrics_of(binding), best)) {
      host.rejected.push_back({std::move(one.fabric), one.why.reason, std::move(one.why.detail)});
    }
  }
  if (connected.empty() && result.failure.empty()) result.failure = "no transport that both sides have open reaches it";
  MemoryPaths cuda{.memory = MemoryKind::cuda};
  for (std::size_t i = 0; i < connected.size() && !devices.used.empty(); ++i) {
    for (TransportPath& one : paths_of_devices(*connected[i].channel->endpoint, devices.used, host.transports[i])) {
      if (one.map && !devices.out_of_reach.empty()) {
        one.fallback_reason = FallbackReason::no_peer_access;
        one.fallback_detail += (one.fallback_detail.empty() ? "" : "; ") + devices.out_of_reach;
      }
      cuda.transports.push_back(std::move(one));
    }
  }
  result.memory.push_back(std::move(host));
  if (!devices.used.empty()) result.memory.push_back(std::move(cuda));
  return result;
}

}  // namespace shardwire::restore

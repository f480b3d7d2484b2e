// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <tuple>

#include "session/restore/run.hpp"

namespace shardwire {

const ConnectedFabric* RestoreRun::carrier_of(const Peer& peer, Way way) {
  if (way == Way::local || way == Way::grouped) return nullptr;
  std::optional<std::size_t> chosen = peer.sent_by;
  if (way == Way::read || way == Way::over_read) chosen = peer.read_by;
  if (way == Way::mapped) {
    const auto maps = std::ranges::find_if(peer.connected, [](const ConnectedFabric& one) { return one.path.map; });
    if (maps != peer.connected.end()) return &*maps;
  }
  return chosen ? &peer.connected[*chosen] : nullptr;
}

RestoreReport RestoreRun::make_report() const {
  RestoreReport report;
  report.seconds = seconds_;
  report.seconds.wall = seconds_.join + std::chrono::duration<double>(stage_began_ - began_).count();
  for (const std::string& version : core_.fabrics().versions()) {
    report.transport += (report.transport.empty() ? "" : ", ") + version;
  }
  const auto registration = core_.memory().registration();
  report.registered_bytes = registration.bytes;
  report.registration_seconds = registration.seconds;
  report.staging_budget = options_.staging_bytes + core_.publisher().staging_budget_bytes();
  report.staging_peak = core_.publisher().staging_peak_bytes();
  if (planning_ && !error_) {
    report.skipped = planning_->resolved.skipped;
    for (const TensorId id : planning_->resolved.zeroed) {
      report.zeroed.push_back(manifest_->tensors[to_index(id)].spec.key);
    }
  }
  for (std::size_t way = 0; way < way_count; ++way) report.again += abandoned_bytes_[way];
  report.local = abandoned_bytes_[static_cast<std::size_t>(Way::local)];
  report.moved = report.again - report.local;
  const bool bound = options_.bind_only && transfers_;
  if (!engine_ && !bound) return report;
  if (bound) {
    for (const move::Transfer& transfer : *transfers_) report.needed += move::bytes_of(transfer);
  } else {
    const move::Tally& tally = engine_->tally();
    report.staging_peak += engine_->staging_peak_bytes();
    report.needed = tally.expected_bytes();
    report.local += tally.way_bytes(Way::local);
    report.extra = tally.extra_bytes();
    report.moved += tally.done_bytes() + report.extra - tally.way_bytes(Way::local);
    report.digest_seconds = engine_->digest_seconds();
  }
  add_ways(report);
  add_peers(report);
  return report;
}

void RestoreRun::add_ways(RestoreReport& report) const {
  report.ways.each([&](Way way, WayReport& row) {
    const auto index = static_cast<std::size_t>(way);
    const move::Prediction& predicted = predictions_.ways[index];
    row = {0, predicted.runs, predicted.seconds, 0};
    if (!engine_) {
      for (const Peer& peer : peers_) row.bytes += peer.expected[index].bytes;
      return;
    }
    row.bytes = engine_->tally().way_bytes(way) + abandoned_bytes_[index];
    row.measured_seconds = engine_->tally().way_seconds(way);
  });
}

void RestoreRun::add_peers(RestoreReport& report) const {
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    const Peer& peer = peers_[i];
    report.ways.each([&](Way way, const WayReport&) {
      const move::Prediction& expected = peer.expected[static_cast<std::size_t>(way)];
      const ByteCount bytes =
          engine_ ? engine_->tally().peer_bytes(static_cast<std::uint32_t>(i), way) : expected.bytes;
      if (bytes == 0) return;
      PeerReport row{peer.layout_rank, bytes, "local", "this process", {}, expected.seconds};
      if (way == Way::grouped) {
        row.path = fmt::format("{}/{}", grouped_->collective(), to_string(way));
        row.carrier = "rounds of all members";
      } else if (way == Way::local) {
        if (!peer.no_map_reason.empty()) row.why_not = peer.no_map_reason.substr(2);
      } else {
        const ConnectedFabric* by = carrier_of(peer, way);
        if (by == nullptr) return;
        row.path = fmt::format("{}/{}", core_.fabrics()[by->fabric].name(), to_string(way));
        row.carrier = way == Way::mapped ? peer.mapped_by() : by->path.carrier;
        if (way != Way::mapped && !peer.no_map_reason.empty()) {
          row.why_not = peer.no_map_reason.substr(2) + peer.no_map_cost;  // without its "; "
        }
      }
      report.peers.push_back(std::move(row));
    });
  }
  std::ranges::sort(report.peers, {}, [](const PeerReport& peer) { return std::tie(peer.rank, peer.path); });
}

}  // namespace shardwire

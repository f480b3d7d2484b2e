// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>

#include "session/restore/run.hpp"

namespace shardwire {

namespace {

// Which of the connected fabrics moves bytes this way.
const ConnectedFabric* carrier_of(const SourcePeer& peer, Way way) {
  std::optional<std::size_t> chosen = peer.sent_by;
  if (way == Way::read || way == Way::over_read) chosen = peer.read_by;
  if (way == Way::mapped) {
    const auto maps = std::ranges::find_if(peer.connected, [](const ConnectedFabric& one) { return one.path.map; });
    if (maps != peer.connected.end()) return &*maps;
  }
  return chosen ? &peer.connected[*chosen] : nullptr;
}

}  // namespace

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
  if (!engine_) return report;
  const move::Tally& tally = engine_->tally();
  report.staging_peak += engine_->staging_peak_bytes();
  report.needed = tally.expected_bytes();
  report.ways.each([&](Way way, WayReport& row) {
    const move::Prediction& predicted = predictions_.ways[static_cast<std::size_t>(way)];
    row = {tally.way_bytes(way) + abandoned_bytes_[static_cast<std::size_t>(way)], predicted.runs, predicted.seconds,
           tally.way_seconds(way)};
  });
  report.local += tally.way_bytes(Way::local);
  report.extra = tally.extra_bytes();
  report.moved += tally.done_bytes() + report.extra - tally.way_bytes(Way::local);
  report.digest_seconds = engine_->digest_seconds();
  add_peers(report);
  return report;
}

void RestoreRun::add_peers(RestoreReport& report) const {
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    const auto peer = static_cast<std::uint32_t>(i);
    report.ways.each([&](Way way, const WayReport&) {
      const ByteCount bytes = engine_->tally().peer_bytes(peer, way);
      if (bytes == 0) return;
      if (way == Way::local) return report.peers.push_back({peers_[i].layout_rank, bytes, "local", "this process"});
      const ConnectedFabric* by = carrier_of(peers_[i], way);
      if (by == nullptr) return;
      std::string detail = by->path.carrier;
      if (way != Way::mapped) detail += peers_[i].no_map_reason + peers_[i].no_map_cost;
      report.peers.push_back({peers_[i].layout_rank, bytes,
                              fmt::format("{}/{}", core_.fabrics()[by->fabric].name(), to_string(way)),
                              std::move(detail)});
    });
  }
}

}  // namespace shardwire

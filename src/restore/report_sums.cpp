// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <tuple>

#include "shardwire/report.hpp"

namespace shardwire {

MethodTable& MethodTable::operator+=(const MethodTable& next) {
  each([&](Method method, MethodReport& row) {
    const MethodReport& more = next[method];
    row.bytes += more.bytes;
    row.runs += more.runs;
    row.predicted_seconds += more.predicted_seconds;
    row.measured_seconds += more.measured_seconds;
  });
  return *this;
}

StageSeconds& StageSeconds::operator+=(const StageSeconds& next) {
  for (auto stage : {&StageSeconds::wall, &StageSeconds::join, &StageSeconds::plan, &StageSeconds::bind,
                     &StageSeconds::move, &StageSeconds::verify, &StageSeconds::commit}) {
    this->*stage += next.*stage;
  }
  return *this;
}

RestoreReport& RestoreReport::operator+=(const RestoreReport& next) {
  for (auto bytes : {&RestoreReport::needed_bytes, &RestoreReport::moved_bytes, &RestoreReport::local_bytes,
                     &RestoreReport::overread_bytes, &RestoreReport::resent_bytes}) {
    this->*bytes += next.*bytes;
  }
  methods += next.methods;
  seconds += next.seconds;
  digest_seconds += next.digest_seconds;
  rounds += next.rounds;
  rounds_bytes += next.rounds_bytes;
  rounds_seconds += next.rounds_seconds;
  staging_budget_bytes = next.staging_budget_bytes;
  staging_peak_bytes = std::max(staging_peak_bytes, next.staging_peak_bytes);
  registered_bytes = next.registered_bytes;
  registration_seconds = next.registration_seconds;
  transport = next.transport;
  if (next.step) {
    step = next.step;
    incomplete_steps = next.incomplete_steps;
  }
  for (const PeerReport& peer : next.peers) {
    const auto at = std::lower_bound(peers.begin(), peers.end(), peer, [](const auto& a, const auto& b) {
      return std::tie(a.rank, a.path) < std::tie(b.rank, b.path);
    });
    if (at != peers.end() && at->rank == peer.rank && at->path == peer.path) {
      at->bytes += peer.bytes;
      at->predicted_seconds += peer.predicted_seconds;
      at->measured_seconds += peer.measured_seconds;
    } else {
      peers.insert(at, peer);
    }
  }
  lost.insert(lost.end(), next.lost.begin(), next.lost.end());
  corrupt.insert(corrupt.end(), next.corrupt.begin(), next.corrupt.end());
  for (auto keys : {&RestoreReport::skipped, &RestoreReport::zeroed}) {
    for (const TensorKey& key : next.*keys) {
      if (std::find((this->*keys).begin(), (this->*keys).end(), key) == (this->*keys).end()) {
        (this->*keys).push_back(key);
      }
    }
  }
  return *this;
}

}  // namespace shardwire

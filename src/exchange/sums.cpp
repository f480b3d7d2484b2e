// SPDX-License-Identifier: Apache-2.0
#include "exchange/sums.hpp"

#include <algorithm>
#include <utility>

#include "geometry/by_value.hpp"

namespace shardwire {

void ExchangeSums::add(const Restore& restore, const Catalog& catalog, ByteCount staged_bytes) {
  const RestoreReport& one = restore.report();
  RestoreReport& sum = result_.report;
  skipped_.insert(one.skipped.begin(), one.skipped.end());
  zeroed_.insert(one.zeroed.begin(), one.zeroed.end());
  const ByteCount peak = std::max(sum.staging_peak_bytes, one.staging_peak_bytes + staged_bytes);
  sum += one;
  sum.staging_budget_bytes -= message_budget_;  // the budget of the publisher remains
  sum.staging_peak_bytes = peak;
  const auto take = [&](const TensorKey& key) {
    if (restore.has_value(key)) result_.values[key] = restore.value(key);
  };
  for (const Catalog::ValueEntry& entry : catalog.values()) take(entry.key);
  for (const Catalog::Entry& entry : catalog.entries()) {
    if (travels_by_value(entry.spec)) take(entry.spec.key);
  }
}

void ExchangeSums::add(const ExchangeRounds::Totals& rounds) {
  result_.report.rounds += rounds.rounds;
  result_.report.rounds_bytes += rounds.bytes;
  result_.report.rounds_seconds += rounds.seconds;
}

void ExchangeSums::add_staging(ByteCount staged_bytes) {
  result_.report.staging_peak_bytes = std::max(result_.report.staging_peak_bytes, staged_bytes);
}

ExchangeResult ExchangeSums::take() {
  result_.report.skipped.assign(skipped_.begin(), skipped_.end());
  result_.report.zeroed.assign(zeroed_.begin(), zeroed_.end());
  return std::move(result_);
}

}  // namespace shardwire

// SPDX-License-Identifier: Apache-2.0
#include "cli/drill_table.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "cli/text.hpp"

namespace shardwire::cli {
namespace {

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

void DrillTable::Counts::add(Verdict::Kind kind) {
  ++seeds;
  switch (kind) {
    case Verdict::Kind::completed: ++completed; break;
    case Verdict::Kind::refused: ++refused; break;
    case Verdict::Kind::bug: ++bugs; break;
  }
}

void DrillTable::add(const SeedResult& result) {
  counts_.add(result.verdict.kind);
  if (result.verdict.has_holders) with_holders_.add(result.verdict.kind);
  for (const FaultCost& one : result.costs) {
    const Fault& fault = one.outcome.fault;
    if (!one.outcome.struck_ns) {
      ++not_struck_;
      continue;
    }
    Row& row = rows_[{std::string(to_string(fault.kind)), result.methods}];
    row.counts.add(result.verdict.kind);
    if (one.noticed_seconds) row.noticed_seconds.push_back(*one.noticed_seconds);
    row.again_bytes += one.resent_bytes;
    const auto owed = result.owed_bytes.find(fault.rank);
    if (owed != result.owed_bytes.end()) row.owed_bytes += owed->second;
  }
}

void DrillTable::print() const {
  fmt::print("\n{:<9}{:<20}{:>7}{:>11}{:>9}{:>6}{:>15}{:>12}\n", "fault", "methods", "struck", "completed", "refused",
             "BUG", "median notice", "again/owed");
  for (const auto& [key, row] : rows_) {
    const std::string notice = row.noticed_seconds.empty() ? "-" : human_seconds(median(row.noticed_seconds));
    const std::string again =
        row.owed_bytes == 0
            ? "-"
            : fmt::format("{:.3f}", static_cast<double>(row.again_bytes) / static_cast<double>(row.owed_bytes));
    fmt::print("{:<9}{:<20}{:>7}{:>11}{:>9}{:>6}{:>15}{:>12}\n", key.first, key.second, row.counts.seeds,
               row.counts.completed, row.counts.refused, row.counts.bugs, notice, again);
  }
  fmt::print("\n{} seeds: {} completed, {} refused, {} BUG\n", counts_.seeds, counts_.completed, counts_.refused,
             counts_.bugs);
  fmt::print("{} of {} seeds in which each box kept a holder completed\n", with_holders_.completed,
             with_holders_.seeds);
  if (not_struck_ > 0) fmt::print("{} faults did not strike: the job was over before\n", not_struck_);
}

}  // namespace shardwire::cli

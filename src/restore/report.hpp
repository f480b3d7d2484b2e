// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "move/choice.hpp"
#include "move/tally.hpp"
#include "restore/binding.hpp"
#include "restore/context.hpp"
#include "restore/planning.hpp"
#include "restore/rounds_step.hpp"
#include "shardwire/report.hpp"

namespace shardwire::restore {

/// Totals of the last plan's engine.
struct Moved {
  const move::Tally& tally;
  ByteCount staging_peak_bytes = 0;
  double digest_seconds = 0;
};

/// Inputs of a report. Null pointers: not there yet, or dropped.
struct ReportInput {
  const RestoreOptions& options;
  const FabricTable& fabrics;
  SessionFacts session{};
  StageSeconds seconds{};
  bool failed = false;
  const Planning* planning = nullptr;
  const Manifest* manifest = nullptr;      ///< of the wanted side
  std::vector<const Binding*> bindings{};  ///< by source
  const std::vector<move::Transfer>* transfers = nullptr;
  const move::Predictions& predictions;
  const std::map<std::uint32_t, std::string>& staged_local;  ///< see BoundTransfers
  std::optional<Moved> moved{};
  std::array<ByteCount, method_count> abandoned_bytes{};  ///< moved for abandoned plans
  const RoundsGroup* rounds = nullptr;
};

/// A row of the report, and when the first of its bytes were asked for.
struct MovedRow {
  PeerReport row;
  move::Tally::WallClock::time_point began{};  ///< max: nothing was
};

/// The rows of this attempt before one_row_each(). Pure.
std::vector<MovedRow> moved_rows(const ReportInput& input);

/// `rows`: moved_rows() of the same input. Pure. Invariant of the result: moved + local == needed + extra + again.
RestoreReport make_report(const ReportInput& input, std::vector<MovedRow> rows);

/// Sorted by rank and path, with one row for each. Several members may publish one layout rank; they deliver at the same time,
/// so the longest time counts. Pure.
std::vector<PeerReport> one_row_each(std::vector<PeerReport> rows);

/// What the log says of a report, behind the outcome: step, stages, bytes, and the source whose bytes took longest, or were
/// expected to where nothing has moved. Pure.
std::string figures_text(const RestoreReport& report);

}  // namespace shardwire::restore

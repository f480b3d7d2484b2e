// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "case/case.hpp"
#include "cli/relabel.hpp"

namespace shardwire::cli {

/// Streams the JSON form of a plan to standard output: a job may have any number of pieces.
class JsonPieces {
 public:
  /// Opens the object, and its list of pieces if requested.
  void begin(bool with_pieces);
  void add(const PlannedTransfer& transfer);
  /// Closes the object. Without `relabelling` its facts are null; with `one_rank` the facts of the whole job are null.
  /// `more`: further fields, each after a comma.
  void end(const JobTotals& totals, bool one_rank, const std::optional<Relabelling>& relabelling,
           std::string_view more);

 private:
  void flush();

  fmt::memory_buffer buffer_;
  bool with_pieces_ = false;
  bool first_ = true;
  std::string last_key_;  // JSON text of the last printed tensor: its pieces are consecutive
  const TensorKey* last_ = nullptr;
};

/// Lists regions without a holder on standard error, and on request as JSON on standard output.
class GapLines {
 public:
  GapLines(std::uint64_t gaps, bool json);
  void add(const Gap& gap);
  void end();

 private:
  bool json_;
  bool first_ = true;
};

/// Contents of the table for people, in addition to totals.
struct TableOptions {
  std::optional<Rank> rank;  ///< show only this rank
  bool brief = false;        ///< without single flows
  bool labels = false;       ///< show which process takes which target rank
};
/// Minimum, mean and maximum of some numbers.
struct Spread {
  double least = 0;
  double most = 0;
  double sum = 0;
  std::size_t count = 0;

  void add(double value);
};
/// The table's data about single ranks and pairs of ranks.
struct TableRows {
  Spread pieces{}, runs{}, needed{}, remote{};  ///< per target rank that wants something
  std::size_t idle = 0;                         ///< target ranks that want nothing
  std::vector<Flow> largest{};                  ///< flows between ranks, largest first

  void add(const TargetTotals& own, std::span<const Flow> flows);
};
/// For people.
void print_table(const Case& job, const JobTotals& totals, const TableRows& rows,
                 const std::optional<Relabelling>& relabelling, const TableOptions& options);

}  // namespace shardwire::cli

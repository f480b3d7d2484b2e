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
  /// Opens the object, and its list of pieces where asked.
  void begin(bool with_pieces);
  void add(const PlannedTransfer& transfer);
  /// Closes the object. Without `relabelling` its facts are null; `one_rank`: facts of the whole job are. `more`: further
  /// fields, each after a comma.
  void end(const JobTotals& totals, bool one_rank, const std::optional<Relabelling>& relabelling,
           std::string_view more);

 private:
  void flush();

  fmt::memory_buffer buffer_;
  bool with_pieces_ = false;
  bool first_ = true;
  std::string last_key_;  // JSON text of the tensor printed last: its pieces follow one another
  const TensorKey* last_ = nullptr;
};

/// Lists regions without a holder on standard error, and where asked as JSON on standard output.
class GapLines {
 public:
  GapLines(std::uint64_t gaps, bool json);
  void add(const Gap& gap);
  void end();

 private:
  bool json_;
  bool first_ = true;
};

/// What the table for people shows beside totals.
struct TableOptions {
  std::optional<Rank> rank;  ///< the only one that is shown
  bool brief = false;        ///< without single flows
  bool labels = false;       ///< which process takes which target rank
};
/// Least, mean and most of some numbers.
struct Spread {
  double least = 0;
  double most = 0;
  double sum = 0;
  std::size_t count = 0;

  void add(double value);
};
/// What the table for people shows of single ranks and pairs of ranks.
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

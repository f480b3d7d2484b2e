// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <optional>
#include <span>
#include <string>

#include "case/case.hpp"
#include "cli/plan_walk.hpp"
#include "cli/relabel.hpp"

namespace shardwire::cli {

/// Streams the JSON form of a plan to standard output: a job may have millions of pieces.
class JsonPieces {
 public:
  /// Opens the object, and its list of pieces where asked.
  void begin(bool with_pieces);
  void add(const Transfer& transfer);
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

/// Lists regions without a holder on standard error.
void print_gaps(std::span<const Gap> gaps);
/// What the table for people shows beside totals.
struct TableOptions {
  std::optional<Rank> rank;  ///< the only one that is shown
  bool brief = false;        ///< without single flows
  bool labels = false;       ///< which process takes which target rank
};
/// For people.
void print_table(const Case& job, const JobTotals& totals, const std::optional<Relabelling>& relabelling,
                 const TableOptions& options);
/// Errors: throws when standard output took not everything.
void finish_output();

}  // namespace shardwire::cli

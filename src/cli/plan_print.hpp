// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <span>

#include "case/case.hpp"
#include "cli/plan_walk.hpp"

namespace shardwire::cli {

/// Streams the JSON form of a plan to standard output: a job may have millions of pieces.
class JsonPieces {
 public:
  /// Opens the object, and its list of pieces where asked.
  void begin(bool with_pieces);
  void add(const Transfer& transfer);
  /// Closes the object. `one_rank`: facts of the whole job are null.
  void end(const PlanTotals& totals, bool one_rank);

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
/// For people. `brief`: without single flows.
void print_table(const Case& job, const PlanTotals& totals, bool one_rank, bool brief);
/// Errors: throws when standard output took not everything.
void finish_output();

}  // namespace shardwire::cli

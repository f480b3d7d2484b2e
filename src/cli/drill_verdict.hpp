// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "case/case.hpp"
#include "cli/run_options.hpp"
#include "cli/run_supervisor.hpp"

namespace shardwire::cli {

/// The result of a job with faults.
struct Verdict {
  enum class Kind {
    completed,  ///< every target rank that was not struck fatally is verified
    /// A target rank has failed as it must: with the boxes that no source holds any more, naming what was spoilt, or
    /// because member 0 was lost before there was a plan.
    refused,
    bug,
  };
  Kind kind = Kind::completed;
  std::string why{};  ///< of the first target rank that did not complete
  /// Each box that a target rank wanted, apart from those struck fatally, kept a source that was not struck by kill,
  /// stop, cut or restep; nothing was spoilt; and each had a plan before member 0 was lost. Such a job has to complete.
  bool has_holders = true;
};
std::string_view to_string(Verdict::Kind kind);

/// Judges the outcome against the plan of the case. Pure.
Verdict judge(const Case& job, const RunOptions& options, const JobOutcome& outcome);

}  // namespace shardwire::cli

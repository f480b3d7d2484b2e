// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shardwire/box.hpp"
#include "shardwire/export.hpp"
#include "shardwire/types.hpp"

SHARDWIRE_API_BEGIN
namespace shardwire {

struct RestoreReport;  // shardwire/report.hpp

/// Grouped by the caller's possible reaction.
enum class ErrorCode {
  invalid_argument,  ///< the call is wrong; fix the caller
  layout_mismatch,   ///< the two sides, or a layout and a shape, do not fit together; sources disagree
  unsupported,       ///< legal, but not available in this build or not implemented
  out_of_resources,  ///< memory, descriptors, shared memory
  peer_lost,         ///< a member died or closed its connection; other peers stay usable
  timed_out,         ///< the deadline of the operation passed
  cancelled,         ///< the caller cancelled the operation
  transport_failed,  ///< a transport or a connection reported a fault, or a peer broke the protocol
  internal,          ///< a bug in the library
  withdrawn,         ///< a source retired memory while it was being read, and there is no replacement
  step_mismatch,     ///< the publication is not at the requested step, or the sources are not all at one step
  corrupt,           ///< bytes are not those that were published (PublishOptions::digest), and no other rank has them
};

/// Stable lower-case name, e.g. "peer_lost"; used in reports.
std::string_view to_string(ErrorCode code);

/// A region of a wanted tensor that no rank holds, that did not arrive, or that differs between its holders.
struct Gap {
  std::string fqn;
  std::string state;
  Box box;
  Rank target{};

  bool operator==(const Gap&) const = default;
};

/// The only exception type of the library. what() is a full sentence that names the cause.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  Error(ErrorCode code, const std::string& message, std::vector<Gap> gaps, std::vector<Rank> ranks = {})
      : std::runtime_error(message), code_(code), gaps_(std::move(gaps)), ranks_(std::move(ranks)) {}
  Error(ErrorCode code, const std::string& message, std::vector<Rank> ranks)
      : std::runtime_error(message), code_(code), ranks_(std::move(ranks)) {}

  [[nodiscard]] ErrorCode code() const { return code_; }
  /// Whether, judged by the code, the same call can succeed later without a change by the caller: a member is replaced
  /// (peer_lost), more time suffices (timed_out), a source publishes again (withdrawn, step_mismatch). A restore that
  /// starts before the replacement has joined fails again (peer_lost). After the loss of member 0 only restores that
  /// have their plan succeed: end the session, and join again.
  [[nodiscard]] bool retryable() const {
    return code_ == ErrorCode::peer_lost || code_ == ErrorCode::timed_out || code_ == ErrorCode::withdrawn ||
           code_ == ErrorCode::step_mismatch;
  }
  /// All boxes without a holder (layout_mismatch, peer_lost or timed_out from planning) or not yet complete (a failed
  /// restore), or that differ between sources (Verify::digest, Replicas::compare).
  [[nodiscard]] const std::vector<Gap>& gaps() const { return gaps_; }
  /// The members, or ranks of a layout, that the error concerns; may be empty.
  [[nodiscard]] const std::vector<Rank>& ranks() const { return ranks_; }
  /// Figures of the restore that failed, up to its end: stages, what came from whom by which path, lost sources. In an
  /// exchange: of the step that failed on this member. Null for other errors.
  [[nodiscard]] const std::shared_ptr<const RestoreReport>& report() const { return report_; }
  /// For the library: the same error with a report.
  [[nodiscard]] Error with_report(std::shared_ptr<const RestoreReport> report) const {
    Error error = *this;
    error.report_ = std::move(report);
    return error;
  }

 private:
  ErrorCode code_;
  std::vector<Gap> gaps_;
  std::vector<Rank> ranks_;
  std::shared_ptr<const RestoreReport> report_;  // owners: all copies of this error
};

}  // namespace shardwire
SHARDWIRE_API_END

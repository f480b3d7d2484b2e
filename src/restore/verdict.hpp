// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "plan/replan.hpp"
#include "restore/planning.hpp"
#include "restore/values.hpp"
#include "shardwire/error.hpp"
#include "shardwire/tensor.hpp"
#include "wire/messages.hpp"

// Errors of a restore that cannot go on: each names the ranks at fault and the missing parts. Pure.
namespace shardwire::restore {

/// State of a restore when it gives up planning.
struct Situation {
  std::string from;                                ///< name of the publications
  std::optional<std::int64_t> step{};              ///< requested step
  Rank target{};                                   ///< layout rank of this process in the wanted layout
  int member = 0;                                  ///< this process
  std::vector<wire::PublicationRecord> published;  ///< live, at any step, by layout rank
  int source_ranks = 0;                            ///< of the source layout; 0: unknown
  std::vector<int> possible{};                     ///< members that may still publish; see possible_publishers()
  bool at_deadline = false;                        ///< else: no further publication can arrive
  std::map<int, wire::Presence> departed{};
  std::vector<Gap> gaps{};                 ///< of the last plan, as the next
  std::vector<AbsentKey> absent{};         ///< those without any source
  std::vector<int> undescribed{};          ///< layout ranks that have not answered with their descriptions
  std::optional<Error> withdrawn{};        ///< reason for the last new plan
  std::optional<Error> rendezvous_lost{};  ///< no further information on other members arrives

  /// The publications at the requested step.
  [[nodiscard]] std::vector<wire::PublicationRecord> sources() const;
};

/// "source ranks 0, 2": ascending.
std::string source_ranks_text(const std::vector<Rank>& ranks);
/// "at step 6 by source rank 1, at step 7 by source ranks 0, 2". `records`: by layout rank.
std::string steps_text(std::span<const wire::PublicationRecord> records);
/// No member publishes the name, and none is left that could.
/// Requires: the rendezvous is there.
Error nobody_publishes(const Situation& situation);
/// The sources are not at one step.
Error steps_differ(const Situation& situation);
/// Part of the wanted elements has no holder. The code is timed_out if the deadline passes while ranks have not published,
/// peer_lost if they never will and members have departed, layout_mismatch if all have published. Requires:
/// situation.gaps.
Error incomplete(const Situation& situation);
/// The same of StepRule::newest_complete: the error of the newest of `steps`, which are all those that are published, and
/// what the others lack. Requires: situation.source_ranks is of that step;
/// `steps` is not empty, newest first.
Error no_step_complete(const Situation& situation, std::span<const IncompleteStep> steps);
/// The deadline passed before there was a plan.
Error late_in_plan(const Situation& situation);

/// Progress of a source, for late_source().
struct SourceProgress {
  Rank rank{};
  std::string address{};  ///< empty: unknown
  bool unanswered = false;
  ByteCount outstanding_bytes = 0;
  bool keeps_up = false;  ///< some of its bytes have arrived recently
};
/// The deadline passed while sources were bound or read. Sources that keep up are named only if all do: their bytes may
/// just wait for this rank's rate limit or staging.
Error late_source(std::span<const SourceProgress> sources);

/// The ranks or members that a restore without a plan waits for, for the log: "source ranks 1, 2 of 4 to publish 'state'".
/// Without a publisher, also members that have gone. Empty: it waits for nothing that others do.
std::string awaited_text(const Situation& situation);
/// The same before it knows who publishes `from`.
std::string publishers_of(const std::string& from);
/// The same while sources are bound or read: "1.20 MB from source rank 2 (10.0.0.7:51234)".
std::string awaited_text(std::span<const SourceProgress> sources);

/// Boxes that are not what was published in the memory of each rank that holds them. `wanted`: the target's manifest.
/// Requires: gaps is not empty.
Error corrupt_everywhere(const std::vector<Gap>& gaps, const Planning& planning, const CorruptHolders& corrupt);

/// The code of an Error; that of any other exception is `internal`.
ErrorCode code_in(const std::exception_ptr& error);

/// Adds the missing boxes to an Error that lists none. Any other exception becomes Error{internal}.
std::exception_ptr with_gaps(const std::exception_ptr& error, const std::vector<Gap>& missing);
/// The error of a loss, once nothing is under way any more: it lists those boxes of `missing` that no holder is left for. Any
/// other error stays. `missing`: of `plan`.
std::exception_ptr with_last_gaps(const std::exception_ptr& error, const Plan& plan, std::span<const PieceBox> missing,
                                  std::span<const Rank> lost);
/// The error of a loss, with the number and the bytes of its boxes in its text; `resumable`: and that Restore::resume() waits for
/// another holder. Any other error stays. `wanted`: manifest of the target.
std::exception_ptr with_missing_bytes(const std::exception_ptr& error, const Manifest& wanted, bool resumable);

}  // namespace shardwire::restore

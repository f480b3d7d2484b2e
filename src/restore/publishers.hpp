// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "control/directory.hpp"
#include "control/membership.hpp"
#include "restore/context.hpp"
#include "restore/descriptions.hpp"
#include "restore/target.hpp"
#include "shardwire/error.hpp"
#include "shardwire/plan.hpp"
#include "shardwire/report.hpp"
#include "wire/messages.hpp"

namespace shardwire::restore {

/// Inputs of the decision whether to wait for an unpublished layout rank.
struct PublishersInput {
  int member = 0;                      ///< this process
  bool own_on_its_way = false;         ///< it publishes the name, but the roster does not list it yet
  std::optional<std::int64_t> step{};  ///< requested step
  int ranks = 0;                       ///< of the source layout; 0: unknown
};

/// Layout ranks below `input.ranks` without a publication at the step, ascending. `records`: in any order.
std::vector<int> open_ranks(std::span<const wire::PublicationRecord> records, const PublishersInput& input);

/// Members that may still publish an open layout rank, ascending; empty: no further publication can arrive.
///
/// A member that publishes the name at the step, or at a later one, publishes no more for it: sources go forward.
/// Members that left or are lost publish nothing until another process takes their number. All others may, joined or
/// not, except:
/// * If member minus layout rank is the same for one publication of each published rank, an open rank is awaited only
///   from the member at that distance, unless that member publishes another rank, or several distances fit. Otherwise a restore would wait until the deadline for readers that never publish.
/// * If the distances differ, a process that waits alone does not wait for itself if as many members have departed as
///   ranks are open.
/// Pure. `records`: live publications of the name, at any step. Cost: O(members + ranks + records log records).
std::vector<int> possible_publishers(const Directory& directory, std::span<const wire::PublicationRecord> records,
                                     const PublishersInput& input);

/// What publications have in common that may go into one plan. A job that was restarted may publish a step again with other
/// contents: that is another state.
struct StateOf {
  std::int64_t step = 0;
  std::uint64_t origin = 0;  ///< see wire::PublicationRecord

  static StateOf of(const wire::PublicationRecord& record) { return {record.step, record.origin}; }
  /// For lists of steps: the newest first, and of one step that of this session.
  bool operator<(const StateOf& other) const {
    if (step != other.step) return step > other.step;
    if ((origin == 0) != (other.origin == 0)) return origin == 0;
    return origin > other.origin;
  }
  bool operator==(const StateOf&) const = default;
};

struct PublishedState {
  StateOf of{};
  std::vector<wire::PublicationRecord> records{};
};

/// The publications by state. What comes first is to be preferred: states of this session, then those of later attempts
/// of the job, and of one session those of newer steps. The attempt of a session is the highest that its publications name: a
/// keeper may have lost its trainers before they were told of a higher one.
std::vector<PublishedState> by_preference(std::span<const wire::PublicationRecord> published);
/// The highest step of the states after `taken`, which is preferred to them, if that is higher and keepers hold it; else none.
std::optional<std::int64_t> higher_kept_step(std::span<const wire::PublicationRecord> published, const StateOf& taken);
/// Warns of it, once for each step: a job that publishes fresh state before it restores what is kept learns of that here alone.
void warn_of_higher_step(const Context& context, const std::string& name,
                         std::span<const wire::PublicationRecord> published, const StateOf& taken);

/// Leaves publications of one session (PublicationRecord::origin): of this one, if there are any, else of that with the
/// most ranks, and of several such of the latest attempt.
void keep_one_origin(std::vector<wire::PublicationRecord>& records);

/// The newest step at which every rank is published that is published at any step; none if there is no such step, or no
/// publication. Differs from the only step where members that are behind have a copy that is not.
std::optional<std::int64_t> newest_common_step(std::span<const wire::PublicationRecord> records);

/// Errors: throws Error{layout_mismatch} if publications of one rank of `from` at one step have different manifests, or
/// any declare layouts over different numbers of ranks. `records`: ascending by layout rank, with known
/// manifests.
void check_layouts(std::span<const wire::PublicationRecord> records, const Metadata& known, const std::string& from);

/// One section per distinct manifest, its ranks ascending. The first publication of a rank is the rank, further ones are
/// its copies. `records`: ascending by layout rank. `manifests`: of the records.
JobLayout side_of(std::span<const wire::PublicationRecord> records,
                  std::span<const std::shared_ptr<const Manifest>> manifests);
/// The holder in `side`, which is side_of(records), of each publication.
std::vector<Rank> holders_of(std::span<const wire::PublicationRecord> records, const JobLayout& side);

/// The publishers of a name, as far as this member knows them.
/// Threads: loop thread only.
class RosterView {
 public:
  /// `target`: publications that it excludes are left out; null: none are. Ownership: borrows both.
  RosterView(const Context& context, std::string name, const Target* target = nullptr)
      : context_(context), name_(std::move(name)), target_(target) {}
  /// Of the name that a restore reads from.
  RosterView(const Context& context, const Target& target) : RosterView(context, target.options.name, &target) {}

  /// Keeps the roster up to date. Call it after every change of the directory. Errors: see Membership::watch().
  void follow() { watch_ = context_.membership.watch(name_); }
  [[nodiscard]] const std::string& name() const { return name_; }
  /// The roster has arrived.
  [[nodiscard]] bool is_known() const { return context_.directory.knows(name_); }
  /// Live publications, at any step, by layout rank.
  [[nodiscard]] std::vector<wire::PublicationRecord> publications() const;
  /// Members that may still publish at `step`, or at any, one of `ranks` layout ranks; none if this member would not hear
  /// of it. 0 ranks: unknown.
  [[nodiscard]] std::vector<int> possible(int ranks, std::optional<std::int64_t> step) const;

 private:
  const Context& context_;
  std::string name_;
  const Target* target_;
  Membership::Watch watch_;
};

/// StepRule::newest_complete, and a step that several sessions have published: which state to plan next. A step that was planned and had no holder of some wanted element is
/// passed over, until its publications change; so is an older one that cannot be used.
class StepChoice {
 public:
  using Records = std::vector<wire::PublicationRecord>;

  /// The publications of the state to be preferred (by_preference()) of those that are not known to be incomplete; none if
  /// all are. `published`: at any step.
  /// Forgets steps whose publications have changed.
  /// `is_whole`, if given: states of earlier sessions for which it holds come before the others of these.
  Records next(const Records& published, const std::function<bool(const Records& state)>& is_whole = {});
  /// A plan over `records`, all of one step, had gaps; none: it cannot be used.
  void note_incomplete(const Records& records, const std::vector<Gap>& gaps);
  /// The step is looked at again: it was passed over because its sources had not described themselves.
  void forget(std::int64_t step) {
    std::erase_if(incomplete_, [&](const auto& one) { return one.first.step == step; });
  }
  /// Whether all steps are known to be incomplete, with the publications that they have now.
  [[nodiscard]] bool is_exhausted(const Records& published) const;
  void reset() { incomplete_.clear(); }

  /// The steps that are preferred to `taken` (by_preference()), the highest first. `published`: at any step.
  [[nodiscard]] std::vector<IncompleteStep> incomplete_before(const Records& published, const StateOf& taken) const;
  /// All incomplete steps, the highest first.
  [[nodiscard]] std::vector<IncompleteStep> incomplete() const;

 private:
  struct Passed {
    Records records;
    std::vector<Gap> gaps;
  };
  /// One of each step.
  static std::vector<IncompleteStep> listed(const std::map<StateOf, Passed>& passed);
  std::map<StateOf, Passed> incomplete_;
};

}  // namespace shardwire::restore

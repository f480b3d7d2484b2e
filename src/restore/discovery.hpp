// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "restore/callbacks.hpp"
#include "restore/context.hpp"
#include "restore/descriptions.hpp"
#include "restore/planning.hpp"
#include "restore/publishers.hpp"
#include "restore/target.hpp"
#include "restore/verdict.hpp"
#include "runtime/clock.hpp"
#include "wire/messages.hpp"

namespace shardwire::restore {

/// Asks publishers whether they still publish what the directory says. A publisher knows at once what it has replaced or
/// withdrawn; the directories of other members hear of it later.
/// Threads: loop thread only.
class RecordCheck {
 public:
  using Records = std::vector<wire::PublicationRecord>;
  using Done = std::function<void(const Records& stale)>;  ///< those that are published no more
  /// In larger jobs every member asks so many of them, each member others.
  static constexpr std::size_t max_asked = 64;

  /// A publisher that does not answer within `patience`, or cannot be reached, counts as one that still publishes.
  /// `failed` gets what `done` throws later. Ownership: borrows the context.
  RecordCheck(const Context& context, std::string name, Duration patience, Callbacks::Failed failed);
  ~RecordCheck();
  RecordCheck(const RecordCheck&) = delete;
  RecordCheck& operator=(const RecordCheck&) = delete;

  /// Calls `done`, now or later, and not after stop().
  void ask(const Records& records, Done done);
  /// Ignores further answers.
  void stop();

 private:
  [[nodiscard]] bool is_own_gone(const wire::PublicationRecord& record) const;
  void ask_one(const wire::PublicationRecord& record);
  /// A member that was asked has answered, or never will.
  void answered();

  const Context& context_;
  std::string name_;
  Duration patience_;
  Done done_;
  Callbacks callbacks_;
  Timer timer_;
  std::uint64_t next_request_;
  std::size_t awaited_ = 0;
  Records stale_;
  std::vector<std::pair<std::shared_ptr<SourceLink>, std::uint64_t>> watched_;  // links with requests
};

/// Leads from a publication name to a plan: follows the name's roster, fetches descriptions of the publications, waits
/// for missing ones while members are left that could publish them, and plans on a worker thread.
/// Threads: loop thread only.
class Discovery {
 public:
  using Records = Descriptions::Records;
  /// None may destroy the discovery.
  struct Events {
    std::function<void(std::shared_ptr<Planning> planning)> planned;  ///< every wanted element has a holder
    /// These are published no more, though the directory says so: discovery begins anew, and must not see them again.
    std::function<void(const Records& records)> stale;
    Callbacks::Failed failed;
  };

  /// `earlier`: the plan of an earlier restore of the same catalog, used where the sources are the same; may be null.
  /// Ownership: borrows all but `events` and `earlier`.
  Discovery(const Context& context, Events events, const Target& target, std::shared_ptr<Planning> earlier);

  /// Several members plan from the same publications, which nobody replaces: every one has to be described, also one of a
  /// member that does not answer.
  void plan_together() {
    together_ = true;
    may_leave_out_ = false;
  }
  /// Plans, now or when enough is known.
  void start();
  /// The publications or members have changed.
  void directory_changed();
  /// Plans anew, because the sources of the last plan are unusable. `withdrawn`: the reason, if it was that.
  void restart(const std::optional<Error>& withdrawn);
  /// Ignores further answers.
  void stop();

  /// Members that were asked to describe what they publish, and have not answered; see Descriptions.
  [[nodiscard]] const Descriptions::Asked& silent() const { return descriptions_.silent(); }
  /// The last plan is that of the earlier restore.
  [[nodiscard]] bool used_earlier() const { return used_earlier_; }
  /// Error for a deadline that passes now.
  [[nodiscard]] Error late() const;
  /// See awaited_text().
  [[nodiscard]] std::string awaited() const;

 private:
  template <typename Progress>
  struct Wait {
    Clock::Time since;
    Progress progress;
  };

  /// Live publications at the requested step, by layout rank; without those that were found withdrawn.
  [[nodiscard]] Records sources() const;
  [[nodiscard]] bool are_published(const Records& records) const;
  /// The records whose values are needed.
  [[nodiscard]] Records in_scope(Records records) const;
  [[nodiscard]] int source_ranks() const;
  /// There may be several states to choose from: with StepRule::newest_complete, or if several sessions have published
  /// the step.
  [[nodiscard]] bool chooses() const;
  [[nodiscard]] Situation situation() const;
  /// `asks`: for descriptions that are missing.
  void try_to_plan(bool asks = true);
  void dial(const Records& records);
  /// A description was requested over this link.
  void asked(SourceLink& link) const;
  /// The publications to plan over, of those at the requested step; none: there is nothing to plan before something changes.
  /// Errors: throws what no later publication can mend.
  [[nodiscard]] Records choose_step(Records records, bool asks);
  /// Every rank of the layout that these publications describe is among them.
  [[nodiscard]] bool is_whole(const Records& state) const;
  bool waits_for_all(const Records& records, const Records& next, bool asks);
  [[nodiscard]] bool is_older(const Records& records) const;
  void pass_over(const Records& records, const Error& why);
  void wait_for_descriptions(const Records& records);
  /// The records that are described, once no other was for `notice`; none: descriptions are waited for.
  [[nodiscard]] Records described_of(Records records);
  /// True: `limit` is not over since this began, and planning is tried again when it is.
  bool waits(std::optional<Clock::Time>& began, Duration limit, bool asks);
  void described();
  void refused(const Error& why);
  /// True: the grace is not over, and planning is tried again when it is.
  bool waits_for_grace(const Records& records, bool one_step);
  [[nodiscard]] Clock::Time waited_since(const Records& records, bool one_step);
  /// True: members have gone, whose keepers may publish for them; planning is tried again when they had the time.
  bool waits_for_keepers();
  /// Error of a plan with gaps. `at_deadline`: else no further publication can arrive.
  [[nodiscard]] Error incomplete_plan(bool at_deadline) const;
  void make_plan(const Records& records, bool everybody);
  void plan_again(const Records& records);
  void take_values();
  void planned(bool everybody);
  /// Ends the restore, unless the plan was made from publications that are published no more.
  void failed(const std::exception_ptr& error);
  void begin_anew(const Records& stale);

  const Context& context_;
  Events events_;
  const RestoreOptions& options_;
  RosterView roster_;
  Wanted wanted_;
  Callbacks callbacks_;
  Descriptions descriptions_;
  RecordCheck record_check_;
  Timer grace_;
  std::shared_ptr<Planning> earlier_;
  bool used_earlier_ = false;
  std::shared_ptr<Planning> planning_;  // owners: this and the planning job
  bool running_ = false;                // until there is a plan
  bool planning_now_ = false;
  bool overtaken_ = false;  // the state has changed during planning
  // For absent ranks, by step with StepRule::newest_complete; progress: number of published ones.
  std::map<std::int64_t, std::optional<Wait<std::size_t>>> ranks_waits_;
  std::optional<Clock::Time> keepers_wait_;
  std::optional<Clock::Time> descriptions_wait_;
  bool together_ = false;
  bool may_leave_out_;
  bool dials_early_ = false;                      // there are few publications
  Descriptions::Asked dialled_;                   // before there was a plan
  bool left_out_ = false;                         // the plan being made leaves out publications that are not described
  std::optional<Wait<std::int64_t>> steps_wait_;  // for ranks behind others; progress: the least step
  StepChoice step_choice_;
  std::set<std::int64_t> undescribed_;  // steps that were passed over for that
  std::vector<Gap> last_gaps_;
  std::vector<AbsentKey> last_absent_;  // those without any source
  std::optional<Error> withdrawn_;      // reason for the last new plan
};

}  // namespace shardwire::restore

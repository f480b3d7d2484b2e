// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "restore/callbacks.hpp"
#include "restore/descriptions.hpp"
#include "restore/owner.hpp"
#include "restore/planning.hpp"
#include "restore/services.hpp"
#include "restore/verdict.hpp"
#include "runtime/clock.hpp"

namespace shardwire::restore {

/// The wanted side of one restore.
struct Wanted {
  std::shared_ptr<const Catalog> catalog;    ///< owners: the restore and the planning job
  std::shared_ptr<const Manifest> manifest;  ///< of the catalog; owners: see DescribedCatalog
  ValueScope scope = ValueScope::none;       ///< of the values that it needs
};

/// Leads from a publication name to a plan: follows the name's roster, fetches descriptions of the publications, waits
/// for missing ones while members are left that could publish them, and plans on a worker thread.
/// Threads: loop thread only.
class Discovery {
 public:
  class Listener {
   public:
    /// Every wanted element has a holder.
    virtual void on_planned(std::shared_ptr<Planning> planning) = 0;

   protected:
    ~Listener() = default;
  };

  /// `earlier`: the plan of an earlier restore of the same catalog, used where the sources are the same; may be null.
  /// Failures go to the owner. Ownership: borrows all but `wanted` and `earlier`.
  Discovery(Services& services, Listener& listener, Owner& owner, const RestoreOptions& options, Wanted wanted,
            std::shared_ptr<Planning> earlier);

  /// Plans, now or when enough is known.
  void start();
  /// The publications or members have changed.
  void directory_changed();
  /// Plans anew, because the sources of the last plan are unusable. `gone`: a publication found withdrawn, which
  /// rosters may still name.
  void restart(const std::optional<wire::PublicationRecord>& gone, const std::optional<Error>& withdrawn);
  /// Ignores further answers.
  void stop();

  [[nodiscard]] bool is_published(const wire::PublicationRecord& record) const { return are_published({record}); }
  [[nodiscard]] ValueScope value_scope() const { return wanted_.scope; }
  /// The last plan is that of the earlier restore.
  [[nodiscard]] bool used_earlier() const { return used_earlier_; }
  /// Error for a deadline that passes now.
  [[nodiscard]] Error late() const;

 private:
  using Generation = std::tuple<std::int32_t, std::uint32_t, std::uint64_t>;  // member, epoch, generation
  using Records = Descriptions::Records;

  /// Live publications of the name, at any step, by layout rank; without those that were found withdrawn.
  [[nodiscard]] Records published() const;
  /// Those at the requested step.
  [[nodiscard]] Records sources() const;
  [[nodiscard]] bool are_published(const Records& records) const;
  /// Those whose values are needed.
  [[nodiscard]] Records in_scope(Records records) const;
  [[nodiscard]] int source_ranks() const;
  [[nodiscard]] std::vector<int> possible(int ranks) const;
  [[nodiscard]] Situation situation() const;
  void try_to_plan();
  [[noreturn]] void give_up_incomplete() const;
  void make_plan(const Records& records, bool everybody);
  void plan_again(const Records& records);
  void take_values();
  void planned(bool everybody);

  Services& services_;
  Listener& listener_;
  Owner& owner_;
  const RestoreOptions& options_;
  Wanted wanted_;
  Callbacks callbacks_;
  Descriptions descriptions_;
  Timer grace_;
  std::shared_ptr<Planning> earlier_;
  bool used_earlier_ = false;
  std::shared_ptr<Planning> planning_;  // owners: this and the planning job
  bool running_ = false;                // until there is a plan
  bool planning_now_ = false;
  bool overtaken_ = false;  // the state has changed during planning
  bool grace_over_ = false;
  std::vector<Gap> last_gaps_;
  std::vector<AbsentKey> last_absent_;  // those without any source
  std::optional<Error> withdrawn_;      // reason for the last new plan
  std::set<Generation> gone_;
};

}  // namespace shardwire::restore

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "move/engine.hpp"
#include "plan/replan.hpp"
#include "restore/box_ledger.hpp"
#include "restore/content_checks.hpp"
#include "restore/destination.hpp"
#include "restore/parked_attempt.hpp"
#include "restore/replica_checks.hpp"
#include "restore/rounds_step.hpp"
#include "restore/source.hpp"
#include "restore/source_rules.hpp"
#include "restore/target.hpp"

namespace shardwire::restore {

/// Fate of the path of one source's bytes; the source itself may be well.
enum class PathLoss : std::uint8_t {
  aborted,  ///< the connection was aborted on this side, by another operation
  ended,    ///< the payload connection has ended, but the source is alive
  refused,  ///< a fabric stopped reading: this or other memory of the source may have been withdrawn
};

/// Carries out one plan, from its sources to verified bytes:
///
///   sources (bind) ─► make_transfers, choose_methods ─► engine (move) ─► ContentChecks, ReplicaChecks ─► sources (confirm)
///
/// Owns the sources, the engine with its staging, and the ledger of the boxes in place. What it cannot deliver, another attempt
/// moves.
/// Threads: loop thread only.
class Attempt final : private Source::Listener, private move::Requests, private move::Events {
 public:
  /// None may destroy the attempt.
  struct Reports {
    /// Every byte but those of undelivered() is in place, unchanged and confirmed. With bind_only: every source is bound
    /// and was released.
    std::function<void()> verified;
    std::function<void(Stage stage)> stage;  ///< the restore enters it
    Callbacks::Failed failed;
    /// The restore cannot continue without this source, which is lost or has withdrawn its publication.
    SourceEnded source_ended;
    std::function<void(const Source& source, PathLoss loss, const std::string& why)> path_lost;
    std::function<void()> quieter;  ///< after stop(): an activity that may have written the destination has ended
  };
  /// Results of an earlier attempt that this one may use.
  struct Earlier {
    std::unique_ptr<ParkedAttempt> parked{};       ///< its plan is that of this attempt; null: none
    std::shared_ptr<move::StagingPool> staging{};  ///< null: none. Owners: see Attempt
    std::vector<Rank> lost{};                      ///< holders
  };

  /// `failures`: of the restore's earlier attempts, too. `rounds`: null if there are none. Ownership: borrows all but
  /// `reports`, `planning` and `earlier`.
  Attempt(const Context& context, Reports reports, Target& target, DestinationEvents& events, PathFailures& failures,
          RoundsStep* rounds, std::shared_ptr<Planning> planning, Earlier earlier);

  void start();
  /// Call it often: checks that silent sources are alive.
  void look_after_sources();
  /// Begins nothing more, and ends rounds.
  void stop();
  /// No job of it accesses the destination, apart from rounds. `fabrics_dead`: the fabrics are no longer driven, so they write
  /// nothing.
  [[nodiscard]] bool quiet(bool fabrics_dead) const;
  /// Fabrics and rounds no longer write to the destination.
  [[nodiscard]] bool written() const { return !engine_ || engine_->idle(); }
  /// Ends writes that fabrics may still make. `keeps_links`: the connections are still needed.
  void abort_connections(bool keeps_links);
  /// Returns leases, and ignores further answers. Requires: quiet.
  void release();

  [[nodiscard]] const Planning& planning() const { return *planning_; }
  /// For the plan of what was not delivered. Requires: released, for changes.
  [[nodiscard]] std::shared_ptr<Planning> share_planning() const { return planning_; }
  /// Holders of ranks of the plan that were published since.
  void find_copies();
  /// Boxes that another attempt has to move: other holders deliver them in place of lost sources, and sources whose paths have
  /// failed over other connections.
  [[nodiscard]] std::vector<PieceBox> undelivered() const;
  /// All that is not in place for certain. Requires: stopped and quiet, but not released.
  [[nodiscard]] std::vector<PieceBox> unproven();
  [[nodiscard]] const BoxLedger& ledger() const { return ledger_; }

  /// Holders that were lost for good, and the error of the first.
  [[nodiscard]] const std::vector<Rank>& lost() const { return lost_; }
  [[nodiscard]] const std::exception_ptr& loss() const { return loss_; }
  /// Whether others than the holders in the plan may hold what is left after the loss.
  [[nodiscard]] bool may_be_held_later() const;
  /// Sources that were given up. The second also counts what their boxes cost, which other sources deliver now.
  [[nodiscard]] std::vector<LostSource> losses() const;
  [[nodiscard]] std::vector<LostSource> replaced() const;
  /// The holders that the next plan passes over, for good or where others are left.
  [[nodiscard]] Unavailable unavailable(CorruptHolders corrupt) const {
    return {.lost = lost_, .silent = silent_, .slow = slow_, .corrupt = std::move(corrupt)};
  }

  [[nodiscard]] const Sources& sources() const { return sources_; }
  [[nodiscard]] const ChosenTransfers& chosen() const { return chosen_; }
  /// Null while nothing moves.
  [[nodiscard]] const move::Tally* tally() const { return engine_ ? &engine_->tally() : nullptr; }
  [[nodiscard]] ByteCount staging_peak_bytes() const { return engine_ ? engine_->staging_peak_bytes() : 0; }
  /// Processor time of digests on this side.
  [[nodiscard]] double digest_seconds() const;
  /// Error for a deadline that passes now.
  [[nodiscard]] Error late() const;
  /// The sources, or events of the destination, that it waits for: for the log. Empty: it waits for nothing.
  [[nodiscard]] std::string awaited() const;
  /// Changes with each answer of a source, or of a holder that it compares with.
  [[nodiscard]] std::uint64_t answers() const;
  [[nodiscard]] std::shared_ptr<move::StagingPool> take_staging();
  /// For the next restore. Null: it cannot use the results. Requires: it has succeeded, and was released.
  [[nodiscard]] std::unique_ptr<ParkedAttempt> park();

 private:
  /// The state that all sources have to reach before the next step.
  enum class Awaited : std::uint8_t { nothing, bound, confirmed };
  struct Arrivals {  // from one source
    ByteCount bytes = 0;
    Clock::Time last;
  };
  struct Loss {
    std::size_t source;  // index
    LostSource report;
  };
  /// A source that has delivered bytes this shortly before the deadline keeps up.
  static constexpr auto keeping_up = std::chrono::milliseconds(500);

  // Of the sources:
  void on_bound(Source&) override { go_on(); }
  void on_confirmed(Source&) override { go_on(); }
  void on_lost(Source& source, const std::exception_ptr& error) override;
  // Of the engine:
  transport::Endpoint& endpoint(std::uint32_t peer) override;
  void ask(std::uint32_t peer, std::uint64_t request, std::vector<move::PackPart> parts,
           move::MessageForm form) override;
  void forget(std::uint32_t peer, std::uint64_t request) override;
  void changed() override { advance(); }
  void failed(const std::exception_ptr& error) override;
  void peer_failed(std::uint32_t peer, const transport::Fault& fault) override;
  void digested(const move::TransferPart& part, const Digest128& digest) override;
  void differs(const move::TransferPart& part) override;

  void await(Awaited what);
  void go_on();
  void on_all_bound();
  void ask_rounds(BoundTransfers bound);
  void choose(BoundTransfers bound);
  void begin();
  void move();
  void make_engine();
  /// Posts all permitted transfers. Call it after every change.
  void advance();
  void on_moved();
  void on_parts_differ(std::span<const move::TransferPart> parts, std::span<const wire::RequestedBox> blocks);
  void confirm();
  void refused_as_corrupt(const Source& source, std::uint64_t request, std::span<const wire::RequestedBox> blocks);
  void tell_probe();
  void spoil();
  [[nodiscard]] bool is_spoilt(const move::Transfer& transfer);

  // Sources that are lost, or are not reached:
  void drop(const Source& source);
  bool can_continue();
  /// All its connections have failed before it was bound, though it is alive, and not too often yet.
  bool may_be_reached(const Source& source);
  void path_failed(Source& source, PathLoss loss, const std::string& why);
  void give_up_path(Source& source, PathLoss loss, const std::string& why);
  std::vector<std::size_t> drop_connections(const Source& source);
  void messages_ended(Source& source, const std::string& why);
  void ask_doubtful();
  void look_at_channel(Source& source);
  [[nodiscard]] bool message_channel_failed(const Source& source) const;
  void look_at_reads(Source& source);
  /// Bytes of this source have arrived over connections.
  [[nodiscard]] bool has_carried(const Source& source) const;

  // Regular looks at the sources:
  void look(Clock::Time now, bool overslept);
  [[nodiscard]] Sample sample_of(const Source& source) const;
  [[nodiscard]] std::vector<Sample> samples() const;
  [[nodiscard]] bool answers(const Source& source) const;
  void on_silent(const Silence::Found& found);
  void on_standstill(Source& source, Duration lasted);
  void on_slow(std::span<const std::size_t> slow, std::span<const Sample> samples);

  [[nodiscard]] PathInputs paths();
  [[nodiscard]] std::span<const move::Transfer> transfers() const;
  [[nodiscard]] std::vector<SourceProgress> progress() const;
  /// All is bound, and nothing moves before the destination's own events have happened.
  [[nodiscard]] bool awaits_events() const;

  const Context& context_;
  Reports reports_;
  Target& target_;
  DestinationEvents& events_;
  PathFailures& failures_;
  RoundsStep* rounds_;
  Callbacks callbacks_;
  std::shared_ptr<Planning> planning_;  // owners: this, and what another attempt takes over once this one is released
  Earlier earlier_;
  Sources sources_;
  Awaited awaited_ = Awaited::nothing;
  ChosenTransfers chosen_;
  std::unique_ptr<ReplicaChecks> replicas_;  // null: nothing to compare
  ContentChecks checks_;
  BoxLedger ledger_;
  std::shared_ptr<move::StagingPool> staging_;  // while it moves; owners: this, the engine, and the cache then
  Timer retry_;                                 // when only the rate limit delays a transfer
  std::vector<Arrivals> arrivals_;              // by source, while it moves
  // Sources that a fabric no longer reaches, with reasons, until it is known whether they are lost.
  std::map<std::size_t, std::string> doubtful_;
  ByteCount probed_bytes_ = 0;  // of other processes, as the probe knows them
  RegularLook look_;
  Silence silence_;
  Standstill standstill_;     // while it moves
  SlowSources slow_sources_;  // likewise
  std::vector<Rank> lost_;
  std::vector<Rank> silent_;     // set aside or not; may be heard again
  std::vector<Rank> slow_;       // or at a standstill, or connected again
  std::vector<Rank> set_aside_;  // of the silent ones, and those that are connected again
  std::exception_ptr loss_;
  std::vector<Loss> losses_;  // for the report: of lost_ and set_aside_
  bool digests_ = false;      // parts are digested at both ends
  bool moved_ = false;        // all that can arrive has
  bool stopped_ = false;
  std::unique_ptr<move::Engine> engine_;  // null while nothing moves; ends before the objects that it uses
};

}  // namespace shardwire::restore

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "move/engine.hpp"
#include "session/core.hpp"
#include "session/kept_restore.hpp"
#include "session/restore_state.hpp"
#include "session/restore_values.hpp"

namespace shardwire {

/// One restore on the loop: plan, bind, move, verify, commit. Each stage has its own source file, restore_<stage>.cpp.
/// Whatever ends it, finish() runs once, after the last write into the destination.
/// Threads: loop thread only.
class RestoreRun {
 public:
  using Clock = std::chrono::steady_clock;

  /// `began` and `join_seconds`: when restore() was called, and what joining cost if this is the session's first restore.
  RestoreRun(Core& core, std::shared_ptr<detail::RestoreState> state, Catalog wanted, RestoreOptions options,
             Clock::time_point began, double join_seconds);
  ~RestoreRun();

  void start();
  void directory_changed();
  void fail(const std::exception_ptr& error);
  /// The fabric as a whole has failed.
  void fabric_broke(const std::exception_ptr& error);
  /// The session ends. First: nothing more is begun, and what comes from others is cut off.
  void stop_writing();
  /// Whether all of that has ended.
  [[nodiscard]] bool written() const;
  /// Then: reports cancelled; nothing of this run may be called afterwards but its destructor.
  void abandon();
  /// A payload for one of this restore's requests; false when it is not.
  bool payload(const wire::PayloadHeader& header, transport::Incoming& incoming);

 private:
  enum class Stage : std::uint8_t { plan, bind, move, verify, commit, stopping, done };

  using Peer = SourcePeer;
  /// Parts that are in place, and their digests there, to be compared with the source's.
  struct Check {
    std::vector<move::Part> parts;
    std::vector<memory::Digest128> digests;
    ByteCount bytes = 0;
  };

  // plan (restore_plan.cpp)
  void consider();
  [[nodiscard]] std::vector<wire::PublicationRecord> sources() const;
  /// Asks for what is not known yet; true when nothing is missing.
  bool learn(const std::vector<wire::PublicationRecord>& records);
  /// A description under way: asked of one holder after the other.
  struct Fetch;
  template <typename Request, typename Reply>
  void fetch(const std::shared_ptr<Fetch>& fetch);
  template <typename Request, typename Reply>
  void ask(const std::shared_ptr<Fetch>& fetch, const std::shared_ptr<Link>& link, int place);
  bool find_more_holders(Fetch& fetch);
  [[nodiscard]] bool still_published(const std::vector<wire::PublicationRecord>& records) const;
  void make_plan(const std::vector<wire::PublicationRecord>& records, bool everybody);
  void plan_again(const std::vector<wire::PublicationRecord>& records);
  void planned(bool everybody);

  // bind (restore_bind.cpp)
  void bind();
  void choose_beginning();
  void name_peers();
  void lease_from(std::size_t index);
  void leased(std::size_t index, wire::Message& message);
  void bound(std::size_t index, const wire::Bound& reply);
  void peer_bound();
  void bound_all();
  void build_transfers();
  move::Transfer transfer_for(const ScheduledPiece& item, std::size_t peer, move::Offer& offer);
  void check_messages(const move::Transfer& transfer) const;

  // move (restore_move.cpp)
  void move_all();
  void pump();

  // verify and commit (restore_verify.cpp)
  void verify();
  void digested(const move::Part& part, const memory::Digest128& digest);
  void ask_digests(std::size_t peer);
  void compare(const Check& check, const std::vector<wire::BoxDigest>& theirs);
  [[noreturn]] void differ(std::span<const move::Part> parts) const;
  [[nodiscard]] bool proven(std::size_t peer) const;
  void release_all();
  void released(std::size_t index, bool intact);
  void commit();
  void zero(const TensorLayout& tensor, const Catalog::Entry& entry);

  // the frame (restore_run.cpp)
  void enter(Stage stage);
  void report_progress(bool last);
  void arm_progress();
  void finish();
  void drop_peers();
  void keep();
  void cut_peers();
  /// No job of this restore touches the caller's memory.
  [[nodiscard]] bool quiet() const;
  [[nodiscard]] RestoreReport make_report() const;
  [[nodiscard]] std::vector<Gap> missing() const;
  [[nodiscard]] std::string waiting_for() const;
  /// Answers of peers run through this, so that a throw ends the restore instead of the loop.
  template <typename Body>
  void guarded(Body body);
  /// `body` as a callback that does nothing once the restore has ended.
  template <typename Body>
  auto while_running(Body body);
  /// Checks that `message` is the answer that was asked for. Errors: throws what a wire::Failure says.
  template <typename Reply>
  Reply& expect(wire::Message& message, const Peer& peer);
  std::uint64_t next_request() { return next_request_++; }
  static std::uint64_t random_request();

  Core& core_;
  std::shared_ptr<detail::RestoreState> state_;  // owners: this run and the caller's handle
  std::shared_ptr<const Catalog> catalog_;       // owners: this run and the job that plans
  const Catalog& wanted_;                        // *catalog_
  RestoreOptions options_;
  Stage stage_ = Stage::plan;
  std::exception_ptr error_;

  Clock::time_point began_;
  Clock::time_point stage_began_;
  StageSeconds seconds_;
  double* account_ = &seconds_.plan;  // where the running stage's time goes
  Timer deadline_;
  Timer settle_;
  Timer pace_;
  Timer progress_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // owners: this run; callbacks hold weak ones

  // plan
  std::shared_ptr<const Manifest> manifest_;  // wanted; owners: see DescribedCatalog
  std::shared_ptr<Planning> planning_;        // owners: this run and the job that plans
  bool planning_now_ = false;
  bool overtaken_ = false;  // something became known while planning ran
  bool settled_ = false;
  bool needs_values_ = false;
  std::vector<Gap> last_gaps_;
  std::vector<TensorKey> last_absent_;  // those of them that no source has at all
  std::set<wire::Digest> asked_;
  std::map<TensorKey, Value> values_;

  // bind, move, verify
  std::vector<Peer> peers_;
  std::size_t pending_ = 0;                                       // answers awaited in this stage
  std::shared_ptr<const std::vector<move::Transfer>> transfers_;  // owners: this run, its engine, and what is kept
  std::shared_ptr<move::StagingPool> staging_;                    // owners: this run, its engine, and what is kept
  BoxCache placed_;
  std::unique_ptr<move::Engine> engine_;
  std::uint64_t next_request_;
  std::vector<Check> checks_;  // being filled, by peer
  std::size_t checking_ = 0;   // digests asked for
  move::Predictions predictions_;
  std::size_t zeroing_ = 0;            // jobs that zero a part of the destination
  std::unique_ptr<KeptRestore> kept_;  // of an earlier restore of this catalog
  bool fabric_broken_ = false;
  bool early_ = false;              // bytes are read before the sources have answered
  bool unleased_ = false;           // and without a lease
  std::size_t awaited_leases_ = 0;  // while bytes are read
  bool bound_anew_ = false;         // not all is as it was then
};

/// Implementation of the two templates above, used by every stage's file.
template <typename Body>
void RestoreRun::guarded(Body body) {
  try {
    body();
  } catch (const std::exception&) {
    fail(std::current_exception());
  }
}

template <typename Body>
auto RestoreRun::while_running(Body body) {
  return [this, alive = std::weak_ptr<bool>(alive_), body = std::move(body)](auto&&... arguments) {
    if (alive.expired() || stage_ == Stage::stopping) return;
    guarded([&] { body(std::forward<decltype(arguments)>(arguments)...); });
  };
}

template <typename Reply>
Reply& RestoreRun::expect(wire::Message& message, const Peer& peer) {
  if (auto* reply = std::get_if<Reply>(&message)) return *reply;
  const std::vector<Rank> ranks{peer.place};
  const std::string who = "source rank " + std::to_string(to_int(peer.place)) + " ";
  if (const auto* failure = std::get_if<wire::Failure>(&message)) {
    throw Error(failure->code, who + "refused: " + failure->message, ranks);
  }
  throw Error(ErrorCode::transport_failed, who + "gave an answer of another kind", ranks);
}

}  // namespace shardwire

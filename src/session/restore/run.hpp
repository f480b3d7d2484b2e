// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "memory/device_events.hpp"
#include "move/engine.hpp"
#include "session/core.hpp"
#include "session/grouped_handover.hpp"
#include "session/restore/repeat.hpp"
#include "session/restore/state.hpp"
#include "session/restore/values.hpp"

namespace shardwire {

/// One restore on the loop: plan, bind, move, verify, commit. Each stage has its own source file, <stage>.cpp.
/// Whatever ends it, finish() runs once, after the last write into the destination.
/// Threads: loop thread only.
class RestoreRun final : public RunningRestore, private move::Requests, private move::Events {
 public:
  using Clock = std::chrono::steady_clock;

  /// What a source that withdraws means: what takes its place is planned for, or the restore ends.
  enum class Withdrawal : std::uint8_t { plans_anew, ends };

  /// `grouped`: takes what comes from other members; null: this restore brings it. `began` and `join_seconds`: when restore()
  /// was called, and what joining cost if this is the session's first restore.
  RestoreRun(Core& core, std::shared_ptr<detail::RestoreState> state, Catalog wanted, TensorPlaces places,
             RestoreOptions options, Withdrawal withdrawal, Clock::time_point began, double join_seconds,
             std::shared_ptr<GroupedHandover> grouped = nullptr);
  ~RestoreRun() override;

  void fail(const std::exception_ptr& error);

  void start() override;
  void directory_changed() override;
  void caller_failed(const std::exception_ptr& error) override;
  void fabric_broke(const std::exception_ptr& error) override;
  void stop_writing() override;
  [[nodiscard]] bool written() const override;
  void abandon() override;
  bool payload(const wire::PayloadHeader& header, transport::Incoming& incoming) override;

 private:
  enum class Stage : std::uint8_t { plan, bind, move, verify, commit, stopping, done };

  using Peer = SourcePeer;
  using Generation = std::tuple<std::int32_t, std::uint32_t, std::uint64_t>;  // member, epoch, generation
  struct Arrivals {                                                           // from one source
    ByteCount bytes = 0;
    Clock::time_point last;
  };
  /// Parts that are in place, and their digests there, to be compared with the source's.
  struct Check {
    std::vector<move::TransferPart> parts;
    std::vector<memory::Digest128> digests;
    ByteCount bytes = 0;
  };

  // plan (plan.cpp)
  void try_to_plan();
  /// Live publications of the name, at any step, by layout rank; without those that were found withdrawn.
  [[nodiscard]] std::vector<wire::PublicationRecord> published() const;
  /// Those of them at the step asked for.
  [[nodiscard]] std::vector<wire::PublicationRecord> sources() const;
  void check_layouts(const std::vector<wire::PublicationRecord>& records) const;
  /// Asks for what is not known yet; true when nothing is missing.
  bool fetch_metadata(const std::vector<wire::PublicationRecord>& records);
  /// A description under way: asked of one holder after the other.
  struct Fetch;
  template <typename Request, typename Reply>
  void fetch(const std::shared_ptr<Fetch>& fetch);
  template <typename Request, typename Reply>
  void ask(const std::shared_ptr<Fetch>& fetch, const std::shared_ptr<Link>& link, int layout_rank);
  bool find_more_holders(Fetch& fetch);
  [[nodiscard]] bool still_published(const std::vector<wire::PublicationRecord>& records) const;
  void take_values();
  void make_plan(const std::vector<wire::PublicationRecord>& records, bool everybody);
  void plan_again(const std::vector<wire::PublicationRecord>& records);
  void planned(bool everybody);

  // who is waited for, and what an end says of it (waiting.cpp)
  /// Members that may still be heard to publish what is missing; `ranks`: of the source layout, 0 when not known.
  [[nodiscard]] std::vector<int> awaited(int ranks) const;
  /// Of the source layout; 0 when not known.
  [[nodiscard]] int source_ranks() const;
  /// Nobody has published what is wanted, and nobody is left who could.
  [[noreturn]] void nobody_left() const;
  /// Whether a source has withdrawn and none of these has taken its place.
  [[nodiscard]] bool is_not_replaced(const std::vector<wire::PublicationRecord>& records) const;
  /// Missing for good, or at the deadline.
  [[noreturn]] void incomplete() const;
  [[noreturn]] void steps_differ(const std::vector<wire::PublicationRecord>& records) const;
  [[nodiscard]] Error step_not_published() const;
  void deadline_passed();
  [[nodiscard]] Error late_in_plan() const;
  [[nodiscard]] Error late_source() const;
  /// Bytes that have not come from each source.
  [[nodiscard]] std::vector<ByteCount> outstanding() const;
  void note_arrivals();
  [[nodiscard]] bool reads_may_be_refused(std::size_t index) const;
  void ask_source(std::size_t index, std::function<void()> all_is_well);
  [[nodiscard]] bool message_channel_ended(std::size_t index) const;

  // bind (bind.cpp; what an earlier restore spares: repeat.hpp)
  void bind();
  void name_peers();
  void lease_from(std::size_t index);
  void leased(std::size_t index, wire::Message& message);
  // (connect.cpp)
  [[nodiscard]] bool wants_messages() const;  // whatever else is possible
  void connect(std::size_t index);
  void connect_next(std::size_t index);
  void leave_out(std::size_t index, std::size_t fabric, const Error& why);
  enum class Attempt { first, last };
  void connect_over(std::size_t index, std::size_t fabric, Attempt attempt);
  void bind_over(std::size_t index, std::size_t fabric, Attempt attempt);
  void bound_over(std::size_t index, std::size_t fabric, Attempt attempt, wire::Bound& reply);
  /// What a source has answered over one fabric.
  struct Binding {
    std::size_t fabric = 0;
    Attempt attempt = Attempt::first;
    wire::Bound reply;
    std::shared_ptr<FabricChannel> channel{};  // owners: see Link::channel()
    transport::Path path{};
    std::vector<std::shared_ptr<transport::RemoteRegion>> regions{};  // of the reply
    std::set<Bytes> keys{};
    GenerationWord word{};
  };
  /// While nothing has been read over it yet.
  struct Proof {
    Proof(Loop& loop, std::uint64_t own_number, Binding&& of)
        : limit(loop), number(own_number), binding(std::move(of)) {}
    Timer limit;
    std::uint64_t number;
    Binding binding;
  };
  static void import_regions(const Peer& peer, Binding& binding, std::vector<support::Descriptor> descriptors);
  void prove_reads(std::size_t index, Binding binding);
  Binding end_proof(std::size_t index);
  void take(std::size_t index, Binding& binding);
  void check_bound(const Peer& peer, const wire::Bound& reply) const;
  void take_region(Peer& peer, std::size_t number, const wire::RegionHandle& handle,
                   std::shared_ptr<transport::RemoteRegion> region);
  void take_region_of_none(Peer& peer);
  void connected(std::size_t index);
  void choose_fabrics(Peer& peer);
  [[nodiscard]] int worst_path(const Peer& peer);
  /// Some of its memory has none, and does not come in rounds either.
  [[nodiscard]] bool lacks_path(const Peer& peer);
  [[nodiscard]] int path_of(const Peer& peer, const SourceRegion& region, int device);
  void explain_unmapped(Peer& peer);
  [[nodiscard]] std::vector<std::string> reasons_against(const Peer& peer, int best) const;
  // (bind.cpp)
  void peer_bound();
  void bound_all();
  void build_transfers();
  void settle_transfers();
  void begin_to_move();
  /// Which of the connected fabrics moves bytes this way; null for those of this process.
  static const ConnectedFabric* carrier_of(const Peer& peer, Way way);
  void choose_ways(std::vector<move::Transfer>& transfers, const std::vector<move::Offer>& offers);
  void log_plan() const;
  void log_paths() const;
  move::Transfer transfer_for(const ScheduledPiece& item, std::size_t peer, move::Offer& offer);
  void check_messages(const move::Transfer& transfer) const;

  // memory of devices (on_devices.cpp)
  [[nodiscard]] bool touches_devices(const Peer& peer) const;
  void await_destination();
  /// All is in place: what is left are the caller's events.
  void conclude();
  void name_targets();
  /// What the fabric at this index of `connected` can do for a region whose bytes are wanted on `device`.
  [[nodiscard]] RegionAccess access_into(const Peer& peer, const SourceRegion& region, std::size_t fabric, int device);
  /// Whether streams of `device` load from memory of the other one; asked once. `has_peer_access`: see memory::DeviceAllocation.
  [[nodiscard]] bool loads_from(int device, int other, bool has_peer_access);
  /// Of one that reads host memory there is: the devices of this process that it reads into as well, all that is wanted there.
  [[nodiscard]] std::vector<int> devices_read_into(const transport::Endpoint& endpoint, std::size_t fabric);
  /// Another fabric may read less of the host's memory, and more of theirs.
  void prefer_reads_of_devices(Peer& peer);
  /// Of the bytes that come from this peer, those that the fabric at this index of `connected` reads straight to where they are wanted.
  [[nodiscard]] ByteCount bytes_read_by(const Peer& peer, std::size_t fabric);
  /// How fast what touches a device here can be copied: see move::Offer::limits.
  void limit_by_devices(const move::Transfer& transfer, move::Offer& offer);
  /// Of memory of this device; asked once.
  [[nodiscard]] double memory_bytes_per_second(int device);
  /// Why copies within this process go by way of host memory, where they do.
  void explain_local(const move::Transfer& transfer);
  void offer_on_device(const move::Transfer& transfer, const TensorKey& key, const Peer& peer, move::Offer& offer);
  [[nodiscard]] bool is_staged(const Peer& peer, std::size_t position);
  /// Why some memory of a device goes by way of the host's, as far as that is known; none: all of it is mapped or read.
  [[nodiscard]] std::optional<std::vector<std::string>> why_not_direct(const Peer& peer);
  void explain_staged(Peer& peer);

  // move (move.cpp)
  void move_all();
  void pump();
  // (grouped.cpp)
  [[nodiscard]] static std::optional<int> device_at_source(const Peer& peer, std::size_t position);
  [[nodiscard]] bool may_come_in_rounds(const Peer& peer, std::size_t position, int target_device) const;
  [[nodiscard]] bool may_come_in_rounds(const move::Transfer& transfer) const;
  [[nodiscard]] bool has_direct_path(const move::Transfer& transfer, const move::Offer& offer) const;
  [[nodiscard]] std::string why_not_in_rounds(const move::Transfer& transfer) const;
  void ask_for_rounds();
  void rounds_decided(bool in_rounds);
  void offer_to_rounds();
  void rounds_closed(bool brought);
  void digest_brought();
  void digest_brought(std::vector<const move::Transfer*> those, memory::DigestKind kind);
  void digested_brought(const std::vector<const move::Transfer*>& those, const memory::CopyResult& result);
  transport::Endpoint& endpoint(std::uint32_t peer) override;
  void ask(std::uint32_t peer, std::uint64_t request, std::vector<move::PackPart> parts, move::Answer answer) override;
  void forget(std::uint32_t peer, std::uint64_t request) override;
  void changed() override;
  void failed(const std::exception_ptr& error) override;
  void peer_failed(std::uint32_t peer, const transport::Fault& fault) override;
  void cut_off(std::uint32_t peer, const std::string& why);
  /// The connection that they come over has, and the source is there.
  void payloads_ended(std::uint32_t peer);
  [[nodiscard]] static bool message_channel_is_cut(const Peer& peer);
  void digested(const move::TransferPart& part, const memory::Digest128& digest) override;
  void differs(const move::TransferPart& part) override;

  // verify and commit (verify.cpp)
  void verify();
  /// What a source takes. Errors: throws Error{unsupported} for one that cannot take those that its memory needs.
  [[nodiscard]] memory::DigestKind digest_kind(const Peer& peer) const;
  [[nodiscard]] bool takes_tree_digests(const Peer& peer) const;
  void check_later(const move::TransferPart& part, const memory::Digest128& digest);
  void ask_digests(std::size_t peer, Check&& about);
  void compare(const Check& check, const std::vector<wire::BoxDigest>& theirs);
  [[noreturn]] void differ(std::span<const move::TransferPart> parts) const;
  [[nodiscard]] bool packed_while_live(std::size_t peer) const;
  void release_all();
  void ask_whether_live(std::size_t index);
  void was_live(std::size_t index);
  using WordRead = std::function<void(const transport::Outcome& fault, std::uint64_t word)>;
  static void read_word(const GenerationWord& word, WordRead done);
  void released(std::size_t index, bool intact);
  void require_intact(const Peer& peer, bool intact) const;
  void commit();
  void zero(const TensorLayout& tensor, std::size_t entry);
  void write_values();
  /// A job of commit() has ended; the last one ends the restore.
  void wrote(const std::exception_ptr& error);

  // the frame (run.cpp)
  void enter(Stage stage);
  void report_progress(bool last);
  void end_with(const std::exception_ptr& error);
  void stop_moving();
  void arm_progress();
  void finish();
  void take_events_back();
  /// Nothing writes any more: the end, or another plan.
  void stopped();
  /// Whether `error` only says that a source has withdrawn, so that what has taken its place may do.
  bool withdrawal_only(const std::exception_ptr& error);
  /// Ends what moves, and plans anew then. False: it may not.
  bool begin_anew();
  void plan_anew();
  void drop_peers();
  void keep();
  void abort_peers();
  /// No job of this restore touches the caller's memory.
  [[nodiscard]] bool quiet() const;
  [[nodiscard]] RestoreReport make_report() const;  // report.cpp, as the next
  void add_ways(RestoreReport& report) const;
  void add_peers(RestoreReport& report) const;
  [[nodiscard]] std::vector<Gap> missing() const;
  [[nodiscard]] std::exception_ptr with_gaps(const std::exception_ptr& error) const;
  static Generation generation_of(const wire::PublicationRecord& record) {
    return {record.member, record.epoch, record.generation};
  }
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

  Core& core_;
  std::shared_ptr<detail::RestoreState> state_;  // owners: this run and the caller's handle
  std::shared_ptr<const Catalog> catalog_;       // owners: this run and the job that plans
  const Catalog& wanted_;                        // *catalog_
  TensorPlaces places_;                          // of wanted_
  RestoreOptions options_;
  Stage stage_ = Stage::plan;
  std::exception_ptr error_;
  Withdrawal withdrawal_;
  std::shared_ptr<GroupedHandover> grouped_;  // owners: this run and the exchange that drives the rounds; may be null
  std::shared_ptr<std::vector<move::Transfer>> offered_;  // until each has its way; owners: this, and transfers_ then
  std::vector<move::Offer> offers_;                       // of these
  std::vector<const move::Transfer*> brought_;            // of transfers_: those that come in rounds
  int digesting_ = 0;                                     // jobs that read them
  bool planning_anew_ = false;                            // once nothing writes any more
  std::optional<Error> withdrawn_;                        // why it was planned anew last
  std::set<Generation> gone_;                             // what was found withdrawn: rosters may still name it
  bool refused_by_fabric_ = false;                        // while an error is passed on: it is only a fabric's word
  int fabric_refusals_ = 0;
  std::array<ByteCount, way_count> abandoned_bytes_{};  // moved for plans that were given up

  Clock::time_point began_;
  Clock::time_point stage_began_;
  StageSeconds seconds_;
  double* account_ = &seconds_.plan;  // where the running stage's time goes
  Timer deadline_;
  Timer discovery_grace_;
  Timer pace_;
  Timer progress_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // owners: this run; callbacks hold weak ones

  // plan
  std::shared_ptr<const Manifest> manifest_;  // wanted; owners: see DescribedCatalog
  std::shared_ptr<Planning> planning_;        // owners: this run and the job that plans
  bool planning_now_ = false;
  bool overtaken_ = false;  // something became known while planning ran
  bool grace_over_ = false;
  bool needs_values_ = false;
  std::vector<Gap> last_gaps_;
  std::vector<TensorKey> last_absent_;                                   // those of them that no source has at all
  std::map<wire::Digest, int> asked_;                                    // layout rank that is to describe itself
  std::vector<std::pair<std::shared_ptr<Link>, std::uint64_t>> asking_;  // watchers of who was asked
  std::map<TensorKey, Value> values_;

  // bind, move, verify
  std::vector<Peer> peers_;
  std::map<std::size_t, std::unique_ptr<Proof>> proofs_;  // by peer
  std::uint64_t proofs_begun_ = 0;
  std::size_t pending_ = 0;                                       // answers awaited in this stage
  std::shared_ptr<const std::vector<move::Transfer>> transfers_;  // owners: this run, its engine, and the cache
  std::shared_ptr<move::StagingPool> staging_;                    // owners: this run, its engine, and the cache
  BoxCache placed_;
  // By device, the other one, and whether its memory has peer access; empty: it is; as asked so far.
  std::map<std::tuple<int, int, bool>, std::string> why_not_loaded_;
  std::map<int, double> memory_speeds_;                      // by device, as asked so far
  std::map<std::pair<std::size_t, int>, bool> fits_fabric_;  // by fabric and device: all that is wanted there; as asked
  std::set<std::string> why_not_into_;  // for people: what is wanted on a device that is read into, and is not itself
  std::unique_ptr<move::Engine> engine_;
  std::uint64_t next_request_;
  std::vector<std::vector<Check>> checks_;  // to be asked for when all bytes are there, by peer
  std::size_t checking_ = 0;                // digests asked for
  move::Predictions predictions_;
  std::vector<Arrivals> arrivals_;                   // by peer, while bytes move
  std::size_t zeroing_ = 0;                          // jobs that zero a part of the destination, or write values there
  bool destination_ready_ = true;                    // events of its views have happened
  bool move_waits_ = false;                          // for these
  std::shared_ptr<memory::LentEvents> lent_events_;  // these; owners: this run and the job that waits for them
  std::shared_ptr<memory::LentEvents> done_events_;  // to be recorded; owners: this run and the copies
  std::size_t recording_ = 0;                        // devices that have not
  std::shared_ptr<bool> awaiting_ = std::make_shared<bool>(true);  // owners: as of alive_, for all plans
  Repetition repetition_;
  bool fabric_broken_ = false;
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
  const std::vector<Rank> ranks{peer.layout_rank};
  const std::string who = "source rank " + std::to_string(to_int(peer.layout_rank)) + " ";
  if (const auto* failure = std::get_if<wire::Failure>(&message)) {
    throw Error(failure->code, who + "refused: " + failure->message, ranks);
  }
  throw Error(ErrorCode::transport_failed, who + "gave an answer of another kind", ranks);
}

}  // namespace shardwire

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "move/engine.hpp"
#include "plan/replan.hpp"
#include "restore/block_checks.hpp"
#include "restore/callbacks.hpp"
#include "restore/context.hpp"
#include "restore/planning.hpp"
#include "restore/source.hpp"
#include "restore/target.hpp"
#include "restore/verdict.hpp"

namespace shardwire::restore {

/// Fate of the path of one source's bytes; the source itself may be well.
enum class PathLoss : std::uint8_t {
  aborted,  ///< the connection was aborted on this side, by another operation
  ended,    ///< the payload connection has ended, but the source is alive
  refused,  ///< a fabric stopped reading: this or other memory of the source may have been withdrawn
};

/// Moves the bytes of one plan: the engine with its staging, and its requests to sources. Those whose bytes stop arriving are
/// asked whether they are alive.
/// Threads: loop thread only.
class Movement final : private move::Requests, private move::Events {
 public:
  /// None may destroy the movement.
  struct Reports {
    std::function<void()> moved;        ///< every byte is in place, apart from those of undelivered()
    std::function<void()> undelivered;  ///< more of what lost sources have not delivered is known
    /// The path of this source's bytes has failed; the source itself is alive.
    std::function<void(Source& source, PathLoss loss, const std::string& why)> path_lost;
    Callbacks::Failed failed;
    std::function<void()> quieter;  ///< see Run::Reports
  };

  /// `transfers`: those of start(). `staging`: of an earlier restore; may be null. `rounds`: of the method collective;
  ///            null if there are none. Ownership: borrows all but the reports and the staging.
  Movement(const Context& context, Reports reports, const Target& target, const Planning& planning,
           const Sources& sources, std::span<const move::Transfer> transfers, move::CollectiveRounds* rounds,
           std::shared_ptr<move::StagingPool> staging);
  ~Movement();

  void start(std::shared_ptr<const std::vector<move::Transfer>> transfers);
  [[nodiscard]] bool messages_are_copied() const { return engine_->messages_are_copied(); }
  /// Posts all permitted transfers. Call it after every change.
  void advance();
  /// Call it often: checks that silent sources are alive.
  void look_after_sources();
  /// Accepts nothing more from this source. Its memory is read on if it outlives its process.
  void lose(const Source& source);
  /// Moves on, after lose().
  void continue_without(const Source& source);
  /// Reads no more over connections of this source, which is alive: it confirms what has arrived. Mapped memory is read on.
  /// Ends the connections that have failed, or all that carry bytes where none has. Returns their fabrics.
  std::vector<std::size_t> lose_path(const Source& source);
  /// Takes back what is not under way of all that this source owes over connections: another run moves it. Returns how many
  /// bytes that are. Call advance() afterwards.
  ByteCount take_waiting(const Source& source);
  /// Bytes were asked of this source over a connection, and have not arrived.
  [[nodiscard]] bool asks(const Source& source) const {
    return engine_->asks(static_cast<std::uint32_t>(source.index()));
  }
  /// Bytes of this source have arrived over connections.
  [[nodiscard]] bool has_carried(const Source& source) const;
  /// Memory of this source can be read, and be proven, although the source is lost.
  [[nodiscard]] static bool outlives(const Source& source, std::span<const move::Transfer> transfers);
  /// Boxes that other sources have to deliver in place of lost ones: those that have not arrived, and those of which nothing
  /// proves that they were read while the publication was live. Final once all else has moved.
  /// `of`: only the boxes of this source; null: of all.
  [[nodiscard]] std::vector<PieceBox> undelivered(const Source* of = nullptr) const;
  /// Bytes of undelivered(&of) that had arrived, and are moved again.
  [[nodiscard]] ByteCount resent_bytes(const Source& of) const;
  /// Boxes that are not in place, or of which nothing proves that they were read while their publication was live, whatever
  /// the source. Requires: stopped, quiet, and not released.
  [[nodiscard]] std::vector<PieceBox> unproven();
  /// Boxes that undelivered() would have of this source, if it were lost now, or larger ones.
  [[nodiscard]] std::vector<PieceBox> owed_by(const Source& source) const;
  /// All bytes are in place or undelivered().
  [[nodiscard]] bool accounts_for_all() const;
  /// Reports::moved was called.
  [[nodiscard]] bool moved() const { return moved_; }
  /// Compares the digests of received parts with the sources', and blocks of memory that was loaded with what was published.
  /// `done` runs if they are equal; also if not, where another run may move the parts again: undelivered() has them then.
  void compare_digests(std::function<void()> done);
  /// Boxes that were not what their sources have published.
  [[nodiscard]] const std::vector<FoundCorrupt>& corrupt() const { return corrupt_; }

  /// Posts nothing more, and ends rounds. Reports `quieter` as transfers end.
  void stop();
  /// No job of this movement accesses the destination. `fabrics_dead`: the fabrics are no longer driven, so they write
  /// nothing.
  [[nodiscard]] bool quiet(bool fabrics_dead) const;
  /// Fabrics and rounds no longer write to the destination.
  [[nodiscard]] bool written() const { return engine_->idle(); }
  /// Ends writes that fabrics may still make. `keeps_links`: the connections are still needed.
  void abort_connections(bool keeps_links);

  [[nodiscard]] const move::Tally& tally() const { return engine_->tally(); }
  [[nodiscard]] double digest_seconds() const { return engine_->digest_seconds(); }
  [[nodiscard]] ByteCount staging_peak_bytes() const { return engine_->staging_peak_bytes(); }
  [[nodiscard]] std::shared_ptr<move::StagingPool> take_staging() { return std::move(staging_); }
  /// Progress of each source.
  [[nodiscard]] std::vector<SourceProgress> progress() const;
  /// Boxes not in place.
  [[nodiscard]] std::vector<Gap> missing() const;

 private:
  /// What a lost or doubtful source leaves.
  struct Left {
    move::Engine::Mapped mapped{};          // whether its mapped memory is read on
    std::vector<move::TransferPart> parts;  // have not arrived, and nothing writes them
  };
  struct Arrivals {  // from one source
    ByteCount bytes = 0;
    Clock::Time last;
  };
  transport::Endpoint& endpoint(std::uint32_t peer) override;
  void ask(std::uint32_t peer, std::uint64_t request, std::vector<move::PackPart> parts,
           move::MessageForm form) override;
  void forget(std::uint32_t peer, std::uint64_t request) override;
  void changed() override { advance(); }
  void failed(const std::exception_ptr& error) override;
  void peer_failed(std::uint32_t peer, const transport::Fault& fault) override;
  void digested(const move::TransferPart& part, const Digest128& digest) override;
  void differs(const move::TransferPart& part) override;
  [[nodiscard]] std::span<const move::Transfer> transfers() const;
  void messages_ended(Source& source, const std::string& why);
  void path_lost(Source& source, PathLoss loss, const std::string& why);
  void ask_doubtful();
  void look_at_channel(Source& source);
  [[nodiscard]] bool message_channel_failed(const Source& source) const;
  void look_at_reads(Source& source);
  void refused_as_corrupt(const Source& source, std::uint64_t request, std::span<const wire::RequestedBox> blocks);
  void note_corrupt(const Source& source, std::span<const wire::RequestedBox> blocks);
  void note_corrupt(std::span<const move::TransferPart> parts);
  void on_corrupt(const Source& source, TensorId tensor, const Box& where);
  void check_blocks(std::function<void()> done);
  [[nodiscard]] TensorId tensor_of(const move::Transfer& transfer) const;
  using TensorsOfHolders = std::set<std::pair<TensorId, Rank>>;
  [[nodiscard]] std::pair<TensorId, Rank> tensor_of_holder(const move::Transfer& transfer) const;
  /// What one holder was to deliver of a tensor comes from it, or all of that moves again: replicas may differ.
  [[nodiscard]] bool keeps_holders_apart() const { return target_.options.replicas != Replicas::spread; }
  bool take_back(std::size_t source);
  void prove_reads(std::size_t source);
  /// Which of the bytes that have arrived were read while the publication was live.
  enum class Proof : std::uint8_t { none, by_part, all };
  [[nodiscard]] Proof proof_of(const move::Transfer& transfer) const;
  /// Of one source, or of all if null.
  [[nodiscard]] std::vector<move::TransferPart> parts_left(const Source* of) const;
  void tell_probe();
  void spoil();
  [[nodiscard]] bool is_spoilt(const move::Transfer& transfer);

  const Context& context_;
  Reports reports_;
  const Target& target_;
  const Planning& planning_;
  const Sources& sources_;
  Callbacks callbacks_;
  Timer retry_;                                                   // when only the rate limit delays a transfer
  std::shared_ptr<move::StagingPool> staging_;                    // owners: this, the engine, and the cache then
  std::shared_ptr<const std::vector<move::Transfer>> transfers_;  // owners: the restore, the engine, and the cache then
  DigestChecks checks_;
  std::unique_ptr<move::Engine> engine_;
  std::vector<Arrivals> arrivals_;    // by source
  std::map<std::size_t, Left> left_;  // by lost or doubtful source
  ByteCount probed_bytes_ = 0;        // of other processes, as the probe knows them
  // Sources that a fabric no longer reaches, with reasons, until it is known whether they are lost.
  std::map<std::size_t, std::string> doubtful_;
  const bool digests_;  // parts are digested at both ends
  BlockChecks blocks_;
  std::vector<FoundCorrupt> corrupt_;
  std::vector<move::TransferPart>
      returned_;  // of live sources: have not arrived, or not as they were; nothing writes them
  std::vector<move::TransferPart> rotten_;  // have arrived and do not count
  bool stopped_ = false;
  bool moved_ = false;
  bool ended_ = false;  // the restore has ended before its sources could confirm
};

}  // namespace shardwire::restore

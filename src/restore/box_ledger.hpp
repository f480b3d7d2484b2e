// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "move/engine.hpp"
#include "plan/replan.hpp"
#include "restore/context.hpp"
#include "restore/planning.hpp"
#include "restore/source.hpp"
#include "restore/target.hpp"
#include "shardwire/report.hpp"
#include "wire/messages.hpp"

namespace shardwire::restore {

/// A box that was not what its source published, and the wanted tensor that it belongs to.
struct FoundCorrupt {
  TensorId tensor{};
  Rank holder{};  ///< of the plan's `from` side
  CorruptBox box;
};

/// Which holders are no longer read, since their memory is not what they published, over all attempts of one restore. Pure,
/// apart from what it remembers.
/// Threads: loop thread only.
class Corruption {
 public:
  /// A holder of which a tensor has differed in so many attempts is no longer read for it.
  static constexpr int max_attempts = 2;

  /// Adds the findings of one attempt.
  void add(std::span<const FoundCorrupt> found);
  /// The holders that are no longer read, by wanted tensor.
  [[nodiscard]] const CorruptHolders& holders() const { return holders_; }

 private:
  std::map<std::pair<TensorId, Rank>, int> attempts_;  // in which it differed
  CorruptHolders holders_;
};

/// Which boxes of one plan are in place, from which source, and which of them another attempt has to move. A box counts as
/// delivered once it has arrived and its source lives, which confirms it at the end, or once something proves that it was
/// read while the publication was live. Before begin(), nothing is in place.
/// Threads: loop thread only.
class BoxLedger {
 public:
  /// Ownership: borrows all.
  BoxLedger(const SourceContext& context, const Target& target, const Planning& planning, const Sources& sources)
      : context_(context), target_(target), planning_(planning), sources_(sources) {}

  /// Whether bytes that were loaded from a source's memory can be checked, if it is lost.
  using CanCheck = std::function<bool(std::size_t source)>;
  /// The boxes come by these transfers. Ownership: borrows engine and transfers.
  void begin(move::Engine& engine, std::span<const move::Transfer> transfers, CanCheck can_check);

  // --- entries. Requires: begin() ---

  /// Accepts nothing more from this source. Its memory is read on if it outlives its process; the return value says so.
  bool drop(const Source& source);
  /// Accepts nothing more over connections of this source. Mapped memory is read on.
  void drop_connections(const Source& source);
  /// Takes back what nothing writes any more of all that was dropped. Whether there was some.
  bool take_back();
  /// Proves what has arrived of reads, where that is due.
  void prove_reads();
  /// Parts that have not arrived, or not as they were at the source, and that nothing writes any more.
  void note_returned(std::span<const move::TransferPart> parts);
  /// Parts in place do not count.
  void note_rotten(std::span<const move::TransferPart> parts);
  /// Parts of a block that is not what the source has published. Errors: as note_corrupt().
  void note_rotten(const Source& source, const wire::RequestedBox& block);
  /// Not what the source has published. Errors: throws Error{corrupt} if this restore does not go on without it, and
  /// Error{transport_failed} for blocks of which nothing is read.
  void note_corrupt(std::span<const move::TransferPart> parts);
  void note_corrupt(const Source& source, std::span<const wire::RequestedBox> blocks);

  // --- queries ---

  /// Memory of this source can be read, and be proven, although the source is lost.
  [[nodiscard]] static bool outlives(const Source& source, std::span<const move::Transfer> transfers);
  /// Boxes that other sources have to deliver in place of lost ones: those that have not arrived, and those of which nothing
  /// proves that they were read while the publication was live. Final once all else has moved.
  /// `of`: only the boxes of this source; null: of all.
  [[nodiscard]] std::vector<PieceBox> undelivered(const Source* of = nullptr) const;
  /// Bytes of undelivered(&of) that had arrived, and are moved again.
  [[nodiscard]] ByteCount resent_bytes(const Source& of) const;
  /// Boxes that are not in place, or of which nothing proves that they were read while their publication was live, whatever
  /// the source. Requires: the engine is stopped and idle, and the sources are not released.
  [[nodiscard]] std::vector<PieceBox> unproven();
  /// Boxes that undelivered() would have of this source, if it were lost now, or larger ones.
  [[nodiscard]] std::vector<PieceBox> owed_by(const Source& source) const;
  /// All bytes are in place or undelivered().
  [[nodiscard]] bool accounts_for_all() const;
  /// Boxes not in place, once some move.
  [[nodiscard]] std::vector<Gap> missing() const;
  /// Boxes that were not what their sources have published.
  [[nodiscard]] const std::vector<FoundCorrupt>& corrupt() const { return corrupt_; }

 private:
  /// The rest of a lost or doubtful source.
  struct Left {
    move::Engine::Mapped mapped{};          // whether its mapped memory is read on
    std::vector<move::TransferPart> parts;  // have not arrived, and nothing writes them
  };
  /// Which of the bytes that have arrived were read while the publication was live.
  enum class Proof : std::uint8_t { none, by_part, all };
  using TensorsOfHolders = std::set<std::pair<TensorId, Rank>>;

  bool take_back(std::size_t source);
  void prove_reads(std::size_t source);
  void on_corrupt(const Source& source, TensorId tensor, const Box& where);
  [[nodiscard]] Proof proof_of(const move::Transfer& transfer) const;
  /// Boxes that the plan reads from this holder, or from all if empty.
  [[nodiscard]] std::vector<PieceBox> scheduled_of(std::optional<Rank> holder) const;
  /// Of one source, or of all if null.
  [[nodiscard]] std::vector<move::TransferPart> parts_left(const Source* of) const;
  [[nodiscard]] TensorId tensor_of(const move::Transfer& transfer) const;
  [[nodiscard]] std::pair<TensorId, Rank> tensor_of_holder(const move::Transfer& transfer) const;
  /// One holder delivers its share of a tensor whole, or all of that moves again: replicas may differ.
  [[nodiscard]] bool keeps_holders_apart() const { return target_.options.replicas != Replicas::spread; }

  const SourceContext& context_;
  const Target& target_;
  const Planning& planning_;
  const Sources& sources_;
  move::Engine* engine_ = nullptr;  // null, and the next two empty, before begin()
  std::span<const move::Transfer> transfers_;
  CanCheck can_check_;
  std::map<std::size_t, Left> left_;          // by lost or doubtful source
  std::vector<move::TransferPart> returned_;  // of live sources
  std::vector<move::TransferPart> rotten_;
  std::vector<FoundCorrupt> corrupt_;
  bool ended_ = false;  // the restore has ended before its sources could confirm
};

}  // namespace shardwire::restore

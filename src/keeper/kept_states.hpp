// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "memory/shared_memory.hpp"
#include "runtime/clock.hpp"
#include "shardwire/options.hpp"
#include "wire/messages.hpp"

namespace shardwire::keeper {

/// One snapshot of one rank, in memory of this process.
struct Snapshot {
  std::uint64_t buffer = 0;  ///< its number
  std::string name;
  std::int64_t step = 0;
  std::int32_t layout_rank = 0;
  std::uint64_t order = 0;    ///< of its beginning
  std::uint64_t session = 0;  ///< in which it was published
  std::uint64_t trainer = 0;  ///< connection of its trainer; 0: it has ended
  Clock::Time ended{};        ///< when it has
  ByteCount bytes = 0;        ///< asked for; the memory may be larger
  bool is_copy = false;       ///< of what a member of another host published
  bool complete = false;
  Bytes manifest{};  ///< encoded, as the next; once complete
  Bytes values{};
  std::vector<wire::KeptTensor> tensors{};
  std::vector<Digest128> digests{};  ///< see wire::KeepDone
  /// Owners: this, and publications of it. Replaced as a whole, so that a publication keeps what it has. Null until provide().
  std::shared_ptr<memory::SharedMemory> memory;
};

/// The contents of a keeper: attempts of the job, snapshots, and memory within a budget. It decides what is dropped.
///
///  begin ──► (memory is taken) ──► being written ──► done ──► complete ──► the trainer has ended ──► dropped: superseded, by time, by a person
///                   └── quit, or the trainer has ended: dropped
///
/// A trainer keeps the `n` latest complete snapshots of a rank of a name while it writes the next one; the latest is the one
/// that was begun last, whatever its step. It writes those of its own rank, and copies of those of ranks of other hosts. Where
/// copies are made, one more stays: that all hosts have copied the latest is known only once the one after it is complete.
/// Snapshots of earlier sessions stay until each trainer of the newest session that writes under their name has a complete one
/// of its own (two where copies are made); if there is no room before, the `n` newest of each rank stay. A trainer that writes a
/// step again has gone back to it: its later steps are dropped.
/// Pure: whoever uses it takes the memory. Threads: one.
class KeptStates {
 public:
  KeptStates(std::string job, ByteCount budget_bytes) : job_(std::move(job)), budget_bytes_(budget_bytes) {}

  /// A process of the session is there. `began`: when the session began, or later, as far as the process knows; the earliest that is
  /// named for a session counts. `told`: its attempt, likewise, see wire::AttemptRaised. The session that began last is the newest,
  /// whenever this keeper hears of it; of two that began at once, the one with the higher number. Returns the attempt: at least 1
  /// and `told`, and above those of all sessions that began earlier, up to wire::max_attempt.
  /// Errors: throws Error{cancelled} for a session that is not the newest.
  std::uint32_t attempt(std::uint64_t session, Clock::Time began, std::uint32_t told = 0);
  /// 0: there is none.
  [[nodiscard]] std::uint64_t newest_session() const { return attempts_.empty() ? 0 : attempts_.back().session; }

  struct Given {
    const Snapshot* snapshot = nullptr;
    bool fresh = false;                     ///< it has no memory yet, and waits for provide() or quit()
    std::vector<std::uint64_t> released{};  ///< see wire::KeepBuffer
  };
  /// Errors: throws Error{out_of_resources} with the numbers if the budget does not hold it, Error{cancelled} if the
  /// trainer's session is not the newest, see attempt().
  Given begin(std::uint64_t trainer, std::uint64_t session, const wire::KeepBegin& asked);
  /// Memory for a snapshot that has been begun. Returns null if it is gone meanwhile: its trainer has ended, or has begun it
  /// anew. Its part of the budget is free since then.
  const Snapshot* provide(std::uint64_t buffer, std::shared_ptr<memory::SharedMemory> memory);
  /// Errors: throws Error{invalid_argument} for a buffer that this trainer does not write, and for tensors outside of it.
  const Snapshot& done(std::uint64_t trainer, wire::KeepDone content);
  /// Takes back what the trainer has begun, also if it is complete: nobody has seen it. `forget`: see wire::KeepQuit.
  void quit(std::uint64_t trainer, std::uint64_t buffer, bool forget);
  /// The snapshot is a copy, and its publisher has been lost: it counts as one whose trainer has ended. Returns whether this
  /// trainer has such a snapshot, and it is complete.
  bool orphan(std::uint64_t trainer, std::uint64_t buffer, Clock::Time now);
  /// A member of the newest session has been lost, perhaps when others were a step ahead of it. So the step that all have finished
  /// is one that some trainers have replaced. These snapshots are to be published until the trainer begins its second one from now:
  /// the first may still be the one that replaces that step, and the second continues from what all have restored.
  void member_lost();
  /// The trainer has ended, in whatever manner.
  void ended(std::uint64_t trainer, Clock::Time now);
  /// Drops snapshots of trainers that have ended; an empty name: under all.
  void drop(const std::string& name);
  /// Drops snapshots whose trainers have ended before `before`.
  void drop_old(Clock::Time before);

  /// Complete ones whose trainers have ended.
  [[nodiscard]] std::vector<const Snapshot*> without_trainer() const;
  /// Complete ones that no trainer publishes and that are to be published: without_trainer(), and those of member_lost().
  [[nodiscard]] std::vector<const Snapshot*> to_publish() const;
  struct CompleteStep {
    std::string name;
    std::int64_t step = 0;
    std::uint64_t session = 0;
    std::int32_t ranks = 0;  ///< of its layout: each has a complete snapshot here, its own or a copy
    auto operator<=>(const CompleteStep&) const = default;
  };
  /// Of each name the newest step of the newest session that has one.
  /// Cost: decodes a manifest for each step of each name.
  [[nodiscard]] std::vector<CompleteStep> complete_here() const;
  [[nodiscard]] const std::map<std::uint64_t, Snapshot>& all() const { return snapshots_; }
  [[nodiscard]] ByteCount budget_bytes() const { return budget_bytes_; }
  /// Of snapshots, also of those that have no memory yet, and of buffers that trainers still have mapped.
  [[nodiscard]] ByteCount used_bytes() const;
  /// That of the newest session; 0: there is none.
  [[nodiscard]] std::uint32_t attempts() const { return attempt_of(newest_session()); }
  /// 0: the session is not known here.
  [[nodiscard]] std::uint32_t attempt_of(std::uint64_t session) const;

 private:
  /// Memory of a dropped snapshot, which its trainer may still have mapped, or publish.
  struct Spare {
    std::uint64_t trainer = 0;
    std::shared_ptr<memory::SharedMemory> memory;
  };
  struct Writer {
    std::uint64_t trainer = 0;
    std::string name;
    std::int32_t layout_rank = 0;
    auto operator<=>(const Writer&) const = default;
  };
  struct Reserve {
    ByteCount bytes = 0;     // of the snapshots to keep and the one that is written
    std::size_t enough = 1;  // complete ones, so that those of earlier sessions may go
    int shown_for = 0;       // further snapshots until those that the trainer has replaced are not published any more
  };
  struct Attempt {
    Clock::Time began{};  // of its session
    std::uint64_t session = 0;
    std::uint32_t number = 0;
  };
  void require_newest(std::uint64_t session) const;
  using Which = std::function<bool(const Snapshot& one)>;
  void drop_if(const Which& which);
  void drop(std::map<std::uint64_t, Snapshot>::iterator one);
  /// Drops what the trainer's own snapshot replaces, and what it makes superfluous of earlier sessions.
  void make_way(std::uint64_t trainer, std::uint64_t session, const wire::KeepBegin& asked);
  void require_reserve(std::uint64_t trainer, const wire::KeepBegin& asked);
  /// Of earlier sessions, the newest steps of each rank stay.
  void reduce_earlier(std::uint64_t session, const std::string& name, std::size_t steps);
  [[nodiscard]] bool writes(const Writer& writer) const;
  [[nodiscard]] bool all_have_enough(const std::string& name, std::uint64_t session) const;

  std::string job_;
  ByteCount budget_bytes_;
  std::vector<Attempt> attempts_;                // in the order in which their sessions began
  std::map<std::uint64_t, Snapshot> snapshots_;  // by buffer
  std::map<std::uint64_t, Spare> spares_;        // by buffer
  std::map<Writer, Reserve> reserves_;           // of trainers that are there
  std::uint64_t next_buffer_ = 1;
  std::uint64_t next_order_ = 1;
};

}  // namespace shardwire::keeper

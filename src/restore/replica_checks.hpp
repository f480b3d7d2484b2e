// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "memory/copy_queue.hpp"
#include "move/transfer.hpp"
#include "restore/planning.hpp"
#include "restore/source.hpp"
#include "restore/target.hpp"
#include "restore/verdict.hpp"

namespace shardwire::restore {

/// Elements that were read from one rank and that other ranks hold too.
struct ComparedBoxes {
  struct Element {
    std::uint32_t piece = 0;  ///< index into the plan's pieces
    Box box;
  };
  struct Held {
    std::uint32_t element = 0;  ///< index into `elements`
    std::uint32_t tensor = 0;   ///< in the holder's manifest
  };
  std::vector<Element> elements;             ///< distinct boxes, each small enough for one digest
  std::vector<std::vector<Held>> by_holder;  ///< in the order of Planning::others
};

/// Splits the elements that Planning::others lists into boxes to digest. Pure.
ComparedBoxes boxes_to_compare(const Planning& planning, const Manifest& wanted);

/// Error for holders with other bytes than those read; none if all are equal. `own`: digests of the elements in place
/// here. `theirs`: by holder, as ComparedBoxes::by_holder. Pure.
std::optional<Error> differing_replicas(const ComparedBoxes& boxes, const std::vector<Digest128>& own,
                                        const std::vector<std::vector<Digest128>>& theirs, const Planning& planning,
                                        const Manifest& wanted, Rank target);

/// Replicas::compare: compares the bytes in place here with those of every other holder of the same elements. A holder
/// is a Source without a fabric: leased while the restore binds, asked for digests once every byte is in place, and
/// confirmed. Digests of a holder in this process are taken here.
/// Threads: loop thread only.
class ReplicaChecks final : private Source::Listener {
 public:
  /// None may destroy this.
  struct Reports {
    Callbacks::Failed failed;
    SourceEnded source_ended;       ///< nothing can be compared without this holder
    std::function<void()> quieter;  ///< after stop(): a digest of the destination has ended
  };

  /// Ownership: borrows all but the reports.
  ReplicaChecks(const Context& context, Reports reports, Target& target, const PathInputs& paths,
                const Planning& planning);

  /// Takes the leases. Call it once.
  void start();
  /// `then` runs when every holder has granted its lease.
  void when_leased(std::function<void()> then);
  /// `equal` runs when every holder has the same bytes, and has confirmed that they were published until now.
  /// Requires: every byte is in place.
  void compare(std::function<void()> equal);
  /// Begins nothing more.
  void stop() { stopped_ = true; }
  /// No digest of the destination is being taken.
  [[nodiscard]] bool quiet() const { return digesting_ == 0; }
  /// Returns the leases, and ignores further answers. Requires: quiet.
  void release();

  /// Holders are being waited for.
  [[nodiscard]] bool comparing() const { return comparing_; }
  [[nodiscard]] std::vector<SourceProgress> progress() const { return progress_of(sources_, context_); }
  [[nodiscard]] const Sources& sources() const { return sources_; }
  /// Processor time of digests on this side.
  [[nodiscard]] double digest_seconds() const { return digest_seconds_; }

 private:
  void on_bound(Source& source) override;
  void on_lost(Source& source, const std::exception_ptr& error) override { reports_.source_ended(source, error); }
  void on_confirmed(Source& source) override;
  void begin();
  void ask(std::size_t holder);
  void digest_more();
  void digested(std::size_t first, const memory::CopyResult& result);
  [[nodiscard]] memory::QueuedCopy local_copy(std::size_t index);
  [[nodiscard]] memory::QueuedCopy own_copy(const ComparedBoxes::Held& held);
  void one_done();
  [[nodiscard]] ByteCount bytes_of(const ComparedBoxes::Element& element) const;
  [[nodiscard]] const TensorLayout& wanted_tensor(const ComparedBoxes::Element& element) const;

  const Context& context_;
  Reports reports_;
  Target& target_;
  const Planning& planning_;
  Callbacks callbacks_;
  Sources sources_;  // by holder
  ComparedBoxes boxes_;
  std::vector<Digest128> own_;                  // of the elements here
  std::vector<std::vector<Digest128>> theirs_;  // by holder
  std::vector<std::size_t> asked_;              // by holder: the first box that was not requested
  std::optional<std::size_t> here_;             // the holder in this process
  std::function<void()> when_leased_;
  std::function<void()> when_equal_;
  std::size_t due_ = 0;         // holders, and this side, without all digests
  std::size_t next_local_ = 0;  // elements, then boxes of the holder in this process
  std::size_t local_done_ = 0;
  int digesting_ = 0;  // batches
  double digest_seconds_ = 0;
  bool comparing_ = false;
  bool stopped_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // owners: this; batches hold weak ones
};

}  // namespace shardwire::restore

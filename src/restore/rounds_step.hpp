// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "move/collective.hpp"
#include "move/requests.hpp"

namespace shardwire {

/// The group whose rounds may carry bytes of an exchange.
struct RoundsGroup {
  static constexpr int nowhere = std::numeric_limits<int>::min();  ///< of members that are not in the group

  std::string_view collective;  ///< its name. Ownership: borrowed
  int member = 0;               ///< this one
  std::vector<int> devices;     ///< by member: place of the memory that it moves: a device, memory::on_host or nowhere
  /// True: all members' restores together decide whether bytes go in rounds. False: everything that can does.
  bool undecided = false;

  [[nodiscard]] int device_of(int of_member) const {
    const auto index = static_cast<std::size_t>(of_member);
    return index < devices.size() ? devices[index] : nowhere;
  }
  /// Whether it moves from memory of `source` to memory of this member.
  [[nodiscard]] bool carries(int source, int source_device, int target_device) const {
    return device_of(source) == source_device && device_of(member) == target_device;
  }
};

/// A restore and the rounds of its exchange: their statements to each other, in this order. Either side may come first.
///
///   restore                     exchange
///   report_paths(indirect)  ->  on_paths       only if undecided
///                           <-  decide
///   begin(transfers)        ->  on_offer
///                           <-  open .. close
///
/// Threads: loop thread only, apart from group().
class RoundsStep final : public move::CollectiveRounds {
 public:
  /// A piece that is received from another member.
  struct Item {
    int member = 0;
    std::uint32_t held_tensor = 0;  ///< in that member's manifest
    ByteCount run_bytes = 0;
    move::CollectivePiece piece;
  };

  explicit RoundsStep(RoundsGroup group) : group_(std::move(group)) {}
  [[nodiscard]] const RoundsGroup& group() const { return group_; }

  // --- of the restore ---

  /// The members that the restore reads from, by peer of its transfers.
  void set_members(std::vector<int> members) { members_ = std::move(members); }
  /// Whether some bytes have no direct path. `decided` runs with the decision of all members.
  void report_paths(bool indirect, std::function<void(bool in_rounds)> decided);
  /// Offers everything that comes in rounds. Requires: set_members().
  void begin(std::span<const move::Transfer* const> transfers, std::function<void(bool received)> ended) override;
  /// As begin(), with the items.
  void offer(std::vector<Item> items, std::function<void(bool received)> closed);
  /// The restore has ended or stopped: rounds that write for it have to end.
  void stop() override;
  [[nodiscard]] bool writing() const override { return writing_; }

  // --- of the exchange ---

  /// `done` runs once, empty if the restore stops without a report.
  void on_paths(std::function<void(std::optional<bool> indirect)> done);
  void decide(bool in_rounds);
  /// `done` runs once, empty if the restore stops without an offer.
  void on_offer(std::function<void(std::optional<std::vector<Item>> items)> done);
  /// Permits writes to the destination until close(). `stopped` runs if the restore stops meanwhile. False: it has
  /// stopped already.
  bool open(std::function<void()> stopped);
  void close(bool received);

 private:
  /// One statement of the restore, and its listener.
  template <typename Value>
  struct Statement {
    std::optional<Value> value;
    std::function<void(std::optional<Value>)> done;

    void tell(bool stopped) {
      if (done && (value || stopped)) std::exchange(done, nullptr)(std::move(value));
    }
  };

  RoundsGroup group_;
  std::vector<int> members_;  // by peer
  Statement<bool> indirect_;
  Statement<std::vector<Item>> items_;
  std::function<void(bool)> decided_;
  std::function<void(bool)> closed_;
  std::function<void()> on_stop_;  // while rounds write
  bool writing_ = false;
  bool stopped_ = false;
};

}  // namespace shardwire

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <vector>

#include "memory/copier.hpp"
#include "move/pacer.hpp"
#include "move/transfer.hpp"

namespace shardwire::move {

/// What has arrived so far.
class Tally {
 public:
  void expect(const Transfer& transfer);
  void arrived(const Transfer& transfer, ByteCount bytes);

  [[nodiscard]] ByteCount expected_bytes() const { return expected_; }
  [[nodiscard]] ByteCount done_bytes() const { return done_; }
  [[nodiscard]] ByteCount way_bytes(WayKind way) const { return by_way_[static_cast<std::size_t>(way)]; }
  [[nodiscard]] ByteCount peer_bytes(std::uint32_t peer, WayKind way) const;
  /// Whether all bytes of this piece are in place.
  [[nodiscard]] bool complete(std::uint32_t piece) const;

 private:
  static constexpr std::size_t ways = 3;
  ByteCount expected_ = 0;
  ByteCount done_ = 0;
  std::array<ByteCount, ways> by_way_{};
  std::vector<std::array<ByteCount, ways>> by_peer_;
  std::vector<ByteCount> missing_;  // per piece
};

/// What the ways of one restore share.
struct Shared {
  memory::Copier& copier;
  Pacer pacer;  ///< remote bytes only
  Tally tally;
  std::function<void()> changed;                   ///< something arrived or a slot came free
  std::function<void(std::exception_ptr)> failed;  ///< the restore cannot go on
  bool stopped = false;

  /// A large restore would only push everything else out of the caches; a small one is likely to be used at once.
  [[nodiscard]] memory::Stores stores() const {
    constexpr ByteCount least_streamed_restore = 16u << 20;
    return tally.expected_bytes() >= least_streamed_restore ? memory::Stores::streaming : memory::Stores::cached;
  }
};

/// One way of moving bytes: takes transfers, posts them slice by slice, never blocks.
class Way {
 public:
  virtual ~Way() = default;
  virtual void add(Transfer transfer) = 0;
  /// Posts one slice; false when nothing can be posted now (nothing left, no slot, rate).
  virtual bool post(Pacer::Clock::time_point now) = 0;
  /// True when nothing of this way will touch the destination any more unless something further is posted.
  [[nodiscard]] virtual bool idle() const = 0;
};

/// local and mapped: source bytes can be loaded in place.
std::unique_ptr<Way> make_in_place_way(std::shared_ptr<Shared> shared, ByteCount slice_bytes);

}  // namespace shardwire::move

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "move/transfer.hpp"
#include "shardwire/error.hpp"

namespace shardwire::move {

/// A set of ways.
class Ways {
 public:
  constexpr Ways() = default;
  constexpr Ways(std::initializer_list<Way> ways) {
    for (const Way way : ways) add(way);
  }
  constexpr void add(Way way) { bits_ |= 1u << static_cast<unsigned>(way); }
  constexpr void remove(Way way) { bits_ &= ~(1u << static_cast<unsigned>(way)); }
  [[nodiscard]] constexpr bool has(Way way) const { return (bits_ >> static_cast<unsigned>(way) & 1u) != 0; }
  [[nodiscard]] constexpr unsigned bits() const { return bits_; }

 private:
  unsigned bits_ = 0;
};

/// What is possible for one transfer, and what would carry it.
struct Offer {
  Offer() = default;
  /// All over one transport, also what is added to `ways` afterwards.
  constexpr Offer(Ways possible, MemoryKind kind, std::string_view transport) : ways(possible), memory(kind) {
    carriers.fill(transport);
    if (!possible.has(Way::mapped)) carrier(Way::mapped) = {};
  }
  constexpr void add(Way way, std::string_view transport) {
    ways.add(way);
    carrier(way) = transport;
  }
  [[nodiscard]] constexpr std::string_view& carrier(Way way) { return carriers[static_cast<std::size_t>(way)]; }
  [[nodiscard]] constexpr std::string_view carrier(Way way) const { return carriers[static_cast<std::size_t>(way)]; }

  Ways ways;
  MemoryKind memory = MemoryKind::host;
  /// By way: the name of the transport. Ownership: borrowed. One that maps is named also where this memory is not mapped, as
  /// long as the peer is on this host: then Predictions say what that costs.
  std::array<std::string_view, way_count> carriers{};
  /// By way: bytes per second that devices let through at most, for ways whose cost nobody has measured; 0: no limit.
  std::array<double, way_count> limits{};
};

/// Runs of a class are treated alike: under 256 B, 1 KiB, 4 KiB, 16 KiB, 64 KiB, 256 KiB, 1 MiB, and longer ones.
inline constexpr std::size_t run_classes = 8;
std::size_t run_class(ByteCount run_bytes);

/// What the cost model expects of one way in one restore.
struct Prediction {
  ByteCount bytes = 0;
  ByteCount runs = 0;
  double seconds = 0;
};
struct Predictions {
  std::array<Prediction, way_count> ways{};
  /// By peer, of what comes from there; with the bytes of gaps that are read. Requests to one peer are many at once, so the latency
  /// of a way counts once.
  std::vector<std::array<Prediction, way_count>> peers{};
  /// By peer: what is expected beyond mapping, where there is a transport that maps, but not this memory.
  std::vector<double> unmapped_seconds{};
};

/// Error{unsupported}: the way that the caller forced cannot move this transfer.
class ImpossibleWay : public Error {
 public:
  ImpossibleWay(Way way, std::size_t index, const std::string& why)
      : Error(ErrorCode::unsupported, why), forced(way), transfer(index) {}

  Way forced;
  std::size_t transfer;
};

/// Gives each transfer its way: one decision per peer, run class and offer, the cheapest of those that are possible; or
/// `forced` where it is. `offers` goes with `transfers`. The sum of what is expected is returned by way.
/// Errors: throws ImpossibleWay when `forced` cannot move one that is not local.
Predictions choose_ways(std::span<Transfer> transfers, std::span<const Offer> offers, const CostModel& costs,
                        std::optional<Way> forced);

}  // namespace shardwire::move

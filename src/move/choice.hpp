// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "move/traits.hpp"
#include "move/transfer.hpp"
#include "shardwire/error.hpp"

namespace shardwire::move {

/// A set of methods.
class Methods {
 public:
  constexpr Methods() = default;
  constexpr Methods(std::initializer_list<Method> methods) {
    for (const Method method : methods) add(method);
  }
  constexpr void add(Method method) { bits_ |= 1u << static_cast<unsigned>(method); }
  constexpr void remove(Method method) { bits_ &= ~(1u << static_cast<unsigned>(method)); }
  [[nodiscard]] constexpr bool has(Method method) const { return (bits_ >> static_cast<unsigned>(method) & 1u) != 0; }
  [[nodiscard]] constexpr unsigned bits() const { return bits_; }

 private:
  unsigned bits_ = 0;
};

/// The methods that are possible for one transfer, and the transport that each would use, by its name in CostModel.
struct Offer {
  Offer() = default;
  /// All methods use one transport, including methods added to `methods` later.
  constexpr Offer(Methods possible, MemoryKind kind, std::string_view transport) : methods(possible), memory(kind) {
    carriers.fill(transport);
    if (!possible.has(Method::mapped)) carrier(Method::mapped) = {};
  }
  constexpr void add(Method method, std::string_view transport) {
    methods.add(method);
    carrier(method) = transport;
  }
  /// Adds all methods with this carrier, or only those that pass staging.
  constexpr void add(Carrier by, std::string_view transport, bool only_staged = false) {
    for (const MethodTraits& one : method_table) {
      if (one.carrier == by && (one.staged || !only_staged)) add(one.method, transport);
    }
  }
  constexpr void remove(Carrier by) {
    each_method_by(by, [this](Method method) { methods.remove(method); });
  }
  /// Removes all methods with other carriers.
  constexpr void keep_only(Carrier by) {
    for (const MethodTraits& one : method_table) {
      if (one.carrier != by) methods.remove(one.method);
    }
  }
  /// Whether a method with this carrier is possible.
  [[nodiscard]] constexpr bool has(Carrier by) const {
    return std::ranges::any_of(method_table,
                               [&](const MethodTraits& one) { return one.carrier == by && methods.has(one.method); });
  }
  /// The same for methods that read or send into place.
  [[nodiscard]] constexpr bool has_unstaged(Carrier by) const {
    return std::ranges::any_of(method_table, [&](const MethodTraits& one) {
      return one.carrier == by && !one.staged && methods.has(one.method);
    });
  }
  /// Names the transport of methods that may not be possible.
  constexpr void name(Carrier by, std::string_view transport) {
    each_method_by(by, [&](Method method) { carrier(method) = transport; });
  }
  [[nodiscard]] constexpr std::string_view& carrier(Method method) {
    return carriers[static_cast<std::size_t>(method)];
  }
  [[nodiscard]] constexpr std::string_view carrier(Method method) const {
    return carriers[static_cast<std::size_t>(method)];
  }

  Methods methods;
  MemoryKind memory = MemoryKind::host;
  /// By method: name of the transport. Ownership: borrowed. A mapping transport is named even if this memory is not
  /// mapped, provided that the peer is on this host: Predictions then give the cost of not mapping.
  std::array<std::string_view, method_count> carriers{};
  /// By method: the devices' limit in bytes per second, for methods whose cost was not measured; 0: no limit.
  std::array<double, method_count> limits{};
};

/// Runs of one class are treated alike: under 256 B, 1 KiB, 4 KiB, 16 KiB, 64 KiB, 256 KiB, 1 MiB, and longer ones.
inline constexpr std::size_t run_classes = 8;
std::size_t run_class(ByteCount run_bytes);

/// The cost model's expectation for one method in one restore.
struct Prediction {
  ByteCount bytes = 0;
  ByteCount runs = 0;
  double seconds = 0;
};
struct Predictions {
  std::array<Prediction, method_count> methods{};
  /// By peer, for the bytes read from it, including gaps. Requests to one peer overlap, so the latency of a method
  /// counts once.
  std::vector<std::array<Prediction, method_count>> peers{};
  /// By peer: extra seconds compared with mapping, if a transport could map but this memory is not mapped.
  std::vector<double> unmapped_seconds{};
};

/// Error{unsupported}: the method that the caller forced cannot move this transfer.
class ImpossibleMethod : public Error {
 public:
  ImpossibleMethod(Method method, std::size_t index, const std::string& why)
      : Error(ErrorCode::unsupported, why), forced(method), transfer(index) {}

  Method forced;
  std::size_t transfer;
};

/// Gives each transfer its method: one decision per peer, run class and offer. It selects the cheapest possible method,
/// or `forced` where that is possible. `offers` corresponds to `transfers`. Returns the expected sums by method.
/// Errors: throws ImpossibleMethod if `forced` cannot move a transfer that is not local.
Predictions choose_methods(std::span<Transfer> transfers, std::span<const Offer> offers, const CostModel& costs,
                           std::optional<Method> forced);

}  // namespace shardwire::move

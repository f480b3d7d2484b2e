// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "restore/device_reach.hpp"
#include "restore/planning.hpp"
#include "restore/transfers.hpp"
#include "serve/published_digests.hpp"

namespace shardwire::restore {

/// The wanted side of one restore.
struct Wanted {
  std::shared_ptr<const Catalog> catalog;    ///< owners: the restore, the planning job, and the parked attempt
  std::shared_ptr<const Manifest> manifest;  ///< of the catalog; owners: see DescribedCatalog
  ValueScope scope = ValueScope::none;       ///< of the values that it needs
};

/// The destination of one restore: the catalog, the memory that its tensors lie in, and the caller's options. Constant, apart
/// from what is computed once and kept.
struct Target {
  Target(Wanted what, TensorPlaces where, RestoreOptions how, std::optional<Method> by, Clock::Time since,
         bool in_rounds)
      : wanted(std::move(what)),
        places(std::move(where)),
        options(std::move(how)),
        method(by),
        began(since),
        deadline(since + options.timeout),
        alone(!in_rounds),
        outlives_sources(alone && options.replicas != Replicas::compare && !options.bind_only) {}
  Target(const Target&) = delete;  // parts borrow from each other
  Target& operator=(const Target&) = delete;

  [[nodiscard]] const Catalog& catalog() const { return *wanted.catalog; }
  /// Since the caller's call.
  [[nodiscard]] double seconds_at(Clock::Time now) const { return seconds_of(now - began); }
  [[nodiscard]] Destination destination() { return {catalog(), *wanted.manifest, places, placed}; }

  const Wanted wanted;
  const TensorPlaces places;  ///< of the catalog
  const RestoreOptions options;
  const std::optional<Method> method;  ///< see Request
  const Clock::Time began;             ///< when the caller asked for it
  const Clock::Time deadline;
  const bool alone;             ///< not in rounds, whose members lose a source together
  const bool outlives_sources;  ///< what a lost source has not delivered may come from other holders
  /// Found withdrawn, which the directory may not know: without member 0 it never will.
  std::vector<wire::PublicationRecord> gone{};
  /// The only publication to read from; empty: all.
  std::optional<wire::PublicationRecord> only{};
  std::optional<std::size_t> exchange_losses{};  ///< see InExchange; empty: not in an exchange
  std::shared_ptr<BlockDigests> digests{};       ///< see Request
  [[nodiscard]] bool is_excluded(const wire::PublicationRecord& record) const {
    const auto is_same = [&](const wire::PublicationRecord& one) {
      return one.member == record.member && one.epoch == record.epoch && one.generation == record.generation;
    };
    return std::ranges::any_of(gone, is_same) || (only && !is_same(*only));
  }
  BoxCache placed;
  DeviceReach reach{*wanted.catalog, places};
};

}  // namespace shardwire::restore

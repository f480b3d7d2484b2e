// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <utility>

#include "restore/device_reach.hpp"
#include "restore/discovery.hpp"
#include "restore/transfers.hpp"

namespace shardwire::restore {

/// The destination of one restore: the catalog, the memory that its tensors lie in, and the caller's options. Constant, apart
/// from what is computed once and kept.
struct Target {
  Target(Wanted what, TensorPlaces where, RestoreOptions how, Clock::Time until)
      : wanted(std::move(what)), places(std::move(where)), options(std::move(how)), deadline(until) {}
  Target(const Target&) = delete;  // parts borrow from each other
  Target& operator=(const Target&) = delete;

  [[nodiscard]] const Catalog& catalog() const { return *wanted.catalog; }
  [[nodiscard]] Destination destination() { return {catalog(), *wanted.manifest, places, placed}; }

  const Wanted wanted;
  const TensorPlaces places;  ///< of the catalog
  const RestoreOptions options;
  const Clock::Time deadline;
  BoxCache placed;
  DeviceReach reach{*wanted.catalog, places};
};

}  // namespace shardwire::restore

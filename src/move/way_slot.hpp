// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <memory>

#include "move/staging.hpp"
#include "move/way.hpp"

namespace shardwire::move {

/// A slot for bytes on their way to, or from, where `on_device` says; empty where none is at hand. Pinned ones are made meanwhile,
/// and the way posts again then.
inline Slot slot_of(const std::shared_ptr<Shared>& shared, StagingPool& pool, bool on_device) {
  if (!on_device) return pool.acquire();
  return pool.acquire_pinned(shared->copies, [weak = std::weak_ptr<Shared>(shared)](const std::exception_ptr& error) {
    const auto still = weak.lock();
    if (!still || still->stopped) return;
    error ? still->events.failed(error) : still->events.changed();
  });
}

}  // namespace shardwire::move

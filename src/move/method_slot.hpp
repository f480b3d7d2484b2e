// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <memory>

#include "move/method.hpp"
#include "move/staging.hpp"

namespace shardwire::move {

/// A slot for bytes to or from host or device memory, as `on_device` says; empty if none is available. Missing pinned
/// slots are created in the background, and the method posts again afterwards.
inline Slot slot_of(const std::shared_ptr<Shared>& shared, StagingPool& pool, bool on_device) {
  if (!on_device) return pool.acquire();
  return pool.acquire_pinned(shared->copies, [weak = std::weak_ptr<Shared>(shared)](const std::exception_ptr& error) {
    const auto still = weak.lock();
    if (!still || still->stopped) return;
    error ? still->events.failed(error) : still->events.changed();
  });
}

}  // namespace shardwire::move

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>

#include "memory/copier.hpp"
#include "move/served_request.hpp"

namespace shardwire::move {

// Copied by the time a worker would have woken up.
inline constexpr ByteCount max_read_here = 128u << 10;

/// Runs `job`, which reads `bytes` for the request, and then `done`: at once where that is quicker than waking a worker.
/// Errors: what a job that runs at once throws.
void read_source(memory::Copier& copier, const std::shared_ptr<ServedRequest>& request, ByteCount bytes,
                 memory::Copier::Job job, std::function<void()> done);

}  // namespace shardwire::move

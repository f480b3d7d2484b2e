// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "memory/copy_queue.hpp"
#include "move/served_request.hpp"

namespace shardwire::move {

// Copied before a worker would wake up.
inline constexpr ByteCount max_read_here = 128u << 10;

/// Submits a batch that reads `bytes` for the request, at once if that is faster than waking a worker. An error that
/// `done` throws becomes the answer.
/// Errors: as CopyQueue::submit().
void read_source(memory::CopyQueue& copies, const std::shared_ptr<ServedRequest>& request, ByteCount bytes,
                 memory::CopyBatch batch, memory::CopyQueue::Done done);

}  // namespace shardwire::move

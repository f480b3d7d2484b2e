// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "memory/copy_queue.hpp"
#include "move/served_request.hpp"

namespace shardwire::move {

// Copied by the time a worker would have woken up.
inline constexpr ByteCount max_read_here = 128u << 10;

/// Submits a batch that reads `bytes` for the request, at once where that is quicker than waking a worker. What `done` throws
/// is the answer.
/// Errors: as CopyQueue::submit().
void read_source(memory::CopyQueue& copies, const std::shared_ptr<ServedRequest>& request, ByteCount bytes,
                 memory::CopyBatch batch, memory::CopyQueue::Done done);

}  // namespace shardwire::move

// SPDX-License-Identifier: Apache-2.0
#include "move/source_reads.hpp"

#include <utility>

namespace shardwire::move {

void read_source(memory::CopyQueue& copies, const std::shared_ptr<ServedRequest>& request, ByteCount bytes,
                 memory::CopyBatch batch, memory::CopyQueue::Done done) {
  batch.at_once = bytes <= max_read_here;
  request->begin_reading();
  try {
    copies.submit(std::move(batch), [request, done = std::move(done)](memory::CopyResult& result) {
      answering(*request, [&] { done(result); });
      request->end_reading();
    });
  } catch (...) {  // it was not accepted
    request->end_reading();
    throw;
  }
}

}  // namespace shardwire::move

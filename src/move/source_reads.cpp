// SPDX-License-Identifier: Apache-2.0
#include "move/source_reads.hpp"

namespace shardwire::move {

void read_source(memory::Copier& copier, const std::shared_ptr<ServedRequest>& request, ByteCount bytes,
                 memory::Copier::Job job, std::function<void()> done) {
  if (bytes <= max_read_here) {
    job();
    return done();
  }
  copier.submit(std::move(job), [request, done = std::move(done)](const std::exception_ptr&) {
    struct End {
      ServedRequest& request;
      ~End() { request.end_reading(); }
    } const end{*request};
    done();
  });
  request->begin_reading();  // it ends inside poll(), not before this
}

}  // namespace shardwire::move

// SPDX-License-Identifier: Apache-2.0
#include "memory/copy_queue.hpp"

#include <chrono>
#include <memory>
#include <utility>

namespace shardwire::memory {

namespace {

Digest128 timed_digest(const QueuedCopy& queued, double& seconds) {
  const auto began = std::chrono::steady_clock::now();
  const Digest128 digest = digest_runs(queued.copy, queued.source);
  seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  return digest;
}

void run(const CopyBatch& batch, CopyResult& result) {
  if (batch.work != CopyWork::copy) result.digests.reserve(batch.count);
  for (std::size_t i = 0; i < batch.count; ++i) {
    const QueuedCopy next = batch.copy(i);
    switch (batch.work) {
      case CopyWork::copy: next.copy.run_all(next.source, next.target, batch.stores); break;
      case CopyWork::copy_and_digest:
        result.digests.push_back(
            copy_and_digest(next.copy, next.source, next.target, batch.stores, result.digest_seconds));
        break;
      case CopyWork::digest: result.digests.push_back(timed_digest(next, result.digest_seconds)); break;
    }
  }
}

}  // namespace

void HostCopies::submit(CopyBatch batch, Done done) {
  if (batch.at_once) {
    CopyResult result;
    try {
      run(batch, result);
    } catch (const std::exception&) {
      result.error = std::current_exception();
    }
    return done(result);
  }
  struct Running {
    CopyBatch batch;
    Done done;
    CopyResult result{};
  };
  // owners: the job and its completion
  const auto running = std::make_shared<Running>(Running{std::move(batch), std::move(done)});
  copier_.submit([running] { run(running->batch, running->result); },
                 [running](const std::exception_ptr& error) {
                   running->result.error = error;
                   running->done(running->result);
                 });
}

}  // namespace shardwire::memory

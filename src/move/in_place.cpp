// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "move/peer_queues.hpp"

namespace shardwire::move {

namespace {

// Long enough that a thread switch does not matter, short enough that cancelling and rate limiting act quickly.
constexpr ByteCount max_slice_bytes = 4u << 20;
constexpr std::size_t max_parts_in_place = 4096;
// Enough for every worker to have one and find the next ready.
constexpr int max_in_flight = 8;
// A restore this small is copied before a worker would wake up.
constexpr ByteCount max_copied_here = 1u << 20;

class InPlaceMethod final : public MethodEngine {
 public:
  InPlaceMethod(std::shared_ptr<Shared> shared, Method method)
      : shared_(std::move(shared)),
        method_(method),
        digests_(shared_->digests && method != Method::local),
        slice_bytes_(method == Method::local ? max_slice_bytes : shared_->rate_limiter.slice_bytes(max_slice_bytes)),
        queues_([](const Transfer& transfer, ByteCount limit, std::vector<Box>& parts) {
          split(transfer.box, std::max<ElementCount>(1, static_cast<ElementCount>(limit / transfer.item_bytes)), parts);
        }) {}

  void add(const Transfer& transfer) override {
    queues_.limit(transfer.peer, slice_bytes_);
    queues_.add(transfer);
  }

  bool post(RateLimiter::WallClock::time_point now) override {
    if (in_flight_ >= max_in_flight) return false;
    return queues_.next([&](std::uint32_t peer) {
      // Small pieces share a job, so that a job is worth a thread switch.
      const auto [count, bytes] = queues_.fitting(peer, max_parts_in_place);
      if (count == 0 || (method_ != Method::local && !shared_->rate_limiter.take(bytes, now))) return false;
      const auto job = std::make_shared<Job>();  // owners: the batch and its completion
      job->method = method_;
      job->peer = peer;
      job->parts = queues_.take(peer, count);
      job->on_devices = std::ranges::any_of(job->parts, [](const auto& part) { return is_on_device(*part.transfer); });
      submit(job);
      return true;
    });
  }

  [[nodiscard]] bool idle() const override { return in_flight_ == 0; }
  std::vector<TransferPart> drop(std::uint32_t peer) override { return queues_.take_all(peer); }

 private:
  struct Job {
    Method method{};
    std::uint32_t peer = 0;
    std::vector<TransferPart> parts;
    bool on_devices = false;

    [[nodiscard]] memory::QueuedCopy copy(std::size_t index) const {
      const TransferPart& part = parts[index];
      const Transfer& t = *part.transfer;
      const auto between = [&](const memory::StridedCopy& one) {
        return memory::QueuedCopy{one, t.source, t.target, t.source_device, t.target_device, t.source_isolated};
      };
      if (t.copy && part.box == t.box) return between(*t.copy);
      return between(memory::StridedCopy(part.box, t.held, t.wanted, t.item_bytes));
    }
  };

  void submit(const std::shared_ptr<Job>& job) {
    ++in_flight_;
    shared_->tally.began(job->method, job->peer);
    submitting_ = true;
    try {
      shared_->copies.submit({.count = job->parts.size(),
                              .copy = [job](std::size_t index) { return job->copy(index); },
                              .work = digests_ ? memory::CopyWork::copy_and_digest : memory::CopyWork::copy,
                              .stores = shared_->stores(),
                              .at_once = shared_->tally.expected_bytes() <= max_copied_here,
                              .on_devices = job->on_devices},
                             [this, job, shared = shared_](const memory::CopyResult& result) {
                               ended(*job, result);
                               if (!submitting_) shared->events.changed();
                             });
    } catch (...) {
      submitting_ = false;
      --in_flight_;
      throw;
    }
    submitting_ = false;
  }

  void ended(Job& job, const memory::CopyResult& result) {
    --in_flight_;
    shared_->tally.ended(job.method, job.peer);
    if (shared_->dropped_mapped(job.peer)) return shared_->give_back(job.peer, job.parts);
    if (result.error) return shared_->events.failed(result.error);
    shared_->digest_seconds += result.digest_seconds;
    for (std::size_t i = 0; i < job.parts.size(); ++i) {
      const TransferPart& part = job.parts[i];
      if (digests_) shared_->events.digested(part, result.digests[i]);
      shared_->tally.arrived(*part.transfer, part.bytes());
    }
  }

  std::shared_ptr<Shared> shared_;  // owners: the engine and its methods
  Method method_;
  bool digests_;  // see README: not of local bytes
  ByteCount slice_bytes_;
  PeerQueues queues_;
  int in_flight_ = 0;
  bool submitting_ = false;  // the posting code itself sees jobs that complete at once
};

}  // namespace

std::unique_ptr<MethodEngine> make_in_place(std::shared_ptr<Shared> shared, Method method) {
  return std::make_unique<InPlaceMethod>(std::move(shared), method);
}

}  // namespace shardwire::move

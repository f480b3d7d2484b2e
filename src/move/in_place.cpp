// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "move/peer_queues.hpp"

namespace shardwire::move {

namespace {

// Long enough that a thread switch does not matter, short enough that cancelling and pacing bite quickly.
constexpr ByteCount max_slice_bytes = 4u << 20;
constexpr std::size_t max_parts_in_place = 4096;
// Enough for every worker to have one and find the next ready.
constexpr int max_in_flight = 8;
// A restore as small as this is copied by the time a worker would have woken up.
constexpr ByteCount max_copied_here = 1u << 20;

class InPlaceWay final : public WayEngine {
 public:
  InPlaceWay(std::shared_ptr<Shared> shared, Way way)
      : shared_(std::move(shared)),
        way_(way),
        slice_bytes_(way == Way::local ? max_slice_bytes : shared_->pacer.slice_bytes(max_slice_bytes)),
        queues_([](const Transfer& transfer, ByteCount limit) {
          return split(transfer.box, std::max<ElementCount>(1, static_cast<ElementCount>(limit / transfer.item_bytes)));
        }) {}

  void add(const Transfer& transfer) override {
    queues_.limit(transfer.peer, slice_bytes_);
    queues_.add(transfer);
  }

  bool post(Pacer::Clock::time_point now) override {
    if (in_flight_ >= max_in_flight) return false;
    return queues_.next([&](std::uint32_t peer) {
      // Small pieces share a job, so that a job is worth a thread switch.
      const auto [count, bytes] = queues_.fitting(peer, max_parts_in_place);
      if (count == 0 || (way_ != Way::local && !shared_->pacer.take(bytes, now))) return false;
      auto job = std::make_shared<Job>();  // owners: the job and its completion
      job->way = way_;
      job->peer = peer;
      job->parts = queues_.take(peer, count);
      submit(std::move(job));
      return true;
    });
  }

  [[nodiscard]] bool idle() const override { return in_flight_ == 0; }
  std::vector<TransferPart> drop(std::uint32_t peer) override { return queues_.take_all(peer); }

 private:
  struct Job {
    Way way{};
    std::uint32_t peer = 0;
    std::vector<TransferPart> parts;
    std::vector<memory::Digest128> digests;    // of the target, if wanted
    std::vector<memory::Digest128> originals;  // of the source, where that is this process
    double digest_seconds = 0;

    void run(memory::Stores stores, bool with_digests) {
      for (const TransferPart& part : parts) {
        if (with_digests) {
          copy_and_digest(part, stores);
        } else {
          copy(part, stores);
        }
      }
    }
    void copy(const TransferPart& part, memory::Stores stores) const {
      const Transfer& t = *part.transfer;
      if (t.copy && part.box == t.box) return t.copy->run_all(t.source, t.target, stores);
      memory::StridedCopy(part.box, t.held, t.wanted, t.item_bytes).run_all(t.source, t.target, stores);
    }
    void copy_and_digest(const TransferPart& part, memory::Stores stores) {
      const Transfer& t = *part.transfer;
      digests.push_back(memory::copy_and_digest(part.box, t.held, t.wanted, t.item_bytes, t.source, t.target, stores,
                                                digest_seconds));
      if (way != Way::local) return;
      const auto began = Tally::Clock::now();
      originals.push_back(memory::digest_box(part.box, t.held, t.source, t.item_bytes));
      digest_seconds += std::chrono::duration<double>(Tally::Clock::now() - began).count();
    }
  };

  void submit(std::shared_ptr<Job> job) {
    const bool here = shared_->tally.expected_bytes() <= max_copied_here;
    if (!here) {
      shared_->copier.submit(
          [job, stores = shared_->stores(), digests = shared_->digests] { job->run(stores, digests); },
          [this, job, shared = shared_](const std::exception_ptr& error) {
            ended(*job, error);
            shared->events.changed();
          });
    }
    ++in_flight_;
    shared_->tally.began(job->way);
    if (!here) return;
    job->run(shared_->stores(), shared_->digests);
    ended(*job, nullptr);
  }

  void ended(Job& job, const std::exception_ptr& error) {
    --in_flight_;
    shared_->tally.ended(job.way);
    if (shared_->dropped(job.peer)) return shared_->give_back(job.peer, job.parts);
    if (error) return shared_->events.failed(error);
    shared_->digest_seconds += job.digest_seconds;
    for (std::size_t i = 0; i < job.parts.size(); ++i) {
      const TransferPart& part = job.parts[i];
      if (!job.originals.empty() && job.digests[i] != job.originals[i]) return shared_->events.differs(part);
      if (shared_->digests && job.originals.empty()) shared_->events.digested(part, job.digests[i]);
      shared_->tally.arrived(*part.transfer, part.bytes());
    }
  }

  std::shared_ptr<Shared> shared_;  // owners: the engine and its ways
  Way way_;
  ByteCount slice_bytes_;
  PeerQueues queues_;
  int in_flight_ = 0;
};

}  // namespace

std::unique_ptr<WayEngine> make_in_place(std::shared_ptr<Shared> shared, Way way) {
  return std::make_unique<InPlaceWay>(std::move(shared), way);
}

}  // namespace shardwire::move

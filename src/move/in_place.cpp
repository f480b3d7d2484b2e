// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <deque>

#include "move/way.hpp"

namespace shardwire::move {

namespace {

class InPlaceWay final : public WayEngine {
 public:
  InPlaceWay(std::shared_ptr<Shared> shared, ByteCount slice_bytes)
      : shared_(std::move(shared)), slice_bytes_(slice_bytes) {}

  void add(const Transfer& transfer) override { queue_.push_back(&transfer); }

  bool post(Pacer::Clock::time_point now) override {
    if (in_flight_ >= most_in_flight || !refill()) return false;
    // Small pieces share a job, so that a job is worth a thread switch. Remote and local bytes are never mixed: only
    // remote ones are paced.
    const Way way = parts_.front().transfer->way;
    ByteCount bytes = 0;
    std::size_t count = 0;
    while (count < parts_.size() && parts_[count].transfer->way == way) {
      const ByteCount next = parts_[count].bytes();
      if (count > 0 && bytes + next > slice_bytes_) break;
      bytes += next;
      if (++count == parts_.size()) refill_one();
    }
    if (way != Way::local && !shared_->pacer.take(bytes, now)) return false;
    auto job = std::make_shared<Job>();  // owners: the job and its completion
    job->way = way;
    const auto past = parts_.begin() + static_cast<std::ptrdiff_t>(count);
    job->parts.assign(std::make_move_iterator(parts_.begin()), std::make_move_iterator(past));
    parts_.erase(parts_.begin(), past);
    submit(std::move(job));
    return true;
  }

  [[nodiscard]] bool idle() const override { return in_flight_ == 0; }

 private:
  static constexpr int most_in_flight = 4;
  // A restore as small as this is copied by the time a worker would have woken up.
  static constexpr ByteCount most_copied_here = 1u << 20;

  struct Job {
    Way way{};
    std::vector<Part> parts;
    std::vector<memory::Digest128> digests;    // of the target, if wanted
    std::vector<memory::Digest128> originals;  // of the source, where that is this process
    double digest_seconds = 0;

    void run(memory::Stores stores, bool with_digests) {
      for (const Part& part : parts) {
        if (with_digests) {
          copy_and_digest(part, stores);
        } else {
          copy(part, stores);
        }
      }
    }
    void copy(const Part& part, memory::Stores stores) const {
      const Transfer& t = *part.transfer;
      memory::StridedCopy(part.box, t.held, t.wanted, t.item_bytes).run_all(t.source, t.target, stores);
    }
    void copy_and_digest(const Part& part, memory::Stores stores) {
      const Transfer& t = *part.transfer;
      digests.push_back(memory::copy_and_digest(part.box, t.held, t.wanted, t.item_bytes, t.source, t.target, stores,
                                                digest_seconds));
      if (way != Way::local) return;
      const auto began = Tally::Clock::now();
      originals.push_back(memory::digest_box(part.box, t.held, t.source, t.item_bytes));
      digest_seconds += std::chrono::duration<double>(Tally::Clock::now() - began).count();
    }
  };

  bool refill() {
    while (parts_.empty() && refill_one()) {
    }
    return !parts_.empty();
  }

  bool refill_one() {
    if (queue_.empty()) return false;
    const Transfer* const transfer = queue_.front();
    queue_.pop_front();
    const auto limit = std::max<ElementCount>(1, static_cast<ElementCount>(slice_bytes_ / transfer->item_bytes));
    for (Box& box : cut(transfer->box, limit)) parts_.push_back({transfer, box});
    return true;
  }

  void submit(std::shared_ptr<Job> job) {
    ++in_flight_;
    shared_->tally.began(job->way);
    if (shared_->tally.expected_bytes() <= most_copied_here) {
      job->run(shared_->stores(), shared_->digests);
      return ended(*job);
    }
    shared_->copier.submit([job, stores = shared_->stores(), digests = shared_->digests] { job->run(stores, digests); },
                           [this, job, shared = shared_](const std::exception_ptr& error) {
                             if (error) {
                               --in_flight_;
                               shared->tally.ended(job->way);
                               return shared->failed(error);
                             }
                             ended(*job);
                             shared->changed();
                           });
  }

  void ended(Job& job) {
    --in_flight_;
    shared_->tally.ended(job.way);
    shared_->digest_seconds += job.digest_seconds;
    for (std::size_t i = 0; i < job.parts.size(); ++i) {
      const Part& part = job.parts[i];
      if (!job.originals.empty() && job.digests[i] != job.originals[i]) return shared_->differs(part);
      if (shared_->digests && job.originals.empty()) shared_->digested(part, job.digests[i]);
      shared_->tally.arrived(*part.transfer, part.bytes());
    }
  }

  std::shared_ptr<Shared> shared_;  // owners: the engine and its ways
  ByteCount slice_bytes_;
  std::deque<const Transfer*> queue_;
  std::deque<Part> parts_;
  int in_flight_ = 0;
};

}  // namespace

std::unique_ptr<WayEngine> make_in_place(std::shared_ptr<Shared> shared, ByteCount slice_bytes) {
  return std::make_unique<InPlaceWay>(std::move(shared), slice_bytes);
}

}  // namespace shardwire::move

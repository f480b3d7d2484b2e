// SPDX-License-Identifier: Apache-2.0
#include <deque>

#include "move/way.hpp"

namespace shardwire::move {

namespace {

// A box and the transfer that it is a part of. Transfers are immutable once added, so slices share them.
struct Slice {
  std::shared_ptr<const Transfer> transfer;  // owners: the queue and the jobs in flight
  Box box;
};

class InPlaceWay final : public Way {
 public:
  InPlaceWay(std::shared_ptr<Shared> shared, ByteCount slice_bytes)
      : shared_(std::move(shared)), slice_bytes_(slice_bytes) {}

  void add(Transfer transfer) override { queue_.push_back(std::move(transfer)); }

  bool post(Pacer::Clock::time_point now) override {
    if (in_flight_ >= most_in_flight || !refill()) return false;
    // Small pieces share a job, so that a job is worth a thread switch. Remote and local bytes are never mixed: only
    // remote ones are paced.
    const bool remote = slices_.front().transfer->way != WayKind::local;
    ByteCount bytes = 0;
    std::size_t count = 0;
    while (count < slices_.size() && (slices_[count].transfer->way != WayKind::local) == remote) {
      const ByteCount next = bytes_of(slices_[count]);
      if (count > 0 && bytes + next > slice_bytes_) break;
      bytes += next;
      if (++count == slices_.size()) refill_one();
    }
    if (remote && !shared_->pacer.take(bytes, now)) return false;
    std::vector<Slice> batch(std::make_move_iterator(slices_.begin()),
                             std::make_move_iterator(slices_.begin() + static_cast<std::ptrdiff_t>(count)));
    slices_.erase(slices_.begin(), slices_.begin() + static_cast<std::ptrdiff_t>(count));
    submit(std::move(batch));
    return true;
  }

  [[nodiscard]] bool idle() const override { return in_flight_ == 0; }

 private:
  static constexpr int most_in_flight = 4;

  static ByteCount bytes_of(const Slice& slice) {
    return static_cast<ByteCount>(slice.box.volume()) * slice.transfer->item_bytes;
  }

  bool refill() {
    while (slices_.empty() && refill_one()) {
    }
    return !slices_.empty();
  }

  bool refill_one() {
    if (queue_.empty()) return false;
    const auto transfer = std::make_shared<const Transfer>(std::move(queue_.front()));
    queue_.pop_front();
    const auto limit = std::max<ElementCount>(1, static_cast<ElementCount>(slice_bytes_ / transfer->item_bytes));
    for (Box& box : cut(transfer->box, limit)) slices_.push_back({transfer, box});
    return true;
  }

  void submit(std::vector<Slice> batch) {
    ++in_flight_;
    const auto slices = std::make_shared<std::vector<Slice>>(std::move(batch));  // owners: the job and its completion
    shared_->copier.submit(
        [slices, stores = shared_->stores()] {
          for (const Slice& slice : *slices) {
            const Transfer& t = *slice.transfer;
            memory::StridedCopy(slice.box, t.held, t.wanted, t.item_bytes).run_all(t.source, t.target, stores);
          }
        },
        [this, slices, shared = shared_](const std::exception_ptr& error) {
          --in_flight_;
          if (error) return shared->failed(error);
          for (const Slice& slice : *slices) shared->tally.arrived(*slice.transfer, bytes_of(slice));
          shared->changed();
        });
  }

  std::shared_ptr<Shared> shared_;  // owners: the engine and its ways
  ByteCount slice_bytes_;
  std::deque<Transfer> queue_;
  std::deque<Slice> slices_;
  int in_flight_ = 0;
};

}  // namespace

std::unique_ptr<Way> make_in_place_way(std::shared_ptr<Shared> shared, ByteCount slice_bytes) {
  return std::make_unique<InPlaceWay>(std::move(shared), slice_bytes);
}

}  // namespace shardwire::move

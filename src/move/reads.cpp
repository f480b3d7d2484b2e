// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "move/peer_queues.hpp"
#include "move/staging.hpp"
#include "shardwire/error.hpp"

namespace shardwire::move {

namespace {

constexpr ByteCount read_bytes = 4u << 20;
// Hardware keeps as many apart; what a stopped restore has to wait for stays small.
constexpr int max_reads = 64;
constexpr ByteCount max_read_bytes = 32u << 20;

class ReadWay final : public WayEngine {
 public:
  ReadWay(std::shared_ptr<Shared> shared, StagingPool& pool)
      : shared_(std::move(shared)), pool_(pool), queues_([&slot = pool](const Transfer& transfer, ByteCount limit) {
          if (transfer.way == Way::over_read) {
            return split_hull(transfer.box, transfer.held, transfer.item_bytes, std::min(limit, slot.slot_bytes()));
          }
          return split_into_runs(transfer,
                                 std::max<ElementCount>(1, static_cast<ElementCount>(limit / transfer.item_bytes)));
        }) {}

  void add(const Transfer& transfer) override {
    queues_.limit(transfer.peer, shared_->pacer.slice_bytes(read_bytes));
    queues_.add(transfer);
  }

  bool post(Pacer::Clock::time_point now) override {
    if (in_flight_ >= max_reads || bytes_in_flight_ >= max_read_bytes) return false;
    return queues_.next([&](std::uint32_t peer) { return post_to(peer, now); });
  }

  [[nodiscard]] bool idle() const override { return in_flight_ == 0; }
  [[nodiscard]] bool writes_from(std::uint32_t peer) const override {
    return peer < reading_.size() && reading_[peer] > 0;
  }

 private:
  struct Read {
    TransferPart part;
    ByteCount bytes = 0;  // on the fabric
    Slot slot;            // over_read only
    memory::Digest128 digest;
    double digest_seconds = 0;
  };

  bool post_to(std::uint32_t peer, Pacer::Clock::time_point now) {
    const auto [count, wanted] = queues_.fitting(peer, 1);
    if (count == 0) return false;
    const TransferPart& front = queues_.front(peer);
    const Transfer& t = *front.transfer;
    const bool over = t.way == Way::over_read;
    const ByteCount bytes = over ? hull_bytes(front.box, t.held, t.item_bytes) : wanted;
    if (over && pool_.slot_bytes() < bytes) {
      throw Error(ErrorCode::out_of_resources,
                  "the staging budget does not hold one element of " + std::to_string(t.item_bytes) + " bytes");
    }
    if ((over && pool_.free_slots() == 0) || !shared_->pacer.take(bytes, now)) return false;
    const auto read = std::make_shared<Read>();  // owners: completions in flight
    read->part = queues_.take(peer, 1).front();
    read->bytes = bytes;
    const memory::StridedCopy copy(read->part.box, t.held, t.wanted, t.item_bytes);
    std::span<std::byte> into(t.target + copy.target_span().first, static_cast<std::size_t>(bytes));
    if (over) {
      read->slot = pool_.acquire();
      into = read->slot.bytes().first(static_cast<std::size_t>(bytes));
    }
    ++in_flight_;
    if (reading_.size() <= peer) reading_.resize(peer + std::size_t{1});
    ++reading_[peer];
    bytes_in_flight_ += bytes;
    shared_->tally.began(t.way);
    shared_->endpoint(peer).read(
        *t.region, t.region_offset + copy.source_span().first, into,
        [this, read, shared = shared_](const transport::Outcome& outcome) {
          if (outcome) {
            ended(*read);
            if (shared->stopped) return shared->changed();
            return shared->failed(std::make_exception_ptr(Error(outcome->code, outcome->message)));
          }
          if (!shared->guarded([&] { arrived(read); })) ended(*read);
        });
    return true;
  }

  void ended(Read& read) {
    --in_flight_;
    --reading_[read.part.transfer->peer];
    bytes_in_flight_ -= read.bytes;
    read.slot = {};
    shared_->tally.ended(read.part.transfer->way);
  }

  void arrived(const std::shared_ptr<Read>& read) {
    if (shared_->stopped || (!read->slot && !shared_->digests)) return finish(*read);
    shared_->copier.submit(
        [read, stores = shared_->stores(), digests = shared_->digests] {
          const TransferPart& part = read->part;
          const Transfer& t = *part.transfer;
          if (read->slot) {  // the slot begins with the part's first element
            const PlacedBox hull{part.box, 0, t.held.local_strides};
            memory::StridedCopy(part.box, hull, t.wanted, t.item_bytes)
                .run_all(read->slot.bytes().data(), t.target, digests ? memory::Stores::cached : stores);
          }
          if (!digests) return;
          const auto began = Tally::Clock::now();
          read->digest = memory::digest_box(part.box, t.wanted, t.target, t.item_bytes);
          read->digest_seconds = std::chrono::duration<double>(Tally::Clock::now() - began).count();
        },
        [this, read, shared = shared_](const std::exception_ptr& error) {
          if (error) {
            ended(*read);
            return shared->failed(error);
          }
          finish(*read);
        });
  }

  void finish(Read& read) {
    ended(read);
    if (shared_->stopped) return shared_->changed();
    const TransferPart& part = read.part;
    if (shared_->digests) shared_->digested(part, read.digest);
    shared_->digest_seconds += read.digest_seconds;
    shared_->tally.arrived(*part.transfer, part.bytes());
    shared_->tally.beyond(*part.transfer, read.bytes - part.bytes());
    shared_->changed();
  }

  std::shared_ptr<Shared> shared_;  // owners: the engine and its ways
  StagingPool& pool_;
  PeerQueues queues_;
  int in_flight_ = 0;
  ByteCount bytes_in_flight_ = 0;
  std::vector<int> reading_;  // by peer
};

}  // namespace

std::unique_ptr<WayEngine> make_reads(std::shared_ptr<Shared> shared, StagingPool& pool) {
  return std::make_unique<ReadWay>(std::move(shared), pool);
}

}  // namespace shardwire::move

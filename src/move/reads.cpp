// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "memory/device.hpp"
#include "move/method_slot.hpp"
#include "move/peer_queues.hpp"
#include "move/staging.hpp"
#include "shardwire/error.hpp"

namespace shardwire::move {

namespace {

// A list this long runs at the full speed of every fabric, and a restore that is stopped waits for no longer one.
constexpr ByteCount list_bytes = 4u << 20;
constexpr ByteCount max_bytes_under_way = 32u << 20;

// One request reads from one region, and all its parts take the same path.
bool go_together(const TransferPart& first, const TransferPart& next) {
  const Transfer& a = *first.transfer;
  const Transfer& b = *next.transfer;
  return a.method == Method::read && b.method == Method::read && a.region == b.region;
}

class ReadMethod final : public MethodEngine {
 public:
  ReadMethod(std::shared_ptr<Shared> shared, StagingPool& pool)
      : shared_(std::move(shared)),
        pool_(pool),
        queues_([&slot = pool](const Transfer& transfer, ByteCount limit, std::vector<Box>& parts) {
          if (transfer.method == Method::sieved_read) {
            return split_hull(transfer.box, transfer.held, transfer.item_bytes, std::min(limit, slot.slot_bytes()),
                              parts);
          }
          split_into_runs(transfer, std::max<ElementCount>(1, static_cast<ElementCount>(limit / transfer.item_bytes)),
                          parts);
        }) {}

  void add(const Transfer& transfer) override {
    const ByteCount most = std::min(list_bytes, shared_->peers.at(transfer.peer).limits.max_read_bytes);
    queues_.limit(transfer.peer, shared_->rate_limiter.slice_bytes(most));
    if (under_way_.size() <= transfer.peer) under_way_.resize(transfer.peer + std::size_t{1});
    shared_->ledger.expect(transfer.peer, bytes_of(transfer));
    queues_.add(transfer);
  }

  bool post(RateLimiter::WallClock::time_point now) override {
    if (bytes_under_way_ >= max_bytes_under_way) return false;
    return queues_.next([&](std::uint32_t peer) { return post_to(peer, now); });
  }

  [[nodiscard]] bool idle() const override {
    return std::all_of(under_way_.begin(), under_way_.end(), [](int lists) { return lists == 0; });
  }
  std::vector<TransferPart> drop(std::uint32_t peer) override { return queues_.take_all(peer); }
  [[nodiscard]] bool writes_from(std::uint32_t peer) const override {
    return peer < under_way_.size() && under_way_[peer] > 0;
  }

 private:
  /// One list: runs into place, or one range across gaps into a slot.
  struct Read {
    std::vector<TransferPart> parts;
    Method method{};
    std::uint32_t peer = 0;
    ByteCount bytes = 0;  // on the fabric
    Slot slot;            // sieved_read only

    // Copies out of the slot, which begins with the part's first element; for data already in place, only its digest is
    // taken.
    [[nodiscard]] memory::QueuedCopy copy(std::size_t index) const {
      const TransferPart& part = parts[index];
      const Transfer& t = *part.transfer;
      if (!slot) {
        return {memory::StridedCopy(part.box, t.wanted, memory::packed(part.box), t.item_bytes), t.target, nullptr,
                t.target_device};
      }
      const PlacedBox hull{part.box, 0, t.held.local_strides};
      return {memory::StridedCopy(part.box, hull, t.wanted, t.item_bytes), slot.bytes().data(), t.target, slot.place(),
              t.target_device};
    }
    [[nodiscard]] bool on_devices() const {
      return std::ranges::any_of(parts, [](const auto& part) { return is_on_device(*part.transfer); });
    }
  };

  bool post_to(std::uint32_t peer, RateLimiter::WallClock::time_point now) {
    const PeerLimits& limits = shared_->peers.at(peer).limits;
    if (peer >= under_way_.size() || under_way_[peer] >= limits.max_reads) return false;
    const TransferPart* first = nullptr;
    const auto fits = [&first](const TransferPart& part) {
      if (first == nullptr) first = &part;
      return go_together(*first, part);
    };
    const auto [count, wanted] = queues_.fitting(peer, limits.max_ranges, fits);
    if (count == 0) return false;
    const TransferPart& front = queues_.front(peer);
    const Transfer& t = *front.transfer;
    const bool over = t.method == Method::sieved_read;
    const ByteCount bytes = over ? hull_bytes(front.box, t.held, t.item_bytes) : wanted;
    if (over && pool_.slot_bytes() < bytes) {
      throw Error(ErrorCode::out_of_resources,
                  "the staging budget does not hold one element of " + std::to_string(t.item_bytes) + " bytes");
    }
    Slot slot;
    if (over) {
      if (pool_.free_slots() == 0) return false;
      slot = slot_of(shared_, pool_, is_on_device(t));
      if (!slot) return false;
    }
    if (!shared_->rate_limiter.take(bytes, now)) return false;
    const auto read = std::make_shared<Read>();  // owners: completions in flight
    read->method = t.method;
    read->peer = peer;
    read->bytes = bytes;
    read->parts = queues_.take(peer, count);
    read->slot = std::move(slot);
    std::vector<transport::ReadRange> ranges;
    ranges.reserve(count);
    for (const TransferPart& part : read->parts) ranges.push_back(range_of(part, *read));
    ++under_way_[peer];
    bytes_under_way_ += bytes;
    shared_->tally.began(read->method, peer);
    shared_->requests.endpoint(peer).read(*t.region, ranges,
                                          [this, read, shared = shared_](const transport::Outcome& outcome) {
                                            if (outcome) {
                                              (void)shared->guarded([&] { flush_devices(); });
                                              ended(*read);
                                              if (given_back(*read)) return shared->events.changed();
                                              shared->give_back(read->peer, read->parts);
                                              return shared->events.peer_failed(read->peer, *outcome);
                                            }
                                            if (!shared->guarded([&] { arrived(read); })) ended(*read);
                                          });
    return true;
  }

  static transport::ReadRange range_of(const TransferPart& part, const Read& read) {
    const Transfer& t = *part.transfer;
    const memory::StridedCopy copy(part.box, t.held, t.wanted, t.item_bytes);
    const ByteCount offset_bytes = t.region_offset + copy.source_span().first;
    if (read.slot) return {offset_bytes, transport::host_memory(read.slot.bytes()).part(0, read.bytes)};
    const bool on_host = t.target_device == memory::on_host;
    const transport::MemoryPlace place{on_host ? MemoryKind::host : MemoryKind::cuda, t.target_device};
    return {offset_bytes, {t.target + copy.target_span().first, part.bytes(), place}};
  }

  // Data that a NIC has written into device memory must be flushed before it is read: per list if it is digested, else
  // once when nothing is under way any more.
  void note_devices(const Read& read) {
    if (read.slot) return;
    for (const TransferPart& part : read.parts) {
      if (part.transfer->target_device != memory::on_host) unflushed_.insert(part.transfer->target_device);
    }
  }
  void flush_devices() {
    const bool last = std::accumulate(under_way_.begin(), under_way_.end(), 0) == 1;
    if (unflushed_.empty() || !(last || shared_->digests)) return;
    const std::set<int> devices = std::exchange(unflushed_, {});
    const auto runtime = memory::device_runtime().runtime;
    if (!runtime) return;
    for (const int device : devices) runtime->flush_remote_writes(device);
  }

  void ended(Read& read) {
    --under_way_[read.peer];
    bytes_under_way_ -= read.bytes;
    read.slot = {};
    shared_->tally.ended(read.method, read.peer);
  }

  // The peer of the list was dropped meanwhile.
  bool given_back(const Read& read) {
    if (!shared_->dropped(read.peer)) return false;
    shared_->give_back(read.peer, read.parts);
    return true;
  }

  void arrived(const std::shared_ptr<Read>& read) {
    note_devices(*read);
    flush_devices();
    if (shared_->stopped || shared_->dropped(read->peer) || (!read->slot && !shared_->digests)) {
      return finish(*read, {});
    }
    const bool unpacks = static_cast<bool>(read->slot);
    const auto digested = unpacks ? memory::CopyWork::copy_and_digest : memory::CopyWork::digest;
    shared_->copies.submit({.count = read->parts.size(),
                            .copy = [read](std::size_t index) { return read->copy(index); },
                            .work = shared_->digests ? digested : memory::CopyWork::copy,
                            .stores = shared_->stores(),
                            .on_devices = read->on_devices()},
                           [this, read, shared = shared_](const memory::CopyResult& result) {
                             if (!result.error) return finish(*read, result);
                             ended(*read);
                             if (given_back(*read)) return shared->events.changed();
                             shared->events.failed(result.error);
                           });
  }

  void finish(Read& read, const memory::CopyResult& copied) {
    ended(read);
    if (given_back(read)) return shared_->events.changed();
    shared_->digest_seconds += copied.digest_seconds;
    ByteCount wanted = 0;
    for (std::size_t i = 0; i < read.parts.size(); ++i) {
      const TransferPart& part = read.parts[i];
      if (shared_->digests) shared_->events.digested(part, copied.digests[i]);
      shared_->tally.arrived(*part.transfer, part.bytes());
      wanted += part.bytes();
    }
    shared_->tally.beyond(*read.parts.front().transfer, read.bytes - wanted);
    shared_->ledger.arrived(read.peer, std::move(read.parts));
    shared_->events.changed();
  }

  std::shared_ptr<Shared> shared_;  // owners: the engine and its methods
  StagingPool& pool_;
  PeerQueues queues_;
  std::vector<int> under_way_;  // lists, by peer
  std::set<int> unflushed_;     // devices that NICs have written to
  ByteCount bytes_under_way_ = 0;
};

}  // namespace

std::unique_ptr<MethodEngine> make_reads(std::shared_ptr<Shared> shared, StagingPool& pool) {
  return std::make_unique<ReadMethod>(std::move(shared), pool);
}

}  // namespace shardwire::move

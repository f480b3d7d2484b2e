// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "move/messages.hpp"
#include "shardwire/error.hpp"

namespace shardwire::move {

namespace {

constexpr std::size_t max_packed_parts = 4096;
// Copied by the time a worker would have woken up.
constexpr ByteCount max_unpacked_here = 128u << 10;

class PackedWay final : public MessageWay {
 public:
  PackedWay(std::shared_ptr<Shared> shared, StagingPool& pool)
      : shared_(std::move(shared)), pool_(pool), queues_([](const Transfer& transfer, ByteCount limit) {
          return split(transfer.box, static_cast<ElementCount>(limit / transfer.item_bytes));
        }) {}

  void limit(std::uint32_t peer, ByteCount bytes) override {
    queues_.limit(peer, std::min(bytes, shared_->pacer.slice_bytes(pool_.slot_bytes())));
    if (in_flight_.size() <= peer) in_flight_.resize(peer + std::size_t{1});
  }

  void add(const Transfer& transfer) override {
    if (queues_.limit_of(transfer.peer) < transfer.item_bytes) {
      throw Error(ErrorCode::out_of_resources,
                  "the staging budget does not hold one element of " + std::to_string(transfer.item_bytes) + " bytes");
    }
    queues_.add(transfer);
  }

  bool post(Pacer::Clock::time_point now) override {
    return queues_.next([&](std::uint32_t peer) { return post_to(peer, now); });
  }

  [[nodiscard]] bool idle() const override { return unpacking_ == 0; }

  [[nodiscard]] std::optional<Asked> asked(std::uint64_t request) const override {
    const auto found = requests_.find(request);
    return found == requests_.end() ? std::nullopt : std::optional(Asked{found->second->peer, true});
  }

  bool payload(const wire::PayloadHeader& header, transport::Incoming& incoming) override {
    const auto found = requests_.find(header.request);
    if (found == requests_.end()) return false;
    const std::shared_ptr<Request> request = found->second;
    requests_.erase(found);
    --in_flight_[request->peer];
    shared_->tally.ended(Way::packed);
    if (shared_->stopped) {
      incoming.discard();
      return true;
    }
    if (incoming.payload_bytes() != request->bytes || header.digest.has_value() != shared_->digests) {
      incoming.discard();
      shared_->failed(std::make_exception_ptr(
          Error(ErrorCode::transport_failed, "a source sent " + std::to_string(incoming.payload_bytes()) +
                                                 " bytes for a request of " + std::to_string(request->bytes) +
                                                 ", or no digest of them")));
      return true;
    }
    request->expected = header.digest;
    shared_->tally.began(Way::packed);
    incoming.receive(transport::host_memory(request->slot.bytes()).part(0, request->bytes),
                     [this, request, shared = shared_](const transport::Outcome& outcome) {
                       if (shared->stopped) return;
                       if (outcome) {
                         shared->tally.ended(Way::packed);
                         return shared->failed(std::make_exception_ptr(Error(outcome->code, outcome->message)));
                       }
                       shared->guarded([&] { unpack(request); });
                     });
    return true;
  }

 private:
  struct Request {
    std::uint32_t peer = 0;
    std::vector<TransferPart> parts;
    ByteCount bytes = 0;
    Slot slot;
    std::optional<wire::BoxDigest> expected;
    std::vector<memory::Digest128> digests;  // of the parts in place, if wanted
    double digest_seconds = 0;

    void unpack(memory::Stores stores, bool with_digests) {
      const std::byte* from = slot.bytes().data();
      for (const TransferPart& part : parts) {
        const Transfer& t = *part.transfer;
        const PlacedBox packed = memory::packed(part.box);
        if (with_digests) {
          digests.push_back(memory::copy_and_digest(part.box, packed, t.wanted, t.item_bytes, from, t.target, stores,
                                                    digest_seconds));
        } else {
          memory::StridedCopy(part.box, packed, t.wanted, t.item_bytes).run_all(from, t.target, stores);
        }
        from += part.bytes();
      }
    }
  };

  bool post_to(std::uint32_t peer, Pacer::Clock::time_point now) {
    if (peer >= in_flight_.size() || in_flight_[peer] >= shared_->depths.packed) return false;
    const auto [count, bytes] = queues_.fitting(peer, max_packed_parts);
    if (count == 0 || pool_.free_slots() == 0 || !shared_->pacer.take(bytes, now)) return false;
    const auto request = std::make_shared<Request>();  // owners: the map and completions in flight
    request->peer = peer;
    request->bytes = bytes;
    request->slot = pool_.acquire();
    request->parts = queues_.take(peer, count);
    std::vector<PackPart> parts;
    parts.reserve(request->parts.size());
    for (const TransferPart& part : request->parts) parts.push_back({part.transfer->held_tensor, part.box});
    const std::uint64_t number = shared_->next_request(peer);
    requests_.emplace(number, request);
    ++in_flight_[peer];
    shared_->tally.began(Way::packed);
    shared_->ask(peer, number, std::move(parts), false);
    return true;
  }

  void unpack(const std::shared_ptr<Request>& request) {
    if (request->bytes <= max_unpacked_here) {
      request->unpack(shared_->stores(), shared_->digests);
      return unpacked(*request);
    }
    shared_->copier.submit(
        [request, stores = shared_->stores(), digests = shared_->digests] { request->unpack(stores, digests); },
        [this, request, shared = shared_](const std::exception_ptr& error) {
          --unpacking_;
          if (!error) return unpacked(*request);
          request->slot = {};
          shared->tally.ended(Way::packed);
          shared->failed(error);
        });
    ++unpacking_;
  }

  void unpacked(Request& request) {
    request.slot = {};
    shared_->tally.ended(Way::packed);
    shared_->digest_seconds += request.digest_seconds;
    if (request.expected && !same(memory::digest_of(request.digests), *request.expected)) {
      return shared_->differs(request.parts.front());
    }
    for (std::size_t i = 0; i < request.parts.size(); ++i) {
      const TransferPart& part = request.parts[i];
      if (request.expected) shared_->digested(part, request.digests[i]);
      shared_->tally.arrived(*part.transfer, part.bytes());
    }
    shared_->changed();
  }

  std::shared_ptr<Shared> shared_;  // owners: the engine and its ways
  StagingPool& pool_;
  PeerQueues queues_;
  std::vector<int> in_flight_;  // by peer
  std::map<std::uint64_t, std::shared_ptr<Request>> requests_;
  int unpacking_ = 0;
};

}  // namespace

std::unique_ptr<MessageWay> make_packed(std::shared_ptr<Shared> shared, StagingPool& pool) {
  return std::make_unique<PackedWay>(std::move(shared), pool);
}

}  // namespace shardwire::move

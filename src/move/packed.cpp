// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "move/messages.hpp"
#include "move/method_slot.hpp"
#include "shardwire/error.hpp"

namespace shardwire::move {

namespace {

constexpr std::size_t max_packed_parts = 4096;
// Copied before a worker would wake up.
constexpr ByteCount max_unpacked_here = 128u << 10;

class PackedMethod final : public MessageMethod {
 public:
  PackedMethod(std::shared_ptr<Shared> shared, StagingPool& pool)
      : shared_(std::move(shared)),
        pool_(pool),
        queues_([](const Transfer& transfer, ByteCount limit, std::vector<Box>& parts) {
          split(transfer.box, static_cast<ElementCount>(limit / transfer.item_bytes), parts);
        }) {}

  void limit(std::uint32_t peer, ByteCount bytes) override {
    queues_.limit(peer, std::min(bytes, shared_->rate_limiter.slice_bytes(pool_.slot_bytes())));
    if (in_flight_.size() <= peer) in_flight_.resize(peer + std::size_t{1});
  }

  void add(const Transfer& transfer) override {
    if (queues_.limit_of(transfer.peer) < transfer.item_bytes) {
      throw Error(ErrorCode::out_of_resources,
                  "the staging budget does not hold one element of " + std::to_string(transfer.item_bytes) + " bytes");
    }
    queues_.add(transfer);
  }

  bool post(RateLimiter::WallClock::time_point now) override {
    return queues_.next([&](std::uint32_t peer) { return post_to(peer, now); });
  }

  [[nodiscard]] bool idle() const override { return unpacking_ == 0; }
  std::vector<TransferPart> drop(std::uint32_t peer) override { return queues_.take_all(peer); }

 private:
  struct Request final : OpenRequest, std::enable_shared_from_this<Request> {
    Request(PackedMethod& its_method, std::uint32_t its_peer) : method(its_method), sender(its_peer) {}

    PackedMethod& method;
    std::uint32_t sender;
    std::uint64_t number = 0;
    std::vector<TransferPart> parts;
    ByteCount bytes = 0;
    Slot slot;
    bool on_device = false;  // some of it goes to a device
    bool begun = false;      // has begun to arrive
    bool returned = false;   // its parts, while it arrives
    std::optional<Digest128> expected;

    [[nodiscard]] std::uint32_t peer() const override { return sender; }
    bool payload(const wire::PayloadHeader& header, transport::Incoming& incoming) override {
      return !std::exchange(begun, true) && method.payload(shared_from_this(), header, incoming);
    }
    void drop() override {
      if (!begun) return method.drop(*this);
      if (!method.shared_->stopped || std::exchange(returned, true)) return;
      method.shared_->give_back(sender, parts);  // it arrives in a slot, and nothing copies it from there any more
    }
  };

  bool payload(const std::shared_ptr<Request>& request, const wire::PayloadHeader& header,
               transport::Incoming& incoming) {
    --in_flight_[request->sender];
    if (incoming.payload_bytes() != request->bytes || header.digest.has_value() != shared_->digests) {
      incoming.discard();
      shared_->tally.ended(Method::packed, request->sender);
      shared_->events.failed(std::make_exception_ptr(
          Error(ErrorCode::transport_failed, "a source sent " + std::to_string(incoming.payload_bytes()) +
                                                 " bytes for a request of " + std::to_string(request->bytes) +
                                                 ", or no digest of them")));
      return true;
    }
    request->expected = header.digest;
    incoming.receive(transport::host_memory(request->slot.bytes()).part(0, request->bytes),
                     [this, request, shared = shared_](const transport::Outcome& outcome) {
                       if (shared->stopped) {
                         if (!request->returned) shared->give_back(request->sender, request->parts);
                         return;
                       }
                       shared->over(request->sender, request->number);
                       if (outcome || shared->dropped(request->sender)) {
                         if (given_back(*request)) return;
                         shared->give_back(request->sender, request->parts);
                         return shared->events.peer_failed(request->sender, *outcome);
                       }
                       shared->guarded([&] { unpack(request); });
                     });
    return true;
  }

  void drop(Request& request) {
    --in_flight_[request.sender];
    request.slot = {};
    shared_->tally.ended(Method::packed, request.sender);
    shared_->give_back(request.sender, request.parts);
  }

  bool post_to(std::uint32_t peer, RateLimiter::WallClock::time_point now) {
    if (peer >= in_flight_.size() || in_flight_[peer] >= shared_->depths.packed) return false;
    const auto [count, bytes] = queues_.fitting(peer, max_packed_parts);
    if (count == 0 || pool_.free_slots() == 0) return false;
    const bool on_device =
        queues_.any_of(peer, count, [](const TransferPart& part) { return is_on_device(*part.transfer); });
    Slot slot = slot_of(shared_, pool_, on_device);
    if (!slot || !shared_->rate_limiter.take(bytes, now)) return false;
    const auto request = std::make_shared<Request>(*this, peer);  // owners: the open requests and completions in flight
    request->bytes = bytes;
    request->parts = queues_.take(peer, count);
    request->on_device = on_device;
    request->slot = std::move(slot);
    std::vector<PackPart> parts;
    parts.reserve(request->parts.size());
    for (const TransferPart& part : request->parts) parts.push_back({part.transfer->held_tensor, part.box});
    request->number = shared_->add(request);
    ++in_flight_[peer];
    shared_->tally.began(Method::packed, peer);
    shared_->requests.ask(peer, request->number, std::move(parts), MessageForm::packed);
    return true;
  }

  void unpack(const std::shared_ptr<Request>& request) {
    auto copy = [request,
                 from = static_cast<const std::byte*>(request->slot.bytes().data())](std::size_t index) mutable {
      const TransferPart& part = request->parts[index];
      const Transfer& t = *part.transfer;
      const std::byte* const packed = std::exchange(from, from + part.bytes());
      return memory::QueuedCopy{memory::StridedCopy(part.box, memory::packed(part.box), t.wanted, t.item_bytes), packed,
                                t.target, request->slot.place(), t.target_device};
    };
    ++unpacking_;
    try {
      shared_->copies.submit({.count = request->parts.size(),
                              .copy = std::move(copy),
                              .work = shared_->digests ? memory::CopyWork::copy_and_digest : memory::CopyWork::copy,
                              .stores = shared_->stores(),
                              .at_once = request->bytes <= max_unpacked_here,
                              .on_devices = request->on_device},
                             [this, request](const memory::CopyResult& result) {
                               --unpacking_;
                               if (!given_back(*request)) unpacked(*request, result);
                             });
    } catch (...) {
      --unpacking_;
      throw;
    }
  }

  // The request's peer was dropped meanwhile.
  bool given_back(Request& request) {
    request.slot = {};
    shared_->tally.ended(Method::packed, request.sender);
    if (!shared_->dropped(request.sender)) return false;
    shared_->give_back(request.sender, request.parts);
    shared_->events.changed();
    return true;
  }

  void unpacked(Request& request, const memory::CopyResult& result) {
    if (result.error) return shared_->events.failed(result.error);
    shared_->digest_seconds += result.digest_seconds;
    if (request.expected && memory::digest_of(result.digests) != *request.expected) {
      shared_->give_back(request.sender, request.parts);
      return shared_->events.differs(request.parts.front());
    }
    for (std::size_t i = 0; i < request.parts.size(); ++i) {
      const TransferPart& part = request.parts[i];
      if (request.expected) shared_->events.digested(part, result.digests[i]);
      shared_->tally.arrived(*part.transfer, part.bytes());
    }
    shared_->events.changed();
  }

  std::shared_ptr<Shared> shared_;  // owners: the engine and its methods
  StagingPool& pool_;
  PeerQueues queues_;
  std::vector<int> in_flight_;  // by peer
  int unpacking_ = 0;
};

}  // namespace

std::unique_ptr<MessageMethod> make_packed(std::shared_ptr<Shared> shared, StagingPool& pool) {
  return std::make_unique<PackedMethod>(std::move(shared), pool);
}

}  // namespace shardwire::move

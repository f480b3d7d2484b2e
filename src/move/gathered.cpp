// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "move/messages.hpp"
#include "shardwire/error.hpp"

namespace shardwire::move {

namespace {

constexpr std::size_t max_gathered_parts = 4096;
constexpr int max_requests = 32;

/// Ranges that a box takes on either side, at most.
std::size_t ranges_of(const Transfer& transfer, const Box& box) {
  return static_cast<std::size_t>(memory::StridedCopy(box, transfer.held, transfer.wanted, transfer.item_bytes).runs());
}

// A row-major part of a box has a run for each of the box that it takes, but for those that its ends cut.
void split_by_ranges(const Transfer& transfer, ByteCount limit_bytes, std::size_t max_ranges, std::vector<Box>& parts) {
  const memory::StridedCopy copy(transfer.box, transfer.held, transfer.wanted, transfer.item_bytes);
  const ByteCount bytes = std::min(limit_bytes, copy.run_bytes() * std::max<std::size_t>(1, max_ranges / 2));
  split(transfer.box, std::max<ElementCount>(1, static_cast<ElementCount>(bytes / transfer.item_bytes)), parts);
}

class GatheredWay final : public MessageWay {
 public:
  explicit GatheredWay(std::shared_ptr<Shared> shared)
      : shared_(std::move(shared)),
        queues_([all = shared_.get()](const Transfer& transfer, ByteCount limit, std::vector<Box>& parts) {
          split_by_ranges(transfer, limit, all->peers.at(transfer.peer).limits.max_message_ranges, parts);
        }) {}

  // What the source's staging holds does not matter here.
  void limit(std::uint32_t peer, ByteCount) override {
    queues_.limit(peer, shared_->pacer.slice_bytes(shared_->gathered_bytes));
    if (in_flight_.size() <= peer) in_flight_.resize(peer + std::size_t{1});
    receiving_.resize(in_flight_.size());
  }

  void add(const Transfer& transfer) override { queues_.add(transfer); }

  bool post(Pacer::Clock::time_point now) override {
    if (open_requests_ >= max_requests) return false;
    return queues_.next([&](std::uint32_t peer) { return post_to(peer, now); });
  }

  [[nodiscard]] bool idle() const override {
    return std::all_of(receiving_.begin(), receiving_.end(), [](int count) { return count == 0; });
  }
  [[nodiscard]] bool writes_from(std::uint32_t peer) const override {
    return peer < receiving_.size() && receiving_[peer] > 0;
  }

  std::vector<TransferPart> drop(std::uint32_t peer) override { return queues_.take_all(peer); }

 private:
  struct Request final : OpenRequest, std::enable_shared_from_this<Request> {
    Request(GatheredWay& its_way, std::uint32_t its_peer, std::vector<TransferPart> its_parts, ByteCount its_bytes)
        : way(its_way), sender(its_peer), parts(std::move(its_parts)), bytes(its_bytes) {}

    GatheredWay& way;
    std::uint32_t sender;
    std::uint64_t number = 0;
    std::vector<TransferPart> parts;
    ByteCount bytes;
    bool begun = false;  // to arrive
    std::optional<wire::BoxDigest> expected;

    [[nodiscard]] std::uint32_t peer() const override { return sender; }
    bool payload(const wire::PayloadHeader& header, transport::Incoming& incoming) override {
      if (std::exchange(begun, true)) return false;
      way.payload(shared_from_this(), header, incoming);
      return true;
    }
    void drop() override {
      if (begun) return;  // ends by itself
      way.shared_->give_back(sender, parts);
      way.ended(*this);
    }
  };

  bool post_to(std::uint32_t peer, Pacer::Clock::time_point now) {
    if (peer >= in_flight_.size() || in_flight_[peer] >= shared_->depths.gathered) return false;
    const std::size_t max_ranges = shared_->peers.at(peer).limits.max_message_ranges;
    const auto fits = [&, ranges = std::size_t{0}](const TransferPart& part) mutable {
      return (ranges += ranges_of(*part.transfer, part.box)) <= max_ranges;
    };
    const auto [count, bytes] = queues_.fitting(peer, max_gathered_parts, fits);
    if (count == 0 || !shared_->pacer.take(bytes, now)) return false;
    // owners: the open ones and completions in flight
    const auto request = std::make_shared<Request>(*this, peer, queues_.take(peer, count), bytes);
    std::vector<PackPart> parts;
    parts.reserve(count);
    for (const TransferPart& part : request->parts) parts.push_back({part.transfer->held_tensor, part.box});
    request->number = shared_->add(request);
    ++in_flight_[peer];
    ++open_requests_;
    shared_->tally.began(Way::straight);
    shared_->requests.ask(peer, request->number, std::move(parts), Answer::gathered);
    return true;
  }

  void payload(const std::shared_ptr<Request>& request, const wire::PayloadHeader& header,
               transport::Incoming& incoming) {
    if (incoming.payload_bytes() != request->bytes || header.digest.has_value() != shared_->digests) {
      const std::string bytes = std::to_string(incoming.payload_bytes());
      incoming.discard();
      ended(*request);
      return shared_->events.failed(std::make_exception_ptr(
          Error(ErrorCode::transport_failed, "a source sent " + bytes + " bytes for a request of " +
                                                 std::to_string(request->bytes) + ", or no digest of them")));
    }
    request->expected = header.digest;
    ++receiving_[request->sender];
    incoming.receive(places_of(*request), [this, request, shared = shared_](const transport::Outcome& outcome) {
      if (!outcome && request->expected && !shared->stopped && !shared->dropped(request->sender)) {
        if (!shared->guarded([&] { check(request); })) over(*request);
        return;
      }
      if (!over(*request)) return;
      if (outcome) return shared->events.peer_failed(request->sender, *outcome);
      arrived(*request);
    });
  }

  static std::vector<transport::Memory> places_of(const Request& request) {
    std::vector<transport::Memory> places;
    for (const TransferPart& part : request.parts) {
      const Transfer& t = *part.transfer;
      const memory::StridedCopy place(part.box, memory::packed(part.box), t.wanted, t.item_bytes);
      place.visit_runs([&](ByteCount, ByteCount at) { places.push_back({t.target + at, place.run_bytes(), {}}); });
    }
    return places;
  }

  void ended(Request& request) {
    shared_->tally.ended(Way::straight);
    --in_flight_[request.sender];
    --open_requests_;
    if (!shared_->stopped) shared_->over(request.sender, request.number);
  }
  // Nothing of it will be written any more. False when it does not count.
  bool over(Request& request) {
    --receiving_[request.sender];
    ended(request);
    if (shared_->dropped(request.sender)) shared_->give_back(request.sender, request.parts);
    if (!shared_->stopped && !shared_->dropped(request.sender)) return true;
    shared_->events.changed();  // somebody may wait for the last of them
    return false;
  }

  void arrived(const Request& request) {
    for (const TransferPart& part : request.parts) shared_->tally.arrived(*part.transfer, part.bytes());
    shared_->events.changed();
  }

  void check(const std::shared_ptr<Request>& request) {
    auto copy = [request](std::size_t index) {
      const TransferPart& part = request->parts[index];
      const Transfer& t = *part.transfer;
      return memory::QueuedCopy{memory::StridedCopy(part.box, t.wanted, memory::packed(part.box), t.item_bytes),
                                t.target};
    };
    shared_->copies.submit({.count = request->parts.size(),
                            .copy = std::move(copy),
                            .work = memory::CopyWork::digest,
                            .digest = shared_->digest_kind(request->sender)},
                           [this, request, shared = shared_](const memory::CopyResult& result) {
                             if (!over(*request)) return;
                             if (result.error) return shared->events.failed(result.error);
                             shared->digest_seconds += result.digest_seconds;
                             if (!same(memory::digest_of(result.digests), *request->expected)) {
                               return shared->events.differs(request->parts.front());
                             }
                             for (std::size_t i = 0; i < request->parts.size(); ++i) {
                               shared->events.digested(request->parts[i], result.digests[i]);
                             }
                             arrived(*request);
                           });
  }

  std::shared_ptr<Shared> shared_;  // owners: the engine and its ways
  PeerQueues queues_;
  std::vector<int> in_flight_;  // requests, by peer
  std::vector<int> receiving_;  // messages into place, by peer
  int open_requests_ = 0;
};

}  // namespace

std::unique_ptr<MessageWay> make_gathered(std::shared_ptr<Shared> shared) {
  return std::make_unique<GatheredWay>(std::move(shared));
}

}  // namespace shardwire::move

// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "move/messages.hpp"
#include "shardwire/error.hpp"

namespace shardwire::move {

namespace {

constexpr std::size_t max_straight_parts = 256;
constexpr int max_requests = 32;

class StraightWay final : public MessageWay {
 public:
  explicit StraightWay(std::shared_ptr<Shared> shared)
      : shared_(std::move(shared)), queues_([](const Transfer& transfer, ByteCount limit, std::vector<Box>& parts) {
          split_into_runs(transfer, std::max<ElementCount>(1, static_cast<ElementCount>(limit / transfer.item_bytes)),
                          parts);
        }) {}

  // What the source's staging holds does not matter here.
  void limit(std::uint32_t peer, ByteCount) override {
    queues_.limit(peer, shared_->pacer.slice_bytes(straight_message_bytes));
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
    Request(StraightWay& its_way, std::uint32_t its_peer, std::vector<TransferPart> its_parts)
        : way(its_way),
          sender(its_peer),
          parts(std::move(its_parts)),
          begun(parts.size()),
          missing(parts.size()),
          open(parts.size()) {}

    StraightWay& way;
    std::uint32_t sender;
    std::uint64_t number = 0;
    std::vector<TransferPart> parts;
    std::vector<bool> begun;  // to arrive
    std::size_t missing;      // that have not begun
    std::size_t open;         // that are not in place and checked

    [[nodiscard]] std::uint32_t peer() const override { return sender; }
    bool payload(const wire::PayloadHeader& header, transport::Incoming& incoming) override {
      if (missing == 0) return false;
      way.payload(shared_from_this(), header, incoming);
      return true;
    }
    void drop() override { way.drop(*this); }
  };

  void payload(const std::shared_ptr<Request>& request, const wire::PayloadHeader& header,
               transport::Incoming& incoming) {
    const bool known = header.part < request->parts.size() && !request->begun[header.part];
    const ByteCount expected = known ? request->parts[header.part].bytes() : 0;
    if (!known || incoming.payload_bytes() != expected || header.digest.has_value() != shared_->digests) {
      const std::string bytes = std::to_string(incoming.payload_bytes());
      incoming.discard();
      return shared_->events.failed(std::make_exception_ptr(
          Error(ErrorCode::transport_failed, "a source sent " + bytes + " bytes as part " +
                                                 std::to_string(header.part) + " of a request of " +
                                                 std::to_string(request->parts.size()) + " parts: it did not fit")));
    }
    request->begun[header.part] = true;
    --request->missing;
    receive(request, header, incoming);
  }

  void drop(Request& request) {
    for (std::size_t i = 0; i < request.parts.size(); ++i) {
      if (request.begun[i]) continue;  // ends by itself
      shared_->give_back(request.sender, std::span(&request.parts[i], 1));
      request.begun[i] = true;
      ended(request);
    }
  }

  bool post_to(std::uint32_t peer, Pacer::Clock::time_point now) {
    if (peer >= in_flight_.size() || in_flight_[peer] >= shared_->depths.straight) return false;
    const auto [count, bytes] = queues_.fitting(peer, max_straight_parts);
    if (count == 0 || !shared_->pacer.take(bytes, now)) return false;
    // owners: the open ones and completions in flight
    const auto request = std::make_shared<Request>(*this, peer, queues_.take(peer, count));
    std::vector<PackPart> parts;
    parts.reserve(count);
    for (const TransferPart& part : request->parts) parts.push_back({part.transfer->held_tensor, part.box});
    request->number = shared_->add(request);
    ++in_flight_[peer];
    ++open_requests_;
    for (std::size_t i = 0; i < count; ++i) shared_->tally.began(Way::straight);
    shared_->requests.ask(peer, request->number, std::move(parts), Answer::each);
    return true;
  }

  void ended(Request& request) {
    shared_->tally.ended(Way::straight);
    if (--request.open > 0) return;
    --in_flight_[request.sender];
    --open_requests_;
    if (!shared_->stopped) shared_->over(request.sender, request.number);
  }
  // One message is in place, or will never be. False when it does not count.
  bool over(Request& request, const TransferPart& part) {
    --receiving_[request.sender];
    ended(request);
    if (shared_->dropped(request.sender)) shared_->give_back(request.sender, std::span(&part, 1));
    if (!shared_->stopped && !shared_->dropped(request.sender)) return true;
    shared_->events.changed();  // somebody may wait for the last of them
    return false;
  }

  void receive(const std::shared_ptr<Request>& request, const wire::PayloadHeader& header,
               transport::Incoming& incoming) {
    const TransferPart& part = request->parts[header.part];
    const Transfer& t = *part.transfer;
    const memory::StridedCopy place(part.box, memory::packed(part.box), t.wanted, t.item_bytes);
    const transport::Memory into{t.target + place.target_span().first, place.bytes(), {}};
    ++receiving_[request->sender];
    incoming.receive(
        into, [this, request, &part, expected = header.digest, shared = shared_](const transport::Outcome& outcome) {
          if (!outcome && expected && !shared->stopped && !shared->dropped(request->sender)) {
            if (!shared->guarded([&] { check(request, part, *expected); })) over(*request, part);
            return;
          }
          if (!over(*request, part)) return;
          if (outcome) return shared->events.peer_failed(request->sender, *outcome);
          shared->tally.arrived(*part.transfer, part.bytes());
          shared->events.changed();
        });
  }

  void check(const std::shared_ptr<Request>& request, const TransferPart& part, const wire::BoxDigest& expected) {
    shared_->copies.submit({.count = 1,
                            .copy =
                                [request, &part](std::size_t) {
                                  const Transfer& t = *part.transfer;
                                  return memory::QueuedCopy{
                                      memory::StridedCopy(part.box, t.wanted, memory::packed(part.box), t.item_bytes),
                                      t.target};
                                },
                            .work = memory::CopyWork::digest,
                            .digest = shared_->digest_kind(part.transfer->peer)},
                           [this, request, &part, expected, shared = shared_](const memory::CopyResult& result) {
                             if (!over(*request, part)) return;
                             if (result.error) return shared->events.failed(result.error);
                             shared->digest_seconds += result.digest_seconds;
                             if (!same(result.digests.front(), expected)) return shared->events.differs(part);
                             shared->events.digested(part, result.digests.front());
                             shared->tally.arrived(*part.transfer, part.bytes());
                             shared->events.changed();
                           });
  }

  std::shared_ptr<Shared> shared_;  // owners: the engine and its ways
  PeerQueues queues_;
  std::vector<int> in_flight_;  // requests, by peer
  std::vector<int> receiving_;  // messages into place, by peer
  int open_requests_ = 0;
};

}  // namespace

std::unique_ptr<MessageWay> make_straight(std::shared_ptr<Shared> shared) {
  return std::make_unique<StraightWay>(std::move(shared));
}

}  // namespace shardwire::move

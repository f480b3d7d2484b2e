// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "move/messages.hpp"
#include "shardwire/error.hpp"

namespace shardwire::move {

namespace {

constexpr std::size_t max_separate_parts = 256;
constexpr std::size_t max_gathered_parts = 4096;
constexpr int max_requests = 32;

/// Maximum number of ranges of a box on either side.
std::size_t ranges_of(const Transfer& transfer, const Box& box) {
  return static_cast<std::size_t>(memory::StridedCopy(box, transfer.held, transfer.wanted, transfer.item_bytes).runs());
}

// A row-major part of a box has one run per run of the box that it contains; only the runs at its ends are split.
void split_by_ranges(const Transfer& transfer, ByteCount limit_bytes, std::size_t max_ranges, std::vector<Box>& parts) {
  const memory::StridedCopy copy(transfer.box, transfer.held, transfer.wanted, transfer.item_bytes);
  const ByteCount bytes = std::min(limit_bytes, copy.run_bytes() * std::max<std::size_t>(1, max_ranges / 2));
  split(transfer.box, std::max<ElementCount>(1, static_cast<ElementCount>(bytes / transfer.item_bytes)), parts);
}

class ZcopyMethod final : public MessageMethod {
 public:
  explicit ZcopyMethod(std::shared_ptr<Shared> shared)
      : shared_(std::move(shared)),
        queues_([all = shared_.get()](const Transfer& transfer, ByteCount limit, std::vector<Box>& parts) {
          const std::size_t max_ranges = all->peers.at(transfer.peer).limits.max_message_ranges;
          if (max_ranges > 1) return split_by_ranges(transfer, limit, max_ranges, parts);
          split_into_runs(transfer, std::max<ElementCount>(1, static_cast<ElementCount>(limit / transfer.item_bytes)),
                          parts);
        }) {}

  // The size of the source's staging is irrelevant here.
  void limit(std::uint32_t peer, ByteCount) override {
    queues_.limit(peer,
                  shared_->rate_limiter.slice_bytes(gathers(peer) ? shared_->gathered_bytes : zcopy_message_bytes));
    if (in_flight_.size() <= peer) in_flight_.resize(peer + std::size_t{1});
    receiving_.resize(in_flight_.size());
  }

  void add(const Transfer& transfer) override { queues_.add(transfer); }

  bool post(RateLimiter::WallClock::time_point now) override {
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
  /// One message of a request: one of its parts, or all.
  struct Message {
    std::span<const TransferPart> parts;
    ByteCount bytes = 0;
    bool begun = false;  // has begun to arrive
    std::optional<Digest128> expected{};
  };

  struct Request final : OpenRequest, std::enable_shared_from_this<Request> {
    Request(ZcopyMethod& its_method, std::uint32_t its_peer, std::vector<TransferPart> its_parts, ByteCount bytes,
            bool is_gathered)
        : method(its_method), sender(its_peer), parts(std::move(its_parts)), gathered(is_gathered) {
      if (gathered) {
        messages.push_back({parts, bytes});
      } else {
        for (const TransferPart& part : parts) messages.push_back({std::span(&part, 1), part.bytes()});
      }
      missing = open = messages.size();
    }

    ZcopyMethod& method;
    std::uint32_t sender;
    std::uint64_t number = 0;
    std::vector<TransferPart> parts;
    bool gathered;  // into one message
    std::vector<Message> messages;
    std::size_t missing = 0;  // messages that have not begun
    std::size_t open = 0;     // messages that are not in place and checked

    [[nodiscard]] std::uint32_t peer() const override { return sender; }
    bool payload(const wire::PayloadHeader& header, transport::Incoming& incoming) override {
      if (missing == 0) return false;
      method.payload(shared_from_this(), header, incoming);
      return true;
    }
    void drop() override { method.drop(*this); }
  };

  [[nodiscard]] bool gathers(std::uint32_t peer) const { return shared_->peers.at(peer).limits.max_message_ranges > 1; }

  bool post_to(std::uint32_t peer, RateLimiter::WallClock::time_point now) {
    if (peer >= in_flight_.size()) return false;
    const bool gathered = gathers(peer);
    if (in_flight_[peer] >= (gathered ? shared_->depths.gathered : shared_->depths.zcopy)) return false;
    const auto [count, bytes] = fitting(peer, gathered);
    if (count == 0 || !shared_->rate_limiter.take(bytes, now)) return false;
    // owners: the open requests and completions in flight
    const auto request = std::make_shared<Request>(*this, peer, queues_.take(peer, count), bytes, gathered);
    std::vector<PackPart> parts;
    parts.reserve(count);
    for (const TransferPart& part : request->parts) parts.push_back({part.transfer->held_tensor, part.box});
    request->number = shared_->add(request);
    ++in_flight_[peer];
    ++open_requests_;
    for (std::size_t i = 0; i < request->messages.size(); ++i) shared_->tally.began(Method::zcopy, peer);
    shared_->requests.ask(peer, request->number, std::move(parts),
                          gathered ? MessageForm::gathered : MessageForm::each);
    return true;
  }

  PeerQueues::Fitting fitting(std::uint32_t peer, bool gathered) {
    if (!gathered) return queues_.fitting(peer, max_separate_parts);
    const std::size_t max_ranges = shared_->peers.at(peer).limits.max_message_ranges;
    return queues_.fitting(peer, max_gathered_parts, [&, ranges = std::size_t{0}](const TransferPart& part) mutable {
      return (ranges += ranges_of(*part.transfer, part.box)) <= max_ranges;
    });
  }

  void payload(const std::shared_ptr<Request>& request, const wire::PayloadHeader& header,
               transport::Incoming& incoming) {
    const bool known = header.part < request->messages.size() && !request->messages[header.part].begun;
    const ByteCount expected = known ? request->messages[header.part].bytes : 0;
    if (!known || incoming.payload_bytes() != expected || header.digest.has_value() != shared_->digests) {
      const std::string bytes = std::to_string(incoming.payload_bytes());
      incoming.discard();
      return shared_->events.failed(std::make_exception_ptr(Error(
          ErrorCode::transport_failed, "a source sent " + bytes + " bytes as message " + std::to_string(header.part) +
                                           " of a request of " + std::to_string(request->messages.size()) +
                                           " messages: it did not fit")));
    }
    Message& message = request->messages[header.part];
    message.begun = true;
    message.expected = header.digest;
    --request->missing;
    receive(request, message, incoming);
  }

  void drop(Request& request) {
    for (Message& message : request.messages) {
      if (std::exchange(message.begun, true)) continue;  // ends by itself
      --request.missing;
      shared_->give_back(request.sender, message.parts);
      ended(request);
    }
  }

  // `message` lives as long as its request, as in the next functions.
  void receive(const std::shared_ptr<Request>& request, const Message& message, transport::Incoming& incoming) {
    ++receiving_[request->sender];
    incoming.receive(places_of(message),
                     [this, request, &message, shared = shared_](const transport::Outcome& outcome) {
                       if (!outcome && message.expected && !shared->stopped && !shared->dropped(request->sender)) {
                         if (!shared->guarded([&] { check(request, message); })) over(*request, message);
                         return;
                       }
                       if (!over(*request, message)) return;
                       if (!outcome) return arrived(message);
                       shared->give_back(request->sender, message.parts);
                       shared->events.peer_failed(request->sender, *outcome);
                     });
  }

  static std::vector<transport::Memory> places_of(const Message& message) {
    std::vector<transport::Memory> places;
    for (const TransferPart& part : message.parts) {
      const Transfer& t = *part.transfer;
      const memory::StridedCopy place(part.box, memory::packed(part.box), t.wanted, t.item_bytes);
      place.visit_runs([&](ByteCount, ByteCount at) { places.push_back({t.target + at, place.run_bytes(), {}}); });
    }
    return places;
  }

  void ended(Request& request) {
    shared_->tally.ended(Method::zcopy, request.sender);
    if (--request.open > 0) return;
    --in_flight_[request.sender];
    --open_requests_;
    if (!shared_->stopped) shared_->over(request.sender, request.number);
  }
  // Nothing of the message will be written any more. False if it does not count.
  bool over(Request& request, const Message& message) {
    --receiving_[request.sender];
    ended(request);
    if (shared_->dropped(request.sender)) shared_->give_back(request.sender, message.parts);
    if (!shared_->stopped && !shared_->dropped(request.sender)) return true;
    shared_->events.changed();  // a caller may wait for the last of them
    return false;
  }

  void arrived(const Message& message) {
    for (const TransferPart& part : message.parts) shared_->tally.arrived(*part.transfer, part.bytes());
    shared_->events.changed();
  }

  void check(const std::shared_ptr<Request>& request, const Message& message) {
    auto copy = [request, &message](std::size_t index) {
      const TransferPart& part = message.parts[index];
      const Transfer& t = *part.transfer;
      return memory::QueuedCopy{memory::StridedCopy(part.box, t.wanted, memory::packed(part.box), t.item_bytes),
                                t.target};
    };
    shared_->copies.submit({.count = message.parts.size(), .copy = std::move(copy), .work = memory::CopyWork::digest},
                           [this, request, &message, shared = shared_](const memory::CopyResult& result) {
                             if (!over(*request, message)) return;
                             if (result.error) return shared->events.failed(result.error);
                             shared->digest_seconds += result.digest_seconds;
                             const Digest128 digest =
                                 request->gathered ? memory::digest_of(result.digests) : result.digests.front();
                             if (digest != *message.expected) {
                               shared->give_back(request->sender, message.parts);
                               return shared->events.differs(message.parts.front());
                             }
                             for (std::size_t i = 0; i < message.parts.size(); ++i) {
                               shared->events.digested(message.parts[i], result.digests[i]);
                             }
                             arrived(message);
                           });
  }

  std::shared_ptr<Shared> shared_;  // owners: the engine and its methods
  PeerQueues queues_;
  std::vector<int> in_flight_;  // requests, by peer
  std::vector<int> receiving_;  // messages into place, by peer
  int open_requests_ = 0;
};

}  // namespace

std::unique_ptr<MessageMethod> make_zcopy(std::shared_ptr<Shared> shared) {
  return std::make_unique<ZcopyMethod>(std::move(shared));
}

}  // namespace shardwire::move

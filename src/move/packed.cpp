// SPDX-License-Identifier: Apache-2.0
#include "move/packed.hpp"

#include <algorithm>

#include "shardwire/error.hpp"

namespace shardwire::move {

namespace {

// Enough to hide one round trip behind another; more only lengthens the queue at the source.
constexpr int most_in_flight_per_peer = 4;

ByteCount bytes_of_box(const Box& box, ByteCount item_bytes) {
  return static_cast<ByteCount>(box.volume()) * item_bytes;
}

}  // namespace

PackedWay::PackedWay(std::shared_ptr<Shared> shared, StagingPool& pool, std::uint64_t first_request, Send send)
    : shared_(std::move(shared)), pool_(pool), next_request_(first_request), send_(std::move(send)) {
}

void PackedWay::limit(std::uint32_t peer, ByteCount bytes) {
  if (queues_.size() <= peer) queues_.resize(peer + std::size_t{1});
  queues_[peer].limit_bytes = std::min(bytes, shared_->pacer.slice_bytes(pool_.slot_bytes()));
}

void PackedWay::add(Transfer transfer) {
  Queue& queue = queues_.at(transfer.peer);
  if (queue.limit_bytes < transfer.item_bytes) {
    throw Error(ErrorCode::out_of_resources,
                "the staging budget does not hold one element of " + std::to_string(transfer.item_bytes) + " bytes");
  }
  queue.transfers.push_back(std::move(transfer));
}

bool PackedWay::post(Pacer::Clock::time_point now) {
  for (std::size_t tried = 0; tried < queues_.size(); ++tried) {
    const std::size_t peer = turn_;
    turn_ = (turn_ + 1) % queues_.size();
    if (post_to(static_cast<std::uint32_t>(peer), now)) return true;
  }
  return false;
}

bool PackedWay::refill(Queue& queue) {
  if (queue.transfers.empty()) return false;
  const auto transfer = std::make_shared<const Transfer>(std::move(queue.transfers.front()));
  queue.transfers.pop_front();
  const auto limit = static_cast<ElementCount>(queue.limit_bytes / transfer->item_bytes);
  for (Box& box : cut(transfer->box, limit)) queue.pieces.push_back({transfer, box});
  return true;
}

bool PackedWay::post_to(std::uint32_t peer, Pacer::Clock::time_point now) {
  Queue& queue = queues_[peer];
  if (queue.in_flight >= most_in_flight_per_peer || (queue.pieces.empty() && !refill(queue))) return false;
  ByteCount bytes = 0;
  std::size_t count = 0;
  while (count < queue.pieces.size()) {
    const Piece& piece = queue.pieces[count];
    const ByteCount next = bytes_of_box(piece.box, piece.transfer->item_bytes);
    if (count > 0 && bytes + next > queue.limit_bytes) break;
    bytes += next;
    if (++count == queue.pieces.size()) refill(queue);
  }
  if (pool_.free_slots() == 0 || !shared_->pacer.take(bytes, now)) return false;

  const auto request = std::make_shared<Request>();
  request->peer = peer;
  request->bytes = bytes;
  request->slot = pool_.acquire();
  const auto past = queue.pieces.begin() + static_cast<std::ptrdiff_t>(count);
  request->pieces.assign(std::make_move_iterator(queue.pieces.begin()), std::make_move_iterator(past));
  queue.pieces.erase(queue.pieces.begin(), past);
  std::vector<PackPart> parts;
  parts.reserve(request->pieces.size());
  for (const Piece& piece : request->pieces) parts.push_back({piece.transfer->held_tensor, piece.box});
  const std::uint64_t number = next_request_++;
  requests_.emplace(number, request);
  ++queue.in_flight;
  send_(peer, number, std::move(parts));
  return true;
}

std::optional<std::uint32_t> PackedWay::peer_of(std::uint64_t request) const {
  const auto found = requests_.find(request);
  return found == requests_.end() ? std::nullopt : std::optional(found->second->peer);
}

bool PackedWay::payload(std::uint64_t number, transport::Incoming& incoming) {
  const auto found = requests_.find(number);
  if (found == requests_.end()) return false;
  const std::shared_ptr<Request> request = found->second;
  requests_.erase(found);
  --queues_[request->peer].in_flight;
  if (shared_->stopped) {
    incoming.discard();
    return true;
  }
  if (incoming.payload_bytes() != request->bytes) {
    incoming.discard();
    shared_->failed(std::make_exception_ptr(
        Error(ErrorCode::transport_failed, "a source sent " + std::to_string(incoming.payload_bytes()) +
                                               " bytes for a request of " + std::to_string(request->bytes))));
    return true;
  }
  incoming.receive(request->slot.bytes().first(static_cast<std::size_t>(request->bytes)),
                   [this, request, shared = shared_](const transport::Outcome& outcome) {
                     if (shared->stopped) return;
                     if (outcome) {
                       return shared->failed(std::make_exception_ptr(Error(outcome->code, outcome->message)));
                     }
                     unpack(request);
                   });
  return true;
}

void PackedWay::unpack(std::shared_ptr<Request> request) {
  ++unpacking_;
  shared_->copier.submit(
      [request, stores = shared_->stores()] {
        const std::byte* from = request->slot.bytes().data();
        for (const Piece& piece : request->pieces) {
          const Transfer& t = *piece.transfer;
          memory::StridedCopy(piece.box, memory::packed(piece.box), t.wanted, t.item_bytes)
              .run_all(from, t.target, stores);
          from += bytes_of_box(piece.box, t.item_bytes);
        }
      },
      [this, request, shared = shared_](const std::exception_ptr& error) {
        --unpacking_;
        request->slot = {};
        if (error) return shared->failed(error);
        for (const Piece& piece : request->pieces) {
          shared->tally.arrived(*piece.transfer, bytes_of_box(piece.box, piece.transfer->item_bytes));
        }
        shared->changed();
      });
}

}  // namespace shardwire::move

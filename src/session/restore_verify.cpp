// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "memory/digest.hpp"
#include "memory/strided_copy.hpp"
#include "session/restore_run.hpp"

namespace shardwire {

namespace {

constexpr std::size_t most_parts_per_batch = 1024;
constexpr ByteCount most_bytes_per_batch = 64u << 20;
constexpr std::size_t most_batches_in_flight = 8;

void fill_zeros(const PlacedBox& placed, std::byte* local, ByteCount item_bytes) {
  const memory::StridedCopy rows(placed.box, memory::packed(placed.box), placed, item_bytes);
  rows.visit_rows(0, rows.runs(), [&](ByteCount, ByteCount at, ByteCount count) {
    for (ByteCount i = 0; i < count; ++i) std::memset(local + at + i * rows.target_step(), 0, rows.run_bytes());
  });
}

}  // namespace

void RestoreRun::verify() {
  enter(Stage::verify);
  pace_.stop();
  pending_ = 0;
  if (options_.verify == Verify::none) return release_all();
  std::vector<std::size_t> open(peers_.size(), SIZE_MAX);  // batch that is being filled, by peer
  std::vector<ByteCount> bytes;
  for (std::size_t i = 0; i < transfers_.size(); ++i) {
    std::size_t& batch = open[transfers_[i].peer];
    if (batch == SIZE_MAX || batches_[batch].transfers.size() >= most_parts_per_batch ||
        bytes[batch] >= most_bytes_per_batch) {
      batch = batches_.size();
      batches_.push_back({transfers_[i].peer, {}});
      bytes.push_back(0);
    }
    batches_[batch].transfers.push_back(i);
    bytes[batch] += move::bytes_of(transfers_[i]);
  }
  post_digests();
}

void RestoreRun::post_digests() {
  if (next_batch_ == batches_.size() && pending_ == 0) return release_all();
  while (next_batch_ < batches_.size() && pending_ < most_batches_in_flight) {
    const VerifyBatch& batch = batches_[next_batch_++];
    ++pending_;
    const Peer& peer = peers_[batch.peer];
    if (peer.own) {
      compare(batch, {});
      continue;
    }
    wire::DigestRequest request{next_request(), peer.lease, {}};
    for (const std::size_t index : batch.transfers) {
      request.parts.push_back({transfers_[index].held_tensor, transfers_[index].box});
    }
    peer.link->request(request.request, request, while_running([this, &batch](wire::Message& message) {
                         const auto& reply = expect<wire::Digests>(message, peers_[batch.peer]);
                         if (reply.digests.size() != batch.transfers.size()) {
                           throw Error(ErrorCode::transport_failed,
                                       "a source sent another number of digests than asked");
                         }
                         compare(batch, reply.digests);
                       }));
  }
}

// `theirs` is empty for this process's own publication: both sides are digested here.
void RestoreRun::compare(const VerifyBatch& batch, const std::vector<wire::BoxDigest>& theirs) {
  const auto wrong = std::make_shared<std::vector<std::size_t>>();  // owners: the job and its completion
  ++verifying_;
  core_.copier().submit(
      [this, &batch, theirs, wrong] {
        for (std::size_t i = 0; i < batch.transfers.size(); ++i) {
          const move::Transfer& transfer = transfers_[batch.transfers[i]];
          const auto mine = memory::digest_box(transfer.box, transfer.wanted, transfer.target, transfer.item_bytes);
          wire::BoxDigest expected;
          if (theirs.empty()) {
            const auto own = memory::digest_box(transfer.box, transfer.held, transfer.source, transfer.item_bytes);
            expected = {own.low, own.high};
          } else {
            expected = theirs[i];
          }
          if (mine.low != expected.low || mine.high != expected.high) wrong->push_back(batch.transfers[i]);
        }
      },
      [this, alive = std::weak_ptr<bool>(alive_), wrong](const std::exception_ptr&) {
        if (alive.expired()) return;
        --verifying_;
        if (stage_ == Stage::stopping) return pump();
        guarded([&] {
          if (!wrong->empty()) {
            std::vector<Gap> gaps;
            for (const std::size_t index : *wrong) {
              const Piece& piece = planning_->plan.pieces[transfers_[index].piece];
              const TensorKey& key = manifest_->tensors[to_index(piece.tensor)].spec.key;
              gaps.push_back({key.fqn, key.state, transfers_[index].box, wanted_.place()});
            }
            const Rank source = peers_[transfers_[wrong->front()].peer].place;
            throw Error(
                ErrorCode::transport_failed,
                fmt::format("{} boxes differ from their source after the move, the first is {}:{} {} from source "
                            "rank {}",
                            gaps.size(), gaps.front().fqn, gaps.front().state, to_string(gaps.front().box),
                            to_int(source)),
                gaps, {source});
          }
          --pending_;
          post_digests();
        });
      });
}

// The check after the read: a source that was withdrawn or changed meanwhile says so when the lease ends.
void RestoreRun::release_all() {
  pending_ = peers_.size() + 1;
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    Peer& peer = peers_[i];
    const std::uint64_t lease = std::exchange(peer.lease, 0);
    if (peer.own) {
      released(i, core_.publisher().release(lease));
      continue;
    }
    const wire::Release request{next_request(), lease};
    peer.link->request(request.request, request, while_running([this, i](wire::Message& message) {
                         released(i, expect<wire::Released>(message, peers_[i]).intact);
                       }));
  }
  if (--pending_ == 0) commit();
}

void RestoreRun::released(std::size_t index, bool intact) {
  if (!intact) {
    const Peer& peer = peers_[index];
    throw Error(ErrorCode::layout_mismatch,
                fmt::format("source rank {} withdrew step {} of '{}' while it was being read", to_int(peer.place),
                            peer.record.step, options_.from),
                std::vector<Rank>{peer.place});
  }
  if (--pending_ == 0) commit();
}

void RestoreRun::commit() {
  enter(Stage::commit);
  for (const Catalog::ValueEntry& entry : wanted_.values()) {
    const auto found = values_.find(entry.key);
    if (entry.destination == nullptr || found == values_.end()) continue;  // the latter was skipped
    const auto& value = std::get<TensorValue>(found->second);
    std::memcpy(entry.destination, value.bytes.data(), value.bytes.size());
  }
  if (planning_) {
    for (const TensorId id : planning_->findings.zeroed) {
      zero(manifest_->tensors[to_index(id)], wanted_.entries()[to_index(id)]);
    }
  }
  if (verifying_ == 0) finish();
}

// Writes zeros over this rank's boxes of a tensor that no source has; the last one ends the restore.
void RestoreRun::zero(const TensorLayout& tensor, const Catalog::Entry& entry) {
  ++verifying_;
  core_.copier().submit(
      [boxes = placed_.of(tensor.layout, tensor.spec.shape, wanted_.place(), entry.view.strides).all(),
       to = static_cast<std::byte*>(entry.view.data), item_bytes = item_size(tensor.spec.dtype)] {
        for (const PlacedBox& placed : boxes) fill_zeros(placed, to, item_bytes);
      },
      [this, alive = std::weak_ptr<bool>(alive_)](const std::exception_ptr& error) {
        if (alive.expired()) return;
        --verifying_;
        if (stage_ == Stage::stopping) return pump();
        if (error) return fail(error);
        if (verifying_ == 0) finish();
      });
}

}  // namespace shardwire

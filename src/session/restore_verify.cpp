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

constexpr std::size_t most_parts_per_check = 1024;
constexpr ByteCount most_bytes_per_check = 64u << 20;

void fill_zeros(const PlacedBox& placed, std::byte* local, ByteCount item_bytes) {
  const memory::StridedCopy rows(placed.box, memory::packed(placed.box), placed, item_bytes);
  rows.visit_rows(0, rows.runs(), [&](ByteCount, ByteCount at, ByteCount count) {
    for (ByteCount i = 0; i < count; ++i) std::memset(local + at + i * rows.target_step(), 0, rows.run_bytes());
  });
}

}  // namespace

// Digests travel and are compared while other bytes still move; what is left is asked for here.
void RestoreRun::verify() {
  enter(Stage::verify);
  pace_.stop();
  for (std::size_t peer = 0; peer < checks_.size(); ++peer) ask_digests(peer);
  if (checking_ == 0 && awaited_leases_ == 0) release_all();
}

void RestoreRun::digested(const move::Part& part, const memory::Digest128& digest) {
  Check& check = checks_[part.transfer->peer];
  check.parts.push_back(part);
  check.digests.push_back(digest);
  check.bytes += part.bytes();
  if (check.parts.size() >= most_parts_per_check || check.bytes >= most_bytes_per_check) {
    ask_digests(part.transfer->peer);
  }
}

void RestoreRun::ask_digests(std::size_t index) {
  const auto check = std::make_shared<Check>(std::exchange(checks_[index], {}));  // owner: the answer's callback
  if (check->parts.empty()) return;
  const Peer& peer = peers_[index];
  wire::DigestRequest request{next_request(), peer.lease, {}};
  request.parts.reserve(check->parts.size());
  for (const move::Part& part : check->parts) request.parts.push_back({part.transfer->held_tensor, part.box});
  ++checking_;
  peer.link->request(request.request, request, while_running([this, index, check](wire::Message& message) {
                       compare(*check, expect<wire::Digests>(message, peers_[index]).digests);
                       if (--checking_ == 0 && stage_ == Stage::verify) release_all();
                     }));
}

void RestoreRun::compare(const Check& check, const std::vector<wire::BoxDigest>& theirs) {
  if (theirs.size() != check.parts.size()) {
    throw Error(ErrorCode::transport_failed, "a source sent another number of digests than asked");
  }
  std::vector<move::Part> wrong;
  for (std::size_t i = 0; i < theirs.size(); ++i) {
    if (!move::same(check.digests[i], theirs[i])) wrong.push_back(check.parts[i]);
  }
  if (!wrong.empty()) differ(wrong);
}

void RestoreRun::differ(std::span<const move::Part> parts) const {
  std::vector<Gap> gaps;
  for (const move::Part& part : parts) {
    const Piece& piece = planning_->plan.pieces[part.transfer->piece];
    const TensorKey& key = manifest_->tensors[to_index(piece.tensor)].spec.key;
    gaps.push_back({key.fqn, key.state, part.box, wanted_.place()});
  }
  const Rank source = peers_[parts.front().transfer->peer].place;
  throw Error(
      ErrorCode::transport_failed,
      fmt::format("{} boxes differ from their source after the move, the first is {}:{} {} from source rank {}",
                  gaps.size(), gaps.front().fqn, gaps.front().state, to_string(gaps.front().box), to_int(source)),
      gaps, {source});
}

// Without a lease: whether what came from this peer is known to be what it has published. What it packed itself it packed
// while the publication was live.
bool RestoreRun::proven(std::size_t peer) const {
  if (peers_[peer].mark.says_live(peers_[peer].record.generation)) return true;
  return std::all_of(transfers_->begin(), transfers_->end(), [&](const move::Transfer& transfer) {
    return transfer.peer != peer || transfer.way == Way::packed;
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
    const std::uint64_t number = next_request();
    auto answered = while_running(
        [this, i](wire::Message& message) { released(i, expect<wire::Released>(message, peers_[i]).intact); });
    if (lease == 0 && proven(i)) {
      --pending_;  // not the last: one is counted for this function
      continue;
    }
    if (lease == 0) {
      peer.link->request(number, wire::Confirm{number, options_.from, peer.record.generation}, std::move(answered));
      continue;
    }
    peer.link->request(number, wire::Release{number, lease}, std::move(answered));
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
  if (zeroing_ == 0) finish();
}

// Writes zeros over this rank's boxes of a tensor that no source has; the last one ends the restore.
void RestoreRun::zero(const TensorLayout& tensor, const Catalog::Entry& entry) {
  ++zeroing_;
  core_.copier().submit(
      [boxes = placed_.of(tensor.layout, tensor.spec.shape, wanted_.place(), entry.view.strides).all(),
       to = static_cast<std::byte*>(entry.view.data), item_bytes = item_size(tensor.spec.dtype)] {
        for (const PlacedBox& placed : boxes) fill_zeros(placed, to, item_bytes);
      },
      [this, alive = std::weak_ptr<bool>(alive_)](const std::exception_ptr& error) {
        if (alive.expired()) return;
        --zeroing_;
        if (stage_ == Stage::stopping) return pump();
        if (error) return fail(error);
        if (zeroing_ == 0) finish();
      });
}

}  // namespace shardwire

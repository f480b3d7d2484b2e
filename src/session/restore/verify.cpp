// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "geometry/by_value.hpp"
#include "memory/digest.hpp"
#include "memory/strided_copy.hpp"
#include "session/restore/run.hpp"

namespace shardwire {

namespace {

constexpr std::array<std::byte, 16> zeros{};  // of the largest element
constexpr std::size_t max_parts_per_check = 1024;
constexpr ByteCount max_bytes_per_check = 64u << 20;

void fill_zeros(const PlacedBox& placed, std::byte* local, ByteCount item_bytes) {
  const memory::StridedCopy rows(placed.box, memory::packed(placed.box), placed, item_bytes);
  rows.visit_runs([&](ByteCount, ByteCount at) { std::memset(local + at, 0, rows.run_bytes()); });
}

}  // namespace

// Trees, which a device takes in parallel, where one is on either side.
memory::DigestKind RestoreRun::digest_kind(const Peer& peer) const {
  if (options_.verify != Verify::digest || peer.own) return memory::DigestKind::flat;
  const bool on_device = touches_devices(peer);
  if (!on_device && !core_.takes_tree_digests()) return memory::DigestKind::flat;
  if (peer.link->peer_can(wire::tree_digest_capability)) return memory::DigestKind::tree;
  if (!on_device) return memory::DigestKind::flat;
  throw Error(ErrorCode::unsupported,
              fmt::format("source rank {} runs a version that takes no digests of device memory: update it, or restore "
                          "without Verify::digest",
                          to_int(peer.layout_rank)),
              std::vector<Rank>{peer.layout_rank});
}

bool RestoreRun::takes_tree_digests(const Peer& peer) const {
  return digest_kind(peer) == memory::DigestKind::tree;
}

// Not while bytes still move: a source that changes its memory after a part was read is found out by a digest that is
// taken after the last.
void RestoreRun::verify() {
  enter(Stage::verify);
  pace_.stop();
  for (std::size_t peer = 0; peer < checks_.size(); ++peer) {
    for (Check& check : std::exchange(checks_[peer], {})) ask_digests(peer, std::move(check));
  }
  if (checking_ == 0 && !repetition_.awaits_leases()) release_all();
}

void RestoreRun::check_later(const move::TransferPart& part, const memory::Digest128& digest) {
  auto& checks = checks_[part.transfer->peer];
  const bool full =
      checks.empty() || checks.back().parts.size() >= max_parts_per_check || checks.back().bytes >= max_bytes_per_check;
  Check& check = full ? checks.emplace_back() : checks.back();
  check.parts.push_back(part);
  check.digests.push_back(digest);
  check.bytes += part.bytes();
}

void RestoreRun::ask_digests(std::size_t index, Check&& about) {
  const auto check = std::make_shared<Check>(std::move(about));  // owner: the answer's callback
  Peer& peer = peers_[index];
  wire::DigestRequest request{next_request(), peer.lease, {}, takes_tree_digests(peer)};
  request.parts.reserve(check->parts.size());
  for (const move::TransferPart& part : check->parts) request.parts.push_back({part.transfer->held_tensor, part.box});
  ++checking_;
  ++peer.unanswered;
  peer.link->request(request.request, request, while_running([this, index, check](wire::Message& message) {
                       --peers_[index].unanswered;
                       compare(*check, expect<wire::Digests>(message, peers_[index]).digests);
                       if (--checking_ == 0 && stage_ == Stage::verify) release_all();
                     }));
}

void RestoreRun::compare(const Check& check, const std::vector<wire::BoxDigest>& theirs) {
  if (theirs.size() != check.parts.size()) {
    throw Error(ErrorCode::transport_failed, "a source sent another number of digests than asked");
  }
  std::vector<move::TransferPart> wrong;
  for (std::size_t i = 0; i < theirs.size(); ++i) {
    if (!move::same(check.digests[i], theirs[i])) wrong.push_back(check.parts[i]);
  }
  if (!wrong.empty()) differ(wrong);
}

void RestoreRun::differ(std::span<const move::TransferPart> parts) const {
  std::vector<Gap> gaps;
  for (const move::TransferPart& part : parts) {
    const Piece& piece = planning_->plan.pieces[part.transfer->piece];
    const TensorKey& key = manifest_->tensors[to_index(piece.tensor)].spec.key;
    gaps.push_back({key.fqn, key.state, part.box, wanted_.layout_rank()});
  }
  const Rank source = peers_[parts.front().transfer->peer].layout_rank;
  throw Error(
      ErrorCode::transport_failed,
      fmt::format("{} boxes differ from their source after the move, the first is {}:{} {} from source rank {}",
                  gaps.size(), gaps.front().fqn, gaps.front().state, to_string(gaps.front().box), to_int(source)),
      gaps, {source});
}

// Without a lease: whether all that came from this peer was packed by itself, which it does while the publication is live.
bool RestoreRun::packed_while_live(std::size_t peer) const {
  return std::all_of(transfers_->begin(), transfers_->end(), [&](const move::Transfer& transfer) {
    return transfer.peer != peer || transfer.way == Way::packed ||
           (transfer.way == Way::straight && peers_[peer].message_ranges() > 1);
  });
}

// The check after the read. A word that says "live" is enough, and takes nothing of the source's processor; else a source that
// was withdrawn or changed meanwhile says so when the lease ends.
void RestoreRun::release_all() {
  pending_ = peers_.size() + 1;
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    Peer& peer = peers_[i];
    if (peer.own) {
      released(i, core_.publisher().release(std::exchange(peer.lease, 0)));
    } else if (peer.word.says_live(peer.record.generation) || (peer.lease == 0 && packed_while_live(i))) {
      was_live(i);
    } else if (peer.word.region && !peer.word.is_mapped()) {
      ++peer.unanswered;
      read_word(peer.word, while_running([this, i](const transport::Outcome& fault, std::uint64_t word) {
                  --peers_[i].unanswered;
                  if (!fault && word == peers_[i].record.generation) return was_live(i);
                  ask_whether_live(i);
                }));
    } else {
      ask_whether_live(i);
    }
  }
  if (--pending_ == 0) commit();
}

void RestoreRun::was_live(std::size_t index) {
  Peer& peer = peers_[index];
  if (peer.lease != 0) peer.link->post(wire::Release{next_request(), std::exchange(peer.lease, 0)});
  if (--pending_ == 0) commit();
}

void RestoreRun::ask_whether_live(std::size_t index) {
  Peer& peer = peers_[index];
  const std::uint64_t lease = std::exchange(peer.lease, 0);
  const std::uint64_t number = next_request();
  auto answered = while_running([this, index](wire::Message& message) {
    --peers_[index].unanswered;
    released(index, expect<wire::Released>(message, peers_[index]).intact);
  });
  ++peer.unanswered;
  if (lease == 0) {
    peer.link->request(number, wire::Confirm{number, options_.from, peer.record.generation}, std::move(answered));
  } else {
    peer.link->request(number, wire::Release{number, lease}, std::move(answered));
  }
}

void RestoreRun::released(std::size_t index, bool intact) {
  require_intact(peers_[index], intact);
  if (--pending_ == 0) commit();
}

void RestoreRun::require_intact(const Peer& peer, bool intact) const {
  if (intact) return;
  throw Error(ErrorCode::withdrawn,
              fmt::format("source rank {} withdrew step {} of '{}' while it was being read", to_int(peer.layout_rank),
                          peer.record.step, options_.from),
              std::vector<Rank>{peer.layout_rank});
}

void RestoreRun::commit() {
  if (options_.bind_only) return conclude();
  enter(Stage::commit);
  write_values();
  if (planning_) {
    for (const TensorId id : planning_->resolved.zeroed) zero(manifest_->tensors[to_index(id)], to_index(id));
  }
  if (zeroing_ == 0) conclude();
}

void RestoreRun::write_values() {
  std::vector<memory::QueuedCopy> copies;  // of values_, which stays until they are made
  for (std::size_t i = 0; i < wanted_.entries().size(); ++i) {
    const Catalog::Entry& entry = wanted_.entries()[i];
    if (!travels_by_value(entry.spec)) continue;
    const auto found = values_.find(entry.spec.key);
    if (found == values_.end()) continue;  // skipped, or not wanted here
    const Bytes& bytes = std::get<TensorValue>(found->second).bytes;
    std::byte* const element = element_of(entry, wanted_.layout_rank(), placed_);
    const int device = device_of(places_, i);
    if (device == memory::on_host) {
      std::memcpy(element, bytes.data(), bytes.size());
    } else {
      copies.push_back(copy_of_bytes(bytes.data(), memory::on_host, element, device, bytes.size()));
    }
  }
  if (copies.empty()) return;
  core_.copies().submit(on_devices(std::move(copies)),
                        [this](const memory::CopyResult& result) { wrote(result.error); });
  ++zeroing_;
}

// Writes zeros over this rank's boxes of a tensor that no source has; the last one ends the restore.
void RestoreRun::zero(const TensorLayout& tensor, std::size_t index) {
  const Catalog::Entry& entry = wanted_.entries()[index];
  if (const int device = device_of(places_, index); device != memory::on_host) {
    std::vector<memory::QueuedCopy> copies;
    const ByteCount item_bytes = item_size(tensor.spec.dtype);
    for (const PlacedBox& placed :
         placed_.of(tensor.layout, tensor.spec.shape, wanted_.layout_rank(), entry.view.strides).all()) {
      const PlacedBox one_element{placed.box, 0, Extents::filled(placed.box.dims(), 0)};
      copies.push_back({memory::StridedCopy(placed.box, one_element, placed, item_bytes), zeros.data(),
                        static_cast<std::byte*>(entry.view.data), memory::on_host, device});
    }
    core_.copies().submit(on_devices(std::move(copies)),
                          [this](const memory::CopyResult& result) { wrote(result.error); });
    ++zeroing_;
    return;
  }
  core_.copier().submit(
      [boxes = placed_.of(tensor.layout, tensor.spec.shape, wanted_.layout_rank(), entry.view.strides).all(),
       to = static_cast<std::byte*>(entry.view.data), item_bytes = item_size(tensor.spec.dtype)] {
        for (const PlacedBox& placed : boxes) fill_zeros(placed, to, item_bytes);
      },
      [this, alive = std::weak_ptr<bool>(alive_)](const std::exception_ptr& error) {
        if (!alive.expired()) wrote(error);
      });
  ++zeroing_;
}

void RestoreRun::wrote(const std::exception_ptr& error) {
  --zeroing_;
  if (stage_ == Stage::stopping) return pump();
  if (error) return fail(error);
  if (zeroing_ == 0) conclude();
}

}  // namespace shardwire

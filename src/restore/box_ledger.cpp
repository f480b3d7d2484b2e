// SPDX-License-Identifier: Apache-2.0
#include "restore/box_ledger.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <string>
#include <utility>

#include "move/traits.hpp"

namespace shardwire::restore {

namespace {

// Mapped memory shows that it is published still, whether or not its owner lives.
bool word_says_live(const Binding& binding) {
  return binding.word.is_mapped() && binding.word.says_live(binding.record.generation);
}

}  // namespace

void Corruption::add(std::span<const FoundCorrupt> found) {
  std::set<std::pair<TensorId, Rank>> differ;
  for (const FoundCorrupt& one : found) differ.emplace(one.tensor, one.holder);
  for (const auto& [tensor, rank] : differ) {
    if (++attempts_[{tensor, rank}] == max_attempts) holders_[tensor].push_back(rank);
  }
}

void BoxLedger::begin(move::Engine& engine, std::span<const move::Transfer> transfers, CanCheck can_check) {
  engine_ = &engine;
  transfers_ = transfers;
  can_check_ = std::move(can_check);
}

// --- sources that are lost, or are not reached ---

bool BoxLedger::drop(const Source& source) {
  const std::size_t index = source.index();
  if (const auto found = left_.find(index); found != left_.end() && !outlives(source, transfers_)) {
    found->second.mapped = move::Engine::Mapped::dropped;  // only its path was lost before
  }
  take_back(index);
  return left_.at(index).mapped == move::Engine::Mapped::kept;
}

void BoxLedger::drop_connections(const Source& source) {
  left_.try_emplace(source.index(), Left{move::Engine::Mapped::kept, {}});
  take_back(source.index());
}

bool BoxLedger::take_back() {
  bool more = false;
  for (const auto& [source, left] : left_) more = take_back(source) || more;
  return more;
}

bool BoxLedger::take_back(std::size_t source) {
  auto found = left_.find(source);
  if (found == left_.end()) {
    using Mapped = move::Engine::Mapped;
    const bool stays_mapped = outlives(*sources_[source], transfers_);
    found = left_.emplace(source, Left{stays_mapped ? Mapped::kept : Mapped::dropped, {}}).first;
  }
  auto& [mapped, left] = found->second;
  const auto parts = engine_->drop(static_cast<std::uint32_t>(source), mapped);
  left.insert(left.end(), parts.begin(), parts.end());
  return !parts.empty();
}

// Pages of an arena live as long as somebody maps them; device memory ends with its owner.
bool BoxLedger::outlives(const Source& source, std::span<const move::Transfer> transfers) {
  return word_says_live(source.binding()) && std::ranges::none_of(transfers, [&](const move::Transfer& one) {
           return one.peer == source.index() && one.method == Method::mapped && one.source_device != memory::on_host;
         });
}

void BoxLedger::note_returned(std::span<const move::TransferPart> parts) {
  returned_.insert(returned_.end(), parts.begin(), parts.end());
}

// --- proofs ---

void BoxLedger::prove_reads() {
  while (const auto source = engine_->ledger().next_due()) prove_reads(*source);
}

// No order holds between reads: the word is read after the bytes have arrived, and proves these only.
void BoxLedger::prove_reads(std::size_t source) {
  const Binding& binding = sources_[source]->binding();
  if (sources_[source]->state() != Source::State::moving || !binding.word.region) return;
  const auto peer = static_cast<std::uint32_t>(source);
  const auto prove = [this, peer, mark = engine_->ledger().mark(peer)](bool live) {
    if (live) engine_->ledger().prove(peer, mark);
  };
  if (binding.word.is_mapped()) return prove(word_says_live(binding));
  sources_[source]->requests().read_generation(prove);
}

// A source sends only while the publication is live, which proves messages that are copied: see Attempt::confirm(). A word
// that is still mapped shows whether the memory was taken back, however it was read. Of other reads the ledger of the engine
// knows. Digests of a lost source cannot be compared any more.
BoxLedger::Proof BoxLedger::proof_of(const move::Transfer& transfer) const {
  if (sources_[transfer.peer]->state() == Source::State::released) return Proof::all;  // confirmed
  if (target_.options.verify == Verify::digest) return Proof::none;
  const auto by = move::carrier_of(transfer.method);
  if (by == move::Carrier::messages) return engine_->messages_are_copied() ? Proof::all : Proof::none;
  if (by != move::Carrier::mapping && by != move::Carrier::reads) return Proof::none;
  const Binding& binding = sources_[transfer.peer]->binding();
  if (by == move::Carrier::mapping) {
    return word_says_live(binding) && can_check_(transfer.peer) ? Proof::all : Proof::none;
  }
  if (binding.digests) return Proof::none;  // compared with digests of the source, which a lost one does not take
  if (binding.word.is_mapped()) return word_says_live(binding) ? Proof::all : Proof::none;
  return Proof::by_part;
}

// --- what is left to move ---

std::vector<PieceBox> BoxLedger::undelivered(const Source* of) const {
  if (engine_ == nullptr) return scheduled_of(of != nullptr ? std::optional(of->holder()) : std::nullopt);
  if (left_.empty() && returned_.empty() && corrupt_.empty()) return {};  // nothing went wrong
  std::vector<PieceBox> boxes;
  // A source that lives confirms what has arrived; after the end, none does any more.
  const auto is_lost = [&](const Source& source) {
    return left_.contains(source.index()) && (ended_ || source.state() == Source::State::lost);
  };
  const auto is_delivered = [&](const move::Transfer& transfer) {
    return !is_lost(*sources_[transfer.peer]) || proof_of(transfer) != Proof::none;
  };
  std::vector<move::TransferPart> left = parts_left(of);
  for (const auto& source : sources_) {
    if (!is_lost(*source) || (of != nullptr && of != source.get())) continue;
    for (const move::TransferPart& part : engine_->ledger().unproven(static_cast<std::uint32_t>(source->index()))) {
      if (proof_of(*part.transfer) == Proof::by_part) left.push_back(part);
    }
  }
  TensorsOfHolders incomplete;
  if (keeps_holders_apart()) {
    for (const move::TransferPart& part : left) incomplete.insert(tensor_of_holder(*part.transfer));
    for (const FoundCorrupt& one : corrupt_) incomplete.emplace(one.tensor, one.holder);
    for (const move::Transfer& transfer : transfers_) {
      if (!is_delivered(transfer)) incomplete.insert(tensor_of_holder(transfer));
    }
  }
  std::set<const move::Transfer*> again;
  for (const move::Transfer& transfer : transfers_) {
    if (of != nullptr && of != sources_[transfer.peer].get()) continue;
    if (is_delivered(transfer) && !incomplete.contains(tensor_of_holder(transfer))) continue;
    again.insert(&transfer);
    boxes.push_back({transfer.piece, transfer.box});
  }
  left.insert(left.end(), rotten_.begin(), rotten_.end());
  for (const move::TransferPart& part : left) {
    if (!again.contains(part.transfer)) boxes.push_back({part.transfer->piece, part.box});
  }
  return joined(std::move(boxes));
}

std::vector<PieceBox> BoxLedger::unproven() {
  if (engine_ == nullptr) return scheduled_of(std::nullopt);
  ended_ = true;
  for (std::size_t i = 0; i < sources_.size(); ++i) take_back(i);
  if (accounts_for_all()) return undelivered();
  std::vector<PieceBox> boxes;  // some operation has not ended: its parts are unknown
  for (const move::Transfer& transfer : transfers_) boxes.push_back({transfer.piece, transfer.box});
  return joined(std::move(boxes));
}

std::vector<PieceBox> BoxLedger::owed_by(const Source& source) const {
  if (engine_ == nullptr) return scheduled_of(source.holder());
  const bool stays_mapped = outlives(source, transfers_);
  const auto is_owed = [&](const move::Transfer& transfer) {
    if (transfer.peer != source.index() || (stays_mapped && transfer.method == Method::mapped)) return false;
    return !engine_->tally().complete(transfer.piece) || proof_of(transfer) != Proof::all;
  };
  TensorsOfHolders incomplete;
  for (const move::Transfer& transfer : transfers_) {
    if (keeps_holders_apart() && is_owed(transfer)) incomplete.insert(tensor_of_holder(transfer));
  }
  std::vector<PieceBox> boxes;
  for (const move::Transfer& transfer : transfers_) {
    if (is_owed(transfer) || incomplete.contains(tensor_of_holder(transfer))) {
      boxes.push_back({transfer.piece, transfer.box});
    }
  }
  return boxes;
}

std::vector<PieceBox> BoxLedger::scheduled_of(std::optional<Rank> holder) const {
  std::vector<PieceBox> boxes;
  for (const ScheduledPiece& item : planning_.schedule.items) {
    if (!holder || item.source == *holder) boxes.push_back({item.piece, planning_.schedule.box(item)});
  }
  return boxes;
}

ByteCount BoxLedger::resent_bytes(const Source& of) const {
  if (engine_ == nullptr) return 0;
  ByteCount bytes = 0;
  for (const PieceBox& one : undelivered(&of)) bytes += bytes_of(planning_, *target_.wanted.manifest, one);
  for (const move::TransferPart& part : parts_left(&of)) bytes -= part.bytes();
  return bytes;
}

std::vector<move::TransferPart> BoxLedger::parts_left(const Source* of) const {
  std::vector<move::TransferPart> parts;
  for (const move::TransferPart& part : returned_) {
    if (of == nullptr || of->index() == part.transfer->peer) parts.push_back(part);
  }
  for (const auto& [source, left] : left_) {
    if (of == nullptr || of->index() == source) parts.insert(parts.end(), left.parts.begin(), left.parts.end());
  }
  return parts;
}

bool BoxLedger::accounts_for_all() const {
  if (engine_ == nullptr) return true;
  ByteCount left = 0;
  for (const move::TransferPart& part : parts_left(nullptr)) left += part.bytes();
  return engine_->settled() && left == engine_->tally().dropped_bytes();
}

std::vector<Gap> BoxLedger::missing() const {
  std::vector<Gap> gaps;
  if (engine_ == nullptr) return gaps;
  const std::vector<Piece>& pieces = planning_.plan.pieces;
  for (std::uint32_t i = 0; i < pieces.size(); ++i) {
    if (engine_->tally().complete(i)) continue;
    gaps.push_back(
        gap_of(planning_, *target_.wanted.manifest, i, planning_.plan.box(pieces[i]), target_.catalog().layout_rank()));
  }
  return gaps;
}

// --- bytes that are not what was published ---

TensorId BoxLedger::tensor_of(const move::Transfer& transfer) const {
  return planning_.plan.pieces[transfer.piece].tensor;
}

std::pair<TensorId, Rank> BoxLedger::tensor_of_holder(const move::Transfer& transfer) const {
  return {tensor_of(transfer), sources_[transfer.peer]->holder()};
}

void BoxLedger::note_rotten(std::span<const move::TransferPart> parts) {
  rotten_.insert(rotten_.end(), parts.begin(), parts.end());
}

void BoxLedger::note_rotten(const Source& source, const wire::RequestedBox& block) {
  note_corrupt(source, std::span(&block, 1));
  for (const move::Transfer& transfer : transfers_) {
    if (transfer.peer != source.index() || transfer.held_tensor != block.tensor) continue;
    if (const auto part = intersect(transfer.box, block.box)) rotten_.emplace_back(transfer, *part);
  }
}

void BoxLedger::note_corrupt(std::span<const move::TransferPart> parts) {
  for (const move::TransferPart& part : parts) {
    on_corrupt(*sources_[part.transfer->peer], tensor_of(*part.transfer), part.box);
  }
}

// Blocks that nothing was read of are not of this restore.
void BoxLedger::note_corrupt(const Source& source, std::span<const wire::RequestedBox> blocks) {
  for (const wire::RequestedBox& block : blocks) {
    const auto touched = std::ranges::find_if(transfers_, [&](const move::Transfer& one) {
      return one.peer == source.index() && one.held_tensor == block.tensor && one.box.dims() == block.box.dims() &&
             intersect(one.box, block.box);
    });
    if (touched == transfers_.end()) {
      throw Error(ErrorCode::transport_failed,
                  fmt::format("source rank {} reports corrupt blocks that were not asked for", to_int(source.rank())),
                  std::vector<Rank>{source.rank()});
    }
    on_corrupt(source, tensor_of(*touched), block.box);
  }
}

void BoxLedger::on_corrupt(const Source& source, TensorId tensor, const Box& where) {
  const TensorKey& key = target_.wanted.manifest->tensors[to_index(tensor)].spec.key;
  const CorruptBox box{key.fqn, key.state, where, source.rank()};
  const auto is_known = [&](const FoundCorrupt& one) { return one.holder == source.holder() && one.box == box; };
  if (std::ranges::any_of(corrupt_, is_known)) return;  // several requests touch one block
  const std::string text = fmt::format("{}:{} {} is not what source rank {} has published", box.fqn, box.state,
                                       to_string(box.box), to_int(box.source));
  context_.log(LogLevel::warning, text);
  corrupt_.push_back({tensor, source.holder(), box});
  if (target_.outlives_sources) return;  // another attempt moves it again
  throw Error(ErrorCode::corrupt, text,
              std::vector<Gap>{{box.fqn, box.state, box.box, target_.catalog().layout_rank()}},
              std::vector<Rank>{box.source});
}

}  // namespace shardwire::restore

// SPDX-License-Identifier: Apache-2.0
#include "restore/replica_checks.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "restore/transfers.hpp"
#include "restore/verdict.hpp"
#include "support/list_of.hpp"

namespace shardwire::restore {

namespace {

constexpr ByteCount max_element_bytes = 4u << 20;
constexpr std::size_t max_boxes_at_once = 1024;  // in one request, or one batch
constexpr ByteCount max_bytes_at_once = 16u << 20;
constexpr int max_batches = 4;  // as many as a session has threads for copies

std::vector<Binding> bindings_of_holders(const Planning& planning) {
  std::vector<Binding> bindings;
  for (const OtherHolders::OfRank& holder : planning.others.ranks()) {
    Binding& binding = bindings.emplace_back();
    binding.holder = holder.rank;
    binding.layout_rank = planning.from.rank_of(holder.rank);
    binding.record = record_of(planning, holder.rank);
    binding.manifest = planning.from.sections[holder.section].manifest;
    std::set<std::uint32_t> tensors;
    for (const OtherHolders::Part& part : holder.parts) tensors.insert(to_index(part.held));
    binding.tensors.assign(tensors.begin(), tensors.end());
  }
  return bindings;
}

Source::Options options_of_holders(const Target& target) {
  return {.from = target.options.name,
          .fabrics = {.deadline = target.deadline, .connect = SourceFabrics::Connect::none}};
}

}  // namespace

ComparedBoxes boxes_to_compare(const Planning& planning, const Manifest& wanted) {
  ComparedBoxes boxes;
  // First element and end of each region of each piece.
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::pair<std::uint32_t, std::uint32_t>> known;
  std::vector<Box> parts;
  const auto size = [&] { return static_cast<std::uint32_t>(boxes.elements.size()); };
  for (const OtherHolders::OfRank& holder : planning.others.ranks()) {
    std::vector<ComparedBoxes::Held>& held = boxes.by_holder.emplace_back();
    for (const OtherHolders::Part& part : holder.parts) {
      const auto [entry, fresh] = known.try_emplace({part.piece, part.region});
      if (fresh) {
        const TensorSpec& spec = wanted.tensors[to_index(planning.plan.pieces[part.piece].tensor)].spec;
        parts.clear();
        move::split(planning.others.box(part), static_cast<ElementCount>(max_element_bytes / item_size(spec.dtype)),
                    parts);
        entry->second.first = size();
        for (const Box& box : parts) boxes.elements.push_back({part.piece, box});
        entry->second.second = size();
      }
      for (std::uint32_t i = entry->second.first; i < entry->second.second; ++i) {
        held.push_back({i, to_index(part.held)});
      }
    }
  }
  return boxes;
}

std::optional<Error> differing_replicas(const ComparedBoxes& boxes, const std::vector<Digest128>& own,
                                        const std::vector<std::vector<Digest128>>& theirs, const Planning& planning,
                                        const Manifest& wanted, Rank target) {
  std::map<std::uint32_t, std::vector<Rank>> differ;  // ranks by element, ascending
  std::set<Rank> all;
  for (std::size_t i = 0; i < theirs.size(); ++i) {
    const Rank rank = planning.others.ranks()[i].rank;
    for (std::size_t k = 0; k < theirs[i].size(); ++k) {
      const std::uint32_t element = boxes.by_holder[i][k].element;
      if (theirs[i][k] == own[element]) continue;
      differ[element].push_back(rank);
      all.insert(rank);
    }
  }
  if (differ.empty()) return std::nullopt;
  std::vector<Gap> gaps;
  std::set<TensorKey> tensors;
  for (const auto& [element, ranks] : differ) {
    const ComparedBoxes::Element& one = boxes.elements[element];
    gaps.push_back(gap_of(planning, wanted, one.piece, one.box, target));
    tensors.insert({gaps.back().fqn, gaps.back().state});
  }
  const auto& [element, ranks] = *differ.begin();
  const Piece& piece = planning.plan.pieces[boxes.elements[element].piece];
  std::string text = fmt::format("replicas differ: {}:{} {} of {} is not equal to that of source rank {}",
                                 gaps.front().fqn, gaps.front().state, to_string(gaps.front().box),
                                 source_ranks_text(ranks), to_int(planning.plan.holder_sets[piece.holders].front()));
  if (gaps.size() > 1) {
    text += fmt::format("; {} boxes of {} differ", gaps.size(), support::counted(tensors.size(), "tensor"));
  }
  return Error(ErrorCode::layout_mismatch, text, std::move(gaps), std::vector<Rank>(all.begin(), all.end()));
}

ReplicaChecks::ReplicaChecks(const Context& context, Reports reports, Target& target, const PathInputs& paths,
                             const Planning& planning)
    : context_(context),
      reports_(std::move(reports)),
      target_(target),
      planning_(planning),
      callbacks_(reports_.failed),
      sources_(make_sources(context, *this, paths, options_of_holders(target), bindings_of_holders(planning))) {
}

// --- leases ---

void ReplicaChecks::start() {
  for (const auto& source : sources_) {
    if (!stopped_) source->start(Source::Leasing::first);
  }
}

void ReplicaChecks::when_leased(std::function<void()> then) {
  if (have_reached(sources_, Source::State::bound)) return then();
  when_leased_ = std::move(then);
}

void ReplicaChecks::on_bound(Source&) {
  if (stopped_ || !when_leased_ || !have_reached(sources_, Source::State::bound)) return;
  callbacks_.run(std::exchange(when_leased_, nullptr));
}

// --- digests ---

void ReplicaChecks::compare(std::function<void()> equal) {
  comparing_ = true;
  when_equal_ = std::move(equal);
  callbacks_.run([this] {
    when_leased([this] {
      if (!stopped_) begin();
    });
  });
}

void ReplicaChecks::begin() {
  boxes_ = boxes_to_compare(planning_, *target_.wanted.manifest);
  own_.resize(boxes_.elements.size());
  theirs_.resize(boxes_.by_holder.size());
  asked_.assign(boxes_.by_holder.size(), 0);
  due_ = theirs_.size() + 1;
  for (std::size_t i = 0; i < theirs_.size(); ++i) {
    theirs_[i].reserve(boxes_.by_holder[i].size());
    if (!sources_[i]->binding().is_own()) {
      ask(i);
      continue;
    }
    here_ = i;
    theirs_[i].resize(boxes_.by_holder[i].size());
    --due_;
  }
  digest_more();
}

// One request at a time: a holder serves other readers too.
void ReplicaChecks::ask(std::size_t holder) {
  const std::vector<ComparedBoxes::Held>& held = boxes_.by_holder[holder];
  std::size_t& next = asked_[holder];
  if (next == held.size()) return one_done();
  std::vector<wire::RequestedBox> boxes;
  for (ByteCount bytes = 0; next < held.size() && boxes.size() < max_boxes_at_once && bytes < max_bytes_at_once;
       ++next) {
    const ComparedBoxes::Element& element = boxes_.elements[held[next].element];
    boxes.push_back({held[next].tensor, element.box});
    bytes += bytes_of(element);
  }
  const std::size_t count = boxes.size();
  sources_[holder]->requests().ask_for_digests(
      std::move(boxes), [this, holder, count](const std::vector<Digest128>& digests) {
        if (digests.size() != count) {
          throw Error(
              ErrorCode::transport_failed,
              fmt::format("source rank {} sent another number of digests than asked", to_int(sources_[holder]->rank())),
              std::vector<Rank>{sources_[holder]->rank()});
        }
        theirs_[holder].insert(theirs_[holder].end(), digests.begin(), digests.end());
        callbacks_.run([&] { ask(holder); });
      });
}

// Boxes of this process, a few batches at a time.
void ReplicaChecks::digest_more() {
  const std::size_t end = boxes_.elements.size() + (here_ ? boxes_.by_holder[*here_].size() : 0);
  while (!stopped_ && digesting_ < max_batches && next_local_ < end) {
    const std::size_t first = next_local_;
    const auto copies = std::make_shared<std::vector<memory::QueuedCopy>>();  // owner: the batch
    bool on_devices = false;
    for (ByteCount bytes = 0; next_local_ < end && copies->size() < max_boxes_at_once && bytes < max_bytes_at_once;
         ++next_local_) {
      copies->push_back(local_copy(next_local_));
      bytes += copies->back().copy.bytes();
      on_devices = on_devices || copies->back().source_device != memory::on_host;
    }
    ++digesting_;
    context_.copies.submit({.count = copies->size(),
                            .copy = [copies](std::size_t index) { return (*copies)[index]; },
                            .work = memory::CopyWork::digest,
                            .on_devices = on_devices},
                           [this, first, alive = std::weak_ptr<bool>(alive_)](const memory::CopyResult& result) {
                             if (!alive.expired()) digested(first, result);
                           });
  }
  if (local_done_ == end && digesting_ == 0) one_done();
}

void ReplicaChecks::digested(std::size_t first, const memory::CopyResult& result) {
  --digesting_;
  if (stopped_) return reports_.quieter();
  digest_seconds_ += result.digest_seconds;
  callbacks_.run([&] {
    if (result.error) std::rethrow_exception(result.error);
    for (std::size_t i = 0; i < result.digests.size(); ++i) {
      const std::size_t index = first + i;
      (index < own_.size() ? own_[index] : theirs_[*here_][index - own_.size()]) = result.digests[i];
    }
    local_done_ += result.digests.size();
    digest_more();
  });
}

memory::QueuedCopy ReplicaChecks::local_copy(std::size_t index) {
  if (index >= own_.size()) return own_copy(boxes_.by_holder[*here_][index - own_.size()]);
  const ComparedBoxes::Element& element = boxes_.elements[index];
  const TensorLayout& tensor = wanted_tensor(element);
  const std::size_t entry = to_index(planning_.plan.pieces[element.piece].tensor);
  const View& view = target_.catalog().entries()[entry].view;
  const PlacedBox& placed = box_around(
      target_.placed.of(tensor.layout, tensor.spec.shape, target_.catalog().layout_rank(), view.strides), element.box);
  return {memory::StridedCopy(element.box, placed, memory::packed(element.box), item_size(tensor.spec.dtype)),
          static_cast<const std::byte*>(view.data), nullptr, device_of(target_.places, entry)};
}

memory::QueuedCopy ReplicaChecks::own_copy(const ComparedBoxes::Held& held) {
  const Binding& binding = sources_[*here_]->binding();
  const ComparedBoxes::Element& element = boxes_.elements[held.element];
  const TensorLayout& tensor = binding.manifest->tensors[held.tensor];
  const auto& own = binding.own->tensors[held.tensor];
  const PlacedBox& placed =
      box_around(target_.placed.of(tensor.layout, tensor.spec.shape, binding.layout_rank, own.strides), element.box);
  return {memory::StridedCopy(element.box, placed, memory::packed(element.box), item_size(tensor.spec.dtype)), own.data,
          nullptr, own.device()};
}

void ReplicaChecks::one_done() {
  if (--due_ > 0 || stopped_) return;
  if (auto error = differing_replicas(boxes_, own_, theirs_, planning_, *target_.wanted.manifest,
                                      target_.catalog().layout_rank())) {
    throw Error(*std::move(error));
  }
  for (const auto& source : sources_) {
    if (!stopped_) source->confirm(false);
  }
}

void ReplicaChecks::on_confirmed(Source&) {
  if (stopped_ || !have_reached(sources_, Source::State::released)) return;
  comparing_ = false;
  callbacks_.run(std::exchange(when_equal_, nullptr));
}

// --- the end ---

void ReplicaChecks::release() {
  for (const auto& source : sources_) source->release();
  callbacks_.end();
}

// --- queries ---

const TensorLayout& ReplicaChecks::wanted_tensor(const ComparedBoxes::Element& element) const {
  return target_.wanted.manifest->tensors[to_index(planning_.plan.pieces[element.piece].tensor)];
}

ByteCount ReplicaChecks::bytes_of(const ComparedBoxes::Element& element) const {
  return move::bytes_of_box(element.box, item_size(wanted_tensor(element).spec.dtype));
}

}  // namespace shardwire::restore

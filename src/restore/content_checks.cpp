// SPDX-License-Identifier: Apache-2.0
#include "restore/content_checks.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "geometry/strides.hpp"
#include "move/traits.hpp"

namespace shardwire::restore {

namespace {

bool loads(const move::Transfer& transfer) {
  const move::Carrier carrier = move::carrier_of(transfer.method);
  return carrier == move::Carrier::mapping || carrier == move::Carrier::process;
}

bool has_digests(const Binding& binding) {
  return binding.is_own() ? binding.own->digests.has_value() : binding.digests;
}

move::Blocks blocks_of(const Binding& binding, std::uint32_t tensor) {
  const TensorLayout& layout = binding.manifest->tensors.at(tensor);
  const Extents& strides = binding.handles[binding.position_of(tensor)].strides;
  return {place_boxes(layout.layout, layout.spec.shape, binding.layout_rank, strides).all(),
          item_size(layout.spec.dtype)};
}

/// A block in memory that can be loaded, with its published digest.
struct Loaded {
  std::size_t source = 0;
  wire::RequestedBox block;
  memory::QueuedCopy copy;
  Digest128 published;
};

constexpr std::size_t max_parts_per_check = 1024;
constexpr ByteCount max_bytes_per_check = 64u << 20;

std::vector<wire::RequestedBox> boxes_of(std::span<const move::TransferPart> parts) {
  std::vector<wire::RequestedBox> boxes;
  boxes.reserve(parts.size());
  for (const move::TransferPart& part : parts) boxes.push_back({part.transfer->held_tensor, part.box});
  return boxes;
}

}  // namespace

ContentChecks::ContentChecks(memory::CopyQueue& copies, const Sources& sources, Reports reports,
                             std::shared_ptr<BlockDigests> wanted)
    : copies_(copies),
      sources_(sources),
      reports_(std::move(reports)),
      callbacks_(reports_.failed),
      wanted_(std::move(wanted)),
      of_sources_(sources.size()) {
}

void ContentChecks::compare(std::function<void()> done) {
  done_ = std::move(done);
  awaited_ = Awaited::published;
  go_on();
}

// A lost source answers no more.
void ContentChecks::go_on() {
  if (stopped_ || awaited_ == Awaited::nothing) return;
  const auto count = awaited_ == Awaited::published ? &OfSource::unanswered : &OfSource::due;
  for (std::size_t i = 0; i < of_sources_.size(); ++i) {
    if (of_sources_[i].*count > 0 && sources_[i]->state() != Source::State::lost) return;
  }
  if (std::exchange(awaited_, Awaited::nothing) == Awaited::published) return check_blocks();
  std::exchange(done_, nullptr)();
}

// --- blocks with the digests that were published ---

void ContentChecks::start(std::span<const move::Transfer> transfers) {
  transfers_ = transfers;
  for (const move::Transfer& transfer : transfers) {
    const Binding& binding = sources_[transfer.peer]->binding();
    if ((!loads(transfer) && !wanted_) || !has_digests(binding)) continue;
    auto& tensors = of_sources_[transfer.peer].tensors;
    if (tensors.contains(transfer.held_tensor)) continue;
    Tensor& known = tensors[transfer.held_tensor];
    if (!binding.is_own()) {
      known.blocks = blocks_of(binding, transfer.held_tensor);
      continue;
    }
    const PublishedDigests::Tensor& own = binding.own->digests->tensors.at(transfer.held_tensor);
    known = {own.blocks, own.digests};
    note_wanted(transfer.held_tensor, known);
  }
  for (std::size_t i = 0; i < of_sources_.size(); ++i) {
    if (!sources_[i]->binding().is_own()) ask_for_published(i);
  }
}

void ContentChecks::note_wanted(std::uint32_t tensor, const Tensor& known) {
  if (wanted_ && known.digests.size() == known.blocks.size()) (*wanted_)[tensor] = known.digests;
}

// Requests of as many blocks as one answer holds.
void ContentChecks::ask_for_published(std::size_t source) {
  OfSource& of = of_sources_[source];
  std::vector<wire::BlockRequest::Range> ranges;
  std::size_t blocks = 0;
  const auto send = [&] {
    if (blocks == 0) return;
    ++of.unanswered;
    sources_[source]->requests().ask_for_blocks(
        ranges, callbacks_.wrap([this, &of, ranges](const std::vector<Digest128>& digests) {
          if (stopped_) return;
          auto next = digests.begin();
          for (const auto& [tensor, first, count] : ranges) {
            auto& all = of.tensors.at(tensor).digests;
            for (std::uint32_t i = 0; i < count; ++i, ++next) all.push_back(*next);
            note_wanted(tensor, of.tensors.at(tensor));
          }
          --of.unanswered;
          go_on();
        }));
    ranges.clear();
    blocks = 0;
  };
  for (const auto& [tensor, of_tensor] : of.tensors) {
    for (std::size_t first = 0; first < of_tensor.blocks.size();) {
      const std::size_t count = std::min(of_tensor.blocks.size() - first, wire::max_boxes_per_message - blocks);
      ranges.push_back({tensor, static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(count)});
      first += count;
      blocks += count;
      if (blocks == wire::max_boxes_per_message) send();
    }
  }
  send();
}

void ContentChecks::check_blocks() {
  std::set<std::tuple<std::size_t, std::uint32_t, std::uint32_t>> taken;  // source, tensor, block
  const auto all = std::make_shared<std::vector<Loaded>>();               // owners: the batch and its completion
  std::vector<std::uint32_t> found;
  bool on_devices = false;
  for (const move::Transfer& transfer : transfers_) {
    const OfSource& of = of_sources_[transfer.peer];
    const auto known = of.tensors.find(transfer.held_tensor);
    if (!loads(transfer) || known == of.tensors.end() || of.unanswered > 0) continue;
    const Tensor& tensor = known->second;
    tensor.blocks.touching(transfer.box, found);
    for (const std::uint32_t block : found) {
      if (!taken.emplace(transfer.peer, transfer.held_tensor, block).second) continue;
      const Box& box = tensor.blocks[block];
      on_devices = on_devices || transfer.source_device != memory::on_host;
      all->push_back({transfer.peer,
                      {transfer.held_tensor, box},
                      {memory::StridedCopy(box, tensor.blocks.held(block), memory::packed(box), transfer.item_bytes),
                       transfer.source, nullptr, transfer.source_device, memory::on_host, transfer.source_isolated},
                      tensor.digests[block]});
    }
  }
  if (all->empty()) return ask_for_taken();
  // The memory stays mapped while it is read, even if the session ends.
  std::vector<std::vector<SourceRegion>> regions;
  for (std::size_t i = 0; i < of_sources_.size(); ++i) {
    if (!of_sources_[i].tensors.empty()) regions.push_back(sources_[i]->binding().regions);
  }
  const std::size_t count = all->size();
  ++*running_;
  copies_.submit({.count = count,
                  .copy = [all, regions = std::move(regions)](std::size_t index) { return (*all)[index].copy; },
                  .work = memory::CopyWork::digest,
                  .on_devices = on_devices},
                 [running = running_, then = callbacks_.wrap([this, all](const memory::CopyResult& result) {
                   if (stopped_) return reports_.quieter();
                   digest_seconds_ += result.digest_seconds;
                   if (result.error) std::rethrow_exception(result.error);
                   for (std::size_t i = 0; i < all->size(); ++i) {
                     const Loaded& one = (*all)[i];
                     if (result.digests[i] != one.published) {
                       reports_.block_differs(*sources_[one.source], one.block);
                     }
                   }
                   ask_for_taken();
                 })](const memory::CopyResult& result) mutable {
                   --*running;
                   then(result);
                 });
}

// --- parts with digests that their sources take ---

void ContentChecks::add(const move::TransferPart& part, const Digest128& digest) {
  auto& checks = of_sources_[part.transfer->peer].checks;
  const bool full =
      checks.empty() || checks.back().parts.size() >= max_parts_per_check || checks.back().bytes >= max_bytes_per_check;
  Check& check = full ? checks.emplace_back() : checks.back();
  check.parts.push_back(part);
  check.digests.push_back(digest);
  check.bytes += part.bytes();
}

void ContentChecks::ask_for_taken() {
  for (std::size_t i = 0; i < of_sources_.size(); ++i) {
    for (Check& one : std::exchange(of_sources_[i].checks, {})) {
      if (sources_[i]->state() != Source::State::lost) ask_for_taken(i, std::move(one));
    }
  }
  awaited_ = Awaited::taken;
  go_on();
}

void ContentChecks::ask_for_taken(std::size_t source, Check check) {
  ++of_sources_[source].due;
  const auto asked = std::make_shared<const Check>(std::move(check));  // owner: the answer's callbacks
  const auto answered = [this, source] {
    --of_sources_[source].due;
    go_on();
  };
  sources_[source]->requests().ask_for_digests(
      boxes_of(asked->parts),
      [this, asked, answered](const std::vector<Digest128>& theirs) {
        if (theirs.size() != asked->parts.size()) {
          throw Error(ErrorCode::transport_failed, "a source sent another number of digests than asked");
        }
        std::vector<move::TransferPart> wrong;
        for (std::size_t part = 0; part < theirs.size(); ++part) {
          if (asked->digests[part] != theirs[part]) wrong.push_back(asked->parts[part]);
        }
        if (!wrong.empty()) reports_.parts_differ(wrong, {});
        answered();
      },
      [this, asked, answered](const std::vector<wire::RequestedBox>& blocks) {
        reports_.parts_differ(asked->parts, blocks);
        answered();
      });
}

Error differing_parts(std::span<const move::TransferPart> parts, const Planning& planning, const Manifest& manifest,
                      Rank target, Rank source) {
  std::vector<Gap> gaps;
  for (const move::TransferPart& part : parts) {
    gaps.push_back(gap_of(planning, manifest, part.transfer->piece, part.box, target));
  }
  const Gap& first = gaps.front();
  return {ErrorCode::transport_failed,
          fmt::format("{} boxes differ from their source after the move, the first is {}:{} {} from source rank {}",
                      gaps.size(), first.fqn, first.state, to_string(first.box), to_int(source)),
          gaps,
          {source}};
}

}  // namespace shardwire::restore

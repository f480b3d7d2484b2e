// SPDX-License-Identifier: Apache-2.0
#include "restore/block_checks.hpp"

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

BlockChecks::BlockChecks(const Context& context, const Sources& sources, Callbacks::Failed failed,
                         std::function<void()> quieter, std::shared_ptr<BlockDigests> wanted)
    : context_(context),
      sources_(sources),
      callbacks_(std::move(failed)),
      quieter_(std::move(quieter)),
      wanted_(std::move(wanted)) {
}

void BlockChecks::stop() {
  stopped_ = true;
  done_ = nullptr;
}

void BlockChecks::start(std::span<const move::Transfer> transfers) {
  for (const move::Transfer& transfer : transfers) {
    const Binding& binding = sources_[transfer.peer]->binding();
    if ((!loads(transfer) && !wanted_) || !has_digests(binding)) continue;
    auto& tensors = known_[transfer.peer].tensors;
    if (tensors.contains(transfer.held_tensor)) continue;
    if (binding.is_own()) {
      const PublishedDigests::Tensor& own = binding.own->digests->tensors.at(transfer.held_tensor);
      tensors[transfer.held_tensor] = {own.blocks, own.digests};
      note_wanted(transfer.held_tensor, tensors[transfer.held_tensor]);
    } else {
      tensors[transfer.held_tensor].blocks = blocks_of(binding, transfer.held_tensor);
    }
  }
  for (const auto& [source, known] : known_) {
    if (!sources_[source]->binding().is_own()) ask(source);
  }
}

void BlockChecks::note_wanted(std::uint32_t tensor, const Tensor& known) {
  if (wanted_ && known.digests.size() == known.blocks.size()) (*wanted_)[tensor] = known.digests;
}

// Requests of as many blocks as one answer holds.
void BlockChecks::ask(std::size_t source) {
  Known& known = known_[source];
  std::vector<wire::BlockRequest::Range> ranges;
  std::size_t blocks = 0;
  const auto send = [&] {
    if (blocks == 0) return;
    ++known.unanswered;
    sources_[source]->requests().ask_for_blocks(
        ranges, callbacks_.wrap([this, &known, ranges](const std::vector<Digest128>& digests) {
          if (stopped_) return;
          auto next = digests.begin();
          for (const auto& [tensor, first, count] : ranges) {
            auto& all = known.tensors.at(tensor).digests;
            for (std::uint32_t i = 0; i < count; ++i, ++next) all.push_back(*next);
            note_wanted(tensor, known.tensors.at(tensor));
          }
          --known.unanswered;
          check_if_ready();
        }));
    ranges.clear();
    blocks = 0;
  };
  for (const auto& [tensor, of_tensor] : known.tensors) {
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

bool BlockChecks::can_check(std::size_t source) const {
  const auto found = known_.find(source);
  return found == known_.end() || found->second.unanswered == 0;
}

void BlockChecks::check(std::span<const move::Transfer> transfers, Differ differ, std::function<void()> done) {
  transfers_ = transfers;
  differ_ = std::move(differ);
  done_ = std::move(done);
  check_if_ready();
}

void BlockChecks::check_if_ready() {
  if (!done_) return;
  const bool ready = std::ranges::all_of(known_, [this](const auto& one) {
    return one.second.unanswered == 0 || sources_[one.first]->state() == Source::State::lost;
  });
  if (ready) check_now();
}

void BlockChecks::check_now() {
  const auto done = std::exchange(done_, nullptr);
  std::set<std::tuple<std::size_t, std::uint32_t, std::uint32_t>> taken;  // source, tensor, block
  const auto all = std::make_shared<std::vector<Loaded>>();               // owners: the batch and its completion
  std::vector<std::uint32_t> found;
  bool on_devices = false;
  for (const move::Transfer& transfer : transfers_) {
    const auto of_source = known_.find(transfer.peer);
    if (!loads(transfer) || of_source == known_.end() || of_source->second.unanswered > 0) continue;
    const Tensor& tensor = of_source->second.tensors.at(transfer.held_tensor);
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
  if (all->empty()) return done();
  // The memory stays mapped while it is read, even if the session ends.
  std::vector<std::vector<SourceRegion>> regions;
  for (const auto& [source, known] : known_) regions.push_back(sources_[source]->binding().regions);
  const std::size_t count = all->size();
  ++*running_;
  context_.copies.submit(
      {.count = count,
       .copy = [all, regions = std::move(regions)](std::size_t index) { return (*all)[index].copy; },
       .work = memory::CopyWork::digest,
       .on_devices = on_devices},
      [running = running_, then = callbacks_.wrap([this, all, done](const memory::CopyResult& result) {
        if (stopped_) return quieter_();
        if (result.error) std::rethrow_exception(result.error);
        for (std::size_t i = 0; i < all->size(); ++i) {
          const Loaded& one = (*all)[i];
          if (result.digests[i] != one.published) differ_(*sources_[one.source], one.block);
        }
        done();
      })](const memory::CopyResult& result) mutable {
        --*running;
        then(result);
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

void DigestChecks::add(const move::TransferPart& part, const Digest128& digest) {
  auto& checks = by_source_[part.transfer->peer];
  const bool full =
      checks.empty() || checks.back().parts.size() >= max_parts_per_check || checks.back().bytes >= max_bytes_per_check;
  Check& check = full ? checks.emplace_back() : checks.back();
  check.parts.push_back(part);
  check.digests.push_back(digest);
  check.bytes += part.bytes();
}

void DigestChecks::ask(const Sources& sources, Differ differ, std::function<void()> done) {
  done_ = std::move(done);
  due_.assign(by_source_.size() + 1, 0);
  due_.back() = 1;  // this call
  for (std::size_t i = 0; i < by_source_.size(); ++i) due_[i] = by_source_[i].size();
  for (std::size_t i = 0; i < by_source_.size(); ++i) {
    for (Check& one : std::exchange(by_source_[i], {})) {
      const auto check = std::make_shared<Check>(std::move(one));  // owner: the answer's callback
      sources[i]->requests().ask_for_digests(
          boxes_of(check->parts),
          [this, i, check, differ](const std::vector<Digest128>& theirs) {
            if (theirs.size() != check->parts.size()) {
              throw Error(ErrorCode::transport_failed, "a source sent another number of digests than asked");
            }
            std::vector<move::TransferPart> wrong;
            for (std::size_t part = 0; part < theirs.size(); ++part) {
              if (check->digests[part] != theirs[part]) wrong.push_back(check->parts[part]);
            }
            if (!wrong.empty()) differ(wrong, {});
            answered(i);
          },
          [this, i, check, differ](const std::vector<wire::RequestedBox>& blocks) {
            differ(check->parts, blocks);
            answered(i);
          });
    }
  }
  answered(by_source_.size());
}

void DigestChecks::forget(std::size_t source) {
  by_source_[source].clear();
  if (due_.empty() || due_[source] == 0) return;
  due_[source] = 1;
  answered(source);
}

void DigestChecks::answered(std::size_t source) {
  --due_[source];
  const bool all = std::ranges::all_of(due_, [](std::size_t due) { return due == 0; });
  if (all && done_) std::exchange(done_, nullptr)();
}

}  // namespace shardwire::restore

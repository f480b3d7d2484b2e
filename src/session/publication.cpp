// SPDX-License-Identifier: Apache-2.0
#include "session/publication.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

#include "memory/strided_copy.hpp"
#include "support/checked.hpp"
#include "support/list_of.hpp"

namespace shardwire {

std::shared_ptr<const Manifest> manifest_of(const Catalog& catalog) {
  auto manifest = std::make_shared<Manifest>();
  manifest->ranks = catalog.ranks();
  manifest->tensors.reserve(catalog.entries().size());
  for (const Catalog::Entry& entry : catalog.entries()) manifest->tensors.push_back({entry.spec, entry.layout});
  manifest->aliases = catalog.aliases();
  std::ranges::sort(manifest->aliases, {}, &Alias::alias);
  return manifest;
}

DescribedCatalog describe(const Catalog& held) {
  DescribedCatalog result;
  result.manifest = manifest_of(held);
  result.encoded_manifest = wire::encode_manifest(*result.manifest);
  result.manifest_digest = wire::digest_of(result.encoded_manifest);
  std::vector<wire::NamedValue> values;
  for (const Catalog::ValueEntry& entry : held.values()) values.push_back({entry.key, entry.value});
  result.encoded_values = wire::encode_values(std::move(values));
  result.values_digest = wire::digest_of(result.encoded_values);
  return result;
}

const PlacedBoxes& boxes_of(const Catalog::Entry& entry, Rank place, BoxCache& cache) {
  return cache.of(entry.layout, entry.spec.shape, place, entry.view.strides);
}

namespace detail {

namespace {

// Copies what is held of `tensor` to `to`, which stands for its local element 0.
void copy_elements(const PublicationState::Tensor& tensor, const PlacedBoxes& boxes, ByteCount item_bytes,
                   std::byte* to) {
  if (boxes.elements() == boxes.local_past()) {  // as many as fit: there is nothing in between
    std::memcpy(to, tensor.data, tensor.bytes);
    return;
  }
  for (const PlacedBox& placed : boxes.all()) {
    memory::StridedCopy(placed.box, placed, placed, item_bytes).run_all(tensor.data, to);
  }
}

}  // namespace

void PublicationState::use_in_place(const Catalog& held, const ArenaTable& arenas) {
  BoxCache boxes;
  for (const Catalog::Entry& entry : held.entries()) {
    Tensor& tensor = tensors.emplace_back();
    tensor.data = static_cast<const std::byte*>(entry.view.data);
    tensor.bytes = support::multiply(static_cast<ByteCount>(boxes_of(entry, place, boxes).local_past()),
                                     item_size(entry.spec.dtype), "the local size of a tensor");
    tensor.strides = entry.view.strides;
    if (tensor.bytes > 0) tensor.arena = arenas.find(tensor.data, tensor.bytes);
  }
}

void PublicationState::copy_from(const Catalog& held, ArenaTable& arenas) {
  use_in_place(held, arenas);
  // Where each stretch of memory that tensors share begins in the copy, ascending by address.
  std::vector<Tensor*> order;
  for (Tensor& tensor : tensors) {
    if (tensor.bytes > 0) order.push_back(&tensor);
  }
  std::sort(order.begin(), order.end(), [](const Tensor* a, const Tensor* b) { return a->data < b->data; });
  std::vector<ByteCount> at(order.size());
  ByteCount total = 0;
  const std::byte* stretch = nullptr;
  const std::byte* past = nullptr;
  ByteCount stretch_at = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (stretch == nullptr || order[i]->data >= past) {
      stretch = past = order[i]->data;
      stretch_at = total;
    }
    at[i] = stretch_at + static_cast<ByteCount>(order[i]->data - stretch);
    past = std::max(past, order[i]->data + order[i]->bytes);
    total = stretch_at + static_cast<ByteCount>(past - stretch);
  }
  snapshot = arenas.allocate(total);
  std::byte* const memory = snapshot->region().bytes().data();
  BoxCache boxes;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const Catalog::Entry& entry = held.entries()[static_cast<std::size_t>(order[i] - tensors.data())];
    copy_elements(*order[i], boxes_of(entry, place, boxes), item_size(entry.spec.dtype), memory + at[i]);
  }
  for (std::size_t i = 0; i < order.size(); ++i) {
    order[i]->data = memory + at[i];
    order[i]->arena = snapshot;
  }
}

const PlacedBoxes& PublicationState::placed(std::uint32_t tensor) {
  const auto found = placed_.find(tensor);
  if (found != placed_.end()) return found->second;
  const TensorLayout& layout = described.manifest->tensors.at(tensor);
  return placed_.emplace(tensor, place_boxes(layout.layout, layout.spec.shape, place, tensors.at(tensor).strides))
      .first->second;
}

}  // namespace detail

// --- the public handle ---

Publication::Publication() = default;
Publication::Publication(Publication&&) noexcept = default;
Publication& Publication::operator=(Publication&& other) noexcept {
  std::swap(state_, other.state_);
  return *this;
}
Publication::Publication(std::shared_ptr<detail::PublicationState> state) : state_(std::move(state)) {
}
Publication::~Publication() {
  if (state_) state_->retire(Duration::zero());
}

void Publication::retire(Duration timeout) {
  if (!state_) return;
  const std::vector<int> readers = state_->retire(timeout);
  if (readers.empty()) return;
  std::vector<Rank> ranks;
  for (const int reader : readers) ranks.push_back(Rank{reader});
  throw Error(ErrorCode::timed_out,
              fmt::format("'{}' was retired while members {} still read it; their leases are revoked", state_->name,
                          support::list_of(readers)),
              std::move(ranks));
}

}  // namespace shardwire

// SPDX-License-Identifier: Apache-2.0
#include "session/publication.hpp"

#include <fmt/ranges.h>

#include "support/checked.hpp"

namespace shardwire {

std::shared_ptr<const Manifest> manifest_of(const Catalog& catalog) {
  auto manifest = std::make_shared<Manifest>();
  manifest->ranks = catalog.ranks();
  manifest->tensors.reserve(catalog.entries().size());
  for (const Catalog::Entry& entry : catalog.entries()) manifest->tensors.push_back({entry.spec, entry.layout});
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

ByteCount local_bytes(const Catalog::Entry& entry, Rank place) {
  const auto elements = static_cast<ByteCount>(entry.layout.local_elements(entry.spec.shape, place));
  return support::multiply(elements, item_size(entry.spec.dtype), "the local size of a tensor");
}

namespace detail {

const PlacedBoxes& PublicationState::placed(std::uint32_t tensor) {
  const auto found = placed_.find(tensor);
  if (found != placed_.end()) return found->second;
  const TensorLayout& layout = described.manifest->tensors.at(tensor);
  return placed_.emplace(tensor, PlacedBoxes(layout.layout.boxes_of(layout.spec.shape, place))).first->second;
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
                          fmt::join(readers, ", ")),
              std::move(ranks));
}

}  // namespace shardwire

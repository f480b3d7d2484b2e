// SPDX-License-Identifier: Apache-2.0
#include "catalog/description.hpp"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "geometry/by_value.hpp"

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

DescribedCatalog described(Bytes manifest, Bytes values) {
  DescribedCatalog result;
  result.manifest = std::make_shared<const Manifest>(wire::decode_manifest(manifest));
  result.manifest_digest = wire::digest_of(manifest);
  result.encoded_manifest = std::move(manifest);
  static_cast<void>(wire::decode_values(values));
  result.values_digest = wire::digest_of(values);
  result.encoded_values = std::move(values);
  return result;
}

DescribedCatalog describe(const Catalog& held, const TensorPlaces& places, const CopyAndWait& copy) {
  DescribedCatalog result;
  result.manifest = manifest_of(held);
  result.encoded_manifest = wire::encode_manifest(*result.manifest);
  result.manifest_digest = wire::digest_of(result.encoded_manifest);
  std::vector<wire::NamedValue> values;
  values.reserve(held.values().size());
  for (const Catalog::ValueEntry& entry : held.values()) {
    // Parameters of a group follow one another, and have equal options.
    const bool repeated = !values.empty() && *values.back().value == entry.value;
    values.push_back({entry.key, repeated ? values.back().value : SharedValue(entry.value)});
  }
  BoxCache boxes;
  std::vector<std::pair<TensorKey, TensorValue>> elements;
  std::vector<memory::QueuedCopy> reads;
  for (std::size_t i = 0; i < held.entries().size(); ++i) {
    const Catalog::Entry& entry = held.entries()[i];
    if (!travels_by_value(entry.spec)) continue;
    const std::byte* element = element_of(entry, held.layout_rank(), boxes);
    if (element == nullptr) continue;
    const TensorSpec& spec = entry.spec;
    elements.emplace_back(spec.key, TensorValue{spec.dtype, spec.shape, Bytes(item_size(spec.dtype))});
    Bytes& bytes = elements.back().second.bytes;
    const int device = device_of(places, i);
    if (device == memory::on_host) {
      std::memcpy(bytes.data(), element, bytes.size());
    } else {
      reads.push_back(copy_of_bytes(element, device, bytes.data(), memory::on_host, bytes.size()));
    }
  }
  if (!reads.empty()) copy(std::move(reads));
  for (auto& [key, element] : elements) values.push_back({key, std::move(element)});
  result.encoded_values = wire::encode_values(values);
  result.values_digest = wire::digest_of(result.encoded_values);
  return result;
}

const PlacedBoxes& boxes_of(const Catalog::Entry& entry, Rank layout_rank, BoxCache& cache) {
  return cache.of(entry.layout, entry.spec.shape, layout_rank, entry.view.strides);
}

std::byte* element_of(const Catalog::Entry& entry, Rank layout_rank, BoxCache& cache) {
  const auto& boxes = boxes_of(entry, layout_rank, cache).all();
  if (boxes.empty()) return nullptr;
  return static_cast<std::byte*>(entry.view.data) +
         static_cast<ByteCount>(boxes.front().local_offset) * item_size(entry.spec.dtype);
}

}  // namespace shardwire

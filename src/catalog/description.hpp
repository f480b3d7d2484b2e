// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>

#include "catalog/tensor_places.hpp"
#include "geometry/placed_boxes.hpp"
#include "geometry/strides.hpp"
#include "shardwire/catalog.hpp"
#include "shardwire/plan.hpp"
#include "wire/messages.hpp"

namespace shardwire {

/// A catalog in its wire form: manifest and values with their digests. Pure: built on the caller's thread.
struct DescribedCatalog {
  std::shared_ptr<const Manifest> manifest;  // owners: the publication, plans and caches; immutable
  Bytes encoded_manifest;
  wire::Digest manifest_digest{};
  Bytes encoded_values;
  wire::Digest values_digest{};
};
std::shared_ptr<const Manifest> manifest_of(const Catalog& catalog);
/// From what another process has encoded. Errors: as wire::decode_manifest() and wire::decode_values().
DescribedCatalog described(Bytes manifest, Bytes values);
/// Reads the one-element tensors that this rank holds; `copy` reads those that lie on devices.
DescribedCatalog describe(const Catalog& held, const TensorPlaces& places = {}, const CopyAndWait& copy = {});
/// Places of an entry's boxes in its view.
const PlacedBoxes& boxes_of(const Catalog::Entry& entry, Rank layout_rank, BoxCache& cache);
/// Address of a one-element tensor's element; null if the rank does not hold it.
std::byte* element_of(const Catalog::Entry& entry, Rank layout_rank, BoxCache& cache);

}  // namespace shardwire

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "geometry/placed_boxes.hpp"
#include "geometry/strides.hpp"
#include "session/source/memory_table.hpp"
#include "session/tensor_places.hpp"
#include "shardwire/session.hpp"
#include "wire/messages.hpp"

namespace shardwire {

/// A catalog as it travels: manifest and values with their digests. Pure: made on the caller's thread.
struct DescribedCatalog {
  std::shared_ptr<const Manifest> manifest;  // owners: the publication, plans and caches; immutable
  Bytes encoded_manifest;
  wire::Digest manifest_digest{};
  Bytes encoded_values;
  wire::Digest values_digest{};
};
std::shared_ptr<const Manifest> manifest_of(const Catalog& catalog);
/// Reads the one-element tensors that this rank holds; `copy` reads those that lie on devices.
DescribedCatalog describe(const Catalog& held, const TensorPlaces& places = {}, const CopyAndWait& copy = {});
/// Where an entry's boxes lie in its view.
const PlacedBoxes& boxes_of(const Catalog::Entry& entry, Rank layout_rank, BoxCache& cache);
/// Where the element of a one-element tensor lies; null when the rank does not have it.
std::byte* element_of(const Catalog::Entry& entry, Rank layout_rank, BoxCache& cache);

namespace detail {

struct Lease {
  struct Tensor {
    std::uint32_t id = 0;
    bool whole = true;  ///< all that is held of it
    PlacedBoxes boxes;  ///< else these, for their index
  };
  std::uint64_t reader = 0;  ///< connection; 0: a restore of this process
  int member = 0;            ///< for messages
  bool revoked = false;
  std::vector<Tensor> tensors;  ///< ascending, each once
  std::size_t boxes = 0;        ///< in all of them
};

/// One publication, from publish() until nobody reads it. The catalog's memory is borrowed.
struct SHARDWIRE_LOCAL PublicationState {
  std::string name;
  Rank layout_rank{};
  std::int64_t step = 0;
  std::uint64_t generation = 0;
  DescribedCatalog described;
  struct Tensor {
    const std::byte* data = nullptr;  ///< local element 0
    ByteCount bytes = 0;              ///< from there to the end of the last element held
    Extents strides;                  ///< see View
    /// What the fabrics know of it, null where that is nothing. Owners: see RegisteredMemory.
    std::shared_ptr<RegisteredMemory> registered{};
    TensorPlace place{};  ///< as it was when it was published

    [[nodiscard]] int device() const { return place ? place->device : memory::on_host; }
  };
  std::vector<Tensor> tensors;  ///< in the order of the manifest; those of one element travel by value: empty
  std::shared_ptr<RegisteredMemory> snapshot;  ///< memory of a snapshot
  /// Memory that is in no arena nor registration, as far as fabrics take it unasked: all of the host's, with what lies in
  /// between, and allocations on devices, those of chunks that tensors share together.
  std::vector<std::shared_ptr<RegisteredMemory>> adopted;
  std::map<std::uint64_t, Lease> leases;  ///< loop thread only
  std::optional<ByteCount> word;          ///< see GenerationWords; loop thread only
  bool withdrawn = false;                 ///< loop thread only
  std::atomic<bool> retired = false;      ///< the memory is the caller's again
  int jobs = 0;                           ///< copies that read the memory now; loop thread only

  /// Placed boxes of one tensor that readers may have, computed on first use. Loop thread only.
  const PlacedBoxes& placed(std::uint32_t tensor);

  /// Points every tensor at the caller's memory. Before anything is served.
  void use_in_place(const Catalog& held, const TensorPlaces& places, MemoryTable& memory);
  /// Copies the elements held into an arena of its own, those on devices by `copy`. Tensors that share memory share it in the
  /// copy, once.
  void copy_from(const Catalog& held, const TensorPlaces& places, MemoryTable& memory, const CopyAndWait& copy);
  /// Errors: throws Error{withdrawn} when the tensor's memory was on a device and is no longer there: freed, or freed and taken
  ///         anew.
  void require_still_there(std::uint32_t tensor) const;

  /// What the handle calls: withdraws and blocks until nobody reads or `timeout` has passed; returns who still reads.
  std::function<std::vector<int>(Duration timeout)> retire;
  struct Update {
    const Catalog& held;
    std::int64_t step = 0;
    Snapshot snapshot = Snapshot::none;
    Duration timeout{};
  };
  /// The same with another in its place, which it sets as soon as that is shown.
  std::function<std::vector<int>(const Update& update, std::shared_ptr<PublicationState>& fresh)> replace;

 private:
  void point_at(const Catalog& held, const TensorPlaces& places, const MemoryTable& memory);
  void adopt_host_memory(MemoryTable& memory);
  void adopt_allocations(MemoryTable& memory);
  std::unordered_map<std::uint32_t, PlacedBoxes> placed_;
};

}  // namespace detail
}  // namespace shardwire

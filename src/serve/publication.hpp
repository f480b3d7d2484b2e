// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "catalog/description.hpp"
#include "catalog/tensor_places.hpp"
#include "geometry/placed_boxes.hpp"
#include "geometry/strides.hpp"
#include "runtime/interruption.hpp"
#include "runtime/release_queue.hpp"
#include "serve/memory_table.hpp"
#include "serve/published_digests.hpp"
#include "shardwire/session.hpp"
#include "wire/messages.hpp"

namespace shardwire {

namespace detail {

/// One publication, from publish() until its last reader is done. Borrows the catalog's memory.
struct SHARDWIRE_LOCAL PublicationState {
  std::string name;
  Rank layout_rank{};
  std::int64_t step = 0;
  std::uint64_t origin = 0;   ///< see wire::PublicationRecord
  std::uint32_t attempt = 0;  ///< likewise
  std::uint64_t generation = 0;
  DescribedCatalog described;
  struct Tensor {
    const std::byte* data = nullptr;  ///< local element 0
    ByteCount bytes = 0;              ///< from there to the end of the last element held
    Extents strides;                  ///< see View
    /// The fabrics' registration; null if there is none. Owners: see RegisteredMemory.
    std::shared_ptr<RegisteredMemory> registered{};
    TensorPlace place{};  ///< at the time of publishing

    [[nodiscard]] int device() const { return place ? place->device : memory::on_host; }
  };
  std::vector<Tensor> tensors;  ///< in the order of the manifest; empty for one-element tensors, which travel by value
  std::shared_ptr<RegisteredMemory> snapshot;  ///< memory of a snapshot
  /// Unregistered memory outside arenas that fabrics adopt at no cost: host memory as one range including gaps, and
  /// device allocations, merged if tensors share chunks.
  std::vector<std::shared_ptr<RegisteredMemory>> adopted;
  Keep keep{};  ///< as the caller asked, as the next two
  int buddies = 0;
  ByteCount buddy_bytes_per_second = 0;
  std::optional<PublishedDigests> digests;  ///< none: not asked for
  std::optional<ByteCount> word;            ///< see GenerationWords; loop thread only
  bool withdrawn = false;                   ///< loop thread only
  std::atomic<bool> retired = false;        ///< the caller may reuse the memory

  /// Placed boxes of one tensor that readers may request, computed on first use. Loop thread only.
  const PlacedBoxes& placed(std::uint32_t tensor);

  /// Points every tensor at the caller's memory. Call it before serving.
  void use_in_place(const Catalog& held, const TensorPlaces& places, MemoryTable& memory);
  /// Copies the held elements into memory that `allocate` gives, those on devices by `copy`. Memory shared by tensors is
  /// copied once and stays shared.
  using Allocate = std::function<std::shared_ptr<RegisteredMemory>(ByteCount bytes)>;
  void copy_from(const Catalog& held, const TensorPlaces& places, const MemoryTable& memory, const Allocate& allocate,
                 const CopyAndWait& copy);
  /// Points every tensor into memory that holds a copy already.
  /// Errors: throws Error{invalid_argument} naming a tensor that does not lie there as its layout says.
  void use_kept(const std::vector<wire::KeptTensor>& kept, std::shared_ptr<RegisteredMemory> memory);
  /// Takes `digests`. Call it after one of these, and before serving.
  void digest_blocks(const DigestAndWait& digest);
  /// The same with digests that were taken elsewhere, of all blocks of all tensors in this order.
  /// Errors: throws Error{invalid_argument} if there are more or fewer.
  void use_digests(std::span<const Digest128> taken);
  /// Errors: throws Error{withdrawn} if the tensor's device memory was freed, even if the address was allocated again.
  void require_still_there(std::uint32_t tensor) const;

  KeptOwners owners;                    ///< of published memory; released once nothing reads it
  std::weak_ptr<SessionState> session;  ///< for the handle; expired: it is closed
  Interruption interruption;            ///< of waits for its readers

 private:
  [[nodiscard]] PublishedDigests undigested_blocks();
  void set_digests(PublishedDigests blocks, std::span<const Digest128> taken);
  void point_at(const Catalog& held, const TensorPlaces& places, const MemoryTable& memory);
  void adopt_host_memory(MemoryTable& memory);
  void adopt_allocations(MemoryTable& memory);
  std::unordered_map<std::uint32_t, PlacedBoxes> placed_;
};

}  // namespace detail
}  // namespace shardwire

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "shardwire/export.hpp"
#include "shardwire/layout.hpp"
#include "shardwire/memory.hpp"
#include "shardwire/tensor.hpp"
#include "shardwire/value.hpp"

SHARDWIRE_API_BEGIN
namespace shardwire {

/// Policy for a wanted key that no source has: none of its names is in any manifest or among the values. The policy
/// applies once all ranks of the source layout have published, or once RestoreOptions::discovery_grace has passed with
/// everything else covered. A tensor with holders for only some of its elements is always an error.
enum class Absent : std::uint8_t {
  error,  ///< the restore ends with an error that names every such key
  skip,   ///< the destination stays as it is
  zero,   ///< the destination's elements become zeros at commit; not for values and one-element tensors
};

/// Sources of a wanted value, and whether they have to agree.
enum class Agree : std::uint8_t {
  authoritative,  ///< the authoritative ranks, which have to agree; see Catalog::add_value
  any,            ///< of the authoritative ranks that have the value, the lowest; nothing is compared
  per_rank,       ///< the source of this layout rank alone: state of a random generator, of a data loader
};

/// The tensors (with layout and local memory) and values that one rank holds or wants. Copies are cheap and
/// independent.
/// Ownership: borrows the memory of its views, or shares it with their owners (View::owner).
/// Threads:   const calls may run concurrently; a change needs exclusive use of the object. publish(), restore() and
///            exchange() keep the state at the time of the call: the caller may change or destroy the catalog once they
///            return.
class Catalog {
 public:
  /// `layout_rank` is this rank's number in the layouts, 0..ranks-1.
  /// Errors: throws Error{invalid_argument} if it is out of range.
  Catalog(Rank layout_rank, int ranks);

  /// Adds a tensor. `view` locates this rank's boxes; its data may be null if the rank holds no element. Ranks that
  /// declare the same tensors in the same order share one manifest, so use the same order on all ranks. Memory is read
  /// when it is published and while it stays published, not here: a catalog can be published at every step.
  /// The layout of a one-element tensor gives its holders, readers and place in memory, as for any tensor. The element
  /// itself travels by value, inside the publication: publish() reads it once, a restore writes it at commit, and no
  /// total of a report counts it. Its holders have to agree on its bytes, as for values (see add_value).
  /// The entry stores the view with its offset added to data, without its owner, and without strides that only repeat the layout. `absent`
  /// matters on the wanting side only; Absent::zero is not allowed for one-element tensors.
  /// Errors: throws Error{layout_mismatch} if the layout does not fit the shape, or the view declares another size than
  ///         the rank holds; Error{invalid_argument} for a repeated key (also under an alias), a null view for a rank
  ///         that holds elements, a view of another dtype, and strides that are negative or map two elements to one
  ///         address; Error{unsupported} for strides on a layout without one local array. publish(), restore() and
  ///         exchange() report errors of device memory.
  void add(TensorSpec spec, Layout layout, View view, Absent absent = Absent::error);
  /// Adds a value under (fqn, state); use an empty fqn for values of the whole job. On the wanting side adding the key
  /// requests it, and `value` is ignored. The value comes from the authoritative ranks: the sources that hold an
  /// element of a tensor named fqn, in any state. If no source has such a tensor, or only other sources have the value,
  /// all sources are authoritative. If every tensor of a parameter has one element, only those on the fewest ranks
  /// define authority, because a `step` also exists on ranks whose shard of the parameter is empty. Authoritative ranks
  /// have to agree, None included; else the restore fails with an error that names key, ranks and values.
  /// `agree` matters on the wanting side only, and selects other sources than that: Agree::any does not compare; if no
  /// authoritative rank has the value, the lowest rank that has it gives it. Agree::per_rank takes the value that the
  /// source with this catalog's layout rank published. Without one, also where the sources have fewer ranks, `absent`
  /// applies.
  /// Cost: a restore fetches each distinct list of values of its sources once; if it wants only Agree::per_rank values
  ///       and no one-element tensors, only that of its own layout rank. Large values that differ from rank to rank
  ///       therefore belong into a publication of their own.
  /// Errors: throws Error{invalid_argument} for a repeated key, for a value deeper than max_value_depth, and for
  ///         Absent::zero: a step of zero would break Adam's bias correction.
  void add_value(TensorKey key, Value value = {}, Absent absent = Absent::error, Agree agree = Agree::authoritative);
  /// Replaces a value added by add_value() or add_param_groups(), under any name of its parameter. Existing
  /// publications and copies of this catalog keep their value. Cost: O(log n), plus one copy of the whole catalog if it
  /// was copied since its last change.
  /// Errors: throws Error{invalid_argument} if the catalog has no value under the key, and for values that are too deep.
  void set_value(const TensorKey& key, Value value);

  /// Declares `alias` as a second name of the parameter `fqn`, with all its states and values. Each side may use any of
  /// the names; the parameter is held, wanted and moved once. Every rank that has the parameter declares its names, in
  /// any order, before or after adding it.
  /// Errors: throws Error{invalid_argument} if `alias` is already declared, if one of the names is an alias of a third,
  ///         or if something was added under both names.
  void alias(std::string alias, std::string fqn);

  struct Entry {
    TensorSpec spec;
    Layout layout;
    View view;
    Absent absent = Absent::error;
  };
  struct ValueEntry {
    TensorKey key;
    Value value;
    Absent absent = Absent::error;
    Agree agree = Agree::authoritative;
  };
  [[nodiscard]] Rank layout_rank() const { return layout_rank_; }
  [[nodiscard]] int ranks() const { return ranks_; }
  [[nodiscard]] const std::vector<Entry>& entries() const { return body_->entries; }
  [[nodiscard]] const std::vector<ValueEntry>& values() const { return body_->values; }
  [[nodiscard]] const std::vector<Alias>& aliases() const { return body_->aliases; }
  /// True for copies of one catalog while none of them has changed. Restores of such a catalog reuse earlier results.
  /// Cost of this and of copies: O(1).
  [[nodiscard]] bool same(const Catalog& other) const { return body_ == other.body_; }
  /// As Inventory::to_case(), of all ranks with this catalog's tensors and layouts on both sides. Lacks what
  /// other ranks alone have, as in pipeline stages: Session::gather_layouts() and Inventory::to_case() have it.
  [[nodiscard]] std::string to_case() const;
  /// Keeps the owners of all views alive; null if no view has one.
  [[nodiscard]] std::shared_ptr<const void> owners() const { return owners_; }
  /// A copy that keeps no owner alive.
  [[nodiscard]] Catalog without_owners() const;

 private:
  struct SHARDWIRE_LOCAL Keys;
  struct Body {
    std::vector<Entry> entries;
    std::vector<ValueEntry> values;
    std::vector<Alias> aliases;
    std::shared_ptr<Keys> keys;  // owners: bodies copied from one another, until one of them adds a key
  };
  SHARDWIRE_LOCAL void enter(const TensorKey& key, std::size_t value);
  SHARDWIRE_LOCAL Body& own_body();
  SHARDWIRE_LOCAL Keys& own_keys();
  SHARDWIRE_LOCAL std::vector<std::shared_ptr<void>>& own_owners();

  Rank layout_rank_;
  int ranks_;
  std::shared_ptr<Body> body_;  // owners: copies of this catalog; a shared body is copied before a write
  // The same; apart from the body, which caches of a session keep for longer.
  std::shared_ptr<std::vector<std::shared_ptr<void>>> owners_;
};

}  // namespace shardwire
SHARDWIRE_API_END

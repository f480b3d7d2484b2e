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

/// What to do about something wanted that no source has: whose key, under any of its names, is in no manifest and among no
/// values. It counts once all ranks of the source layout have published, or RestoreOptions::discovery_grace has passed with
/// everything else covered. A tensor of which only some elements have no holder is an error always.
enum class Absent : std::uint8_t {
  error,  ///< the restore ends with an error that names every such key
  skip,   ///< the destination stays as it is
  zero,   ///< the destination's elements become zeros at commit; not for values and one-element tensors
};

/// What one rank holds or wants: tensors with layout and local memory, and values. Copies are cheap and independent.
/// Ownership: borrows the memory of its views.
/// Threads:   one thread at a time changes a catalog, and nobody else uses that object meanwhile; const calls may come from
///            several at once. What publish(), restore() and exchange() were given stays as it was then: the catalog may be
///            changed or destroyed as soon as they have returned.
class Catalog {
 public:
  /// `layout_rank` is this rank's number in the layouts, 0..ranks-1.
  /// Errors: throws Error{invalid_argument} when it is not one of them.
  Catalog(Rank layout_rank, int ranks);

  /// Adds a tensor. `view` is where this rank's boxes lie; its data may be null when the rank holds no element. Two ranks
  /// that declare the same tensors in the same order share one manifest, so add tensors in an order all ranks agree on.
  /// Memory is read when it is published, and while it stays so, not here: a catalog can be published at every step.
  /// The layout of a one-element tensor says who holds and who wants it, and where it lies, like any other; but the element
  /// travels by value, inside the publication: publish() reads it once, a restore writes it at commit, and it is in no total
  /// of a report. Ranks that hold it have to agree, byte by byte, as for values (see add_value).
  /// The entry keeps the view with its offset added to data, and without strides that only repeat the layout.
  /// `absent` matters on the wanting side only; Absent::zero is not for one-element tensors.
  /// Errors: throws Error{layout_mismatch} when the layout does not fit the shape or the size that the view declares differs
  ///         from what the rank holds, Error{invalid_argument} on a repeated key (also under an alias), a null view for a
  ///         rank that holds elements, a view of another dtype, or strides that are negative or let elements share an
  ///         address, Error{unsupported} for strides on a layout without one local array. What is wrong with memory of a device
  ///         is found by who uses it: publish(), restore(), exchange().
  void add(TensorSpec spec, Layout layout, View view, Absent absent = Absent::error);
  /// Adds a value under (fqn, state); an empty fqn serves values of the whole job. On the wanting side the value given is
  /// ignored: adding it asks for the key. Where sources disagree, those count that hold an element of a tensor called fqn,
  /// in any state; all count where no source has such a tensor, or when only others have the value. Of a parameter whose
  /// tensors all have one element, those of them do not say who counts that more ranks hold than another one: a `step` is
  /// also on ranks whose shard of the parameter is empty. Those that count have to be equal, None included, else the restore
  /// ends with an error that names key, ranks and values.
  /// Errors: throws Error{invalid_argument} on a repeated key, for lists deeper than max_value_depth, and for
  ///         Absent::zero: a step of zero would break Adam's bias correction.
  void add_value(TensorKey key, Value value = {}, Absent absent = Absent::error);
  /// Renews a value that add_value() or add_param_groups() has added, under any name of its parameter. What is published
  /// already, and copies of this catalog, keep the value they have. Cost: O(log n); a copy of the whole catalog once when
  /// it has been copied since it was changed last.
  /// Errors: throws Error{invalid_argument} when the catalog has no value under the key, and for lists that are too deep.
  void set_value(const TensorKey& key, Value value);

  /// Declares that `alias` is a second name of the parameter `fqn`, with all its states and values. Each side may call the
  /// parameter by any of its names: it is held once, wanted once and moved once. Every rank that has the parameter
  /// declares its names, in any order and before or after adding it.
  /// Errors: throws Error{invalid_argument} when `alias` is declared already, when one of the names is an alias of a third,
  ///         or when something was added under both names.
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
  };
  [[nodiscard]] Rank layout_rank() const { return layout_rank_; }
  [[nodiscard]] int ranks() const { return ranks_; }
  [[nodiscard]] const std::vector<Entry>& entries() const { return body_->entries; }
  [[nodiscard]] const std::vector<ValueEntry>& values() const { return body_->values; }
  [[nodiscard]] const std::vector<Alias>& aliases() const { return body_->aliases; }
  /// True for copies of one catalog that none of them has changed since. Restores of such a catalog skip what they have
  /// worked out before. Cost of this and of copies: O(1).
  [[nodiscard]] bool same(const Catalog& other) const { return body_ == other.body_; }

 private:
  struct SHARDWIRE_LOCAL Keys;
  struct Body {
    std::vector<Entry> entries;
    std::vector<ValueEntry> values;
    std::vector<Alias> aliases;
    std::shared_ptr<Keys> keys;  // owners: bodies that were one before something was added
  };
  SHARDWIRE_LOCAL void enter(const TensorKey& key, std::size_t value);
  SHARDWIRE_LOCAL Body& own_body();
  SHARDWIRE_LOCAL Keys& own_keys();

  Rank layout_rank_;
  int ranks_;
  std::shared_ptr<Body> body_;  // owners: copies of this catalog; copied before it is written while there are several
};

}  // namespace shardwire
SHARDWIRE_API_END

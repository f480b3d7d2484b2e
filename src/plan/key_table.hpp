// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "plan/aliases.hpp"
#include "shardwire/plan.hpp"

namespace shardwire {

/// The position of a key in a job layout.
struct KeyPlace {
  std::uint32_t section = 0;
  TensorId tensor{};
  std::uint32_t next = ~0U;  ///< number of the same key's next place, by section; KeyTable::none
};

/// The keys of one side of a job; a parameter of several names is stored under one of them. A hash table without a node
/// per key, because a mixture-of-experts model has 10^5 keys.
/// Ownership: borrows `job` and `names`.
class KeyTable {
 public:
  static constexpr std::uint32_t none = ~0U;

  explicit KeyTable(const JobLayout& job, const NameClasses& names);

  /// Adds the next place and returns the number of the key's first place. Places are added by section, then by tensor.
  std::uint32_t add(std::uint32_t section, TensorId tensor);
  /// Number of the first place of a key; none. `fqn`: one of names.name_of(). `near`: a guess, usually the place after
  /// the previous result.
  [[nodiscard]] std::uint32_t find(std::string_view fqn, std::string_view state, std::uint32_t near = none) const;
  /// The place added before the last one of a key; none if it has one place.
  [[nodiscard]] std::uint32_t place_before_last(std::uint32_t first) const { return before_last_[first]; }
  [[nodiscard]] std::size_t size() const { return places_.size(); }
  [[nodiscard]] const KeyPlace& place(std::uint32_t number) const { return places_[number]; }
  [[nodiscard]] const TensorLayout& tensor(const KeyPlace& place) const {
    return job_->sections[place.section].manifest->tensors[to_index(place.tensor)];
  }

 private:
  struct Slot {
    std::uint32_t tag = 0;        // of the key's hash: a mismatch saves the key comparison
    std::uint32_t number = none;  // of the key's first place; none: free slot
  };
  struct Hashed {
    std::size_t slot = 0;
    std::uint32_t tag = 0;
  };

  /// The slot of the key, or the free slot for it.
  [[nodiscard]] Hashed look_up(std::string_view fqn, std::string_view state) const;
  [[nodiscard]] bool is_at(std::uint32_t number, std::string_view fqn, std::string_view state) const;

  const JobLayout* job_;
  const NameClasses* names_;
  std::vector<Slot> slots_;  // size: a power of two
  std::vector<KeyPlace> places_;
  std::vector<std::uint32_t> last_;         // by first place: the key's last place
  std::vector<std::uint32_t> before_last_;  // by first place
  std::vector<bool> first_;                 // by place: whether it is its key's first
};

}  // namespace shardwire

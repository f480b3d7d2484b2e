// SPDX-License-Identifier: Apache-2.0
#include "plan/key_table.hpp"

#include <xxhash.h>

#include <bit>

namespace shardwire {

KeyTable::KeyTable(const JobLayout& job) : job_(&job) {
  std::size_t tensors = 0;
  for (const Section& section : job.sections) tensors += section.manifest->tensors.size();
  slots_.assign(std::bit_ceil(2 * tensors + 1), none);
  places_.reserve(tensors);
  last_.reserve(tensors);
  first_.reserve(tensors);
  before_last_.reserve(tensors);
}

// The slot of the key, or the free one where it belongs.
std::size_t KeyTable::slot_of(const TensorKey& key) const {
  const std::size_t mask = slots_.size() - 1;
  std::size_t slot =
      XXH3_64bits_withSeed(key.fqn.data(), key.fqn.size(), XXH3_64bits(key.state.data(), key.state.size()));
  for (slot &= mask; slots_[slot] != none; slot = (slot + 1) & mask) {
    if (tensor(places_[slots_[slot]]).spec.key == key) break;
  }
  return slot;
}

std::uint32_t KeyTable::add(std::uint32_t section, TensorId tensor) {
  const auto number = static_cast<std::uint32_t>(places_.size());
  places_.push_back({section, tensor, none});
  last_.push_back(number);
  before_last_.push_back(none);
  std::uint32_t& first = slots_[slot_of(this->tensor(places_.back()).spec.key)];
  first_.push_back(first == none);
  if (first == none) return first = number;
  places_[last_[first]].next = number;
  before_last_[first] = last_[first];
  last_[first] = number;
  return first;
}

std::uint32_t KeyTable::find(const TensorKey& key, std::uint32_t near) const {
  if (near < places_.size() && first_[near] && tensor(places_[near]).spec.key == key) return near;
  return slots_[slot_of(key)];
}

}  // namespace shardwire

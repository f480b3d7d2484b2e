// SPDX-License-Identifier: Apache-2.0
#include "plan/key_table.hpp"

#include <xxhash.h>

#include <bit>

namespace shardwire {

KeyTable::KeyTable(const JobLayout& job, const NameClasses& names) : job_(&job), names_(&names) {
  std::size_t tensors = 0;
  for (const Section& section : job.sections) tensors += section.manifest->tensors.size();
  slots_.resize(std::bit_ceil(2 * tensors + 1));
  places_.reserve(tensors);
  last_.reserve(tensors);
  first_.reserve(tensors);
  before_last_.reserve(tensors);
}

bool KeyTable::is_at(std::uint32_t number, std::string_view fqn, std::string_view state) const {
  const TensorKey& key = tensor(places_[number]).spec.key;
  return key.state == state && names_->name_of(key.fqn) == fqn;
}

KeyTable::Hashed KeyTable::look_up(std::string_view fqn, std::string_view state) const {
  const XXH64_hash_t hash = XXH3_64bits_withSeed(fqn.data(), fqn.size(), XXH3_64bits(state.data(), state.size()));
  const auto tag = static_cast<std::uint32_t>(hash >> 32U);
  const std::size_t mask = slots_.size() - 1;
  std::size_t slot = hash & mask;
  for (; slots_[slot].number != none; slot = (slot + 1) & mask) {
    if (slots_[slot].tag == tag && is_at(slots_[slot].number, fqn, state)) break;
  }
  return {slot, tag};
}

std::uint32_t KeyTable::add(std::uint32_t section, TensorId tensor) {
  const auto number = static_cast<std::uint32_t>(places_.size());
  places_.push_back({section, tensor, none});
  last_.push_back(number);
  before_last_.push_back(none);
  const TensorKey& key = this->tensor(places_.back()).spec.key;
  const Hashed found = look_up(names_->name_of(key.fqn), key.state);
  const std::uint32_t first = slots_[found.slot].number;
  first_.push_back(first == none);
  if (first == none) {
    slots_[found.slot] = {found.tag, number};
    return number;
  }
  places_[last_[first]].next = number;
  before_last_[first] = last_[first];
  last_[first] = number;
  return first;
}

std::uint32_t KeyTable::find(std::string_view fqn, std::string_view state, std::uint32_t near) const {
  if (near < places_.size() && first_[near] && is_at(near, fqn, state)) return near;
  return slots_[look_up(fqn, state).slot].number;
}

}  // namespace shardwire

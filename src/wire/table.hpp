// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

namespace shardwire::wire {

/// Distinct values in order of first use. References to the values must outlive the table.
template <typename T, typename Less = std::less<T>>
class Table {
 public:
  std::uint32_t index_of(const T& value) {
    const auto [found, added] = indices_.try_emplace(value, static_cast<std::uint32_t>(values_.size()));
    if (added) values_.push_back(&found->first);
    return found->second;
  }
  [[nodiscard]] unsigned size() const { return static_cast<unsigned>(values_.size()); }
  [[nodiscard]] const T& operator[](std::size_t index) const { return *values_[index]; }
  [[nodiscard]] const std::vector<const T*>& values() const { return values_; }

 private:
  std::map<T, std::uint32_t, Less> indices_;  // nodes have stable addresses
  std::vector<const T*> values_;
};

}  // namespace shardwire::wire

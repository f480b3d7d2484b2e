// SPDX-License-Identifier: Apache-2.0
#include "plan/aliases.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace shardwire {
namespace {

// A union-find over names; the number of a set is that of one of its names.
class Joined {
 public:
  std::uint32_t number_of(std::string_view name) {
    const auto [entry, fresh] = numbers_.try_emplace(name, static_cast<std::uint32_t>(names_.size()));
    if (fresh) {
      names_.push_back(name);
      parents_.push_back(entry->second);
    }
    return entry->second;
  }
  std::uint32_t set_of(std::uint32_t number) {
    while (parents_[number] != number) number = parents_[number] = parents_[parents_[number]];
    return number;
  }
  void join(std::string_view a, std::string_view b) {
    const std::uint32_t first = set_of(number_of(a));
    parents_[set_of(number_of(b))] = first;
  }
  [[nodiscard]] const std::vector<std::string_view>& names() const { return names_; }

 private:
  std::unordered_map<std::string_view, std::uint32_t> numbers_;
  std::vector<std::string_view> names_;
  std::vector<std::uint32_t> parents_;
};

}  // namespace

NameClasses::NameClasses(const JobLayout& side) {
  Joined joined;
  std::set<const Manifest*> seen;
  for (const Section& section : side.sections) {
    if (section.manifest == nullptr || !seen.insert(section.manifest.get()).second) continue;
    for (const Alias& alias : section.manifest->aliases) joined.join(alias.fqn, alias.alias);
  }
  std::unordered_map<std::uint32_t, std::uint32_t> class_of_set;
  for (std::uint32_t number = 0; number < joined.names().size(); ++number) {
    const auto [entry, fresh] =
        class_of_set.try_emplace(joined.set_of(number), static_cast<std::uint32_t>(classes_.size()));
    if (fresh) classes_.emplace_back();
    classes_[entry->second].push_back(joined.names()[number]);
    class_of_.emplace(joined.names()[number], entry->second);
  }
  for (auto& names : classes_) std::sort(names.begin(), names.end());
}

std::string_view NameClasses::name_of(std::string_view fqn) const {
  if (class_of_.empty()) return fqn;
  const auto found = class_of_.find(fqn);
  return found == class_of_.end() ? fqn : classes_[found->second].front();
}

std::span<const std::string_view> NameClasses::names_of(std::string_view fqn) const {
  const auto found = class_of_.find(fqn);
  if (found == class_of_.end()) return {};
  return classes_[found->second];
}

void NameSearch::refuse_two(std::string_view fqn, std::string_view a, std::string_view b) {
  throw Error(
      ErrorCode::layout_mismatch,
      fmt::format("the target side takes {} and {} for one parameter, and wants it as {}; the source side holds "
                  "them as two and has none called {}",
                  a, b, fqn, fqn));
}

}  // namespace shardwire

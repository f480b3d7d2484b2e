// SPDX-License-Identifier: Apache-2.0
#include "geometry/fields.hpp"

#include <fmt/format.h>

#include "shardwire/error.hpp"

namespace shardwire {

Fields::Fields(const RuleDescription& description) : description_(description), taken_(description.fields.size()) {
}

bool Fields::has(std::string_view name) const {
  for (const auto& field : description_.fields) {
    if (field.first == name) return true;
  }
  return false;
}

const std::vector<Extent>& Fields::list(std::string_view name) {
  const std::vector<Extent>* found = nullptr;
  for (std::size_t i = 0; i < description_.fields.size(); ++i) {
    if (description_.fields[i].first != name) continue;
    if (found != nullptr) refuse(name, "stands twice");
    found = &description_.fields[i].second;
    taken_[i] = true;
  }
  if (found == nullptr) refuse(name, "is missing");
  return *found;
}

Extent Fields::single(std::string_view name, Extent lowest, Extent highest) {
  const std::vector<Extent>& values = list(name);
  if (values.size() != 1) refuse(name, "is not one number");
  if (values[0] < lowest || values[0] > highest) refuse(name, fmt::format("is {}, out of bounds", values[0]));
  return values[0];
}

void Fields::finish(std::size_t inner) const {
  for (std::size_t i = 0; i < taken_.size(); ++i) {
    if (!taken_[i]) refuse(description_.fields[i].first, "is unknown");
  }
  if (description_.inner.size() != inner) {
    throw Error(ErrorCode::invalid_argument, fmt::format("description of a {} layout: {} inner layouts instead of {}",
                                                         description_.kind, description_.inner.size(), inner));
  }
}

void Fields::refuse(std::string_view name, std::string_view why) const {
  throw Error(ErrorCode::invalid_argument,
              fmt::format("description of a {} layout: field '{}' {}", description_.kind, name.substr(0, 64), why));
}

int to_int_checked(Extent value, std::string_view what) {
  if (value < std::numeric_limits<int>::min() || value > std::numeric_limits<int>::max()) {
    throw Error(ErrorCode::invalid_argument, fmt::format("{} {} is out of bounds", what, value));
  }
  return static_cast<int>(value);
}

}  // namespace shardwire

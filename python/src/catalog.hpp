// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "convert.hpp"

namespace shardwire::python {

struct PyCatalog {
  Catalog catalog;
  /// Owner of the tensor added last: many in turn have the same.
  std::shared_ptr<void> owner{};

  PyCatalog(int rank, int ranks) : catalog(Rank{rank}, ranks) {}
};

/// The values of an operation, by key.
template <typename Values>
nb::dict values_to_python(const Values& values) {
  nb::dict out;
  for (const auto& [key, value] : values) out[to_python(key)] = to_python(value);
  return out;
}

}  // namespace shardwire::python

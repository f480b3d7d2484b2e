// SPDX-License-Identifier: Apache-2.0
#include "shardwire/tensor.hpp"

#include <algorithm>
#include <array>

namespace shardwire {
namespace {

struct DTypeRow {
  DType dtype;
  std::string_view name;
  ByteCount bytes;
};

// In the order of the enumeration: to_string and item_size index it.
constexpr std::array<DTypeRow, 12> dtypes{{{DType::f64, "f64", 8},
                                           {DType::f32, "f32", 4},
                                           {DType::f16, "f16", 2},
                                           {DType::bf16, "bf16", 2},
                                           {DType::f8e4m3, "f8e4m3", 1},
                                           {DType::f8e5m2, "f8e5m2", 1},
                                           {DType::i64, "i64", 8},
                                           {DType::i32, "i32", 4},
                                           {DType::i16, "i16", 2},
                                           {DType::i8, "i8", 1},
                                           {DType::u8, "u8", 1},
                                           {DType::boolean, "bool", 1}}};

static_assert([] {
  for (std::size_t i = 0; i < dtypes.size(); ++i) {
    if (dtypes[i].dtype != static_cast<DType>(i)) return false;
  }
  return true;
}());

}  // namespace

ByteCount item_size(DType dtype) {
  return dtypes.at(static_cast<std::size_t>(dtype)).bytes;
}

std::string_view to_string(DType dtype) {
  return dtypes.at(static_cast<std::size_t>(dtype)).name;
}

std::optional<DType> parse_dtype(std::string_view name) {
  const auto* row = std::find_if(dtypes.begin(), dtypes.end(), [&](const DTypeRow& r) { return r.name == name; });
  return row == dtypes.end() ? std::nullopt : std::optional(row->dtype);
}

std::string to_string(const TensorKey& key) {
  return key.fqn + ":" + key.state;
}

}  // namespace shardwire

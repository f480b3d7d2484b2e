// SPDX-License-Identifier: Apache-2.0
#include "shardwire/tensor.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>

#include "geometry/dtypes.hpp"
#include "shardwire/error.hpp"

namespace shardwire {
namespace {

struct DTypeRow {
  DType dtype;
  std::string_view name;
  ByteCount bytes;
};

// The only list of types, in the order of their numbers.
constexpr std::array dtypes{
    DTypeRow{DType::f64, "f64", 8},
    DTypeRow{DType::f32, "f32", 4},
    DTypeRow{DType::f16, "f16", 2},
    DTypeRow{DType::bf16, "bf16", 2},
    DTypeRow{DType::f8e4m3, "f8e4m3", 1},
    DTypeRow{DType::f8e5m2, "f8e5m2", 1},
    DTypeRow{DType::i64, "i64", 8},
    DTypeRow{DType::i32, "i32", 4},
    DTypeRow{DType::i16, "i16", 2},
    DTypeRow{DType::i8, "i8", 1},
    DTypeRow{DType::u8, "u8", 1},
    DTypeRow{DType::boolean, "bool", 1},
    DTypeRow{DType::u64, "u64", 8},
    DTypeRow{DType::u32, "u32", 4},
    DTypeRow{DType::u16, "u16", 2},
    DTypeRow{DType::complex128, "complex128", 16},
    DTypeRow{DType::complex64, "complex64", 8},
    DTypeRow{DType::f8e4m3fnuz, "f8e4m3fnuz", 1},
    DTypeRow{DType::f8e5m2fnuz, "f8e5m2fnuz", 1},
    DTypeRow{DType::f8e8m0, "f8e8m0", 1},
};

static_assert([] {
  for (std::size_t i = 0; i < dtypes.size(); ++i) {
    if (dtypes[i].dtype != static_cast<DType>(i)) return false;
  }
  return true;
}());

constexpr std::string_view opaque_name = "opaque";

struct OtherName {
  std::string_view given;
  std::string_view name;
};

// Of PyTorch and NumPy, where they differ.
constexpr OtherName other_names[] = {
    {"float64", "f64"},
    {"double", "f64"},
    {"float32", "f32"},
    {"float", "f32"},
    {"float16", "f16"},
    {"half", "f16"},
    {"bfloat16", "bf16"},
    {"float8_e4m3fn", "f8e4m3"},
    {"float8_e5m2", "f8e5m2"},
    {"float8_e4m3fnuz", "f8e4m3fnuz"},
    {"float8_e5m2fnuz", "f8e5m2fnuz"},
    {"float8_e8m0fnu", "f8e8m0"},
    {"int64", "i64"},
    {"int32", "i32"},
    {"int16", "i16"},
    {"int8", "i8"},
    {"uint64", "u64"},
    {"uint32", "u32"},
    {"uint16", "u16"},
    {"uint8", "u8"},
};

// Null for a type without a row.
const DTypeRow* row_of(DType dtype) {
  const auto number = static_cast<std::size_t>(dtype);
  return number < dtypes.size() ? &dtypes[number] : nullptr;
}

// 0 for a type that opaque() does not make.
ByteCount opaque_bytes(DType dtype) {
  const auto number = static_cast<ByteCount>(dtype);
  const bool made = number > detail::opaque_numbers && number <= detail::opaque_numbers + max_item_bytes;
  return made ? number - detail::opaque_numbers : 0;
}

std::optional<DType> parse_opaque(std::string_view name) {
  if (!name.starts_with(opaque_name)) return std::nullopt;
  const std::string_view digits = name.substr(opaque_name.size());
  ByteCount bytes = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), bytes);
  const bool whole = error == std::errc() && end == digits.data() + digits.size() && !digits.starts_with('0');
  if (!whole || bytes > max_item_bytes) return std::nullopt;
  return opaque(bytes);
}

}  // namespace

void detail::refuse_item_bytes(ByteCount item_bytes) {
  throw Error(ErrorCode::invalid_argument,
              fmt::format("an opaque element of {} bytes; it has 1 to {}", item_bytes, max_item_bytes));
}

bool is_dtype(DType dtype) {
  return row_of(dtype) != nullptr || opaque_bytes(dtype) > 0;
}

ByteCount item_size(DType dtype) {
  if (const DTypeRow* row = row_of(dtype)) return row->bytes;
  if (const ByteCount bytes = opaque_bytes(dtype); bytes > 0) return bytes;
  throw Error(ErrorCode::invalid_argument, fmt::format("dtype {} is unknown", static_cast<std::uint32_t>(dtype)));
}

std::string to_string(DType dtype) {
  if (const DTypeRow* row = row_of(dtype)) return std::string(row->name);
  if (const ByteCount bytes = opaque_bytes(dtype); bytes > 0) return fmt::format("{}{}", opaque_name, bytes);
  return fmt::format("dtype {}", static_cast<std::uint32_t>(dtype));
}

std::optional<DType> parse_dtype(std::string_view name) {
  const auto* row = std::find_if(dtypes.begin(), dtypes.end(), [&](const DTypeRow& r) { return r.name == name; });
  return row == dtypes.end() ? parse_opaque(name) : std::optional(row->dtype);
}

std::string dtype_names() {
  std::string names;
  for (const DTypeRow& row : dtypes) names += fmt::format("{}, ", row.name);
  return names + fmt::format("{0}1 to {0}{1}", opaque_name, max_item_bytes);
}

std::string dtype_meant_by(std::string_view name) {
  if (name.starts_with("torch.")) name.remove_prefix(6);
  std::string small(name);
  for (char& letter : small) {
    if (letter >= 'A' && letter <= 'Z') letter = static_cast<char>(letter - 'A' + 'a');
  }
  const auto* const found = std::ranges::find(other_names, small, &OtherName::given);
  return found == std::end(other_names) ? small : std::string(found->name);
}

std::string to_string(const TensorKey& key) {
  return key.fqn + ":" + key.state;
}

}  // namespace shardwire

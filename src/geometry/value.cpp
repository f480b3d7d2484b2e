// SPDX-License-Identifier: Apache-2.0
#include "shardwire/value.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <span>

namespace shardwire {
namespace {

constexpr std::size_t shown_characters = 64;
constexpr std::size_t shown_bytes = 16;
constexpr std::size_t shown_items = 8;

std::string text_of(const Value& value, std::size_t lists_left);

std::string hex_of(std::span<const std::byte> bytes) {
  std::string text = "0x";
  for (const std::byte byte : bytes.first(std::min(bytes.size(), shown_bytes))) {
    fmt::format_to(std::back_inserter(text), "{:02x}", std::to_integer<unsigned>(byte));
  }
  return bytes.size() > shown_bytes ? text + ".." : text;
}

// Keeps equal-looking integers and floats apart: the text must distinguish two conflicting values.
template <typename Float>
std::string number_of(Float value) {
  if (!std::isnan(value)) return fmt::format("{:#}", value);
  if constexpr (sizeof value == 8) return fmt::format("nan {:#x}", std::bit_cast<std::uint64_t>(value));
  return fmt::format("nan {:#x}", std::bit_cast<std::uint32_t>(static_cast<float>(value)));
}

template <typename T>
T loaded(std::span<const std::byte> bytes) {
  T value{};
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

template <typename Integer>
std::string integer_in(std::span<const std::byte> bytes) {
  return fmt::format("{:d}", loaded<Integer>(bytes));
}

template <typename Float>
std::string complex_in(std::span<const std::byte> bytes) {
  return fmt::format("({}, {})", number_of(loaded<Float>(bytes)),
                     number_of(loaded<Float>(bytes.subspan(sizeof(Float)))));
}

// Requires: one element.
std::string element_in(DType dtype, std::span<const std::byte> bytes) {
  switch (dtype) {
    case DType::f64: return number_of(loaded<double>(bytes));
    case DType::f32: return number_of(loaded<float>(bytes));
    case DType::i64: return integer_in<std::int64_t>(bytes);
    case DType::i32: return integer_in<std::int32_t>(bytes);
    case DType::i16: return integer_in<std::int16_t>(bytes);
    case DType::i8: return integer_in<std::int8_t>(bytes);
    case DType::u64: return integer_in<std::uint64_t>(bytes);
    case DType::u32: return integer_in<std::uint32_t>(bytes);
    case DType::u16: return integer_in<std::uint16_t>(bytes);
    case DType::u8: return integer_in<std::uint8_t>(bytes);
    case DType::complex128: return complex_in<double>(bytes);
    case DType::complex64: return complex_in<float>(bytes);
    case DType::f16:
    case DType::bf16:
    case DType::f8e4m3:
    case DType::f8e5m2:
    case DType::f8e4m3fnuz:
    case DType::f8e5m2fnuz:
    case DType::f8e8m0:
    case DType::boolean: break;
  }
  return hex_of(bytes);
}

std::string elements_of(const TensorValue& value) {
  return value.bytes.size() == item_size(value.dtype) ? element_in(value.dtype, value.bytes) : hex_of(value.bytes);
}

struct Text {
  std::size_t lists_left;

  std::string operator()(std::monostate) const { return "None"; }
  std::string operator()(bool value) const { return value ? "true" : "false"; }
  std::string operator()(std::int64_t value) const { return fmt::format("{}", value); }
  std::string operator()(double value) const { return number_of(value); }
  std::string operator()(const std::string& value) const {
    std::string shown = value.substr(0, shown_characters);
    std::ranges::replace_if(
        shown, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }, '?');
    return "'" + shown + (value.size() > shown.size() ? "'.." : "'");
  }
  std::string operator()(const Bytes& value) const {
    return value.empty() ? "0 bytes" : fmt::format("{} bytes {}", value.size(), hex_of(value));
  }
  std::string operator()(const TensorValue& value) const {
    return fmt::format("{} {} {}", to_string(value.dtype), to_string(value.shape), elements_of(value));
  }
  std::string operator()(const ValueList& value) const {
    if (lists_left == 0) return "[..]";
    std::string text = "[";
    for (std::size_t i = 0; i < value.items.size(); ++i) {
      if (i > 0) text += ", ";
      if (i == shown_items || text.size() > shown_characters) {
        text += "..";
        break;
      }
      text += text_of(value.items[i], lists_left - 1);
    }
    return text + "]";
  }
};

std::string text_of(const Value& value, std::size_t lists_left) {
  return std::visit(Text{lists_left}, value);
}

std::size_t depth_within(const Value& value, std::size_t limit) {
  const auto* list = std::get_if<ValueList>(&value);
  if (list == nullptr || limit == 0) return 0;
  std::size_t deepest = 0;
  for (const Value& item : list->items) deepest = std::max(deepest, depth_within(item, limit - 1));
  return deepest + 1;
}

}  // namespace

bool ValueList::operator==(const ValueList& other) const {
  return items == other.items;
}

bool Value::operator==(const Value& other) const {
  if (index() != other.index()) return false;
  if (const auto* mine = std::get_if<double>(this)) {
    return std::bit_cast<std::uint64_t>(*mine) == std::bit_cast<std::uint64_t>(std::get<double>(other));
  }
  return static_cast<const variant&>(*this) == static_cast<const variant&>(other);
}

std::string to_string(const Value& value) {
  return text_of(value, 4);
}

std::size_t depth_of(const Value& value) {
  return depth_within(value, max_value_depth + 1);
}

}  // namespace shardwire

// SPDX-License-Identifier: Apache-2.0
#include "shardwire/value.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <compare>
#include <cstring>
#include <span>

#include "geometry/value_items.hpp"
#include "shardwire/error.hpp"

namespace shardwire {
namespace {

constexpr std::size_t shown_characters = 64;
constexpr std::size_t shown_bytes = 16;
constexpr std::size_t shown_items = 8;

std::string text_of(const Value& value, std::size_t depth_left);

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
  std::size_t depth_left;

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
    return between('[', value.items, ']', [&](const Value& item) { return text_of(item, depth_left - 1); });
  }
  std::string operator()(const ValueTuple& value) const {
    const char* const end = value.items.size() == 1 ? "," : "";  // (1,) as in Python, to distinguish it from a number
    return between('(', value.items, ')', [&](const Value& item) { return text_of(item, depth_left - 1) + end; });
  }
  std::string operator()(const ValueMap& value) const {
    return between('{', value.items(), '}', [&](const ValueMapItem& item) {
      return fmt::format("{}: {}", (*this)(item.key), text_of(item.value, depth_left - 1));
    });
  }

 private:
  // The first items between brackets.
  template <typename Items, typename Show>
  [[nodiscard]] std::string between(char open, const Items& items, char close, Show show) const {
    if (depth_left == 0) return fmt::format("{}..{}", open, close);
    std::string text(1, open);
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (i > 0) text += ", ";
      if (i == shown_items || text.size() > shown_characters) {
        text += "..";
        break;
      }
      text += show(items[i]);
    }
    return text + close;
  }
};

std::string text_of(const Value& value, std::size_t depth_left) {
  return std::visit(Text{depth_left}, value);
}

std::size_t depth_within(const Value& value, std::size_t limit) {
  if (!has_items(value) || limit == 0) return 0;
  std::size_t deepest = 0;
  each_item(value, [&](const Value& item) { deepest = std::max(deepest, depth_within(item, limit - 1)); });
  return deepest + 1;
}

template <typename Items, typename Order>
std::strong_ordering order_of_items(const Items& a, const Items& b, Order order) {
  return std::lexicographical_compare_three_way(a.begin(), a.end(), b.begin(), b.end(), order);
}

std::strong_ordering order_of(const Value& a, const Value& b);

// Of two values of one kind.
struct Order {
  const Value& other;

  std::strong_ordering operator()(std::monostate) const { return std::strong_ordering::equal; }
  std::strong_ordering operator()(double value) const {
    return std::bit_cast<std::uint64_t>(value) <=> std::bit_cast<std::uint64_t>(std::get<double>(other));
  }
  std::strong_ordering operator()(const TensorValue& value) const {
    const auto& theirs = std::get<TensorValue>(other);
    if (const auto order = value.dtype <=> theirs.dtype; order != 0) return order;
    if (const auto order = order_of_items(value.shape, theirs.shape, std::compare_three_way()); order != 0)
      return order;
    return value.bytes <=> theirs.bytes;
  }
  std::strong_ordering operator()(const ValueList& value) const {
    return order_of_items(value.items, std::get<ValueList>(other).items, order_of);
  }
  std::strong_ordering operator()(const ValueTuple& value) const {
    return order_of_items(value.items, std::get<ValueTuple>(other).items, order_of);
  }
  std::strong_ordering operator()(const ValueMap& value) const {
    const auto pairs = [](const ValueMapItem& one, const ValueMapItem& two) {
      const auto order = one.key <=> two.key;
      return order != 0 ? order : order_of(one.value, two.value);
    };
    return order_of_items(value.items(), std::get<ValueMap>(other).items(), pairs);
  }
  template <typename T>
  std::strong_ordering operator()(const T& value) const {
    return value <=> std::get<T>(other);
  }
};

std::strong_ordering order_of(const Value& a, const Value& b) {
  if (a.index() != b.index()) return a.index() <=> b.index();
  return std::visit(Order{b}, a);
}

// Where the key is, or belongs.
template <typename Items>
auto place_of(Items& items, std::string_view key) {
  return std::lower_bound(items.begin(), items.end(), key, [](const ValueMapItem& item, std::string_view wanted) {
    return item.key.compare(wanted) < 0;
  });
}

}  // namespace

bool ValueLess::operator()(const Value& a, const Value& b) const {
  return order_of(a, b) < 0;
}

bool ValueList::operator==(const ValueList& other) const {
  return items == other.items;
}

bool ValueTuple::operator==(const ValueTuple& other) const {
  return items == other.items;
}

ValueMap::ValueMap(std::initializer_list<ValueMapItem> items) {
  for (const ValueMapItem& item : items) {
    if (find(item.key) != nullptr) {
      throw Error(ErrorCode::invalid_argument, fmt::format("a map of values has the key '{}' twice", item.key));
    }
    (*this)[item.key] = item.value;
  }
}

Value& ValueMap::operator[](std::string_view key) {
  auto place = place_of(items_, key);
  if (place == items_.end() || place->key != key) place = items_.insert(place, {std::string(key), {}});
  return place->value;
}

const Value* ValueMap::find(std::string_view key) const {
  const auto place = place_of(items_, key);
  return place == items_.end() || place->key != key ? nullptr : &place->value;
}

bool ValueMap::operator==(const ValueMap& other) const {
  return items_ == other.items_;
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

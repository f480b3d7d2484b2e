// SPDX-License-Identifier: Apache-2.0
#include "wire/capnp_input.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "geometry/dtypes.hpp"

namespace shardwire::wire {

Input::Input(const char* message, std::span<const std::byte> bytes) : field_(message) {
  if (bytes.size() > max_message_bytes) reject(fmt::format("has {} bytes, over the limit", bytes.size()));
  if (bytes.empty() || bytes.size() % sizeof(capnp::word) != 0) {
    reject(fmt::format("has {} bytes, not a positive multiple of 8", bytes.size()));
  }
  const std::size_t count = bytes.size() / sizeof(capnp::word);
  if (reinterpret_cast<std::uintptr_t>(bytes.data()) % alignof(std::uint64_t) != 0) {
    copy_ = kj::heapArray<capnp::word>(count);
    std::memcpy(copy_.begin(), bytes.data(), bytes.size());
    words_ = copy_;
  } else {
    words_ = kj::arrayPtr(reinterpret_cast<const capnp::word*>(bytes.data()), count);
  }
}

capnp::ReaderOptions Input::options() const {
  capnp::ReaderOptions options;
  // Pointers may overlap, so a small message can describe a large tree. Ours never overlap: twice the size covers one
  // pass.
  options.traversalLimitInWords = 2 * words_.size() + 64;
  // A rule in a rule takes two levels, and so does a list in a list; a map in a map takes three.
  options.nestingLimit = static_cast<int>(std::max<std::size_t>(2 * max_rule_depth, 3 * max_value_depth)) + 16;
  return options;
}

Input& Input::at(const char* field) {
  field_ = field;
  index_.reset();
  return *this;
}

Input& Input::at(const char* field, std::size_t index) {
  field_ = field;
  index_ = index;
  return *this;
}

void Input::reject(const std::string& why) const {
  const std::string where = index_ ? fmt::format("{}[{}]", field_, *index_) : std::string(field_);
  throw Error(ErrorCode::transport_failed, fmt::format("received {} {}", where, why));
}

void Input::check_count(std::size_t count, std::size_t max_count, std::size_t max_for_size) const {
  if (count > max_count) reject(fmt::format("has {} elements, more than {}", count, max_count));
  if (count > max_for_size) reject(fmt::format("claims {} elements, more than its message can hold", count));
}

std::string Input::name(capnp::Text::Reader text, std::size_t max_bytes) const {
  if (text.size() > max_bytes) reject(fmt::format("has {} bytes, more than {}", text.size(), max_bytes));
  if (std::memchr(text.begin(), 0, text.size()) != nullptr) reject("has a zero byte");
  return {text.begin(), text.size()};
}

Bytes Input::data(capnp::Data::Reader bytes, std::size_t max_bytes) const {
  if (bytes.size() > max_bytes) reject(fmt::format("has {} bytes, more than {}", bytes.size(), max_bytes));
  const auto* first = reinterpret_cast<const std::byte*>(bytes.begin());
  return {first, first + bytes.size()};
}

std::int32_t Input::rank(std::int32_t value) const {
  if (value < 0 || value > max_rank) reject(fmt::format("is {}, outside of 0..{}", value, max_rank));
  return value;
}

std::uint32_t Input::attempt(std::uint32_t value) const {
  if (value > max_attempt) reject(fmt::format("is {}, outside of 0..{}", value, max_attempt));
  return value;
}

DType Input::dtype(std::uint32_t number) const {
  if (!is_dtype(DType{number})) reject(fmt::format("is {}, an unknown element type", number));
  return DType{number};
}

Extents Input::shape(capnp::List<std::int64_t>::Reader extents) const {
  if (extents.size() > max_dims) reject(fmt::format("has {} dims, more than {}", extents.size(), max_dims));
  std::array<Extent, max_dims> values{};
  std::size_t count = 0;
  for (const Extent extent : extents) {
    if (extent < 0) reject(fmt::format("has the extent {}", extent));
    values[count++] = extent;
  }
  return Extents(std::span<const Extent>(values.data(), count));
}

Digest Input::digest(schema::Digest::Reader digest) const {
  Digest result{};
  const std::array<std::uint64_t, 4> parts{digest.getA(), digest.getB(), digest.getC(), digest.getD()};
  for (std::size_t i = 0; i < result.size(); ++i) result[i] = static_cast<std::byte>(parts[i / 8] >> (8 * (i % 8)));
  return result;
}

void Input::check_box(const Box& box) const {
  for (std::size_t dim = 0; dim < box.dims(); ++dim) {
    Extent end = 0;
    if (box.offset[dim] < 0 || box.size[dim] < 0 || __builtin_add_overflow(box.offset[dim], box.size[dim], &end)) {
      reject(fmt::format("has the box range {}+{}", box.offset[dim], box.size[dim]));
    }
  }
}

std::vector<Box> Input::boxes(schema::Boxes::Reader boxes) {
  const auto dims = numbers(boxes.getDims(), boxes_left_);
  const auto values = numbers(boxes.getValues(), 2 * max_dims * max_boxes_per_message);
  boxes_left_ -= dims.size();
  std::size_t needed = 0;
  for (const std::uint8_t count : dims) {
    if (count > max_dims) reject(fmt::format("has a box of {} dims", count));
    needed += 2 * std::size_t{count};
  }
  if (needed != values.size()) reject(fmt::format("has {} box coordinates instead of {}", values.size(), needed));

  std::vector<Box> result;
  result.reserve(dims.size());
  unsigned next = 0;
  for (const std::uint8_t count : dims) {
    std::array<Extent, 2 * max_dims> numbers{};
    for (unsigned i = 0; i < 2u * count; ++i) numbers[i] = values[next++];
    const std::span<const Extent> all(numbers);
    Box& box = result.emplace_back(Box{Extents(all.first(count)), Extents(all.subspan(count, count))});
    check_box(box);
  }
  return result;
}

}  // namespace shardwire::wire

// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <type_traits>

#include "c/guard.hpp"
#include "c/tensor.hpp"
#include "shardwire/value.hpp"
#include "support/checked.hpp"

namespace shardwire::c_api {
namespace {

using AnyValue = Value::variant;
static_assert(std::is_same_v<std::variant_alternative_t<SHARDWIRE_VALUE_STRING, AnyValue>, std::string>);
static_assert(std::is_same_v<std::variant_alternative_t<SHARDWIRE_VALUE_TENSOR, AnyValue>, TensorValue>);
static_assert(std::is_same_v<std::variant_alternative_t<SHARDWIRE_VALUE_MAP, AnyValue>, ValueMap>);

/// The content of a value of one kind. Errors: throws Error{invalid_argument} for a value of another kind.
template <typename Content, typename AValue>
auto& content_of(AValue& value, const char* kind) {
  auto* content = std::get_if<Content>(&value);
  if (content == nullptr) refuse(fmt::format("the value {} is no {}", to_string(value), kind));
  return *content;
}

template <typename Content>
shardwire_code read_content(const shardwire_value* value, const char* kind, Content* out, shardwire_error** error) {
  return give(out, error, [&] { return content_of<Content>(object(value, "value"), kind); });
}

/// The items of a list or tuple; null for any other value.
template <typename AValue>
auto* sequence_of(AValue& value) {
  if (auto* list = std::get_if<ValueList>(&value)) return &list->items;
  auto* tuple = std::get_if<ValueTuple>(&value);
  return tuple ? &tuple->items : nullptr;
}

const ValueMapItem* map_item(const shardwire_value* value, size_t index) {
  const auto* map = value ? std::get_if<ValueMap>(peek(value)) : nullptr;
  return map && index < map->items().size() ? &map->items()[index] : nullptr;
}

std::span<const std::byte> data_in(const Value& value) {
  if (const auto* string = std::get_if<std::string>(&value)) return std::as_bytes(std::span(*string));
  if (const auto* tensor = std::get_if<TensorValue>(&value)) return tensor->bytes;
  return content_of<Bytes>(value, "string, bytes or tensor");
}

TensorValue tensor_value(DType dtype, const Extents& shape, Bytes bytes) {
  Layout::replicated().check(shape, 1);
  if (const ByteCount size = support::multiply(static_cast<ByteCount>(volume_of(shape)), item_size(dtype), "a value");
      size != bytes.size()) {
    refuse(fmt::format("{} {} has {} bytes, not {}", to_string(dtype), to_string(shape), size, bytes.size()));
  }
  return {dtype, shape, std::move(bytes)};
}

/// A copy of an item. Errors: throws Error{invalid_argument} if a list of it would be nested too deep.
Value nested(const shardwire_value* item) {
  const Value& given = object(item, "item");
  if (depth_of(given) >= max_value_depth) refuse(fmt::format("values nest at most {} levels deep", max_value_depth));
  return given;
}

template <typename Make>
shardwire_code make_value(shardwire_value** value, shardwire_error** error, Make make) {
  return create(value, error, [&] { return Value(make()); });
}

}  // namespace

SHARDWIRE_C_BEGIN

void shardwire_value_free(shardwire_value* value) {
  destroy(value);
}

shardwire_code shardwire_value_none(shardwire_value** value, shardwire_error** error) {
  return make_value(value, error, [] { return std::monostate(); });
}

shardwire_code shardwire_value_bool(bool content, shardwire_value** value, shardwire_error** error) {
  return make_value(value, error, [&] { return content; });
}

shardwire_code shardwire_value_int(int64_t content, shardwire_value** value, shardwire_error** error) {
  return make_value(value, error, [&] { return content; });
}

shardwire_code shardwire_value_double(double content, shardwire_value** value, shardwire_error** error) {
  return make_value(value, error, [&] { return content; });
}

shardwire_code shardwire_value_string(const char* text, size_t text_bytes, shardwire_value** value,
                                      shardwire_error** error) {
  return make_value(value, error, [&] {
    const std::span<const char> given = array(text, text_bytes, "text");
    return std::string(given.begin(), given.end());
  });
}

shardwire_code shardwire_value_bytes(const void* data, size_t data_bytes, shardwire_value** value,
                                     shardwire_error** error) {
  return make_value(value, error, [&] { return bytes(data, data_bytes, "data"); });
}

shardwire_code shardwire_value_tensor(shardwire_dtype dtype, const int64_t* shape, size_t dims, const void* data,
                                      size_t data_bytes, shardwire_value** value, shardwire_error** error) {
  return make_value(value, error, [&] {
    return tensor_value(dtype_of_number(dtype), extents(shape, dims, "shape"), bytes(data, data_bytes, "data"));
  });
}

shardwire_code shardwire_value_list(shardwire_value** value, shardwire_error** error) {
  return make_value(value, error, [] { return ValueList(); });
}

shardwire_code shardwire_value_tuple(shardwire_value** value, shardwire_error** error) {
  return make_value(value, error, [] { return ValueTuple(); });
}

shardwire_code shardwire_value_map(shardwire_value** value, shardwire_error** error) {
  return make_value(value, error, [] { return ValueMap(); });
}

shardwire_code shardwire_value_copy(const shardwire_value* value, shardwire_value** copy, shardwire_error** error) {
  return create(copy, error, [&] { return object(value, "value"); });
}

shardwire_code shardwire_value_append(shardwire_value* value, const shardwire_value* item, shardwire_error** error) {
  return guarded(error, [&] {
    auto* items = sequence_of(object(value, "value"));
    if (items == nullptr) refuse("only lists and tuples can be appended to");
    items->push_back(nested(item));
  });
}

shardwire_code shardwire_value_set(shardwire_value* value, const char* key, const shardwire_value* item,
                                   shardwire_error** error) {
  return guarded(error, [&] {
    auto& map = content_of<ValueMap>(object(value, "value"), "map");
    Value copy = nested(item);  // the item may be one of this map, whose items move when a key is added
    map[required(key, "key")] = std::move(copy);
  });
}

shardwire_value_kind shardwire_value_kind_of(const shardwire_value* value) {
  return value ? static_cast<shardwire_value_kind>(peek(value)->index()) : SHARDWIRE_VALUE_NONE;
}

shardwire_code shardwire_value_to_bool(const shardwire_value* value, bool* content, shardwire_error** error) {
  return read_content(value, "bool", content, error);
}

shardwire_code shardwire_value_to_int(const shardwire_value* value, int64_t* content, shardwire_error** error) {
  return read_content(value, "integer", content, error);
}

shardwire_code shardwire_value_to_double(const shardwire_value* value, double* content, shardwire_error** error) {
  return read_content(value, "float", content, error);
}

shardwire_code shardwire_value_data(const shardwire_value* value, const void** data, size_t* data_bytes,
                                    shardwire_error** error) {
  return guarded(error, [&] {
    required(data_bytes, "data_bytes");
    const std::span<const std::byte> content = data_in(object(value, "value"));
    *required(data, "data") = content.data();
    *data_bytes = content.size();
  });
}

shardwire_code shardwire_value_tensor_of(const shardwire_value* value, shardwire_dtype* dtype, int64_t* shape,
                                         size_t* dims, shardwire_error** error) {
  return guarded(error, [&] {
    required(dtype, "dtype");
    required(shape, "shape");
    const auto& tensor = content_of<TensorValue>(object(value, "value"), "tensor");
    *required(dims, "dims") = tensor.shape.size();
    std::copy(tensor.shape.begin(), tensor.shape.end(), shape);
    *dtype = static_cast<shardwire_dtype>(tensor.dtype);
  });
}

size_t shardwire_value_count(const shardwire_value* value) {
  if (value == nullptr) return 0;
  if (const auto* items = sequence_of(*peek(value))) return items->size();
  const auto* map = std::get_if<ValueMap>(peek(value));
  return map ? map->items().size() : 0;
}

const shardwire_value* shardwire_value_item(const shardwire_value* value, size_t index) {
  const auto* items = value ? sequence_of(*peek(value)) : nullptr;
  if (items && index < items->size()) return borrowed<shardwire_value>(&(*items)[index]);
  const ValueMapItem* item = map_item(value, index);
  return item ? borrowed<shardwire_value>(&item->value) : nullptr;
}

const char* shardwire_value_item_key(const shardwire_value* value, size_t index) {
  const ValueMapItem* item = map_item(value, index);
  return item ? item->key.c_str() : nullptr;
}

const shardwire_value* shardwire_value_find(const shardwire_value* value, const char* key) {
  const auto* map = value && key ? std::get_if<ValueMap>(peek(value)) : nullptr;
  return map ? borrowed<shardwire_value>(map->find(key)) : nullptr;
}

bool shardwire_value_equal(const shardwire_value* a, const shardwire_value* b) {
  return a && b ? *peek(a) == *peek(b) : a == b;
}

size_t shardwire_value_to_string(const shardwire_value* value, char* text, size_t text_bytes) {
  return quietly(size_t{0}, [&] { return write_text(to_string(object(value, "value")), text, text_bytes); });
}

SHARDWIRE_C_END

}  // namespace shardwire::c_api

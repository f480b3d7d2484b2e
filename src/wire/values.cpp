// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "schema/manifest.capnp.h"
#include "support/checked.hpp"
#include "wire/capnp_input.hpp"
#include "wire/capnp_output.hpp"
#include "wire/enums.hpp"
#include "wire/keys.hpp"

namespace shardwire::wire {
namespace {

// Writes the value of an entry or an item of a list: `Out` is the builder of either union.
template <typename Out>
struct Writer {
  Out out;

  void operator()(std::monostate) { out.setNone(); }
  void operator()(bool value) { out.setBoolean(value); }
  void operator()(std::int64_t value) { out.setInteger(value); }
  void operator()(double value) { out.setFloat(std::bit_cast<std::uint64_t>(value)); }
  void operator()(const std::string& value) { out.setText(data_of(std::as_bytes(std::span(value)))); }
  void operator()(const Bytes& value) { out.setData(data_of(value)); }
  void operator()(const TensorValue& value) {
    auto to = out.initTensor();
    to.setDtype(number_of(value.dtype));
    fill(to.initShape(static_cast<unsigned>(value.shape.size())), value.shape);
    to.setBytes(data_of(value.bytes));
  }
  void operator()(const ValueList& value) {
    auto items = out.initList(static_cast<unsigned>(value.items.size()));
    for (unsigned i = 0; i < items.size(); ++i) {
      std::visit(Writer<schema::Values::Item::Builder>{items[i]}, value.items[i]);
    }
  }
};

// Counts the items as a reader would. Errors: throws Error{invalid_argument}.
void check_lists(const NamedValue& named, std::size_t& items_left) {
  if (depth_of(named.value) > max_value_depth) {
    throw Error(ErrorCode::invalid_argument, fmt::format("value {} has lists inside lists, more than {} deep",
                                                         to_string(named.key), max_value_depth));
  }
  const auto count = [&](const auto& self, const Value& value) -> void {
    const auto* list = std::get_if<ValueList>(&value);
    if (list == nullptr) return;
    if (list->items.size() > items_left) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("value {} and those before it have more than {} items in their lists",
                              to_string(named.key), max_list_items));
    }
    items_left -= list->items.size();
    for (const Value& item : list->items) self(self, item);
  };
  count(count, named.value);
}

TensorValue read_tensor(schema::Values::Tensor::Reader from, Input& in) {
  TensorValue value{in.dtype(from.getDtype()), in.shape(from.getShape()), in.data(from.getBytes(), max_message_bytes)};
  const auto volume = static_cast<ByteCount>(volume_of(value.shape));
  const ByteCount expected = support::multiply(volume, item_size(value.dtype), "size of a tensor value");
  if (value.bytes.size() != expected)
    in.reject(fmt::format("has {} bytes instead of {}", value.bytes.size(), expected));
  return value;
}

Bytes data_in(capnp::Data::Reader from, Input& in) {
  return in.data(from, max_message_bytes);
}

std::string text_in(capnp::Data::Reader from) {
  return {reinterpret_cast<const char*>(from.begin()), from.size()};
}

ValueList read_list(capnp::List<schema::Values::Item>::Reader from, Input& in, std::size_t lists_left,
                    std::size_t& items_left);

// `lists_left`: allowed nesting depth of lists from here; `items_left`: budget of the whole message.
template <typename From>
Value read_value(From from, Input& in, std::size_t lists_left, std::size_t& items_left) {
  switch (from.which()) {
    case From::Reads::NONE: return std::monostate{};
    case From::Reads::BOOLEAN: return from.getBoolean();
    case From::Reads::INTEGER: return from.getInteger();
    case From::Reads::FLOAT: return std::bit_cast<double>(from.getFloat());
    case From::Reads::TEXT: return text_in(from.getText());
    case From::Reads::DATA: return data_in(from.getData(), in);
    case From::Reads::TENSOR: return read_tensor(from.getTensor(), in);
    case From::Reads::LIST:
      if (lists_left == 0) in.reject(fmt::format("has lists inside lists, more than {} deep", max_value_depth));
      return read_list(from.getList(), in, lists_left - 1, items_left);
    default: in.reject(fmt::format("is of the unknown kind {}", static_cast<unsigned>(from.which())));
  }
}

ValueList read_list(capnp::List<schema::Values::Item>::Reader from, Input& in, std::size_t lists_left,
                    std::size_t& items_left) {
  ValueList list;
  const auto items = in.list(from, items_left);
  items_left -= items.size();
  list.items.reserve(items.size());
  for (const auto item : items) list.items.push_back(read_value(item, in, lists_left, items_left));
  return list;
}

}  // namespace

Bytes encode_values(std::vector<NamedValue> values) {
  std::sort(values.begin(), values.end(), [](const NamedValue& a, const NamedValue& b) { return a.key < b.key; });
  std::size_t items_left = max_list_items;
  for (std::size_t i = 0; i < values.size(); ++i) {
    check_key(values[i].key);
    check_lists(values[i], items_left);
    if (i > 0 && values[i].key == values[i - 1].key) {
      throw Error(ErrorCode::invalid_argument, "value " + to_string(values[i].key) + " is given twice");
    }
  }
  return encode_canonical<schema::Values>("list of values", [&](schema::Values::Builder out) {
    auto entries = out.initEntries(static_cast<unsigned>(values.size()));
    for (unsigned i = 0; i < entries.size(); ++i) {
      entries[i].setFqn(text_of(values[i].key.fqn));
      entries[i].setState(text_of(values[i].key.state));
      std::visit(Writer<schema::Values::Entry::Value::Builder>{entries[i].initValue()}, values[i].value);
    }
  });
}

std::vector<NamedValue> decode_values(std::span<const std::byte> bytes) {
  return read_canonical<schema::Values>("Values", bytes, [&](schema::Values::Reader from, Input& in) {
    std::vector<NamedValue> values;
    const auto entries = in.at("Values.entries").list(from.getEntries());
    values.reserve(entries.size());
    std::size_t items_left = max_list_items;
    for (const auto entry : entries) {
      in.at("Values.entries", values.size());
      TensorKey key{in.name(entry.getFqn(), max_fqn_bytes), in.name(entry.getState(), max_name_bytes)};
      if (!values.empty() && !(values.back().key < key)) in.reject("is out of order or repeated");
      values.push_back({std::move(key), read_value(entry.getValue(), in, max_value_depth, items_left)});
    }
    if (!std::ranges::equal(encode_values(values), bytes)) in.at("Values").reject("is not in canonical form");
    return values;
  });
}

}  // namespace shardwire::wire

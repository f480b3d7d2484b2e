// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "geometry/value_items.hpp"
#include "schema/manifest.capnp.h"
#include "support/checked.hpp"
#include "wire/capnp_input.hpp"
#include "wire/capnp_output.hpp"
#include "wire/enums.hpp"
#include "wire/keys.hpp"
#include "wire/manifest_tables.hpp"
#include "wire/table.hpp"

namespace shardwire::wire {
namespace {

void write_item(schema::Values::Item::Builder out, const Value& value);

void write_items(capnp::List<schema::Values::Item>::Builder out, const std::vector<Value>& items) {
  for (unsigned i = 0; i < out.size(); ++i) write_item(out[i], items[i]);
}

void write_pairs(capnp::List<schema::Values::Pair>::Builder out, const std::vector<ValueMapItem>& items) {
  for (unsigned i = 0; i < out.size(); ++i) {
    out[i].setKey(data_of(std::as_bytes(std::span(items[i].key))));
    write_item(out[i].initValue(), items[i].value);
  }
}

unsigned count_of(const auto& items) {
  return static_cast<unsigned>(items.size());
}

struct Writer {
  schema::Values::Item::Builder out;

  void operator()(std::monostate) { out.setNone(); }
  void operator()(bool value) { out.setBoolean(value); }
  void operator()(std::int64_t value) { out.setInteger(value); }
  void operator()(double value) { out.setFloat(std::bit_cast<std::uint64_t>(value)); }
  void operator()(const std::string& value) { out.setText(data_of(std::as_bytes(std::span(value)))); }
  void operator()(const Bytes& value) { out.setData(data_of(value)); }
  void operator()(const TensorValue& value) {
    auto to = out.initTensor();
    to.setDtype(number_of(value.dtype));
    fill(to.initShape(count_of(value.shape)), value.shape);
    to.setBytes(data_of(value.bytes));
  }
  void operator()(const ValueList& value) { write_items(out.initList(count_of(value.items)), value.items); }
  void operator()(const ValueTuple& value) { write_items(out.initTuple(count_of(value.items)), value.items); }
  void operator()(const ValueMap& value) { write_pairs(out.initMap(count_of(value.items())), value.items()); }
};

void write_item(schema::Values::Item::Builder out, const Value& value) {
  std::visit(Writer{out}, value);
}

void check_depth(const NamedValue& named) {
  if (depth_of(*named.value) > max_value_depth) {
    throw Error(ErrorCode::invalid_argument, fmt::format("value {} nests lists, tuples or maps more than {} deep",
                                                         to_string(named.key), max_value_depth));
  }
}

// Counts the items as a reader would. Errors: throws Error{invalid_argument}.
void check_items(const NamedValue& named, const Value& value, std::size_t& items_left) {
  each_item(value, [&](const Value& item) {
    if (items_left == 0) {
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format("value {} and the different ones before it have more than {} items in lists, tuples and maps",
                      to_string(named.key), max_list_items));
    }
    --items_left;
    check_items(named, item, items_left);
  });
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

// The depth and the items that the reader of one message may still build.
struct Budget {
  std::size_t depth = max_value_depth;  // of lists, tuples and maps from here
  std::size_t& items;                   // in all of them
};

std::vector<Value> read_items(capnp::List<schema::Values::Item>::Reader from, Input& in, Budget left);
ValueMap read_map(capnp::List<schema::Values::Pair>::Reader from, Input& in, Budget left);

Budget inside(const Input& in, Budget left) {
  if (left.depth == 0) in.reject(fmt::format("nests lists, tuples or maps more than {} deep", max_value_depth));
  return {left.depth - 1, left.items};
}

Value read_item(schema::Values::Item::Reader from, Input& in, Budget left) {
  using From = schema::Values::Item::Reader;
  switch (from.which()) {
    case From::Reads::NONE: return std::monostate{};
    case From::Reads::BOOLEAN: return from.getBoolean();
    case From::Reads::INTEGER: return from.getInteger();
    case From::Reads::FLOAT: return std::bit_cast<double>(from.getFloat());
    case From::Reads::TEXT: return text_in(from.getText());
    case From::Reads::DATA: return data_in(from.getData(), in);
    case From::Reads::TENSOR: return read_tensor(from.getTensor(), in);
    case From::Reads::LIST: return ValueList{read_items(from.getList(), in, inside(in, left))};
    case From::Reads::TUPLE: return ValueTuple{read_items(from.getTuple(), in, inside(in, left))};
    case From::Reads::MAP: return read_map(from.getMap(), in, inside(in, left));
    default: in.reject(fmt::format("is of the unknown kind {}", static_cast<unsigned>(from.which())));
  }
}

std::vector<Value> read_items(capnp::List<schema::Values::Item>::Reader from, Input& in, Budget left) {
  const auto items = in.list(from, left.items);
  left.items -= items.size();
  std::vector<Value> values;
  values.reserve(items.size());
  for (const auto item : items) values.push_back(read_item(item, in, left));
  return values;
}

ValueMap read_map(capnp::List<schema::Values::Pair>::Reader from, Input& in, Budget left) {
  const auto pairs = in.list(from, left.items);
  left.items -= pairs.size();
  ValueMap map;
  for (const auto pair : pairs) {
    const std::string key = text_in(pair.getKey());
    if (!map.items().empty() && map.items().back().key >= key)
      in.reject("has a map with a key out of order or repeated");
    map[key] = read_item(pair.getValue(), in, left);
  }
  return map;
}

// Rows of values are rows of tensors of one shape and rule.
TableSizes sizes_of(std::size_t names, std::size_t states) {
  return {names, states, 1, 1};
}

}  // namespace

Bytes encode_values(const std::vector<NamedValue>& values) {
  std::vector<const NamedValue*> sorted;
  sorted.reserve(values.size());
  for (const NamedValue& one : values) sorted.push_back(&one);
  std::ranges::sort(sorted, {}, [](const NamedValue* one) -> const TensorKey& { return one->key; });
  Table<std::string> names;
  Table<std::string> states;
  Table<Value, ValueLess> distinct;
  std::vector<TensorRow> rows;
  rows.reserve(sorted.size());
  std::size_t items_left = max_list_items;
  const TensorKey* last = nullptr;
  for (const NamedValue* one : sorted) {
    check_key(one->key);
    if (last != nullptr && *last == one->key) {
      throw Error(ErrorCode::invalid_argument, "value " + to_string(one->key) + " is given twice");
    }
    last = &one->key;
    check_depth(*one);
    const unsigned known = distinct.size();
    const std::uint32_t value = distinct.index_of(*one->value);
    if (distinct.size() > known) check_items(*one, *one->value, items_left);
    rows.push_back({names.index_of(one->key.fqn), states.index_of(one->key.state), 0, 0, value});
  }
  return encode_canonical<schema::Values>("list of values", [&](schema::Values::Builder out) {
    out.setNames(data_of(encode_names(names.values())));
    auto to_states = out.initStates(states.size());
    for (unsigned i = 0; i < states.size(); ++i) to_states.set(i, text_of(states[i]));
    auto to_distinct = out.initDistinct(distinct.size());
    for (unsigned i = 0; i < distinct.size(); ++i) write_item(to_distinct[i], distinct[i]);
    out.setRows(data_of(encode_rows(rows, sizes_of(names.size(), states.size()))));
  });
}

std::vector<NamedValue> decode_values(std::span<const std::byte> bytes) {
  return read_canonical<schema::Values>("Values", bytes, [&](schema::Values::Reader from, Input& in) {
    Expansion names_left(bytes.size(), 1u << 20, 128);
    const auto names = decode_names(in.at("Values.names").view(from.getNames()), in, names_left);
    std::vector<std::string> states;
    for (const auto state : in.at("Values.states").list(from.getStates())) {
      states.push_back(in.name(state, max_name_bytes));
    }
    std::vector<SharedValue> distinct;
    const auto items = in.at("Values.distinct").list(from.getDistinct(), max_rows);
    distinct.reserve(items.size());
    std::size_t items_left = max_list_items;
    for (const auto item : items) {
      in.at("Values.distinct", distinct.size());
      distinct.emplace_back(read_item(item, in, Budget{max_value_depth, items_left}));
    }
    const auto encoded = in.at("Values.rows").view(from.getRows());
    const auto rows = decode_rows(encoded, sizes_of(names.size(), states.size()), in, "Values.rows");
    std::vector<NamedValue> values;
    values.reserve(rows.size());
    for (const TensorRow& row : rows) {
      in.at("Values.rows", values.size());
      if (row.dtype >= distinct.size()) in.reject("refers past the end of the values");
      if (!names_left.take(names[row.name].size() + states[row.state].size())) in.reject("expands to too many names");
      values.push_back({{names[row.name], states[row.state]}, distinct[row.dtype]});
      if (values.size() > 1 && !(values[values.size() - 2].key < values.back().key))
        in.reject("is out of order or repeated");
    }
    if (!std::ranges::equal(encode_values(values), bytes)) in.at("Values").reject("is not in canonical form");
    return values;
  });
}

}  // namespace shardwire::wire

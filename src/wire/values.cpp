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

using ValueBuilder = schema::Values::Entry::Value::Builder;

void write(ValueBuilder out, std::monostate) {
  out.setNone();
}
void write(ValueBuilder out, bool value) {
  out.setBoolean(value);
}
void write(ValueBuilder out, std::int64_t value) {
  out.setInteger(value);
}
void write(ValueBuilder out, double value) {
  out.setFloat(std::bit_cast<std::uint64_t>(value));
}
void write(ValueBuilder out, const std::string& value) {
  out.setText(data_of(std::as_bytes(std::span(value))));
}
void write(ValueBuilder out, const Bytes& value) {
  out.setData(data_of(value));
}
void write(ValueBuilder out, const TensorValue& value) {
  auto to = out.initTensor();
  to.setDtype(to_wire<schema::DType>(wire_dtypes, value.dtype));
  fill(to.initShape(static_cast<unsigned>(value.shape.size())), value.shape);
  to.setBytes(data_of(value.bytes));
}

TensorValue read_tensor(schema::Values::Tensor::Reader from, Input& in) {
  TensorValue value{in.dtype(from.getDtype()), in.shape(from.getShape()), in.data(from.getBytes(), max_message_bytes)};
  const auto volume = static_cast<ByteCount>(volume_of(value.shape));
  const ByteCount expected = support::multiply(volume, item_size(value.dtype), "size of a tensor value");
  if (value.bytes.size() != expected)
    in.reject(fmt::format("has {} bytes instead of {}", value.bytes.size(), expected));
  return value;
}

Value read_value(schema::Values::Entry::Value::Reader from, Input& in) {
  using Which = schema::Values::Entry::Value::Which;
  switch (from.which()) {
    case Which::NONE: return std::monostate{};
    case Which::BOOLEAN: return from.getBoolean();
    case Which::INTEGER: return from.getInteger();
    case Which::FLOAT: return std::bit_cast<double>(from.getFloat());
    case Which::TEXT: {
      const auto text = from.getText();
      return std::string(reinterpret_cast<const char*>(text.begin()), text.size());
    }
    case Which::DATA: return in.data(from.getData(), max_message_bytes);
    case Which::TENSOR: return read_tensor(from.getTensor(), in);
  }
  in.reject(fmt::format("is of the unknown kind {}", static_cast<unsigned>(from.which())));
}

}  // namespace

Bytes encode_values(std::vector<NamedValue> values) {
  std::sort(values.begin(), values.end(), [](const NamedValue& a, const NamedValue& b) { return a.key < b.key; });
  for (std::size_t i = 0; i < values.size(); ++i) {
    check_key(values[i].key);
    if (i > 0 && values[i].key == values[i - 1].key) {
      throw Error(ErrorCode::invalid_argument, "value " + to_string(values[i].key) + " is given twice");
    }
  }
  return encode_canonical<schema::Values>("list of values", [&](schema::Values::Builder out) {
    auto entries = out.initEntries(static_cast<unsigned>(values.size()));
    for (unsigned i = 0; i < entries.size(); ++i) {
      entries[i].setFqn(text_of(values[i].key.fqn));
      entries[i].setState(text_of(values[i].key.state));
      std::visit([&](const auto& value) { write(entries[i].initValue(), value); }, values[i].value);
    }
  });
}

std::vector<NamedValue> decode_values(std::span<const std::byte> bytes) {
  return read_canonical<schema::Values>("Values", bytes, [&](schema::Values::Reader from, Input& in) {
    std::vector<NamedValue> values;
    const auto entries = in.at("Values.entries").list(from.getEntries());
    values.reserve(entries.size());
    for (const auto entry : entries) {
      in.at("Values.entries", values.size());
      TensorKey key{in.name(entry.getFqn(), max_fqn_bytes), in.name(entry.getState(), max_name_bytes)};
      if (!values.empty() && !(values.back().key < key)) in.reject("is out of order or repeated");
      values.push_back({std::move(key), read_value(entry.getValue(), in)});
    }
    if (!std::ranges::equal(encode_values(values), bytes)) in.at("Values").reject("is not in canonical form");
    return values;
  });
}

}  // namespace shardwire::wire

// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cstring>

#include "convert.hpp"

namespace shardwire::python {

namespace {

[[noreturn]] void refuse(const std::string& why) {
  throw Error(ErrorCode::invalid_argument, why);
}

Value number_from(nb::handle object) {
  int overflow = 0;
  const std::int64_t number = PyLong_AsLongLongAndOverflow(object.ptr(), &overflow);
  if (overflow != 0) refuse(fmt::format("the value {} does not fit in 64 bits", nb::str(object).c_str()));
  return number;
}

Value tensor_from(nb::handle object) {
  TensorValue tensor{nb::cast<TypeName>(object.attr("dtype")), nb::cast<Numbers>(object.attr("shape")), {}};
  const nb::object data = object.attr("data");
  if (!PyBytes_Check(data.ptr())) refuse("the data of a TensorValue has to be bytes");
  tensor.bytes = bytes_from(nb::borrow<nb::bytes>(data));
  const auto expected = static_cast<ByteCount>(volume_of(tensor.shape)) * item_size(tensor.dtype);
  if (tensor.bytes.size() != expected) {
    refuse(fmt::format("a TensorValue of {} {} has {} bytes, not {}", to_string(tensor.dtype), to_string(tensor.shape),
                       tensor.bytes.size(), expected));
  }
  return tensor;
}

template <typename Sequence>
Value items_from(nb::handle object, std::size_t depth) {
  Sequence out;
  for (const nb::handle item : object) out.items.push_back(value_from(item, depth + 1));
  return out;
}

Value map_from(nb::handle object, std::size_t depth) {
  ValueMap out;
  for (const auto& [key, item] : nb::borrow<nb::dict>(object)) {
    if (!PyUnicode_Check(key.ptr())) refuse(fmt::format("the key {} of a dict is not text", nb::repr(key).c_str()));
    out[nb::cast<std::string>(key)] = value_from(item, depth + 1);
  }
  return out;
}

struct ToPython {
  nb::object operator()(std::monostate) const { return nb::none(); }
  nb::object operator()(bool value) const { return nb::bool_(value); }
  nb::object operator()(std::int64_t value) const { return nb::int_(value); }
  nb::object operator()(double value) const { return nb::float_(value); }
  nb::object operator()(const std::string& value) const { return nb::str(value.data(), value.size()); }
  nb::object operator()(const Bytes& value) const { return to_python(value); }
  nb::object operator()(const TensorValue& value) const {
    return make("TensorValue", to_string(value.dtype), to_python(value.shape), (*this)(value.bytes));
  }
  nb::object operator()(const ValueList& value) const { return list(value.items); }
  nb::object operator()(const ValueTuple& value) const { return nb::steal(PySequence_Tuple(list(value.items).ptr())); }
  nb::object operator()(const ValueMap& value) const {
    nb::dict out;
    for (const ValueMapItem& item : value.items())
      out[nb::str(item.key.data(), item.key.size())] = to_python(item.value);
    return out;
  }
  static nb::list list(const std::vector<Value>& items) {
    nb::list out;
    for (const Value& item : items) out.append(to_python(item));
    return out;
  }
};

}  // namespace

nb::object to_python(const Value& value) {
  return std::visit(ToPython{},
                    static_cast<const std::variant<std::monostate, bool, std::int64_t, double, std::string, Bytes,
                                                   TensorValue, ValueList, ValueTuple, ValueMap>&>(value));
}

Value value_from(nb::handle object, std::size_t depth) {
  if (depth > max_value_depth) refuse(fmt::format("a value is nested deeper than {}", max_value_depth));
  PyObject* const raw = object.ptr();
  if (object.is_none()) return {};
  if (PyBool_Check(raw)) return raw == Py_True;
  if (PyLong_Check(raw)) return number_from(object);
  if (PyFloat_Check(raw)) return PyFloat_AsDouble(raw);
  if (PyUnicode_Check(raw)) return nb::cast<std::string>(object);
  if (PyBytes_Check(raw)) return bytes_from(nb::borrow<nb::bytes>(object));
  if (nb::isinstance(object, attribute("shardwire._types", "TensorValue"))) return tensor_from(object);
  if (PyList_Check(raw)) return items_from<ValueList>(object, depth);
  if (PyTuple_Check(raw)) return items_from<ValueTuple>(object, depth);
  if (PyDict_Check(raw)) return map_from(object, depth);
  refuse(fmt::format("{} is no value: it is a {}", nb::repr(object).c_str(), nb::type_name(object.type()).c_str()));
}

}  // namespace shardwire::python

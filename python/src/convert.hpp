// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "shardwire/shardwire.hpp"

// Arguments and results as the library has them. An argument of the right Python type but with a wrong value is refused
// by the conversion, with an Error that names it, and not by nanobind's overload resolution.
namespace shardwire::python {

namespace nb = nanobind;

/// Seconds as float, int or timedelta.
struct Seconds {
  double value = 0;
  /// Errors: throws Error{invalid_argument} for NaN and negative numbers.
  operator Duration() const;
};

/// A name for one of the library's enumerators.
struct Name {
  std::string text;
};
MeshOrder mesh_order(const Name& name);
Absent absent(const Name& name);
Agree agree(const Name& name);
Snapshot snapshot(const Name& name);
Verify verify(const Name& name);
Replicas replicas(const Name& name);
StepRule step_rule(const Name& name);
RestoreMethod restore_method(const Name& name);
ExchangeMethod exchange_method(const Name& name);

/// A name of ours, a long one such as "float32", or another package's dtype.
struct TypeName {
  std::string text;
  operator DType() const;
};

/// A shape, an offset or strides.
struct Numbers {
  std::vector<std::int64_t> values;
  operator Extents() const { return Extents(std::span<const Extent>(values)); }
};

nb::tuple to_python(const Extents& extents);
nb::object to_python(const Box& box);
nb::object to_python(const PlacedBox& box);
nb::object to_python(const TensorKey& key);
nb::object to_python(const Gap& gap);
nb::list ranks_to_python(const std::vector<Rank>& ranks);
std::vector<Rank> ranks_from(const std::vector<int>& numbers);
Box box_from(nb::handle object);

/// Keys and infos of many tensors. Equal names, and equal infos, are one object: that is less to make and less to keep.
class Keys {
 public:
  Keys();
  nb::object of(const TensorKey& key);
  nb::object info_of(const TensorSpec& spec);

 private:
  nb::object new_;  // of tuples: a key is no more, and the constructor of its class is Python
  nb::object class_;
  std::string last_;  // in keys of one parameter, which mostly follow one another
  nb::object fqn_;
  std::map<std::string, nb::object> states_;
  std::map<std::pair<DType, Extents>, nb::object> infos_;
};

/// Calls the class `name` of shardwire._types.
template <typename... Arguments>
nb::object make(const char* name, Arguments&&... arguments);

nb::bytes to_python(const Bytes& bytes);
Bytes bytes_from(const nb::bytes& bytes);
nb::object to_python(const Value& value);
/// Errors: throws Error{invalid_argument} naming a type that is no value, and for values that are too deep.
Value value_from(nb::handle object, std::size_t depth = 0);

}  // namespace shardwire::python

#include "interpreter.hpp"

template <typename... Arguments>
nanobind::object shardwire::python::make(const char* name, Arguments&&... arguments) {
  return attribute("shardwire._types", name)(std::forward<Arguments>(arguments)...);
}

namespace nanobind::detail {

template <>
struct type_caster<shardwire::python::Seconds> {
  NB_TYPE_CASTER(shardwire::python::Seconds, const_name("shardwire._types.Seconds"))

  bool from_python(handle source, std::uint8_t, cleanup_list*) noexcept {
    if (hasattr(source, "total_seconds")) {
      PyObject* seconds = PyObject_CallMethod(source.ptr(), "total_seconds", nullptr);
      if (seconds == nullptr) return forget();
      value.value = PyFloat_AsDouble(seconds);
      Py_DECREF(seconds);
    } else if (PyFloat_Check(source.ptr()) || PyLong_Check(source.ptr())) {
      value.value = PyFloat_AsDouble(source.ptr());
    } else {
      return false;
    }
    return PyErr_Occurred() == nullptr || forget();
  }
  static handle from_cpp(const shardwire::python::Seconds& seconds, rv_policy, cleanup_list*) noexcept {
    return PyFloat_FromDouble(seconds.value);
  }
  static bool forget() {
    PyErr_Clear();
    return false;
  }
};

template <>
struct type_caster<shardwire::python::Name> {
  NB_TYPE_CASTER(shardwire::python::Name, const_name("str"))

  bool from_python(handle source, std::uint8_t, cleanup_list*) noexcept {
    const char* text = PyUnicode_Check(source.ptr()) ? PyUnicode_AsUTF8AndSize(source.ptr(), nullptr) : nullptr;
    if (text == nullptr) return PyErr_Clear(), false;
    value.text = text;
    return true;
  }
  static handle from_cpp(const shardwire::python::Name& name, rv_policy, cleanup_list*) noexcept {
    return PyUnicode_FromStringAndSize(name.text.data(), static_cast<Py_ssize_t>(name.text.size()));
  }
};

template <>
struct type_caster<shardwire::python::TypeName> {
  NB_TYPE_CASTER(shardwire::python::TypeName, const_name("shardwire._types.DTypeLike"))

  bool from_python(handle source, std::uint8_t, cleanup_list*) noexcept {
    object text = borrow(source);
    // numpy's types have a name; torch's print theirs.
    if (!PyUnicode_Check(source.ptr())) {
      PyObject* name = PyObject_GetAttrString(source.ptr(), "name");
      if (name == nullptr) PyErr_Clear(), name = PyObject_GetAttrString(source.ptr(), "__name__");
      if (name == nullptr) PyErr_Clear(), name = PyObject_Str(source.ptr());
      if (name == nullptr) return PyErr_Clear(), false;
      text = steal(name);
    }
    const char* characters = PyUnicode_Check(text.ptr()) ? PyUnicode_AsUTF8AndSize(text.ptr(), nullptr) : nullptr;
    if (characters == nullptr) return PyErr_Clear(), false;
    value.text = characters;
    return true;
  }
};

template <>
struct type_caster<shardwire::python::Numbers> {
  NB_TYPE_CASTER(shardwire::python::Numbers, const_name("collections.abc.Sequence[int]"))

  bool from_python(handle source, std::uint8_t, cleanup_list*) noexcept {
    if (PyUnicode_Check(source.ptr())) return false;
    PyObject* items = PySequence_Tuple(source.ptr());
    if (items == nullptr) return PyErr_Clear(), false;
    const Py_ssize_t count = PyTuple_Size(items);
    value.values.reserve(static_cast<std::size_t>(count));
    for (Py_ssize_t i = 0; i < count; ++i) {
      PyObject* item = PyNumber_Index(PyTuple_GetItem(items, i));
      const long long number = item == nullptr ? -1 : PyLong_AsLongLong(item);
      Py_XDECREF(item);
      if (number == -1 && PyErr_Occurred() != nullptr) break;
      value.values.push_back(number);
    }
    Py_DECREF(items);
    const bool good = PyErr_Occurred() == nullptr;
    PyErr_Clear();
    return good;
  }
  static handle from_cpp(const shardwire::python::Numbers& numbers, rv_policy, cleanup_list*) noexcept {
    return shardwire::python::to_python(static_cast<shardwire::Extents>(numbers)).release();
  }
};

}  // namespace nanobind::detail

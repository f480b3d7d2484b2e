// SPDX-License-Identifier: Apache-2.0
#include "memory.hpp"

#include <fmt/format.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/vector.h>

#include "bindings.hpp"

namespace shardwire::python {

namespace {

[[noreturn]] void refuse(const std::string& why) {
  throw Error(ErrorCode::invalid_argument, why);
}

// DLPack's codes, where our types differ by them; bits are checked beside.
std::optional<DType> dtype_of(nb::dlpack::dtype type) {
  if (type.lanes != 1) return std::nullopt;
  using Code = nb::dlpack::dtype_code;
  const auto by_bits = [&](DType eight, DType sixteen, DType thirty_two, DType sixty_four) -> std::optional<DType> {
    switch (type.bits) {
      case 8: return eight;
      case 16: return sixteen;
      case 32: return thirty_two;
      case 64: return sixty_four;
      default: return std::nullopt;
    }
  };
  if (type.code == static_cast<std::uint8_t>(Code::Int)) return by_bits(DType::i8, DType::i16, DType::i32, DType::i64);
  if (type.code == static_cast<std::uint8_t>(Code::UInt)) return by_bits(DType::u8, DType::u16, DType::u32, DType::u64);
  if (type.code == static_cast<std::uint8_t>(Code::Bool))
    return type.bits == 8 ? std::optional(DType::boolean) : std::nullopt;
  if (type.code == static_cast<std::uint8_t>(Code::Bfloat))
    return type.bits == 16 ? std::optional(DType::bf16) : std::nullopt;
  if (type.code == static_cast<std::uint8_t>(Code::Complex)) {
    return type.bits == 64    ? std::optional(DType::complex64)
           : type.bits == 128 ? std::optional(DType::complex128)
                              : std::nullopt;
  }
  if (type.code == static_cast<std::uint8_t>(Code::Float) && type.bits >= 16) {
    return by_bits(DType::f16, DType::f16, DType::f32, DType::f64);
  }
  return std::nullopt;
}

bool stands_for_others(DType dtype) {
  return dtype == DType::u8 || dtype == DType::u16 || dtype == DType::u32;
}

bool has_no_numpy_type(DType dtype) {
  switch (dtype) {
    case DType::bf16:
    case DType::f8e4m3:
    case DType::f8e5m2:
    case DType::f8e4m3fnuz:
    case DType::f8e5m2fnuz:
    case DType::f8e8m0: return true;
    default: return static_cast<std::uint32_t>(dtype) > shardwire::detail::opaque_numbers;
  }
}

std::string class_of(nb::handle object) {
  return nb::type_name(object.type()).c_str();
}

bool is_cuda(int device_type) {
  return device_type == nb::device::cuda::value || device_type == nb::device::cuda_managed::value;
}

// The capsule of `__dlpack__`. Objects tell read-only memory only to consumers that know version 1. Consumers name their stream;
// ours waits behind the legacy default stream, whose number is 1.
nb::object exported(nb::handle object, const std::string& what) {
  const auto [device_type, index] = nb::cast<std::pair<int, int>>(object.attr("__dlpack_device__")());
  static_cast<void>(index);
  const bool on_host = device_type == nb::device::cpu::value || device_type == nb::device::cuda_host::value;
  if (!on_host && !is_cuda(device_type)) {
    refuse(fmt::format("{}: a {} is on a device of DLPack's type {}, neither on the host nor on a CUDA device", what,
                       class_of(object), device_type));
  }
  nb::dict arguments;
  if (!on_host) arguments["stream"] = 1;
  const nb::object give = object.attr("__dlpack__");
  try {
    return give(nb::arg("max_version") = nb::make_tuple(1, 0), **arguments);
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_TypeError)) throw;
  }
  return give(**arguments);  // of before version 1
}

nb::object to_capsule_source(nb::handle object, const std::string& what) {
  // Objects with a buffer may refuse DLPack, as numpy does for memory that cannot be written.
  if (PyObject_CheckBuffer(object.ptr()) != 0 || !nb::hasattr(object, "__dlpack__")) return nb::borrow(object);
  try {
    return exported(object, what);
  } catch (nb::python_error& error) {
    nb::raise_from(error, attribute("shardwire._errors", "InvalidArgument").ptr(), "%s: its memory cannot be used",
                   what.c_str());
  }
}

bool is_dense(const nb::ndarray<nb::ro>& array) {
  std::int64_t expected = 1;
  for (std::size_t dim = array.ndim(); dim-- > 0;) {
    if (array.shape(dim) == 0) return true;
    if (array.shape(dim) != 1 && array.stride(dim) != expected) return false;
    expected *= static_cast<std::int64_t>(array.shape(dim));
  }
  return true;
}

}  // namespace

Memory import_memory(nb::handle object, const std::string& what) {
  const nb::object source = to_capsule_source(object, what);
  nb::ndarray<> writable;
  nb::ndarray<nb::ro> array;
  const bool read_only = !nb::try_cast(source, writable);
  if (!read_only) {
    array = nb::ndarray<nb::ro>(writable);
  } else if (!nb::try_cast(source, array)) {
    refuse(fmt::format("{}: a {} has neither DLPack nor a buffer that can be used", what, class_of(object)));
  }
  Memory out;
  View& view = out.view;
  view.data = const_cast<void*>(array.data());
  if (is_cuda(array.device_type())) {
    view.kind = MemoryKind::cuda;
    view.device = array.device_id();
  }
  out.stands_for = dtype_of(array.dtype());
  out.elements = static_cast<ElementCount>(array.size());
  out.dense = is_dense(array);
  view.bytes = out.elements * static_cast<ElementCount>(array.itemsize());
  if (!out.dense) {
    if (array.ndim() > max_dims) refuse(fmt::format("{}: has {} dims, more than {}", what, array.ndim(), max_dims));
    view.strides = Extents::filled(array.ndim(), 0);
    for (std::size_t dim = 0; dim < array.ndim(); ++dim) view.strides[dim] = array.stride(dim);
  }
  view.read_only = read_only;
  // The exporter may take the memory back once nothing holds what it has exported.
  view.owner = keep(nb::make_tuple(object, nb::cast(array, nb::rv_policy::reference)));
  return out;
}

View view_for(const Memory& memory, DType dtype) {
  View view = memory.view;
  if (memory.elements < 0) return view;  // the caller's own account
  const bool stands = memory.stands_for && stands_for_others(*memory.stands_for) && has_no_numpy_type(dtype);
  const bool same_size = memory.stands_for && item_size(*memory.stands_for) == item_size(dtype);
  if (stands && (same_size || memory.dense)) return view;  // with its size in bytes
  if (!memory.stands_for && memory.dense) return view;     // structs and the like: bytes
  view.dtype = memory.stands_for;
  view.elements = memory.elements;
  view.bytes = -1;
  return view;
}

namespace {

struct PyView {
  Memory memory;

  PyView(nb::object data, const std::optional<TypeName>& dtype, const Numbers& strides,
         std::optional<ElementCount> elements, std::optional<ElementCount> nbytes, ElementCount offset,
         std::optional<int> device, std::uintptr_t ready_event, bool read_only, const nb::object& owner) {
    if (PyLong_Check(data.ptr())) {
      memory.view.data = reinterpret_cast<void*>(nb::cast<std::uintptr_t>(data));
    } else if (!data.is_none()) {
      memory = import_memory(data, "a view");
    }
    View& view = memory.view;
    if (dtype) {
      view.dtype = static_cast<DType>(*dtype);
      memory.elements = -1;
    }
    if (!strides.values.empty()) view.strides = strides;
    if (elements) view.elements = *elements, view.bytes = -1, memory.elements = -1;
    if (nbytes) view.bytes = *nbytes, memory.elements = -1;
    view.offset = offset;
    if (device) view.kind = MemoryKind::cuda, view.device = *device;
    view.ready_event = reinterpret_cast<void*>(ready_event);
    view.read_only = view.read_only || read_only;
    if (!owner.is_none()) view.owner = keep(owner);
  }
};

// The buffer protocol of an arena.
int arena_buffer(PyObject* self, Py_buffer* buffer, int flags) {
  try {
    const auto& arena = nb::cast<Arena&>(nb::handle(self));
    return PyBuffer_FillInfo(buffer, self, arena.data(), static_cast<Py_ssize_t>(arena.size_bytes()), 0, flags);
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_BufferError, error.what());
    buffer->obj = nullptr;
    return -1;
  }
}

PyType_Slot arena_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(arena_buffer)}, {0, nullptr}};

}  // namespace

View view_from(nb::handle buffer, DType dtype, const std::string& what) {
  if (buffer.is_none()) return {};
  if (nb::isinstance<PyView>(buffer)) return view_for(nb::cast<const PyView&>(buffer).memory, dtype);
  return view_for(import_memory(buffer, what), dtype);
}

View view_from(nb::handle buffer) {
  Memory memory =
      nb::isinstance<PyView>(buffer) ? nb::cast<const PyView&>(buffer).memory : import_memory(buffer, "a buffer");
  if (!memory.dense) refuse("memory to register has to be dense");
  return std::move(memory.view);
}

void bind_memory(nb::module_& module) {
  nb::class_<PyView>(
      module, "View",
      "Memory of one tensor: an address, or an object with DLPack or the buffer protocol, which then stays alive "
      "with the view. Strides, elements and offset count elements.")
      .def(nb::init<nb::object, const std::optional<TypeName>&, const Numbers&, std::optional<ElementCount>,
                    std::optional<ElementCount>, ElementCount, std::optional<int>, std::uintptr_t, bool,
                    const nb::object&>(),
           nb::arg("data").none(), nb::kw_only(), nb::arg("dtype") = nb::none(), nb::arg("strides") = Numbers{},
           nb::arg("elements") = nb::none(), nb::arg("nbytes") = nb::none(), nb::arg("offset") = 0,
           nb::arg("device") = nb::none(), nb::arg("ready_event") = 0, nb::arg("read_only") = false,
           nb::arg("owner") = nb::none(),
           nb::sig("def __init__(self, data: typing.Any, *, dtype: shardwire._types.DTypeLike | None = None, strides: "
                   "collections.abc.Sequence[int] = (), elements: int | None = None, nbytes: int | None = None, "
                   "offset: int = 0, "
                   "device: int | None = None, ready_event: int = 0, read_only: bool = False, owner: object = None) -> "
                   "None"))
      .def_prop_ro("address",
                   [](const PyView& view) { return reinterpret_cast<std::uintptr_t>(view.memory.view.data); });
  nb::class_<Arena>(
      module, "Arena",
      "Memory that peers can reach without a copy in between. Has the buffer protocol if it is host memory.",
      nb::type_slots(arena_slots))
      .def_prop_ro("address", [](const Arena& arena) { return reinterpret_cast<std::uintptr_t>(arena.data()); })
      .def("__len__", &Arena::size_bytes)
      .def("discard", &Arena::discard, nb::arg("offset"), nb::arg("nbytes"),
           "Returns memory to the system; the number of bytes freed. The caller must not access them again.");
  nb::class_<Registration>(module, "Registration",
                           "Memory of the caller that peers can read directly. Retire publications of it first.")
      .def("__len__", &Registration::size_bytes)
      .def("close", [](Registration& registration) { end_unlocked(registration); })
      .def(
          "__enter__", [](nb::object self) { return self; }, nb::sig("def __enter__(self) -> Registration"))
      .def(
          "__exit__", [](Registration& registration, const nb::args&) { end_unlocked(registration); },
          nb::sig("def __exit__(self, *exception: object) -> None"));
}

}  // namespace shardwire::python

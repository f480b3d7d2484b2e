// SPDX-License-Identifier: Apache-2.0
#include "catalog.hpp"

#include <nanobind/stl/vector.h>

#include "bindings.hpp"
#include "memory.hpp"

namespace shardwire::python {

namespace {

void add(PyCatalog& self, std::string fqn, std::string state, const TypeName& type, const Numbers& shape,
         const Layout& layout, const nb::object& buffer, const Name& policy) {
  TensorSpec spec{{std::move(fqn), std::move(state)}, type, shape};
  const View view = view_from(buffer, spec.dtype, to_string(spec.key));
  self.catalog.add(std::move(spec), layout, view, absent(policy));
}

void add_address(PyCatalog& self, std::string fqn, std::string state, const TypeName& type, const Numbers& shape,
                 const Layout& layout, std::uintptr_t address, const Numbers& strides, ElementCount elements,
                 const nb::object& owner, int device, std::uintptr_t ready_event, const Name& policy) {
  View view;
  view.data = reinterpret_cast<void*>(address);
  if (device >= 0) view.kind = MemoryKind::cuda, view.device = device;
  view.strides = strides;
  view.elements = elements;
  view.ready_event = reinterpret_cast<void*>(ready_event);
  if (!owner.is_none()) {
    if (self.owner.get() != owner.ptr()) self.owner = keep(owner);
    view.owner = self.owner;
  }
  self.catalog.add({{std::move(fqn), std::move(state)}, type, shape}, layout, view, absent(policy));
}

std::vector<ParamGroup> groups_from(const nb::object& groups) {
  std::vector<ParamGroup> out;
  for (const nb::handle group : groups) {
    ParamGroup& added = out.emplace_back();
    for (const nb::handle fqn : group.attr("fqns")) added.fqns.push_back(nb::cast<std::string>(fqn));
    for (const auto& [name, value] : nb::borrow<nb::dict>(group.attr("options"))) {
      added.options[nb::cast<std::string>(name)] = value_from(value);
    }
  }
  return out;
}

nb::dict tensors(const PyCatalog& self) {
  nb::dict out;
  Keys keys;
  for (const Catalog::Entry& entry : self.catalog.entries()) out[keys.of(entry.spec.key)] = keys.info_of(entry.spec);
  return out;
}

nb::dict values(const PyCatalog& self) {
  nb::dict out;
  Keys keys;
  for (const Catalog::ValueEntry& entry : self.catalog.values()) out[keys.of(entry.key)] = to_python(entry.value);
  return out;
}

}  // namespace

void bind_catalog(nb::module_& module) {
  nb::class_<PyCatalog>(
      module, "Catalog",
      "The tensors, with layout and local memory, and the values that one rank holds or wants. Keeps the "
      "objects that own the memory alive. Add the same tensors in the same order on all ranks.")
      .def(nb::init<int, int>(), nb::arg("rank"), nb::arg("ranks"))
      .def("add", &add, nb::arg("fqn"), nb::arg("state"), nb::arg("dtype"), nb::arg("shape"), nb::arg("layout"),
           nb::arg("buffer").none() = nb::none(), nb::kw_only(), nb::arg("absent") = Name{"error"},
           "Adds a tensor of this global shape. `buffer` is this rank's local memory: a View, an object with DLPack or "
           "the "
           "buffer protocol, or None for a rank that holds no element. For a type that numpy lacks, such as bf16, it "
           "may be an "
           "array of unsigned integers of the same size.",
           nb::sig("def add(self, fqn: str, state: str, dtype: shardwire._types.DTypeLike, shape: "
                   "collections.abc.Sequence[int], layout: Layout, buffer: typing.Any = None, *, absent: "
                   "shardwire._types.Absent = 'error') -> None"))
      .def(
          "add_address", &add_address, nb::arg("fqn"), nb::arg("state"), nb::arg("dtype"), nb::arg("shape"),
          nb::arg("layout"), nb::arg("address"), nb::arg("strides"), nb::arg("elements"), nb::arg("owner").none(),
          nb::arg("device") = -1, nb::arg("ready_event") = 0, nb::arg("absent") = Name{"error"},
          "As add(), for a known address: the fast way for many tensors with one owner. Strides in elements; empty: "
          "dense.",
          nb::sig(
              "def add_address(self, fqn: str, state: str, dtype: shardwire._types.DTypeLike, shape: "
              "collections.abc.Sequence[int], layout: Layout, address: int, strides: collections.abc.Sequence[int], "
              "elements: int, owner: object, device: int = -1, ready_event: int = 0, absent: shardwire._types.Absent = "
              "'error') -> None"))
      .def(
          "add_value",
          [](PyCatalog& self, std::string fqn, std::string state, const nb::object& value, const Name& policy,
             const Name& sources) {
            self.catalog.add_value({std::move(fqn), std::move(state)}, value_from(value), absent(policy),
                                   agree(sources));
          },
          nb::arg("fqn"), nb::arg("state"), nb::arg("value").none() = nb::none(), nb::kw_only(),
          nb::arg("absent") = Name{"error"}, nb::arg("agree") = Name{"authoritative"},
          "Adds a value; on the wanting side, requests it. Use an empty fqn for values of the whole job.",
          nb::sig("def add_value(self, fqn: str, state: str, value: shardwire._types.Value = None, *, absent: "
                  "shardwire._types.Absent = 'error', agree: shardwire._types.Agree = 'authoritative') -> None"))
      .def(
          "add_values",
          [](PyCatalog& self, std::vector<std::string> fqns, const std::string& state, const nb::object& value) {
            const Value same = value_from(value);
            for (std::string& fqn : fqns) self.catalog.add_value({std::move(fqn), state}, same);
          },
          nb::arg("fqns"), nb::arg("state"), nb::arg("value").none(),
          "As add_value() with one value for each name: the fast way for options that many parameters share.",
          nb::sig(
              "def add_values(self, fqns: collections.abc.Sequence[str], state: str, value: shardwire._types.Value) -> "
              "None"))
      .def(
          "set_value",
          [](PyCatalog& self, std::string fqn, std::string state, const nb::object& value) {
            self.catalog.set_value({std::move(fqn), std::move(state)}, value_from(value));
          },
          nb::arg("fqn"), nb::arg("state"), nb::arg("value").none(), "Replaces a value.",
          nb::sig("def set_value(self, fqn: str, state: str, value: shardwire._types.Value) -> None"))
      .def(
          "set_values",
          [](PyCatalog& self, std::vector<std::string> fqns, const std::string& state, const nb::object& value) {
            const Value same = value_from(value);
            for (std::string& fqn : fqns) self.catalog.set_value({std::move(fqn), state}, same);
          },
          nb::arg("fqns"), nb::arg("state"), nb::arg("value").none(), "As set_value() with one value for each name.",
          nb::sig(
              "def set_values(self, fqns: collections.abc.Sequence[str], state: str, value: shardwire._types.Value) -> "
              "None"))
      .def(
          "add_param_groups",
          [](PyCatalog& self, const nb::object& groups, const Name& policy) {
            add_param_groups(self.catalog, groups_from(groups), absent(policy));
          },
          nb::arg("groups"), nb::kw_only(), nb::arg("absent") = Name{"error"},
          "Adds the options of each group as values (fqn, 'param_group/<option>') of each of its parameters.",
          nb::sig(
              "def add_param_groups(self, groups: collections.abc.Iterable[shardwire._types.ParamGroup], *, absent: "
              "shardwire._types.Absent = 'error') -> None"))
      .def(
          "alias",
          [](PyCatalog& self, std::string alias, std::string fqn) {
            self.catalog.alias(std::move(alias), std::move(fqn));
          },
          nb::arg("alias"), nb::arg("fqn"), "Declares a second name of a parameter, with all its states and values.")
      .def_prop_ro("rank", [](const PyCatalog& self) { return to_int(self.catalog.layout_rank()); })
      .def_prop_ro("ranks", [](const PyCatalog& self) { return self.catalog.ranks(); })
      .def("tensors", &tensors,
           nb::sig("def tensors(self) -> dict[shardwire._types.TensorKey, shardwire._types.TensorInfo]"))
      .def("values", &values, nb::sig("def values(self) -> dict[shardwire._types.TensorKey, shardwire._types.Value]"))
      .def(
          "copy", [](const PyCatalog& self) { return self; }, "An independent catalog of the same memory. Cheap.")
      .def(
          "to_case", [](const PyCatalog& self) { return self.catalog.to_case(); },
          "As Inventory.to_case(), with these layouts on both sides. Lacks what other ranks alone have: "
          "Session.gather_layouts() and Inventory.to_case() have it.");
}

}  // namespace shardwire::python

// SPDX-License-Identifier: Apache-2.0
#include "bindings.hpp"

NB_MODULE(_core, module) {
  using namespace shardwire::python;
  module.doc() = "The library itself; use it through the package shardwire.";
  // Objects that a program keeps until its end are no leak.
  nb::set_leak_warnings(false);
  bind_interpreter();
  bind_errors();
  bind_layout(module);
  bind_memory(module);
  bind_catalog(module);
  bind_plan(module);
  bind_operations(module);
  bind_session(module);
  module.attr("version") = std::string(shardwire::version());
}

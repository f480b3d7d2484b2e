// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "convert.hpp"

// One function for each part of the module.
namespace shardwire::python {

void bind_errors();
void bind_layout(nb::module_& module);
void bind_memory(nb::module_& module);
void bind_catalog(nb::module_& module);
void bind_plan(nb::module_& module);
void bind_operations(nb::module_& module);
void bind_session(nb::module_& module);

}  // namespace shardwire::python

// SPDX-License-Identifier: Apache-2.0
#include "bindings.hpp"
#include "report.hpp"

namespace shardwire::python {

namespace {

void raise(const Error& error) {
  nb::list gaps;
  for (const Gap& gap : error.gaps()) gaps.append(to_python(gap));
  const nb::object kind = attribute("shardwire._errors", "by_code")[nb::cast(std::string(to_string(error.code())))];
  const nb::object report = error.report() ? to_python(*error.report()) : nb::none();
  const nb::object raised = kind(error.what(), gaps, ranks_to_python(error.ranks()), report);
  PyErr_SetObject(kind.ptr(), raised.ptr());
}

}  // namespace

void bind_errors() {
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const Error& error) {
      raise(error);
    }
  });
}

}  // namespace shardwire::python

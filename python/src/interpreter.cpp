// SPDX-License-Identifier: Apache-2.0
#include "interpreter.hpp"

#include <unistd.h>

#include <atomic>
#include <map>
#include <string>
#include <thread>

namespace shardwire::python {

namespace {

std::atomic<bool> ending = false;
std::thread::id main_thread;

void drop(void* object) {
  if (ending) return;
  const nb::gil_scoped_acquire locked;
  Py_DECREF(static_cast<PyObject*>(object));
}

}  // namespace

std::shared_ptr<void> keep(nb::handle object) {
  Py_INCREF(object.ptr());
  return {object.ptr(), drop};
}

bool check_signals() {
  if (ending || std::this_thread::get_id() != main_thread) return false;
  const nb::gil_scoped_acquire locked;
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
  return false;
}

void begin_end() {
  ending = true;
}

Unlocked::~Unlocked() {
  while (ending && std::this_thread::get_id() != main_thread) ::pause();
  PyEval_RestoreThread(state_);
}

nb::object attribute(const char* module, const char* name) {
  // Never freed: the interpreter may be gone when static objects are destroyed.
  static auto& known = *new std::map<std::pair<std::string, std::string>, nb::object>;
  auto& object = known[{module, name}];
  if (!object.is_valid()) object = nb::module_::import_(module).attr(name);
  return object;
}

void bind_interpreter() {
  if (PyInterpreterState_GetID(PyInterpreterState_Get()) != 0) {
    throw nb::import_error("shardwire works in the main interpreter only, not in subinterpreters");
  }
  const nb::object main = nb::module_::import_("threading").attr("main_thread")();
  if (nb::cast<unsigned long>(main.attr("ident")) == PyThread_get_thread_ident())
    main_thread = std::this_thread::get_id();
}

}  // namespace shardwire::python

// SPDX-License-Identifier: Apache-2.0
#include "interpreter.hpp"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <map>
#include <string>
#include <thread>

namespace shardwire::python {

namespace {

std::atomic<bool> ending = false;
std::atomic<int> entering = 0;               // see Entry
std::atomic<unsigned long> main_thread = 0;  // its `ident` in Python

bool in_main_thread() {
  return PyThread_get_thread_ident() == main_thread;
}

/// In its lifetime this thread may take the interpreter's lock, unless it finds that the interpreter ends.
struct Entry {
  Entry() { ++entering; }
  ~Entry() { --entering; }
  Entry(const Entry&) = delete;
  Entry& operator=(const Entry&) = delete;
};

void drop(void* object) {
  const Entry entry;
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
  if (ending || !in_main_thread()) return false;
  const nb::gil_scoped_acquire locked;
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
  return false;
}

// Threads that are about to take the lock get it: later it would end them. In a child of fork() they may be there no more.
void begin_end() {
  main_thread = PyThread_get_thread_ident();
  ending = true;
  for (int tries = 1000; entering > 0 && tries > 0; --tries) {
    unlocked([] { std::this_thread::sleep_for(std::chrono::milliseconds(1)); });
  }
}

Unlocked::~Unlocked() {
  bool entered = false;
  {
    const Entry entry;
    if ((entered = !ending || in_main_thread())) PyEval_RestoreThread(state_);
  }
  while (!entered) ::pause();
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
  main_thread = nb::cast<unsigned long>(nb::module_::import_("threading").attr("main_thread")().attr("ident"));
}

}  // namespace shardwire::python

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <utility>

// The interpreter's lock, and objects of Python that the library keeps. Threads of the library never run Python code.
namespace shardwire::python {

namespace nb = nanobind;

/// Keeps `object` alive. The last owner drops it under the interpreter's lock, or not at all once the interpreter ends.
std::shared_ptr<void> keep(nb::handle object);

/// Calls `body` without the interpreter's lock if this thread holds it.
template <typename Body>
decltype(auto) unlocked(Body body) {
  const nb::gil_scoped_release released;
  return body();
}

/// Ends `object`, whose destructor may wait for other threads, without the interpreter's lock.
template <typename T>
void end_unlocked(T& object) {
  unlocked([&] { T ending(std::move(object)); });
}

/// For SessionOptions::interrupted: runs handlers of signals, on the interpreter's main thread.
/// Errors: throws the exception of a handler, such as KeyboardInterrupt.
bool check_signals();

/// True from end() on.
bool is_ending();
/// The interpreter ends: nothing is dropped any more.
void end();

/// A name of a Python module of this package, imported at its first use.
nb::object attribute(const char* module, const char* name);

void bind_interpreter(nb::module_& module);

}  // namespace shardwire::python

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

/// Lets go of the interpreter's lock. The destructor takes it again, or never returns once the interpreter ends: threads
/// that wait for the lock then are ended in a way that C++ frames do not survive.
class Unlocked {
 public:
  Unlocked() : state_(PyEval_SaveThread()) {}
  ~Unlocked();
  Unlocked(const Unlocked&) = delete;

 private:
  PyThreadState* state_;
};

/// Calls `body` without the interpreter's lock.
template <typename Body>
decltype(auto) unlocked(Body body) {
  const Unlocked released;
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

/// From now on nothing is dropped, and only the calling thread returns to Python. Called when the interpreter ends.
void begin_end();

/// A name of a Python module of this package, imported at its first use.
nb::object attribute(const char* module, const char* name);

void bind_interpreter();

}  // namespace shardwire::python

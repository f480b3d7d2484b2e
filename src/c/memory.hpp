// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "c/callbacks.hpp"
#include "shardwire/c/memory.h"
#include "shardwire/memory.hpp"

namespace shardwire::c_api {

/// An object of the caller's that the library releases once, after it has taken it over.
class Owned {
 public:
  Owned(void* object, void (*release)(void*)) : object_(object), release_(release) {}
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  ~Owned() {
    if (taken_ && release_) called_quietly([this] { release_(object_); });
  }
  void take_over() { taken_ = true; }

 private:
  void* object_;
  void (*release_)(void*);
  bool taken_ = false;
};

inline MemoryKind memory_kind(shardwire_memory_kind kind) {
  return enumerator(kind, MemoryKind::cuda, "kind");
}
/// A view without its owner.
View view_of(const shardwire_view& given);
/// Borrows the strides of `view`.
shardwire_view view_of(const View& view);

}  // namespace shardwire::c_api

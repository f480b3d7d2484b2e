// SPDX-License-Identifier: Apache-2.0
#include "store.hpp"

namespace shardwire::python {

void PyStore::put(const std::string& key, const Bytes& value) {
  const nb::gil_scoped_acquire locked;
  store().attr("put")(key, to_python(value));
}

std::optional<Bytes> PyStore::get(const std::string& key, std::chrono::nanoseconds timeout) {
  const nb::gil_scoped_acquire locked;
  const nb::object found = store().attr("get")(key, std::chrono::duration<double>(timeout).count());
  if (found.is_none()) return std::nullopt;
  return bytes_from(nb::cast<nb::bytes>(found));
}

}  // namespace shardwire::python

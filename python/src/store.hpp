// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "convert.hpp"

namespace shardwire::python {

/// An object with put(key, value) and get(key, timeout), which gives None if there is no value in time.
class PyStore final : public KeyValueStore {
 public:
  explicit PyStore(nb::handle store) : store_(keep(store)) {}

  void put(const std::string& key, const Bytes& value) override;
  std::optional<Bytes> get(const std::string& key, std::chrono::nanoseconds timeout) override;

 private:
  [[nodiscard]] nb::handle store() const { return static_cast<PyObject*>(store_.get()); }

  std::shared_ptr<void> store_;  // owners: this
};

}  // namespace shardwire::python

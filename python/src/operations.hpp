// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <mutex>

#include "convert.hpp"

namespace shardwire::python {

/// The latest progress of an operation: the session's thread stores it, and a thread of Python's reads it.
class LatestProgress {
 public:
  void store(const Progress& progress) {
    const std::lock_guard lock(mutex_);
    latest_ = progress;
  }
  [[nodiscard]] Progress load() const {
    const std::lock_guard lock(mutex_);
    return latest_;
  }

 private:
  mutable std::mutex mutex_;
  Progress latest_{"plan", 0, 0};
};

/// A Restore or an Exchange, whose destructor waits.
template <typename Operation>
struct Running {
  Operation operation;
  std::shared_ptr<LatestProgress> progress = std::make_shared<LatestProgress>();  // owners: this and the operation
  std::vector<TensorKey> values{};                                                ///< that it asks for

  explicit Running(Operation started) : operation(std::move(started)) {
    operation.on_progress([progress = progress](const Progress& now) { progress->store(now); });
  }
  Running(Running&&) noexcept = default;
  ~Running() {
    if (operation.valid()) end_unlocked(operation);
  }
};

using PyRestore = Running<Restore>;
using PyExchange = Running<Exchange>;

struct PyPublication {
  Publication publication;
};

}  // namespace shardwire::python

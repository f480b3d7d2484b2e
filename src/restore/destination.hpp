// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>

#include "memory/device_events.hpp"
#include "restore/callbacks.hpp"
#include "restore/context.hpp"
#include "restore/transfers.hpp"

namespace shardwire::restore {

/// The caller's events around one destination: ready events that precede all writes, and done events recorded once it
/// is complete. Events are borrowed until take_back().
/// Threads: loop thread only.
class DestinationEvents {
 public:
  DestinationEvents(memory::DeviceCopies& copies, Callbacks::Failed failed)
      : copies_(copies), callbacks_(std::move(failed)) {}

  /// Waits for the events of the catalog's views. Write nothing before is_ready(): the memory may still be in use.
  void await(const Catalog& catalog, const TensorPlaces& places);
  [[nodiscard]] bool is_ready() const { return ready_; }
  /// Runs `then` when the destination is ready, now if it is.
  void when_ready(std::function<void()> then);
  /// Drops the pending call of when_ready().
  void forget() { then_ = nullptr; }
  /// Records the caller's done events, and runs `done` when all of them have happened; now if there are none. One that cannot be
  /// recorded is a failure.
  void record(const RestoreOptions& options, std::function<void()> done);
  /// Returns the events to the caller; no callback runs after that.
  void take_back();

 private:
  memory::DeviceCopies& copies_;
  Callbacks callbacks_;
  bool ready_ = true;
  std::function<void()> then_;                // once it is ready
  std::shared_ptr<memory::LentEvents> lent_;  // owners: this and the job that waits for them
  std::shared_ptr<memory::LentEvents> done_;  // owners: this and the copies
  std::size_t recording_ = 0;                 // devices whose events are pending
};

/// Writes values, and zeros over tensors without a source, once every other byte of a restore is in place.
/// Threads: loop thread only.
class Commit {
 public:
  /// `destination`: borrowed, as the context. `done` runs when everything is written, now if there is nothing to
  ///                write.
  Commit(const Context& context, const Destination& destination,
         std::function<void(const std::exception_ptr& error)> done)
      : context_(context), destination_(destination), done_(std::move(done)) {}

  /// Ownership: borrows the values until `done` runs.
  void start(const std::map<TensorKey, SharedValue>& values, const std::vector<TensorId>& zeroed);
  /// No job of it accesses the destination.
  [[nodiscard]] bool quiet() const { return writing_ == 0; }

 private:
  void write_values(const std::map<TensorKey, SharedValue>& values);
  void zero(std::size_t entry);
  void wrote(const std::exception_ptr& error);

  const Context& context_;
  Destination destination_;
  std::function<void(const std::exception_ptr&)> done_;
  std::size_t writing_ = 0;                                     // jobs
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // owners: this; jobs hold weak ones
};

}  // namespace shardwire::restore

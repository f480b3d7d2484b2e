// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "runtime/loop.hpp"
#include "transport/driven.hpp"
#include "transport/transport.hpp"

namespace shardwire {

/// Drives fabrics, and groups while they are in rounds, on the session's loop. The loop sleeps on their descriptors once
/// it has been idle for the spin time. One driver for all of them: a wake-up by one is no activity of another.
/// Threads: loop thread only.
class FabricDriver {
 public:
  /// `broken` runs once, when a fabric fails as a whole; no fabric is driven after that.
  FabricDriver(Loop& loop, std::vector<transport::Fabric*> fabrics, std::chrono::nanoseconds spin,
               std::function<void(const Error&)> broken);

  /// Drives this as well, until remove(). Both may be called inside its progress(). Ownership: borrowed.
  /// Errors: throws Error{transport_failed} if a fabric has failed.
  void add(transport::Driven& driven);
  void remove(const transport::Driven& driven);
  /// Whether a fabric is being driven now: the caller runs inside its progress().
  [[nodiscard]] bool is_driving() const { return driving_; }

 private:
  struct Entry {
    transport::Driven* driven = nullptr;      // null: removed
    std::unique_ptr<Polling::Watch> watch{};  // null: it has no descriptor
  };
  void advance();
  /// Reports activity: data has moved, or the loop was woken.
  void active();
  /// One round of each; false if there was nothing to do.
  bool progress();
  /// Whether the loop may sleep now; the fabrics then wake it.
  bool may_sleep();

  /// A fabric as something to be driven.
  class DrivenFabric final : public transport::Driven {
   public:
    explicit DrivenFabric(transport::Fabric& fabric) : fabric_(fabric) {}
    bool progress() override { return fabric_.progress(); }
    [[nodiscard]] int event_descriptor() const override { return fabric_.event_descriptor(); }
    bool arm() override { return fabric_.arm(); }

   private:
    transport::Fabric& fabric_;
  };

  Loop& loop_;
  std::vector<std::unique_ptr<DrivenFabric>> fabrics_;
  std::unique_ptr<Polling> polling_;  // outlives the watches in entries_
  std::vector<Entry> entries_;
  std::chrono::nanoseconds spin_;
  std::function<void(const Error&)> broken_;
  bool slept_ = true;  // the last round let the loop sleep, so an event woke it
  Clock::Time last_activity_{};
  bool stopped_ = false;  // a fabric has failed
  bool driving_ = false;
};

}  // namespace shardwire

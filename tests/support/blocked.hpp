// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "support/job.hpp"

namespace shardwire::test {

/// Blocks the thread of a restore's session during its lifetime, from the moment on at which so many bytes have arrived. The
/// restore is in the move meanwhile, however long this takes. Replaces what was given to on_progress() and on_done().
class BlockedInMove {
 public:
  /// Requires: no byte arrives before `begin` is called.
  /// Errors:   throws the error of a restore that ends before.
  BlockedInMove(Restore& restore, ByteCount bytes, const std::function<void()>& begin) : restore_(restore) {
    restore.on_progress(
        [state = state_, bytes](const Progress& progress) {
          if (progress.done_bytes < bytes || std::string_view(progress.stage) != "move") return;
          state->note(true);
          state->over.wait();
        },
        std::chrono::milliseconds(1));
    restore.on_done([state = state_] { state->note(false); });
    begin();
    if (state_->inside.get_future().get()) return;
    restore.wait();
    throw std::runtime_error("the restore ended before");
  }
  /// Requires: the restore stops at its values; it goes on.
  explicit BlockedInMove(Restore& restore, ByteCount bytes = 1)
      : BlockedInMove(restore, bytes, [&] { restore.proceed(); }) {}
  ~BlockedInMove() {
    restore_.on_progress(nullptr);
    state_->end.set_value();
  }
  BlockedInMove(const BlockedInMove&) = delete;
  BlockedInMove& operator=(const BlockedInMove&) = delete;

 private:
  struct State {
    void note(bool is_inside) {
      if (!noted.exchange(true)) inside.set_value(is_inside);
    }

    std::atomic<bool> noted = false;
    std::promise<bool> inside;  // false: the restore has ended
    std::promise<void> end;
    std::shared_future<void> over = end.get_future();
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();  // owners: this and the callbacks
  Restore& restore_;
};

/// Starts a restore, and calls `act` once so many bytes have arrived; no more do meanwhile.
/// Errors: as BlockedInMove.
inline Restore moving(Session& session, const Catalog& wanted, RestoreOptions options, const std::function<void()>& act,
                      ByteCount bytes = 1) {
  options.stop_at_values = true;
  Restore restore = session.restore(wanted, options);
  {
    const BlockedInMove blocked(restore, bytes);
    act();
  }
  return restore;
}

}  // namespace shardwire::test

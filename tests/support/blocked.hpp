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

/// Blocks a session's thread during its lifetime, like a process that hangs.
class Blocked {
 public:
  explicit Blocked(Session& session) {
    Catalog wanted(Rank{0}, 1);
    wanted.add({{"never", "published"}, DType::u8, {2}}, Layout::replicated(), View{.data = memory_.data()});
    RestoreOptions options = within(std::chrono::minutes(10));
    options.name = "never published";
    restore_ = session.restore(wanted, options);
    restore_.on_progress(
        [state = state_](const Progress&) {
          if (!state->once.exchange(true)) state->inside.set_value();
          state->over.get_future().wait();
        },
        std::chrono::milliseconds(1));
    state_->inside.get_future().wait();
  }
  ~Blocked() {
    restore_.on_progress(nullptr);
    state_->over.set_value();
  }
  Blocked(const Blocked&) = delete;
  Blocked& operator=(const Blocked&) = delete;

 private:
  struct State {
    std::promise<void> inside;
    std::promise<void> over;
    std::atomic<bool> once = false;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();  // owners: this and the callback
  std::vector<std::byte> memory_ = std::vector<std::byte>(2);
  Restore restore_;
};

/// Blocks the thread of a restore's session during its lifetime, from the moment on at which so many bytes have arrived. The
/// restore is in the move meanwhile, however long this takes. Errors: throws if the restore ends before.
class BlockedInMove {
 public:
  /// Calls `begin` once no arrival can be missed.
  explicit BlockedInMove(
      Restore& restore, ByteCount bytes = 1, const std::function<void()>& begin = [] {})
      : restore_(restore) {
    restore.on_progress(
        [state = state_, bytes](const Progress& progress) {
          const std::string_view stage = progress.stage;
          if (progress.done_bytes < bytes || stage == "done" || stage == "failed") return;
          state->inside = true;
          state->over.wait();
        },
        std::chrono::milliseconds(1));
    begin();
    while (!state_->inside) {
      if (restore.wait_for(std::chrono::milliseconds(1))) throw std::runtime_error("the restore ended before");
    }
  }
  ~BlockedInMove() {
    restore_.on_progress(nullptr);
    state_->end.set_value();
  }
  BlockedInMove(const BlockedInMove&) = delete;
  BlockedInMove& operator=(const BlockedInMove&) = delete;

 private:
  struct State {
    std::atomic<bool> inside = false;
    std::promise<void> end;
    std::shared_future<void> over = end.get_future();
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();  // owners: this and the callback
  Restore& restore_;
};

}  // namespace shardwire::test

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
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
    options.from = "never published";
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

}  // namespace shardwire::test

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "exchange/rounds.hpp"
#include "memory/copier.hpp"
#include "memory/copy_queue.hpp"
#include "runtime/uv_loop.hpp"
#include "support/deadline.hpp"
#include "support/job.hpp"

namespace shardwire::test {

/// A session reduced to its thread: a loop with copies and a driver, for rounds only.
class MadeRoundsSession {
 public:
  MadeRoundsSession() : loop_(std::make_shared<UvLoop>()) {
    loop_->call([this] {
      copier_ = std::make_unique<memory::Copier>(1, [this] { loop_->post([this] { copies_->poll(); }); });
      copies_ = std::make_unique<memory::HostCopies>(*copier_);
      driver_ = std::make_unique<FabricDriver>(*loop_, std::vector<transport::Fabric*>(), std::chrono::nanoseconds(0),
                                               [](const Error&) {});
      context_.emplace(RoundsContext{.loop = loop_,
                                     .interruption = interruption_,
                                     .driver = *driver_,
                                     .copies = *copies_,
                                     .start =
                                         [this](std::unique_ptr<Operation> rounds) {
                                           running_.push_back(std::move(rounds));
                                           running_.back()->start();
                                         },
                                     .finished =
                                         [this](Operation& rounds) {
                                           loop_->post([this, &rounds] {
                                             std::erase_if(running_,
                                                           [&](const auto& one) { return one.get() == &rounds; });
                                           });
                                         }});
    });
  }
  ~MadeRoundsSession() { close(); }
  MadeRoundsSession(const MadeRoundsSession&) = delete;
  MadeRoundsSession& operator=(const MadeRoundsSession&) = delete;

  /// Ends the thread in the order of a session's end. From any thread, once.
  void close() {
    if (std::exchange(closed_, true)) return;
    loop_->end([this] {
      for (const auto& one : running_) one->stop_writing();
      copier_.reset();
      for (const auto& one : running_) one->abandon();
      running_.clear();
      driver_.reset();
    });
  }
  /// Sets the failure notices that the session has received. From any thread.
  void notify(FailureNotices notices) {
    loop_->post([this, notices = std::move(notices)] {
      notices_ = notices;
      for (const auto& one : running_) one->directory_changed();
    });
  }
  /// Loop thread only.
  [[nodiscard]] const FailureNotices& notices() const { return notices_; }

  /// Returns once rounds have begun. From any other thread.
  void await_rounds() {
    run_until([] {}, [this] { return loop_->call([this] { return !running_.empty(); }); }, patience);
  }

  [[nodiscard]] Loop& loop() { return *loop_; }
  [[nodiscard]] const RoundsContext& context() const { return *context_; }

 private:
  std::shared_ptr<Loop> loop_;  // owners: this and the context. Loop thread only from here on
  std::unique_ptr<memory::Copier> copier_;
  std::unique_ptr<memory::CopyQueue> copies_;
  std::unique_ptr<FabricDriver> driver_;
  std::vector<std::unique_ptr<Operation>> running_;
  FailureNotices notices_;
  Interruption interruption_;
  std::optional<RoundsContext> context_;  // set once
  bool closed_ = false;
};

}  // namespace shardwire::test

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "exchange/host.hpp"
#include "memory/copier.hpp"
#include "memory/copy_queue.hpp"
#include "runtime/uv_loop.hpp"
#include "support/deadline.hpp"
#include "support/job.hpp"

namespace shardwire::test {

/// The session as an exchange sees it, reduced to its thread: a loop with copies and a driver for rounds only. A test
/// that runs whole exchanges overrides the calls made on the exchange's thread.
class MadeExchangeHost : public ExchangeHost {
 public:
  MadeExchangeHost() : loop_(std::make_shared<UvLoop>()) {
    loop_->call([this] {
      copier_ = std::make_unique<memory::Copier>(1, [this] { loop_->post([this] { copies_->poll(); }); });
      copies_ = std::make_unique<memory::HostCopies>(*copier_);
      driver_ = std::make_unique<FabricDriver>(*loop_, std::vector<transport::Fabric*>(), std::chrono::nanoseconds(0),
                                               [](const Error&) {});
    });
  }
  virtual ~MadeExchangeHost() { close(); }
  MadeExchangeHost(const MadeExchangeHost&) = delete;
  MadeExchangeHost& operator=(const MadeExchangeHost&) = delete;

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

  /// Returns once rounds have begun. From any other thread.
  void await_rounds() {
    run_until([] {}, [this] { return loop_->call([this] { return !running_.empty(); }); }, patience);
  }

  std::vector<Bytes> gather(const std::string&, Bytes, Duration, Gathers::Kind, Wait) override { return {}; }
  Meeting meet(const std::string& name, Bytes value, Duration timeout) override {
    return {gather(name, std::move(value), timeout, Gathers::Kind::meeting, Wait::to_the_end), nullptr};
  }
  void numbered(std::uint64_t) override {}
  TensorPlaces check_destination(const Catalog&) override { return {}; }
  void copy(std::vector<memory::QueuedCopy>) override {}
  Publication publish(const Catalog&, const PublishOptions&) override { return {}; }
  Restore restore(const Catalog&, RestoreOptions, std::optional<Method>, std::shared_ptr<RoundsStep>) override {
    return {};
  }
  void give_up(const Error&) override {}
  [[nodiscard]] std::optional<Error> reason(Duration) override { return std::nullopt; }
  [[nodiscard]] std::vector<int> lost() override { return {}; }
  void warn(const std::string&) override {}
  [[nodiscard]] Clock::Time now() const override { return loop_->now(); }
  std::shared_ptr<Loop> loop() override { return loop_; }
  [[nodiscard]] const Interruption& interruption() const override { return interruption_; }
  RoundsContext rounds() override {
    return {.clock = *loop_,
            .driver = *driver_,
            .copies = *copies_,
            .failure_notices = [this] { return notices_; },
            .start =
                [this](std::unique_ptr<Operation> rounds) {
                  running_.push_back(std::move(rounds));
                  running_.back()->start();
                },
            .finished =
                [this](Operation& rounds) {
                  loop_->post([this, &rounds] {
                    std::erase_if(running_, [&](const auto& one) { return one.get() == &rounds; });
                  });
                }};
  }

 private:
  std::shared_ptr<Loop> loop_;  // owners: this and callers of loop(). Loop thread only from here on
  std::unique_ptr<memory::Copier> copier_;
  std::unique_ptr<memory::CopyQueue> copies_;
  std::unique_ptr<FabricDriver> driver_;
  std::vector<std::unique_ptr<Operation>> running_;
  FailureNotices notices_;
  Interruption interruption_;
  bool closed_ = false;
};

}  // namespace shardwire::test

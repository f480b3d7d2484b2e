// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "catalog/memory_check.hpp"
#include "catalog/tensor_places.hpp"
#include "exchange/aliasing.hpp"
#include "exchange/exchange.hpp"
#include "exchange/failure_notices.hpp"
#include "session/session_state.hpp"
#include "session/settings.hpp"

namespace shardwire::detail {

/// This session, as one of its exchanges sees it.
class SessionState::Exchanging final : public ExchangeHost, private RoundsHost {
 public:
  /// `started`: receives the progress; null: the exchange was not started by start_exchange().
  Exchanging(SessionState& session, const Interruption& interruption, ExchangeState* started)
      : session_(session), exchange_(session.next_exchange_++), interruption_(interruption), started_(started) {}

  [[nodiscard]] std::uint64_t number() const { return exchange_; }
  /// Total of the progress.
  void wants(const Catalog& wanted) { total_bytes_ = started_ == nullptr ? 0 : bytes_of(wanted); }

  std::vector<Bytes> gather(const std::string& name, Bytes value, Duration timeout) override {
    return session_.gather(name, std::move(value), timeout, interruption_);
  }
  TensorPlaces check_destination(const Catalog& wanted) override {
    TensorPlaces places = places_of(wanted);
    require_writable(wanted, places);
    check_aliasing(wanted, session_.published());
    memory::wait_until_ready(events_of(wanted, places), [this] { interruption_.check(); });
    return places;
  }
  void copy(std::vector<memory::QueuedCopy> copies) override { session_.copy_and_wait(std::move(copies)); }
  Publication publish(const Catalog& held, const PublishOptions& options) override {
    return Publication(session_.publish(held, options, interruption_));
  }
  Restore restore(const Catalog& wanted, RestoreOptions options, std::shared_ptr<RoundsStep> rounds) override {
    Restore restore(
        session_.restore(wanted, std::move(options), Aliasing::checked_before, interruption_, std::move(rounds)));
    if (started_ != nullptr) watch(restore);
    return restore;
  }
  void give_up() override {
    if (const auto open = session_.open_loop()) {
      open->post(
          [&session = session_, exchange = exchange_] { give_up_exchange(session.core_->membership(), exchange); });
    }
  }
  [[nodiscard]] bool is_given_up() override {
    const auto open = session_.open_loop();
    return open && open->call([this] { return failure_notices().given_up; });
  }
  std::shared_ptr<Loop> loop() override { return session_.running(); }
  [[nodiscard]] const Interruption& interruption() const override { return interruption_; }
  RoundsHost& rounds() override { return *this; }

 private:
  shardwire::Clock& clock() override { return core().loop(); }
  FabricDriver& driver() override { return core().driver(); }
  memory::CopyQueue& copies() override { return core().copies(); }
  [[nodiscard]] FailureNotices failure_notices() const override {
    return failure_notices_of(core().membership(), exchange_);
  }
  void start(std::unique_ptr<RunningRestore> rounds) override { core().start(std::move(rounds)); }
  void finished(RunningRestore& rounds) override { core().finished(rounds); }
  [[nodiscard]] Core& core() const { return *session_.core_; }

  static ByteCount bytes_of(const Catalog& wanted) {
    ByteCount bytes = 0;
    for (const Catalog::Entry& entry : wanted.entries()) {
      for (const PlacedBox& placed : entry.layout.boxes_of(entry.spec.shape, wanted.layout_rank())) {
        bytes += static_cast<ByteCount>(placed.box.volume()) * item_size(entry.spec.dtype);
      }
    }
    return bytes;
  }

  // Restores of one exchange follow one another.
  void watch(Restore& restore) {
    done_bytes_ += last_bytes_->exchange(0);
    // Owners: this and the restore, whose last call may come after this exchange has failed.
    restore.on_progress(
        [started = started_->shared_from_this(), last = last_bytes_, done = done_bytes_,
         total = total_bytes_](const Progress& progress) {
          last->store(progress.done_bytes);
          const bool over = std::string_view(progress.stage) == "done";
          started->report({over ? "commit" : progress.stage, done + progress.done_bytes, total});
        },
        started_->interval());
  }

  SessionState& session_;
  const std::uint64_t exchange_;  // numbered in running order
  const Interruption& interruption_;
  ExchangeState* started_;
  ByteCount total_bytes_ = 0;
  ByteCount done_bytes_ = 0;  // by restores before the last one
  std::shared_ptr<std::atomic<ByteCount>> last_bytes_ = std::make_shared<std::atomic<ByteCount>>(0);  // by the last one
};

ExchangeResult SessionState::exchange(const Catalog& held, const Catalog& wanted, const ExchangeOptions& options) {
  const auto began = Clock::now();
  std::optional<TimedLock> one_at_a_time;
  try {
    one_at_a_time.emplace(exchanges_, began + options.deadline, interruption_);
  } catch (...) {
    ++next_exchange_;  // the other members count it too
    throw;
  }
  Exchanging host(*this, interruption_, nullptr);
  if (!one_at_a_time->owns()) {
    throw Error(ErrorCode::timed_out, "another exchange of this session was not over by the deadline of this one");
  }
  ExchangeOptions left = options;
  left.deadline -= Clock::now() - began;
  return run_exchange(held, wanted, left, host);
}

std::shared_ptr<ExchangeState> SessionState::start_exchange(const Catalog& held, const Catalog& wanted,
                                                            ExchangeOptions options) {
  static_cast<void>(running());
  const auto lock = std::make_shared<TimedLock>(exchanges_, Clock::now());  // owners: this call and the exchange
  if (!lock->owns()) throw Error(ErrorCode::invalid_argument, "another exchange of this session is running");
  const auto state =
      std::make_shared<ExchangeState>(interruption_, KeptOwners(held.owners()), KeptOwners(wanted.owners()));
  state->start([self = shared_from_this(), lock, held = held.without_owners(), wanted = wanted.without_owners(),
                options = std::move(options), started = state.get()](const Interruption& interruption) {
    Exchanging host(*self, interruption, started);
    host.wants(wanted);
    try {
      ExchangeResult result = self->run_exchange(held, wanted, options, host);
      lock->release();
      return result;
    } catch (...) {
      lock->release();
      throw;
    }
  });
  return state;
}

ExchangeResult SessionState::run_exchange(const Catalog& held, const Catalog& wanted, const ExchangeOptions& options,
                                          Exchanging& host) {
  ExchangeSetup setup;
  setup.member = bootstrap.rank;
  setup.number = host.number();
  setup.method = options.method ? options.method : method_of_environment();
  setup.rounds_unasked = rounds_unasked_;
  setup.kept = &kept_group_;
  return shardwire::exchange(held, wanted, options, setup, host);
}

}  // namespace shardwire::detail

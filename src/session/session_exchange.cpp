// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "catalog/memory_check.hpp"
#include "catalog/tensor_places.hpp"
#include "exchange/aliasing.hpp"
#include "exchange/exchange.hpp"
#include "exchange/exchange_watch.hpp"
#include "exchange/failure_notices.hpp"
#include "restore/operation.hpp"
#include "runtime/await.hpp"
#include "session/session_state.hpp"
#include "session/settings.hpp"

namespace shardwire::detail {

/// This session, as one of its exchanges sees it.
class SessionState::Exchanging final : public ExchangeHost {
 public:
  /// `started`: receives the progress; null: the exchange was not started by start_exchange().
  Exchanging(SessionState& session, const Interruption& interruption, ExchangeState* started)
      : session_(session), loop_(session.running()), interruption_(interruption), started_(started) {}
  ~Exchanging();
  Exchanging(const Exchanging&) = delete;
  Exchanging& operator=(const Exchanging&) = delete;

  /// Total of the progress.
  void wants(const Catalog& wanted) { total_bytes_ = started_ == nullptr ? 0 : bytes_of(wanted); }

  std::vector<Bytes> gather(const std::string& name, Bytes value, Duration timeout, Gathers::Kind kind,
                            Wait wait) override;
  Meeting meet(const std::string& name, Bytes value, Duration timeout) override;
  void numbered(std::uint64_t exchange) override;
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
  Restore restore(const Catalog& wanted, RestoreOptions options, std::optional<Method> method,
                  std::shared_ptr<RoundsStep> rounds) override;
  void give_up(const Error& why) override {
    if (const auto open = session_.open_loop()) {
      open->post([&session = session_, exchange = exchange_, why] {
        give_up_exchange(session.core_->membership(), exchange, why);
      });
    }
  }
  [[nodiscard]] std::optional<Error> reason(Duration patience) override;
  [[nodiscard]] std::vector<int> lost() override;
  void warn(const std::string& text) override {
    on_loop([&] { core().log(LogLevel::warning, text); });
  }
  [[nodiscard]] shardwire::Clock::Time now() const override { return loop_->now(); }
  std::shared_ptr<Loop> loop() override { return session_.running(); }
  [[nodiscard]] const Interruption& interruption() const override { return interruption_; }
  RoundsContext rounds() override {
    return {.clock = core().loop(),
            .driver = core().driver(),
            .copies = core().copies(),
            .failure_notices = [this] { return failure_notices_of(core().membership(), exchange_); },
            .start = [this](std::unique_ptr<Operation> rounds) { core().start(std::move(rounds)); },
            .finished = [this](Operation& rounds) { core().finished(rounds); }};
  }

 private:
  [[nodiscard]] Core& core() const { return *session_.core_; }
  /// Does nothing if the session has ended.
  void on_loop(const std::function<void()>& task);

  static ByteCount bytes_of(const Catalog& wanted) {
    ByteCount bytes = 0;
    for (const Catalog::Entry& entry : wanted.entries()) {
      for (const PlacedBox& placed : entry.layout.boxes_of(entry.spec.shape, wanted.layout_rank())) {
        bytes += static_cast<ByteCount>(placed.box.volume()) * item_size(entry.spec.dtype);
      }
    }
    return bytes;
  }

  // Of an exchange whose restore is in this stage: the end of a restore is not the end of the exchange.
  static const char* stage_of_exchange(const char* stage) {
    const std::string_view of_restore = stage;
    if (of_restore == "done") return "commit";
    return of_restore == "failed" ? "stopping" : stage;
  }

  // Restores of one exchange follow one another.
  void watch(Restore& restore) {
    done_bytes_ += last_bytes_->exchange(0);
    // Owners: this and the restore, whose last call may come after this exchange has failed.
    restore.on_progress(
        [started = started_->shared_from_this(), last = last_bytes_, done = done_bytes_,
         total = total_bytes_](const Progress& progress) {
          last->store(progress.done_bytes);
          started->report({stage_of_exchange(progress.stage), done + progress.done_bytes, total});
        },
        started_->interval());
  }

  SessionState& session_;
  const std::shared_ptr<Loop> loop_;  // owners: see running(); may have ended
  std::uint64_t exchange_ = 0;        // until the members have agreed on its number
  std::size_t losses_ = 0;  // that the directory had seen when all members had met. Loop thread only, as the next
  std::optional<ExchangeWatch> watch_;  // since then
  const Interruption& interruption_;
  ExchangeState* started_;
  ByteCount total_bytes_ = 0;
  ByteCount done_bytes_ = 0;  // by restores before the last one
  std::shared_ptr<std::atomic<ByteCount>> last_bytes_ = std::make_shared<std::atomic<ByteCount>>(0);  // by the last one
};

SessionState::Exchanging::~Exchanging() {
  on_loop([this] { core().on_directory_changed(nullptr); });
}

void SessionState::Exchanging::on_loop(const std::function<void()>& task) {
  const auto open = session_.open_loop();
  if (!open) return;
  try {
    open->call(task);
  } catch (const LoopEnded&) {  // nothing is left to do there
  }
}

void SessionState::Exchanging::numbered(std::uint64_t exchange) {
  exchange_ = exchange;
  session_.next_exchange_ = exchange + 1;
  session_.running()->call([this] {
    watch_.emplace(core().membership(), exchange_);
    core().on_directory_changed([this] { watch_->directory_changed(); });
  });
}

std::vector<Bytes> SessionState::Exchanging::gather(const std::string& name, Bytes value, Duration timeout,
                                                    Gathers::Kind kind, Wait wait) {
  using Values = std::vector<Bytes>;
  const auto loop = session_.running();
  Awaited<Values> values = begin_on<Values>(*loop, [&](const Answer<Values>& answer) {
    const std::uint64_t request =
        core().membership().gather(name, value, kind, timeout, [answer](Values all, const std::exception_ptr& error) {
          error ? answer.fail(error) : answer.give(std::move(all));
        });
    if (wait == Wait::to_the_end || !watch_) return;
    watch_->guard_wait([this, request] { core().membership().quit_gather(request); });
  });
  return values.take(interruption_);
}

// An interruption takes the value back and waits for the answer to that, which says whether the members had met before.
ExchangeHost::Meeting SessionState::Exchanging::meet(const std::string& name, Bytes value, Duration timeout) {
  using Values = std::vector<Bytes>;
  const auto loop = session_.running();
  std::uint64_t request = 0;
  Awaited<Values> values = begin_on<Values>(*loop, [&](const Answer<Values>& answer) {
    request = core().membership().gather(name, value, Gathers::Kind::meeting, timeout,
                                         [this, answer](Values all, const std::exception_ptr& error) {
                                           if (error) return answer.fail(error);  // also when the core ends
                                           losses_ = core().directory().losses();
                                           answer.give(std::move(all));
                                         });
  });
  std::exception_ptr interruption;
  try {
    if (interruption_.is_possible()) {
      interruption_.wait([&](auto slice) { return values.ready_within(slice); },
                         [&] { loop->post([this, request] { core().membership().quit_gather(request); }); });
    }
  } catch (...) {
    interruption = std::current_exception();
  }
  try {
    return {values.take(), interruption};
  } catch (const Error&) {
    if (interruption) std::rethrow_exception(interruption);
    throw;
  }
}

Restore SessionState::Exchanging::restore(const Catalog& wanted, RestoreOptions options, std::optional<Method> method,
                                          std::shared_ptr<RoundsStep> rounds) {
  const auto state = session_.restore(wanted, std::move(options), interruption_,
                                      restore::InExchange{std::move(rounds), losses_, method});
  on_loop([&] {
    watch_->guard_restore([running = std::weak_ptr<RestoreState>(state)] {
      if (const auto still = running.lock()) still->cancel();
    });
  });
  Restore restore(state);
  if (started_ != nullptr) watch(restore);
  return restore;
}

std::optional<Error> SessionState::Exchanging::reason(Duration patience) {
  const auto loop = session_.running();
  const Awaited<void> given_up =
      begin_on<void>(*loop, [&](const Answer<void>& answer) { watch_->guard_wait([answer] { answer.give(); }); });
  static_cast<void>(given_up.ready_within(patience));
  return loop->call([this] {
    watch_->guard_wait(nullptr);
    return watch_->reason();
  });
}

std::vector<int> SessionState::Exchanging::lost() {
  std::vector<int> members;
  on_loop([&] { members = core().directory().lost_since(losses_); });
  return members;
}

ExchangeResult SessionState::exchange(const Catalog& held, const Catalog& wanted, const ExchangeOptions& options) {
  require_member("exchange");
  static_cast<void>(waiting_in("exchange"));
  const auto began = WallClock::now();
  const TimedLock one_at_a_time(exchanges_, began + options.timeout, interruption_);
  Exchanging host(*this, interruption_, nullptr);
  if (!one_at_a_time.owns()) {
    throw Error(ErrorCode::timed_out, "the deadline passed: another exchange of this session had not ended");
  }
  ExchangeOptions left = options;
  left.timeout -= WallClock::now() - began;
  return counted_exchange(held, wanted, left, host);
}

std::shared_ptr<ExchangeState> SessionState::start_exchange(const Catalog& held, const Catalog& wanted,
                                                            ExchangeOptions options) {
  require_member("start_exchange");
  static_cast<void>(waiting_in("start_exchange"));
  const auto lock = std::make_shared<TimedLock>(exchanges_, WallClock::now());  // owners: this call and the exchange
  if (!lock->owns()) throw Error(ErrorCode::invalid_argument, "another exchange of this session is running");
  const auto state =
      std::make_shared<ExchangeState>(interruption_, on_loop(), KeptOwners(held.owners()), KeptOwners(wanted.owners()));
  state->start(start_thread_,
               [self = shared_from_this(), lock, held = held.without_owners(), wanted = wanted.without_owners(),
                options = std::move(options), started = state.get()](const Interruption& interruption) {
                 const auto exchanged = [&] {
                   Exchanging host(*self, interruption, started);  // ends before the next exchange may begin
                   host.wants(wanted);
                   return self->counted_exchange(held, wanted, options, host);
                 };
                 try {
                   ExchangeResult result = exchanged();
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
  setup.next_number = next_exchange_;
  setup.method = requested_method(options.method);
  setup.rounds_unasked = rounds_unasked_;
  setup.collectives = collectives_;
  setup.kept = &kept_group_;
  return shardwire::exchange(held, wanted, options, setup, host);
}

}  // namespace shardwire::detail

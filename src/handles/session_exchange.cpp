// SPDX-License-Identifier: Apache-2.0
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "catalog/memory_check.hpp"
#include "catalog/tensor_places.hpp"
#include "exchange/aliasing.hpp"
#include "exchange/exchange.hpp"
#include "handles/session_state.hpp"
#include "restore/operation.hpp"
#include "session/settings.hpp"

namespace shardwire::detail {

ExchangeContext SessionState::exchange_context(const Interruption& interruption, ExchangeState* started) {
  const auto loop = running();
  return loop->call([&] {
    return ExchangeContext{
        {.loop = loop,
         .interruption = interruption,
         .driver = core_->driver(),
         .copies = core_->copies(),
         .start = [this](std::unique_ptr<Operation> rounds) { core_->start(std::move(rounds)); },
         .finished = [this](Operation& rounds) { core_->finished(rounds); }},
        next_exchange_,
        core_->membership(),
        [this](std::function<void()> changed) { core_->on_directory_changed(std::move(changed)); },
        [this](LogLevel level, const std::string& text) { core_->log(level, text); },
        [this] { return open_loop() != nullptr; },
        [this, &interruption](const Catalog& wanted) {
          TensorPlaces places = places_of(wanted);
          require_writable(wanted, places);
          check_aliasing(wanted, published());
          memory::wait_until_ready(events_of(wanted, places), [&] { interruption.check(); });
          return places;
        },
        [this](std::vector<memory::QueuedCopy> copies) { copy_and_wait(std::move(copies)); },
        [this, &interruption](const Catalog& held, const PublishOptions& options) {
          return Publication(publish(held, options, interruption));
        },
        [this, &interruption, started](const Catalog& wanted, RestoreOptions options, restore::InExchange around,
                                       const ExchangeContext::Guard& guard) {
          const auto state = restore(wanted, std::move(options), interruption, std::move(around));
          guard([running = std::weak_ptr<RestoreState>(state)] {
            if (const auto still = running.lock()) still->cancel();
          });
          Restore handle(state);
          if (started != nullptr) started->watch(handle);
          return handle;
        }};
  });
}

ExchangeResult SessionState::exchange(const Catalog& held, const Catalog& wanted, const ExchangeOptions& options) {
  require_member("exchange");
  static_cast<void>(waiting_in("exchange"));
  const auto began = WallClock::now();
  const TimedLock one_at_a_time(exchanges_, began + options.timeout, interruption_);
  const ExchangeContext context = exchange_context(interruption_, nullptr);
  if (!one_at_a_time.owns()) {
    throw Error(ErrorCode::timed_out, "the deadline passed: another exchange of this session had not ended");
  }
  ExchangeOptions left = options;
  left.timeout -= WallClock::now() - began;
  return counted_exchange(held, wanted, left, context);
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
                 try {
                   const ExchangeContext context = self->exchange_context(interruption, started);
                   started->wants(wanted);
                   ExchangeResult result = self->counted_exchange(held, wanted, options, context);
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
                                          const ExchangeContext& context) {
  ExchangeSetup setup;
  setup.member = bootstrap.rank;
  setup.method = requested_method(options.method);
  setup.rounds_unasked = rounds_unasked_;
  setup.collectives = collectives_;
  setup.kept = &kept_group_;
  return shardwire::exchange(held, wanted, options, setup, context);
}

}  // namespace shardwire::detail

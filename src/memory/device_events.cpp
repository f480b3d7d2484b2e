// SPDX-License-Identifier: Apache-2.0
#include "memory/device_events.hpp"

#include <atomic>
#include <future>
#include <list>
#include <memory>
#include <mutex>
#include <utility>

namespace shardwire::memory {

namespace {

struct Wait {
  std::shared_ptr<DeviceRuntime> runtime;  // owners: the process and what is open of it
  std::unique_ptr<DeviceStream> stream;
  std::shared_ptr<std::atomic<bool>> over;  // owners: this and the stream's callback
};

// A stream may not end on the runtime's own threads, and ending it early would block: it stays until somebody waits next.
struct Waits {
  std::mutex mutex;
  std::list<Wait> all;  // guarded by mutex
};

// Never destroyed: an event that never happens would block the exit.
Waits& waits() {
  static auto& instance = *new Waits;
  return instance;
}

void drop_those_over() {
  std::list<Wait> gone;
  const std::lock_guard lock(waits().mutex);
  auto& all = waits().all;
  for (auto next = all.begin(); next != all.end();) {
    const auto one = next++;
    if (one->over->load()) gone.splice(gone.end(), all, one);
  }
}

}  // namespace

void when_ready(std::span<const ReadyEvent> events, std::function<void(const std::optional<Error>& error)> done) {
  drop_those_over();
  if (events.empty()) return done(std::nullopt);
  const FoundRuntime found = device_runtime();
  if (!found.runtime) throw Error(ErrorCode::unsupported, "events cannot be waited for: " + found.why_not);
  Wait wait{found.runtime, found.runtime->open_stream(events.front().device),
            std::make_shared<std::atomic<bool>>(false)};
  for (const ReadyEvent& event : events) wait.stream->wait(event.event);
  wait.stream->call_when_done([over = wait.over, done = std::move(done)](const std::optional<Error>& error) {
    done(error);
    over->store(true);
  });
  const std::lock_guard lock(waits().mutex);
  waits().all.push_back(std::move(wait));
}

void wait_until_ready(std::span<const ReadyEvent> events) {
  if (events.empty()) return;
  // owners: this call and the stream's callback
  const auto outcome = std::make_shared<std::promise<std::optional<Error>>>();
  when_ready(events, [outcome](const std::optional<Error>& error) { outcome->set_value(error); });
  if (const auto error = outcome->get_future().get()) throw Error(*error);
}

}  // namespace shardwire::memory

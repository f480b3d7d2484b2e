// SPDX-License-Identifier: Apache-2.0
#include "memory/device_events.hpp"

#include <atomic>
#include <exception>
#include <future>
#include <list>
#include <memory>
#include <mutex>
#include <utility>

namespace shardwire::memory {

namespace {

struct Wait {
  std::shared_ptr<DeviceRuntime> runtime;  // owners: the process and the runtime's open objects
  std::unique_ptr<DeviceStream> stream;
  std::shared_ptr<std::atomic<bool>> over;  // owners: this and the stream's callback
};

// A stream must not be destroyed on the runtime's own threads, and destroying it early would block: it stays until the
// next wait.
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

void keep(std::list<Wait>& one) {
  const std::lock_guard lock(waits().mutex);
  waits().all.splice(waits().all.end(), one);
}

// Keeps a failed wait: its stream may already wait for events.
void keep_until_over(std::list<Wait>& one) {
  try {
    one.front().stream->call_when_done([over = one.front().over](const std::optional<Error>&) { over->store(true); });
  } catch (const std::exception&) {
    // The end of the event's stream will not be reported, so the event stays.
  }
  keep(one);
}

/// Blocks until the completion that `call` reports. Errors: as `call` and `meanwhile`, and the reported error.
template <typename Call>
void await(Call call, const std::function<void()>& meanwhile = {}) {
  // owners: this call and the stream's callback
  const auto outcome = std::make_shared<std::promise<std::optional<Error>>>();
  call([outcome](const std::optional<Error>& error) { outcome->set_value(error); });
  auto reported = outcome->get_future();
  while (meanwhile && reported.wait_for(std::chrono::milliseconds(100)) != std::future_status::ready) meanwhile();
  if (const auto error = reported.get()) throw Error(*error);
}

}  // namespace

void when_ready(const LentEvents& events, std::function<void(const std::optional<Error>& error)> done) {
  drop_those_over();
  const std::optional<int> device = events.device();
  if (!device) return done(std::nullopt);
  const FoundRuntime found = device_runtime();
  if (!found.runtime) throw Error(ErrorCode::unsupported, "events cannot be waited for: " + found.why_not);
  std::list<Wait> own;
  own.push_back({found.runtime, found.runtime->open_stream(*device), std::make_shared<std::atomic<bool>>(false)});
  const Wait& wait = own.front();
  try {
    events.wait_on(*wait.stream);
    wait.stream->call_when_done([over = wait.over, done = std::move(done)](const std::optional<Error>& error) {
      done(error);
      over->store(true);
    });
  } catch (const std::exception&) {
    keep_until_over(own);
    throw;
  }
  keep(own);
}

void wait_until_ready(std::span<const ReadyEvent> events, const std::function<void()>& meanwhile) {
  if (events.empty()) return;
  await(
      [&](DeviceStream::Done done) {
        when_ready(LentEvents({events.begin(), events.end()}), std::move(done));
      },
      meanwhile);
}

void wait_until_done(DeviceStream& stream) {
  await([&](DeviceStream::Done done) { stream.call_when_done(std::move(done)); });
}

}  // namespace shardwire::memory

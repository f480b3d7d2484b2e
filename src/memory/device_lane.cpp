// SPDX-License-Identifier: Apache-2.0
#include "memory/device_lane.hpp"

#include <exception>
#include <mutex>
#include <utility>

namespace shardwire::memory {

/// A stream being closed, which waits for its work.
/// Threads: any.
struct DeviceLane::Ending {
  std::mutex mutex;
  std::unique_ptr<DeviceStream> stream;  // guarded by mutex

  void end() {
    const std::lock_guard lock(mutex);
    stream.reset();
  }
};

DeviceLane::DeviceLane(int device, Copier& copier, Completions& completions, PinnedPool& pool)
    : device_(device), copier_(copier), completions_(completions), pool_(pool) {
}

DeviceLane::~DeviceLane() {
  stop();
}

void DeviceLane::stop() {
  stopped_ = true;
  stream_.reset();
  work_.clear();
  slot_work_.clear();
  for (const auto& [ticket, ending] : ending_) ending->end();
  ending_.clear();
}

void DeviceLane::push(Post post, Then then) {
  work_.push_back({std::move(post), std::move(then)});
  advance();
}

void DeviceLane::push(SlotWork work) {
  slot_work_.push_back(std::move(work));
  advance();
}

// Work that fails as it begins may call this again: recursion would be as deep as the queue.
void DeviceLane::advance() {
  struct Advancing {
    explicit Advancing(bool& now) : now_(now) { now_ = true; }
    ~Advancing() { now_ = false; }
    Advancing(const Advancing&) = delete;
    Advancing& operator=(const Advancing&) = delete;
    bool& now_;
  };
  again_ = true;
  if (advancing_ || stopped_) return;
  const Advancing advancing(advancing_);
  while (std::exchange(again_, false)) advance_once();
}

void DeviceLane::advance_once() {
  drop_unwanted();
  while (stream_ && !work_.empty()) {
    const Work next = std::move(work_.front());
    work_.pop_front();
    start(next);
  }
  if (work_.empty() && slot_work_.empty()) return;
  if (!stream_) return open();
  PinnedPool::Slot slot = pool_.take();
  if (!slot) return;
  const SlotWork next = std::move(slot_work_.front());
  slot_work_.pop_front();
  again_ = true;
  next.begin(std::move(slot));
}

// Only at the front: later work is examined when its turn comes.
void DeviceLane::drop_unwanted() {
  while (!slot_work_.empty() && !slot_work_.front().wanted()) {
    const SlotWork unwanted = std::move(slot_work_.front());
    slot_work_.pop_front();
    unwanted.end(nullptr);
  }
}

// Requires: the stream is open.
void DeviceLane::start(const Work& work) {
  const Completions::Ticket ticket = completions_.add(work.then);
  try {
    work.post(*stream_);
    stream_->call_when_done(completions_.report(ticket));
  } catch (const Error& error) {
    end_stream(ticket, error);
  } catch (const std::exception& error) {
    end_stream(ticket, Error(ErrorCode::out_of_resources, error.what()));
  }
}

void DeviceLane::open() {
  if (std::exchange(opening_, true)) return;
  // owners: the job and its completion
  const auto fresh = std::make_shared<std::unique_ptr<DeviceStream>>();
  try {
    copier_.submit([fresh, device = device_] { *fresh = require_device_runtime()->open_stream(device); },
                   [this, fresh](const std::exception_ptr& error) {
                     opening_ = false;
                     if (error) return fail_waiting(error);
                     opened(std::move(*fresh));
                   });
  } catch (const std::exception&) {
    opening_ = false;
    fail_waiting(std::current_exception());
  }
}

void DeviceLane::opened(std::unique_ptr<DeviceStream> stream) {
  if (stopped_) return;
  stream_ = std::move(stream);
  advance();
}

void DeviceLane::fail_waiting(const std::exception_ptr& error) {
  const auto slot_work = std::exchange(slot_work_, {});
  for (const Work& one : std::exchange(work_, {})) one.then(error);
  for (const SlotWork& one : slot_work) one.end(error);
}

void DeviceLane::fail_slot_work(const std::exception_ptr& error) {
  for (const SlotWork& one : std::exchange(slot_work_, {})) one.end(error);
}

// The stream may have accepted a part of the work, and would not report its end.
void DeviceLane::end_stream(Completions::Ticket ticket, const Error& why) {
  const auto ending = std::make_shared<Ending>();
  ending->stream = std::move(stream_);
  ending_.emplace(ticket, ending);
  const auto ended = [this, ticket, why](const std::exception_ptr&) {
    ending_.erase(ticket);
    completions_.run(ticket, std::make_exception_ptr(why));
  };
  try {
    copier_.submit([ending] { ending->end(); }, ended);
  } catch (const std::exception&) {
    ending->end();
    ending_.erase(ticket);
    completions_.report(ticket)(why);
  }
}

}  // namespace shardwire::memory

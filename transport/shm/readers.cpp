// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/readers.hpp"

#include <pthread.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <system_error>
#include <utility>

namespace shardwire::transport::shm {
namespace {

// One core rarely saturates memory bandwidth; more than two would take cores from others.
std::size_t max_threads() {
  return std::clamp<std::size_t>(std::thread::hardware_concurrency(), 1, 2);
}

Outcome read_mapped(const memory::Mapping& mapping, std::span<const ReadRange> ranges,
                    const std::atomic<bool>& cancelled) {
  for (const ReadRange& range : ranges) {
    for (ByteCount done = 0; done < range.into.bytes; done += slice_bytes) {
      if (cancelled) return Fault{ErrorCode::cancelled, "the read was cancelled"};
      const ByteCount bytes = std::min(slice_bytes, range.into.bytes - done);
      std::memcpy(range.into.address + done, mapping.address() + range.offset_bytes + done, bytes);
    }
  }
  return std::nullopt;
}

// Signals go to the threads of the host program.
std::thread start_without_signals(std::function<void()> body) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);
  try {
    std::thread thread(std::move(body));
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return thread;
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
}

}  // namespace

Readers::~Readers() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    waiting_.clear();
    for (const auto& read : under_way_) read->cancelled = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Readers::post(std::shared_ptr<Read> read) {
  const std::lock_guard lock(mutex_);
  if (idle_ <= waiting_.size() && threads_.size() < max_threads()) {
    try {
      threads_.push_back(start_without_signals([this] { work(); }));
    } catch (const std::system_error& error) {
      if (threads_.empty()) {
        throw Error(ErrorCode::out_of_resources, std::string("cannot start a thread that reads: ") + error.what());
      }
    }
  }
  waiting_.push_back(std::move(read));
  changed_.notify_all();
}

void Readers::finish(std::shared_ptr<Read> read) {
  const std::lock_guard lock(mutex_);
  add_finished(std::move(read));
}

void Readers::cancel(std::uint64_t endpoint) {
  const std::lock_guard lock(mutex_);
  for (const auto& read : under_way_) {
    if (read->endpoint == endpoint) read->cancelled = true;
  }
  for (std::size_t left = waiting_.size(); left > 0; --left) {
    std::shared_ptr<Read> read = std::move(waiting_.front());
    waiting_.pop_front();
    if (read->endpoint != endpoint) {
      waiting_.push_back(std::move(read));
      continue;
    }
    read->outcome = Fault{ErrorCode::cancelled, "the read was cancelled"};
    add_finished(std::move(read));
  }
}

void Readers::wait(std::uint64_t endpoint) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] {
    return std::none_of(under_way_.begin(), under_way_.end(),
                        [&](const auto& read) { return read->endpoint == endpoint; });
  });
}

std::vector<std::shared_ptr<Read>> Readers::take_finished() {
  const std::lock_guard lock(mutex_);
  if (finished_.empty()) return {};
  finished_event_.clear();
  return std::exchange(finished_, {});
}

void Readers::add_finished(std::shared_ptr<Read> read) {
  finished_.push_back(std::move(read));
  finished_event_.signal();
}

void Readers::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    ++idle_;
    changed_.wait(lock, [&] { return stop_ || !waiting_.empty(); });
    --idle_;
    if (stop_) return;
    const std::shared_ptr<Read> read = std::move(waiting_.front());
    waiting_.pop_front();
    under_way_.push_back(read);
    lock.unlock();
    read->outcome = read->mapping ? read_mapped(*read->mapping, read->ranges, read->cancelled)
                                  : read_published(read->published, read->ranges, read->cancelled);
    lock.lock();
    std::erase(under_way_, read);
    add_finished(read);
    changed_.notify_all();
  }
}

}  // namespace shardwire::transport::shm

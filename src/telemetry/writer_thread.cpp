// SPDX-License-Identifier: Apache-2.0
#include "telemetry/writer_thread.hpp"

#include <condition_variable>
#include <mutex>
#include <system_error>
#include <utility>

#include "support/own_thread.hpp"

namespace shardwire::telemetry {

class WriterThread::State {
 public:
  State(std::chrono::milliseconds interval, std::chrono::milliseconds patience, Write write)
      : interval_(interval), patience_(patience), write_(std::move(write)) {}

  /// On the thread, until end().
  void run() {
    write_(false);
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, interval_, [this] { return ending_; })) {
      lock.unlock();
      write_(true);
      lock.lock();
    }
    if (!given_up_) {
      lock.unlock();
      write_(false);
      lock.lock();
    }
    done_ = true;
    changed_.notify_all();
  }
  /// Asks for the last call. Returns whether run() has ended; if not, it calls nothing more.
  bool end() {
    std::unique_lock lock(mutex_);
    ending_ = true;
    changed_.notify_all();
    given_up_ = !changed_.wait_for(lock, patience_, [this] { return done_; });
    return done_;
  }

 private:
  const std::chrono::milliseconds interval_;
  const std::chrono::milliseconds patience_;
  const Write write_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ending_ = false;  // guarded by mutex_, as the next two
  bool given_up_ = false;
  bool done_ = false;
};

WriterThread::WriterThread(std::chrono::milliseconds interval, std::chrono::milliseconds patience, Write write)
    : state_(std::make_shared<State>(interval, patience, std::move(write))) {
  try {
    thread_ = std::thread([state = state_] {
      support::begin_own_thread("shardwire file");
      state->run();
    });
  } catch (const std::system_error&) {  // runs() tells
  }
}

WriterThread::~WriterThread() {
  if (!thread_.joinable()) return;
  state_->end() ? thread_.join() : thread_.detach();
}

}  // namespace shardwire::telemetry

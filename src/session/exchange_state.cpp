// SPDX-License-Identifier: Apache-2.0
#include "session/exchange_state.hpp"

#include <exception>
#include <string>
#include <system_error>
#include <utility>

namespace shardwire::detail {

// The thread may own the last reference, and it has nothing left to do then.
ExchangeState::~ExchangeState() {
  if (!thread_) return;
  if (inherited() || thread_->is_current()) {
    thread_->detach();
  } else {
    thread_->join();
  }
}

void ExchangeState::start(const StartThread& start_thread, Body body) {
  try {
    thread_ = start_thread([self = shared_from_this(), body = std::move(body)] { self->run(body); });
  } catch (const std::system_error& error) {
    throw Error(ErrorCode::out_of_resources, std::string("a thread for the exchange: ") + error.what());
  }
}

void ExchangeState::run(const Body& body) noexcept {
  thread_id_ = std::this_thread::get_id();
  std::exception_ptr failure;
  try {
    result_ = body(Interruption([self = shared_from_this()] { return self->cancelled_.load(); }));
  } catch (...) {
    failure = std::current_exception();
  }
  Progress end = last_progress();
  if (!failure) end.done_bytes = end.total_bytes = result_.report.needed_bytes;
  end.stage = failure ? "failed" : "done";
  try {
    report(end);
  } catch (...) {
    if (!failure) failure = std::current_exception();
  }
  held_.release();
  wanted_.release();
  completion_.finish(std::move(failure));
}

Completion& ExchangeState::completion() {
  if (!inherited()) return completion_;
  throw Error(ErrorCode::invalid_argument, "this exchange belongs to the parent process: a forked child cannot use it");
}

void ExchangeState::listen(std::function<void(const Progress&)> callback, Duration interval) {
  const std::lock_guard lock(mutex_);
  callback_ = std::move(callback);
  interval_ = interval;
}

void ExchangeState::report(const Progress& progress) {
  std::function<void(const Progress&)> callback;
  {
    const std::lock_guard lock(mutex_);
    last_ = progress;
    callback = callback_;
  }
  if (callback) callback(progress);
}

Progress ExchangeState::last_progress() const {
  const std::lock_guard lock(mutex_);
  return last_;
}

Duration ExchangeState::interval() const {
  const std::lock_guard lock(mutex_);
  return interval_;
}

}  // namespace shardwire::detail

// SPDX-License-Identifier: Apache-2.0
#include "handles/exchange_state.hpp"

#include <exception>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

namespace shardwire::detail {

namespace {

// Of an exchange whose restore is in this stage: the end of a restore is not the end of the exchange.
const char* stage_of_exchange(const char* stage) {
  const std::string_view of_restore = stage;
  if (of_restore == "done") return "commit";
  return of_restore == "failed" ? "stopping" : stage;
}

}  // namespace

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

void ExchangeState::wants(const Catalog& wanted) {
  for (const Catalog::Entry& entry : wanted.entries()) {
    for (const PlacedBox& placed : entry.layout.boxes_of(entry.spec.shape, wanted.layout_rank())) {
      total_bytes_ += static_cast<ByteCount>(placed.box.volume()) * item_size(entry.spec.dtype);
    }
  }
}

void ExchangeState::watch(Restore& restore) {
  done_bytes_ += last_bytes_.exchange(0);
  // The last call of a restore may come after the exchange has failed.
  restore.on_progress(
      [self = shared_from_this(), done = done_bytes_](const Progress& progress) {
        self->last_bytes_ = progress.done_bytes;
        self->report({stage_of_exchange(progress.stage), done + progress.done_bytes, self->total_bytes_});
      },
      interval());
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

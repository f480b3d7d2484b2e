// SPDX-License-Identifier: Apache-2.0
#include "log.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <set>

namespace shardwire::python {

namespace {

constexpr std::size_t max_queued = 10'000;

int level_of_logging(LogLevel level) {
  switch (level) {
    case LogLevel::debug: return 10;
    case LogLevel::info: return 20;
    case LogLevel::warning: return 30;
    case LogLevel::error: return 40;
  }
  return 40;
}

nb::object text_of(const std::string& message) {
  return nb::steal(PyUnicode_DecodeUTF8(message.data(), static_cast<Py_ssize_t>(message.size()), "replace"));
}

/// The messages of one session that Python has not seen yet.
class LogQueue {
 public:
  explicit LogQueue(nb::object target) : target_(std::move(target)) {}

  void add(LogLevel level, std::string_view text) {
    const std::lock_guard lock(mutex_);
    if (messages_.size() == max_queued) {
      ++dropped_;
    } else {
      messages_.emplace_back(level, text);
    }
    changed_.notify_one();
  }

  /// No message follows.
  void close() {
    if (inherited()) return;  // a thread of the parent may hold the lock forever
    const std::lock_guard lock(mutex_);
    closed_ = true;
    changed_.notify_one();
  }

  /// Waits for a message, without the interpreter's lock, until there is one or none can follow.
  void await() {
    unlocked([&] {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return closed_ || !messages_.empty(); });
    });
  }

  /// The next message, or None.
  nb::object take() {
    const auto message = pop();
    if (!message) return nb::none();
    const auto& [level, text] = *message;
    return nb::make_tuple(level_of_logging(level), text_of(text));
  }

  [[nodiscard]] const nb::object& target() const { return target_; }
  [[nodiscard]] bool inherited() const { return ::getpid() != process_; }
  void forget_target() { target_.reset(); }

 private:
  using Message = std::pair<LogLevel, std::string>;

  std::optional<Message> pop() {
    const std::lock_guard lock(mutex_);
    if (messages_.empty()) return std::nullopt;
    Message first = std::move(messages_.front());
    messages_.pop_front();
    if (messages_.empty() && dropped_ > 0) {
      messages_.emplace_back(LogLevel::warning,
                             fmt::format("{} messages are lost, because the program takes them too slowly", dropped_));
      dropped_ = 0;
    }
    return first;
  }

  nb::object target_;  // guarded by the interpreter's lock
  const pid_t process_ = ::getpid();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Message> messages_;  // guarded by mutex_, like the next ones
  std::size_t dropped_ = 0;
  bool closed_ = false;
};

// The queues whose threads have not ended. Owners of a queue: this, its thread, and its sink.
std::set<std::shared_ptr<LogQueue>>& queues() {
  static auto& all = *new std::set<std::shared_ptr<LogQueue>>;  // guarded by the interpreter's lock
  return all;
}

// `least`: messages below it are not queued.
LogSink queue_for(nb::callable target, LogLevel least) {
  const auto queue = std::make_shared<LogQueue>(target);
  const auto next = [queue]() -> nb::object {
    queue->await();
    nb::object message = queue->take();
    if (message.is_none()) {
      queue->forget_target();
      queues().erase(queue);
    }
    return message;
  };
  // No session waits for this thread, nor does the end of the interpreter.
  const nb::object thread =
      attribute("threading", "Thread")(nb::arg("target") = attribute("shardwire._log", "deliver"),
                                       nb::arg("args") = nb::make_tuple(nb::cpp_function(next), target),
                                       nb::arg("name") = "shardwire log", nb::arg("daemon") = true);
  queues().insert(queue);
  thread.attr("start")();
  // Owners: copies of the sink. The last one closes the queue.
  const std::shared_ptr<LogQueue> open(queue.get(), [queue](LogQueue*) { queue->close(); });
  return [open, least](LogLevel level, std::string_view text) {
    if (level >= least) open->add(level, text);
  };
}

}  // namespace

LogSink log_to(nb::callable target) {
  return queue_for(std::move(target), LogLevel::debug);
}

// Messages of level debug are many, and each would take the interpreter's lock to be dropped by most loggers.
LogSink log_to_logger() {
  const nb::object found = attribute("shardwire._log", "logger_of_program")();
  if (found.is_none()) return {};
  const auto [log, takes_debug] = nb::cast<std::pair<nb::callable, bool>>(found);
  return queue_for(log, takes_debug ? LogLevel::debug : LogLevel::info);
}

void end_logs() {
  for (const auto& queue : std::set(queues())) {
    if (queue->inherited()) continue;
    attribute("shardwire._log", "deliver")(nb::cpp_function([queue] { return queue->take(); }), queue->target());
  }
}

}  // namespace shardwire::python

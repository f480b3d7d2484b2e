// SPDX-License-Identifier: Apache-2.0
#include "log.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <condition_variable>
#include <deque>
#include <functional>
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

/// Messages of one session to a function of Python's that have not reached it yet.
class MessageQueue {
 public:
  /// Makes the arguments of the function, under the interpreter's lock.
  using Message = std::function<nb::object()>;

  /// `lost`: makes the message that so many are lost.
  MessageQueue(nb::object target, Message (*lost)(std::size_t count)) : target_(std::move(target)), lost_(lost) {}

  void add(Message message) {
    const std::lock_guard lock(mutex_);
    if (messages_.size() == max_queued) {
      ++dropped_;
    } else {
      messages_.push_back(std::move(message));
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
    return message ? (*message)() : nb::none();
  }

  [[nodiscard]] const nb::object& target() const { return target_; }
  [[nodiscard]] bool inherited() const { return ::getpid() != process_; }
  void forget_target() { target_.reset(); }

 private:
  std::optional<Message> pop() {
    const std::lock_guard lock(mutex_);
    if (messages_.empty()) return std::nullopt;
    Message first = std::move(messages_.front());
    messages_.pop_front();
    if (messages_.empty() && dropped_ > 0) {
      messages_.push_back(lost_(dropped_));
      dropped_ = 0;
    }
    return first;
  }

  nb::object target_;  // guarded by the interpreter's lock
  Message (*const lost_)(std::size_t count);
  const pid_t process_ = ::getpid();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Message> messages_;  // guarded by mutex_, like the next ones
  std::size_t dropped_ = 0;
  bool closed_ = false;
};

// The queues whose threads have not ended. Owners of a queue: this, its thread, and its senders.
std::set<std::shared_ptr<MessageQueue>>& queues() {
  static auto& all = *new std::set<std::shared_ptr<MessageQueue>>;  // guarded by the interpreter's lock
  return all;
}

// Owners: the senders. The last one closes the queue.
std::shared_ptr<MessageQueue> queue_for(nb::callable target, const char* thread_name,
                                        MessageQueue::Message (*lost)(std::size_t count)) {
  const auto queue = std::make_shared<MessageQueue>(target, lost);
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
                                       nb::arg("name") = thread_name, nb::arg("daemon") = true);
  queues().insert(queue);
  thread.attr("start")();
  return {queue.get(), [queue](MessageQueue*) { queue->close(); }};
}

MessageQueue::Message log_message(LogLevel level, std::string text) {
  return [level, text = std::move(text)]() -> nb::object {
    return nb::make_tuple(level_of_logging(level), text_of(text));
  };
}

// `least`: messages below it are not queued.
LogSink sink_to(nb::callable target, LogLevel least) {
  const auto queue = queue_for(std::move(target), "shardwire log", [](std::size_t count) {
    return log_message(LogLevel::warning,
                       fmt::format("{} messages are lost, because the program takes them too slowly", count));
  });
  return [queue, least](LogLevel level, std::string_view text) {
    if (level >= least) queue->add(log_message(level, std::string(text)));
  };
}

MessageQueue::Message metric_message(const char* kind, const MetricUpdate& update) {
  std::vector<std::pair<std::string, std::string>> attributes;
  for (const auto& [key, value] : update.attributes) attributes.emplace_back(key, value);
  return [kind, name = std::string(update.name), value = update.value,
          attributes = std::move(attributes)]() -> nb::object {
    nb::dict texts;
    for (const auto& [key, text] : attributes) texts[text_of(key)] = text_of(text);
    return nb::make_tuple(kind, name, value, texts);
  };
}

}  // namespace

LogSink log_to(nb::callable target) {
  return sink_to(std::move(target), LogLevel::debug);
}

// Messages of level debug are many, and each would take the interpreter's lock to be dropped by most loggers.
LogSink log_to_logger() {
  const nb::object found = attribute("shardwire._log", "logger_of_program")();
  if (found.is_none()) return {};
  const auto [log, takes_debug] = nb::cast<std::pair<nb::callable, bool>>(found);
  return sink_to(log, takes_debug ? LogLevel::debug : LogLevel::info);
}

Telemetry telemetry_to(nb::callable target) {
  const auto queue = queue_for(std::move(target), "shardwire telemetry", [](std::size_t count) {
    return metric_message("counter", {.name = "shardwire.telemetry.dropped", .value = static_cast<double>(count)});
  });
  const auto callback = [&](const char* kind) {
    return [queue, kind](const MetricUpdate& update) { queue->add(metric_message(kind, update)); };
  };
  return {.counter = callback("counter"), .gauge = callback("gauge"), .histogram = callback("histogram")};
}

void end_logs() {
  for (const auto& queue : std::set(queues())) {
    if (queue->inherited()) continue;
    attribute("shardwire._log", "deliver")(nb::cpp_function([queue] { return queue->take(); }), queue->target());
  }
}

}  // namespace shardwire::python

// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/engine.hpp"

#include <sys/epoll.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <utility>

#include "transport/tcp/connection.hpp"

namespace shardwire::transport::tcp {
namespace {

template <typename T>
T take_front(std::deque<T>& queue) {
  T front = std::move(queue.front());
  queue.pop_front();
  return front;
}

}  // namespace

/// One turn of a connection. It gets another turn if work is left, even if a handler throws.
class Engine::Turn {
 public:
  Turn(Engine& engine, std::shared_ptr<Connection> connection) : engine_(engine), connection_(std::move(connection)) {
    connection_->queued = false;
  }
  ~Turn() {
    if (connection_->has_work()) engine_.wake(*connection_);
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  [[nodiscard]] bool run() const { return connection_->progress(); }

 private:
  Engine& engine_;
  std::shared_ptr<Connection> connection_;  // its endpoint may be destroyed meanwhile
};

Engine::Engine()
    : epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      timer_(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)),
      scratch_(std::make_unique<std::array<std::byte, 64 * 1024>>()) {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLET;
  if (!epoll_ || !timer_ || ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, timer_.get(), &event) != 0) {
    throw Error(ErrorCode::out_of_resources, "cannot create the event descriptors of the tcp transport");
  }
}

Engine::~Engine() = default;

void Engine::add(std::shared_ptr<Connection> connection) {
  connections_.push_back(std::move(connection));
}

void Engine::remove(const Connection& connection) {
  const auto is_this = [&](const auto& one) { return one.get() == &connection; };
  std::erase_if(connections_, is_this);
  std::erase_if(ending_, is_this);
}

void Engine::await_end(Connection& connection) {
  ending_.push_back(connection.shared_from_this());
}

void Engine::watch(Stream& stream) {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
  event.data.ptr = &stream;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, stream.descriptor(), &event) != 0) {
    throw Error(ErrorCode::out_of_resources, "cannot watch another socket of the tcp transport");
  }
}

void Engine::unwatch(const Stream& stream) {
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, stream.descriptor(), nullptr);
}

void Engine::wake(Connection& connection) {
  if (std::exchange(connection.queued, true)) return;
  ready_.push_back(connection.shared_from_this());
}

void Engine::finish(Completion done, Outcome outcome, std::shared_ptr<Connection> sender) {
  finished_.push_back({std::move(done), std::move(outcome), std::move(sender)});
}

// Calls no user code, so that streams do not change until all events are taken.
void Engine::take_events() {
  std::array<epoll_event, 64> events;
  const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
  for (int i = 0; i < count; ++i) {
    const epoll_event& event = events[static_cast<std::size_t>(i)];
    auto* const stream = static_cast<Stream*>(event.data.ptr);
    if (stream == nullptr) continue;  // the timer
    stream->note(event.events);
    wake(stream->connection());
  }
}

bool Engine::progress() {
  take_events();
  bool moved = false;
  // One by one, out of the member: a handler that throws loses only its own message.
  for (std::size_t left = ready_.size(); left > 0 && !ready_.empty(); --left) {
    const Turn turn(*this, take_front(ready_));
    moved = turn.run() || moved;
  }
  end_overdue();
  for (std::size_t left = finished_.size(); left > 0 && !finished_.empty(); --left) {
    const Finished finished = take_front(finished_);
    if (finished.sender && finished.sender->endpoint_is_gone()) continue;
    moved = true;
    if (finished.done) finished.done(finished.outcome);
  }
  return moved;
}

void Engine::end_overdue() {
  if (ending_.empty()) return;
  const auto now = WallClock::now();
  const auto all = ending_;  // a copy: connections that end leave the list
  for (const auto& connection : all) {
    if (connection->grace_ends_at() <= now) connection->end_grace();
  }
}

bool Engine::arm() {
  if (!ready_.empty() || !finished_.empty()) return false;
  if (ending_.empty()) return true;
  const auto first = std::min_element(ending_.begin(), ending_.end(), [](const auto& a, const auto& b) {
    return a->grace_ends_at() < b->grace_ends_at();
  });
  const auto left =
      std::max<WallClock::duration>((*first)->grace_ends_at() - WallClock::now(), std::chrono::nanoseconds(1));
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(left);
  itimerspec at{};
  at.it_value = {.tv_sec = seconds.count(), .tv_nsec = (left - seconds).count()};
  ::timerfd_settime(timer_.get(), 0, &at, nullptr);
  return true;
}

void Engine::close(WallClock::time_point until) {
  const auto all = connections_;
  for (const auto& connection : all) connection->close(until);
  ready_.clear();
  finished_.clear();
}

}  // namespace shardwire::transport::tcp

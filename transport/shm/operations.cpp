// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>
#include <sys/epoll.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "transport/shm/handles.hpp"

namespace shardwire::transport::shm {

EventQueue::EventQueue() : epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
  if (!epoll_) {
    throw Error(ErrorCode::out_of_resources,
                fmt::format("cannot create an epoll descriptor: {}", std::strerror(errno)));
  }
}

void EventQueue::add(int descriptor, std::uint64_t number) {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLRDHUP;
  event.data.u64 = number;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, descriptor, &event) != 0) {
    throw Error(ErrorCode::out_of_resources, fmt::format("cannot watch a descriptor: {}", std::strerror(errno)));
  }
}

void EventQueue::remove(int descriptor) {
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, descriptor, nullptr);
}

std::vector<std::uint64_t> EventQueue::ready() const {
  std::array<epoll_event, 32> events;  // the next call returns further events
  const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
  std::vector<std::uint64_t> numbers;
  for (int i = 0; i < count; ++i) {
    const std::uint64_t number = events[static_cast<std::size_t>(i)].data.u64;  // a packed member: no reference to it
    numbers.push_back(number);
  }
  return numbers;
}

std::uint64_t Operations::add(ShmEndpoint& endpoint, int descriptor) {
  const std::uint64_t number = ++last_number_;
  events_.add(descriptor, number);
  endpoints_.emplace(number, &endpoint);
  return number;
}

void Operations::remove(std::uint64_t endpoint) {
  endpoints_.erase(endpoint);
  readers_.cancel(endpoint);
  readers_.wait(endpoint);
  std::erase_if(pending_, [&](const auto& entry) { return entry.second.endpoint == endpoint; });
}

std::uint64_t Operations::add(Pending pending) {
  const std::uint64_t number = ++last_number_;
  pending_.emplace(number, std::move(pending));
  return number;
}

void Operations::post(std::shared_ptr<Read> read, Completion done) {
  const std::uint64_t id = add({.endpoint = read->endpoint, .done = std::move(done)});
  read->id = id;
  try {
    readers_.post(std::move(read));
  } catch (...) {
    pending_.erase(id);
    throw;
  }
}

void Operations::post_fault(std::shared_ptr<Read> read, Fault fault, Completion done) {
  read->id = add({.endpoint = read->endpoint, .done = std::move(done), .fault = std::move(fault)});
  readers_.finish(std::move(read));
}

void Operations::fault(std::uint64_t endpoint, const Fault& fault) {
  for (auto& [number, operation] : pending_) {
    if (operation.endpoint == endpoint && !operation.fault) operation.fault = fault;
  }
  readers_.cancel(endpoint);
}

void Operations::close() {
  const auto endpoints = endpoints_;
  for (const auto& [number, endpoint] : endpoints) endpoint->fail({ErrorCode::cancelled, "this fabric is closed"});
  for (const auto& [number, endpoint] : endpoints) readers_.wait(number);
  pending_.clear();
}

bool Operations::progress() {
  const auto numbers = events_.ready();
  for (const std::uint64_t number : numbers) {
    const auto found = endpoints_.find(number);
    if (found != endpoints_.end()) found->second->watch();
  }
  for (auto& read : readers_.take_finished()) finished_.push_back(std::move(read));
  const bool any = !numbers.empty() || !finished_.empty();
  // One by one, out of the member: a completion that throws loses only itself.
  for (std::size_t left = finished_.size(); left > 0; --left) {
    const std::shared_ptr<Read> read = std::move(finished_.front());
    finished_.pop_front();
    auto found = pending_.extract(read->id);
    if (found.empty() || !found.mapped().done) continue;  // its endpoint is gone
    found.mapped().done(found.mapped().fault ? found.mapped().fault : read->outcome);
  }
  return any;
}

bool Operations::arm() {
  return finished_.empty() && events_.ready().empty();
}

}  // namespace shardwire::transport::shm

// SPDX-License-Identifier: Apache-2.0
#include "transport/libfabric/fabric_state.hpp"

#include <sys/epoll.h>

#include <utility>

namespace shardwire::transport::libfabric {

bool DueCompletions::run() {
  const bool any = !items_.empty();
  // Only those present now: completions may post.
  for (std::size_t left = items_.size(); left > 0 && !items_.empty(); --left) {
    const Item item = std::move(items_.front());
    items_.pop_front();
    if (item.done) item.done(item.outcome);
  }
  return any;
}

WakeDescriptor::WakeDescriptor() : epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
  if (!epoll_) throw Error(ErrorCode::out_of_resources, "cannot make a descriptor for events (epoll)");
}

void WakeDescriptor::listen(int descriptor) const {
  if (descriptor < 0) return;
  epoll_event event{};
  event.events = EPOLLIN;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, descriptor, &event) != 0) {
    throw Error(ErrorCode::out_of_resources, "cannot watch a descriptor (epoll)");
  }
}

void WakeDescriptor::unlisten(int descriptor) const {
  if (descriptor >= 0) ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, descriptor, nullptr);
}

}  // namespace shardwire::transport::libfabric

// SPDX-License-Identifier: Apache-2.0
#include "support/wake_event.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>

#include "shardwire/error.hpp"

namespace shardwire::support {

WakeEvent::WakeEvent() : descriptor_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (!descriptor_) throw Error(ErrorCode::out_of_resources, "cannot create an event descriptor (eventfd)");
}

void WakeEvent::signal() const {
  const std::uint64_t one = 1;
  // Fails only if the counter is full, and then the descriptor is readable already.
  [[maybe_unused]] const auto written = ::write(descriptor_.get(), &one, sizeof one);
}

bool WakeEvent::clear() const {
  std::uint64_t count = 0;
  return ::read(descriptor_.get(), &count, sizeof count) == sizeof count;
}

}  // namespace shardwire::support

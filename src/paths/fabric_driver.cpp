// SPDX-License-Identifier: Apache-2.0
#include "paths/fabric_driver.hpp"

#include <sched.h>

#include <algorithm>
#include <utility>

namespace shardwire {

FabricDriver::FabricDriver(Loop& loop, std::vector<transport::Fabric*> fabrics, std::chrono::nanoseconds spin,
                           std::function<void(const Error&)> broken)
    : loop_(loop), polling_(loop.poll([this] { advance(); })), spin_(spin), broken_(std::move(broken)) {
  for (transport::Fabric* fabric : fabrics) add(*fabrics_.emplace_back(std::make_unique<DrivenFabric>(*fabric)));
}

void FabricDriver::add(transport::Driven& driven) {
  if (stopped_) throw Error(ErrorCode::transport_failed, "a fabric of this session has failed");
  Entry entry{.driven = &driven};
  if (const int descriptor = driven.event_descriptor(); descriptor >= 0) entry.watch = polling_->watch(descriptor);
  entries_.push_back(std::move(entry));
}

// The entry itself stays until the next advance(), since this may run inside progress().
void FabricDriver::remove(const transport::Driven& driven) {
  for (Entry& entry : entries_) {
    if (entry.driven == &driven) entry = {};
  }
}

void FabricDriver::advance() {
  std::erase_if(entries_, [](const Entry& entry) { return entry.driven == nullptr; });
  // Bounded, so that control messages and copies are served under constant traffic.
  constexpr int max_rounds = 64;
  try {
    int rounds = 0;
    while (rounds < max_rounds && progress()) ++rounds;
    if (slept_ || rounds > 0) active();
    slept_ = rounds < max_rounds && may_sleep();
    polling_->let_sleep(slept_);
    if (!slept_ && rounds == 0) sched_yield();  // yields to a peer on this host, or to a copying thread
  } catch (const std::exception& error) {       // must not reach the loop
    polling_->stop();
    entries_.clear();
    stopped_ = true;
    broken_(Error(ErrorCode::transport_failed, error.what()));
  }
}

bool FabricDriver::progress() {
  struct Driving {
    explicit Driving(bool& now) : now_(now) { now_ = true; }
    ~Driving() { now_ = false; }
    bool& now_;
  };
  const Driving driving(driving_);
  bool any = false;
  for (std::size_t i = 0; i < entries_.size(); ++i) {  // the list may grow meanwhile
    transport::Driven* const driven = entries_[i].driven;
    any = (driven != nullptr && driven->progress()) || any;
  }
  return any;
}

void FabricDriver::active() {
  if (spin_ > std::chrono::nanoseconds::zero()) last_activity_ = loop_.now();
}

bool FabricDriver::may_sleep() {
  const auto must_be_polled = [](const Entry& entry) { return entry.driven != nullptr && !entry.watch; };
  if (std::ranges::any_of(entries_, must_be_polled)) return false;
  if (spin_ > std::chrono::nanoseconds::zero() && loop_.now() - last_activity_ < spin_) return false;
  return std::ranges::all_of(entries_,
                             [](const Entry& entry) { return entry.driven == nullptr || entry.driven->arm(); });
}

}  // namespace shardwire

// SPDX-License-Identifier: Apache-2.0
#include "support/fork.hpp"

#include <pthread.h>

#include <algorithm>
#include <mutex>
#include <vector>

namespace shardwire::support {

namespace {

struct Registry {
  std::mutex mutex;
  std::vector<int> descriptors;
};

// Never destroyed: sessions of detached threads may outlive static destruction.
Registry& registry() {
  static Registry& instance = [&]() -> Registry& {
    auto& made = *new Registry;
    // The lock is held across fork(), so that the child finds a consistent list. The child only calls close().
    ::pthread_atfork([] { registry().mutex.lock(); }, [] { registry().mutex.unlock(); },
                     [] {
                       for (const int descriptor : registry().descriptors) ::close(descriptor);
                       registry().descriptors.clear();
                       registry().mutex.unlock();
                     });
    return made;
  }();
  return instance;
}

}  // namespace

ClosedOnFork::ClosedOnFork(int descriptor) : descriptor_(descriptor) {
  const std::lock_guard lock(registry().mutex);
  registry().descriptors.push_back(descriptor);
}

ClosedOnFork::~ClosedOnFork() {
  const std::lock_guard lock(registry().mutex);
  auto& all = registry().descriptors;
  const auto found = std::find(all.begin(), all.end(), descriptor_);
  if (found == all.end()) return;
  *found = all.back();
  all.pop_back();
}

}  // namespace shardwire::support

// SPDX-License-Identifier: Apache-2.0
#include "transport/libfabric/caches.hpp"

#include <rdma/fi_errno.h>
#include <rdma/providers/fi_prov.h>

#include <array>
#include <cstdlib>
#include <mutex>

namespace shardwire::transport::libfabric {
namespace {

struct Variable {
  const char* name;
  const char* value;
  bool ours = false;
};

// Never destroyed: sessions of detached threads may outlive static destruction.
struct Environment {
  std::mutex mutex;
  int users = 0;
  std::array<Variable, 2> variables{{{"FI_MR_CACHE_MAX_COUNT", "0"}, {"FI_EFA_MR_CACHE_ENABLE", "0"}}};
};
Environment& environment() {
  static auto& instance = *new Environment;
  return instance;
}

}  // namespace

NoCaches::NoCaches() {
  Environment& shared = environment();
  const std::lock_guard lock(shared.mutex);
  if (shared.users++ > 0) return;
  for (Variable& one : shared.variables) {
    one.ours = std::getenv(one.name) == nullptr && ::setenv(one.name, one.value, 0) == 0;
  }
}

NoCaches::~NoCaches() {
  Environment& shared = environment();
  const std::lock_guard lock(shared.mutex);
  if (--shared.users > 0) return;
  for (const Variable& one : shared.variables) {
    if (one.ours) ::unsetenv(one.name);
  }
}

// It knows none of its variables before.
bool is_initialised() {
  char* value = nullptr;
  return fi_param_get(nullptr, "provider", &value) != -FI_ENOENT;
}

const std::string& why_caches_may_be_on() {
  static const std::string why = [] {
    const bool chosen = std::getenv("FI_MR_CACHE_MAX_COUNT") != nullptr;
    return std::string(
        chosen || !is_initialised()
            ? ""
            : "somebody else in this process has initialised libfabric, with its caches of registrations: memory that "
              "was withdrawn may stay readable to peers that had its key; set FI_MR_CACHE_MAX_COUNT=0 and "
              "FI_EFA_MR_CACHE_ENABLE=0 where the program is started");
  }();
  return why;
}

}  // namespace shardwire::transport::libfabric

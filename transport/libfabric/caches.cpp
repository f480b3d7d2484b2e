// SPDX-License-Identifier: Apache-2.0
#include "transport/libfabric/caches.hpp"

#include <rdma/fi_errno.h>
#include <rdma/providers/fi_prov.h>

#include <cstdlib>

namespace shardwire::transport::libfabric {

void switch_caches_off() {
  static const bool once = [] {
    ::setenv("FI_MR_CACHE_MAX_COUNT", "0", 0);
    ::setenv("FI_EFA_MR_CACHE_ENABLE", "0", 0);
    return true;
  }();
  static_cast<void>(once);
}

// Before, libfabric knows none of its variables.
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

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

// Libfabric's caches of registrations keep open to peers what was withdrawn. The environment is the only way to switch them off.
namespace shardwire::transport::libfabric {

/// While one lives, the environment says that there are no caches; what the user has set stays. Afterwards it is as it was. To be
/// held wherever libfabric may look: by its first fi_getinfo, and by fi_domain. Threads: any number, each its own; threads that
/// are not ours must not look at the environment meanwhile.
class NoCaches {
 public:
  NoCaches();
  ~NoCaches();
  NoCaches(const NoCaches&) = delete;
  NoCaches& operator=(const NoCaches&) = delete;
};

/// Whether libfabric has read its variables.
bool is_initialised();

/// What to say when libfabric had read its variables before this was asked for the first time, and nobody had set them; else empty.
/// To be asked before each fi_getinfo, outside of NoCaches.
const std::string& why_caches_may_be_on();

}  // namespace shardwire::transport::libfabric

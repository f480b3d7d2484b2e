// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "shardwire/key_value_store.hpp"

// Interface between bootstrap_from_env() and the module that loads libpmix (support/module.hpp). As a module, its calls
// are checked against <pmix.h> by the compiler, and a program without PMIx does not load it.
namespace shardwire {

/// This process by the launcher's PMIx server.
struct PmixJob {
  std::string name_space;
  int rank = 0;
  int world_size = 1;
  int local_size = 0;  ///< 0: unknown
  std::shared_ptr<KeyValueStore> store;
};

struct PmixModule {
  /// Errors: throws Error{transport_failed} if no server answers.
  PmixJob (*join)();
};

}  // namespace shardwire

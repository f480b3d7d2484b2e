// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "shardwire/key_value_store.hpp"

// The agreement between bootstrap_from_env() and the module that brings libpmix (support/module.hpp): a module, so that its
// calls are checked against <pmix.h> by the compiler, and a program that needs no PMIx does not load it.
namespace shardwire {

/// What the launcher's PMIx server says of this process.
struct PmixJob {
  std::string name_space;
  int rank = 0;
  int world_size = 1;
  int local_size = 0;  ///< 0: it does not say
  std::shared_ptr<KeyValueStore> store;
};

struct PmixModule {
  /// Errors: throws Error{transport_failed} when no server answers.
  PmixJob (*join)();
};

}  // namespace shardwire

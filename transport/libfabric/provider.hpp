// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "transport/libfabric/handles.hpp"
#include "transport/libfabric/rules.hpp"

namespace shardwire::transport::libfabric {

using GetInfo = decltype(&fi_getinfo);

/// The best answer of fi_getinfo, or why there is none.
struct Provider {
  Info info;  ///< null: none
  Rules rules;
  std::string why_not;
  std::string warning;  ///< what people should know of it
};

/// Hardware first. `named`: somebody has chosen providers (FI_PROVIDER), so that one of software will do. `gpus`: one of hardware is
/// asked for memory of GPUs too, and taken with that where nothing else changes by it.
Provider find_provider(GetInfo get_info, std::uint32_t library_version, bool named, bool gpus);
/// Of this machine, as FI_PROVIDER says.
Provider find_provider(Asked asked);

std::string library_version();

}  // namespace shardwire::transport::libfabric

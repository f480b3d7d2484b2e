// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "transport/libfabric/handles.hpp"
#include "transport/libfabric/rules.hpp"

namespace shardwire::transport::libfabric {

using GetInfo = decltype(&fi_getinfo);

/// The best answer of fi_getinfo, or the reason why there is none.
struct Provider {
  Info info;  ///< null: no provider
  Rules rules;
  std::string why_not;
  std::string warning;  ///< a warning about the provider
};

/// Prefers hardware. `named`: the user has chosen providers (FI_PROVIDER), so a software provider is acceptable.
/// `gpus`: also request GPU memory from a hardware provider, and use it if no other rule changes.
Provider find_provider(GetInfo get_info, std::uint32_t library_version, bool named, bool gpus);
/// The provider of this machine, as FI_PROVIDER selects.
Provider find_provider(Asked asked);

std::string library_version();

}  // namespace shardwire::transport::libfabric

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>

#include "shardwire/types.hpp"

namespace shardwire::perf {

/// Zeroed memory as in a trainer: private to this process. None for 0 bytes. Errors: throws std::bad_alloc.
std::shared_ptr<std::byte> private_pages(ByteCount bytes);

}  // namespace shardwire::perf

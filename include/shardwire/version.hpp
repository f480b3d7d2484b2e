// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "shardwire/c/version.h"
#include "shardwire/export.hpp"

SHARDWIRE_API_BEGIN
namespace shardwire {

/// Version of the library that is linked, which may differ from the header's.
const char* version();

}  // namespace shardwire
SHARDWIRE_API_END

// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace shardwire::perf {

/// The commit of this build, or "unknown".
extern const char* const built_from;

}  // namespace shardwire::perf

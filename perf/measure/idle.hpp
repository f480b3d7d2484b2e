// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace shardwire::perf {

/// What an end of a plain loop does while there is no progress.
enum class Idle {
  yield,  ///< lets others have the core, then looks again
  sleep,  ///< until its library has something
};

}  // namespace shardwire::perf

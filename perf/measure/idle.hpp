// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace shardwire::perf {

/// How an end of a plain loop waits while there is no progress.
enum class Idle {
  yield,  ///< gives up the core, then polls again
  sleep,  ///< until its library has an event
};

}  // namespace shardwire::perf

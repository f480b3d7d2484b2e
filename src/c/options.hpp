// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "c/arguments.hpp"
#include "shardwire/c/options.h"
#include "shardwire/options.hpp"

namespace shardwire::c_api {

static_assert(method_count == SHARDWIRE_METHOD_COUNT);

inline Method method_of(shardwire_method method) {
  return enumerator(method, Method::collective, "method");
}
inline Snapshot snapshot_of(shardwire_snapshot snapshot) {
  return enumerator(snapshot, Snapshot::copy, "snapshot");
}
inline Replicas replicas_of(shardwire_replicas replicas) {
  return enumerator(replicas, Replicas::compare, "replicas");
}
inline StepRule step_rule_of(shardwire_step_rule rule) {
  return enumerator(rule, StepRule::newest_complete, "step_rule");
}
inline std::optional<std::int64_t> step_of(std::int64_t step) {
  return step == SHARDWIRE_UNSET_STEP ? std::nullopt : std::optional(step);
}

/// Options of callers as C++ values; NULL stands for the defaults.
SessionOptions options_of(const shardwire_session_options* given);
PublishOptions options_of(const shardwire_publish_options* given);
RestoreOptions options_of(const shardwire_restore_options* given);
ExchangeOptions options_of(const shardwire_exchange_options* given);

}  // namespace shardwire::c_api

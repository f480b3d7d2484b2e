// SPDX-License-Identifier: Apache-2.0
#include "shardwire/costs.hpp"

#include "c/guard.hpp"
#include "c/memory.hpp"
#include "c/options.hpp"

namespace shardwire::c_api {
SHARDWIRE_C_BEGIN

void shardwire_costs_free(shardwire_costs* costs) {
  destroy(costs);
}

shardwire_code shardwire_costs_create(shardwire_costs** costs, shardwire_error** error) {
  return create(costs, error, [] { return CostModel(); });
}

shardwire_code shardwire_costs_load(const char* path, shardwire_costs** costs, shardwire_error** error) {
  return create(costs, error, [&] { return load_costs(text(path, "path")); });
}

shardwire_code shardwire_costs_at(const shardwire_costs* costs, const char* transport, shardwire_memory_kind memory,
                                  shardwire_method method, shardwire_method_cost* cost, shardwire_error** error) {
  return give(cost, error, [&] {
    const MethodCost found =
        object(costs, "costs").at(text(transport, "transport"), memory_kind(memory), method_of(method));
    return shardwire_method_cost{found.latency_seconds, found.run_seconds, found.bytes_per_second};
  });
}

shardwire_code shardwire_costs_set(shardwire_costs* costs, const char* transport, shardwire_memory_kind memory,
                                   shardwire_method method, const shardwire_method_cost* cost,
                                   shardwire_error** error) {
  return guarded(error, [&] {
    const shardwire_method_cost& given = *required(cost, "cost");
    object(costs, "costs")
        .set(text(transport, "transport"), memory_kind(memory), method_of(method),
             {given.latency_seconds, given.run_seconds, given.bytes_per_second});
  });
}

SHARDWIRE_C_END
}  // namespace shardwire::c_api

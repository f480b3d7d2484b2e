// SPDX-License-Identifier: Apache-2.0
#include "shardwire/costs.hpp"

#include <vector>

#include "c/guard.hpp"
#include "c/memory.hpp"
#include "c/options.hpp"

namespace shardwire::c_api {
namespace {

MethodCost cost_of(const shardwire_method_cost& given) {
  return {given.latency_seconds, given.run_seconds, given.bytes_per_second};
}

}  // namespace

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
    object(costs, "costs")
        .set(text(transport, "transport"), memory_kind(memory), method_of(method), cost_of(*required(cost, "cost")));
  });
}

shardwire_code shardwire_costs_save(const char* path, const char* machine, const shardwire_measured_cost* measured,
                                    size_t count, shardwire_error** error) {
  return guarded(error, [&] {
    std::vector<MeasuredCost> costs;
    for (const shardwire_measured_cost& one : array(measured, count, "measured")) {
      costs.push_back(
          {text(one.transport, "transport"), memory_kind(one.memory), method_of(one.method), cost_of(one.cost)});
    }
    save_costs(text(path, "path"), text(machine, "machine"), costs);
  });
}

SHARDWIRE_C_END
}  // namespace shardwire::c_api

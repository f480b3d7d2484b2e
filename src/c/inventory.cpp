// SPDX-License-Identifier: Apache-2.0
#include "c/inventory.hpp"

#include "c/guard.hpp"
#include "c/options.hpp"

namespace shardwire::c_api {

InventoryRecord::InventoryRecord(Inventory found)
    : inventory(std::move(found)), absent(numbers(inventory.absent)), held(draft_of(inventory.held)) {
  for (const auto& [rank, member] : inventory.publishers) publishers.push_back({to_int(rank), member});
  for (const TensorKey& key : inventory.values) values.push_back(key_of(key));
}

SHARDWIRE_C_BEGIN

void shardwire_inventory_free(shardwire_inventory* inventory) {
  destroy(inventory);
}

int64_t shardwire_inventory_step(const shardwire_inventory* inventory) {
  return inventory ? peek(inventory)->inventory.step : 0;
}

const shardwire_publisher* shardwire_inventory_publishers(const shardwire_inventory* inventory, size_t* count) {
  return data_of(inventory ? &peek(inventory)->publishers : nullptr, count);
}

const shardwire_key* shardwire_inventory_values(const shardwire_inventory* inventory, size_t* count) {
  return data_of(inventory ? &peek(inventory)->values : nullptr, count);
}

const int32_t* shardwire_inventory_absent(const shardwire_inventory* inventory, size_t* count) {
  return data_of(inventory ? &peek(inventory)->absent : nullptr, count);
}

const int32_t* shardwire_inventory_awaited(const shardwire_inventory* inventory, size_t* count) {
  return data_of(inventory ? &peek(inventory)->inventory.awaited : nullptr, count);
}

const shardwire_job_layout* shardwire_inventory_held(const shardwire_inventory* inventory) {
  return inventory ? borrowed<shardwire_job_layout>(&peek(inventory)->held) : nullptr;
}

shardwire_code shardwire_inventory_to_case(const shardwire_inventory* inventory, const shardwire_job_layout* target,
                                           shardwire_strings** text, shardwire_error** error) {
  return create(text, error, [&] {
    const Inventory& found = object(inventory, "inventory").inventory;
    return std::vector{target ? found.to_case(job_of(*peek(target))) : found.to_case()};
  });
}

shardwire_code shardwire_session_inventory(shardwire_session* session, const char* name, int64_t step,
                                           int64_t timeout_ns, shardwire_inventory** inventory,
                                           shardwire_error** error) {
  return create(inventory, error, [&] {
    return InventoryRecord(
        object(session, "session").inventory(text(name, "name"), step_of(step), duration(timeout_ns)));
  });
}

shardwire_code shardwire_session_await_step(shardwire_session* session, const char* name, int64_t step,
                                            int64_t timeout_ns, shardwire_inventory** inventory,
                                            shardwire_error** error) {
  return create(inventory, error, [&] {
    return InventoryRecord(
        object(session, "session").await_step(text(name, "name"), step_of(step), duration(timeout_ns)));
  });
}

SHARDWIRE_C_END

}  // namespace shardwire::c_api

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "c/job_layout.hpp"
#include "shardwire/c/session.h"
#include "shardwire/inventory.hpp"

namespace shardwire::c_api {

/// The object behind a shardwire_inventory.
struct InventoryRecord {
  explicit InventoryRecord(Inventory found);
  InventoryRecord(const InventoryRecord&) = delete;
  InventoryRecord& operator=(const InventoryRecord&) = delete;

  Inventory inventory;
  std::vector<shardwire_publisher> publishers;
  std::vector<shardwire_key> values;  // borrows from `inventory`
  std::vector<std::int32_t> absent;
  JobDraft held;
};

}  // namespace shardwire::c_api

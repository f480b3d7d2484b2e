// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "c/arguments.hpp"
#include "shardwire/shardwire.h"
#include "shardwire/shardwire.hpp"

namespace shardwire::c_api {

struct ErrorRecord;
struct InventoryRecord;
struct JobDraft;
struct PlanRecord;
class StoreAnswer;

// The C++ object behind each handle. A handle is the address of its object, so that a part of an object is a handle
// too: an item of a value, the report of a restore. These functions are only declared.
Arena* behind(shardwire_arena*);
Bootstrap* behind(shardwire_bootstrap*);
std::vector<shardwire_placed_box>* behind(shardwire_boxes*);
Catalog* behind(shardwire_catalog*);
CostModel* behind(shardwire_costs*);
std::vector<shardwire_delivery>* behind(shardwire_deliveries*);
ErrorRecord* behind(shardwire_error*);
Exchange* behind(shardwire_exchange*);
ExchangeResult* behind(shardwire_exchange_result*);
std::vector<shardwire_flow>* behind(shardwire_flows*);
InventoryRecord* behind(shardwire_inventory*);
JobDraft* behind(shardwire_job_layout*);
Layout* behind(shardwire_layout*);
std::vector<PeerPath>* behind(shardwire_paths*);
PlanRecord* behind(shardwire_plan*);
std::shared_ptr<Planner>* behind(shardwire_planner*);  // owners: this handle and its plans
Publication* behind(shardwire_publication*);
Registration* behind(shardwire_registration*);
RestoreReport* behind(shardwire_report*);
Restore* behind(shardwire_restore*);
Retirement* behind(shardwire_retirement*);
Schedule* behind(shardwire_schedule*);
Session* behind(shardwire_session*);
StoreAnswer* behind(shardwire_store_answer*);
std::vector<std::string>* behind(shardwire_strings*);
std::vector<shardwire_target_totals>* behind(shardwire_targets*);
Value* behind(shardwire_value*);

template <typename Handle>
using ObjectOf = std::remove_pointer_t<decltype(behind(static_cast<Handle*>(nullptr)))>;

/// The object behind a handle; null for NULL.
template <typename Handle>
ObjectOf<Handle>* peek(Handle* handle) {
  return reinterpret_cast<ObjectOf<Handle>*>(handle);
}
template <typename Handle>
const ObjectOf<Handle>* peek(const Handle* handle) {
  return reinterpret_cast<const ObjectOf<Handle>*>(handle);
}
/// The same for a handle that has to be there. Errors: throws Error{invalid_argument} naming `name`.
template <typename Handle>
auto& object(Handle* handle, const char* name) {
  return *peek(required(handle, name));
}

/// A handle of an object that another handle owns.
template <typename Handle>
const Handle* borrowed(const ObjectOf<Handle>* object) {
  return reinterpret_cast<const Handle*>(object);
}
/// A handle that owns what `make` returns.
template <typename Handle, typename Make>
Handle* owned(Make make) {
  return reinterpret_cast<Handle*>(new ObjectOf<Handle>(make()));
}
template <typename Handle>
void destroy(Handle* handle) noexcept {
  delete peek(handle);
}

/// The number of entries of a list behind a handle; 0 for NULL.
template <typename Handle>
std::size_t count_of(const Handle* handle) noexcept {
  return handle ? peek(handle)->size() : 0;
}
/// The entries of a list as an array.
template <typename Entry>
const Entry* data_of(const std::vector<Entry>* list, std::size_t* count) noexcept {
  if (count) *count = list ? list->size() : 0;
  return list ? list->data() : nullptr;
}

}  // namespace shardwire::c_api

// SPDX-License-Identifier: Apache-2.0
#include "shardwire/catalog.hpp"

#include "c/guard.hpp"
#include "c/memory.hpp"
#include "c/param_groups.hpp"
#include "c/structs.hpp"
#include "c/tensor.hpp"

namespace shardwire::c_api {
namespace {

Absent absent_of(shardwire_absent absent) {
  return enumerator(absent, Absent::zero, "absent");
}

Value value_or_none(const shardwire_value* value) {
  return value ? *peek(value) : Value();
}

}  // namespace

SHARDWIRE_C_BEGIN

void shardwire_catalog_free(shardwire_catalog* catalog) {
  destroy(catalog);
}

shardwire_code shardwire_catalog_create(int32_t layout_rank, int32_t ranks, shardwire_catalog** catalog,
                                        shardwire_error** error) {
  return create(catalog, error, [&] { return Catalog(Rank{layout_rank}, ranks); });
}

shardwire_code shardwire_catalog_copy(const shardwire_catalog* catalog, shardwire_catalog** copy,
                                      shardwire_error** error) {
  return create(copy, error, [&] { return object(catalog, "catalog"); });
}

shardwire_code shardwire_catalog_add(shardwire_catalog* catalog, const shardwire_tensor* tensor,
                                     const shardwire_layout* layout, const shardwire_view* view,
                                     shardwire_absent absent, shardwire_error** error) {
  return guarded(error, [&] {
    const shardwire_view given = read(view, "view");
    View memory = view_of(given);
    const auto owner = std::make_shared<Owned>(given.owner, given.release);  // owners: the view's, see View::owner
    if (given.release) memory.owner = owner;
    object(catalog, "catalog").add(spec_of(tensor), object(layout, "layout"), memory, absent_of(absent));
    owner->take_over();
  });
}

shardwire_code shardwire_catalog_add_value(shardwire_catalog* catalog, const char* fqn, const char* state,
                                           const shardwire_value* value, shardwire_absent absent, shardwire_agree agree,
                                           shardwire_error** error) {
  return guarded(error, [&] {
    object(catalog, "catalog")
        .add_value(key_of(fqn, state), value_or_none(value), absent_of(absent),
                   enumerator(agree, Agree::per_rank, "agree"));
  });
}

shardwire_code shardwire_catalog_set_value(shardwire_catalog* catalog, const char* fqn, const char* state,
                                           const shardwire_value* value, shardwire_error** error) {
  return guarded(error, [&] { object(catalog, "catalog").set_value(key_of(fqn, state), value_or_none(value)); });
}

shardwire_code shardwire_catalog_alias(shardwire_catalog* catalog, const char* alias, const char* fqn,
                                       shardwire_error** error) {
  return guarded(error, [&] { object(catalog, "catalog").alias(text(alias, "alias"), text(fqn, "fqn")); });
}

shardwire_code shardwire_catalog_add_param_groups(shardwire_catalog* catalog, const shardwire_param_group* groups,
                                                  size_t count, shardwire_absent absent, shardwire_error** error) {
  return guarded(error, [&] {
    add_param_groups(object(catalog, "catalog"), param_groups(array(groups, count, "groups")), absent_of(absent));
  });
}

size_t shardwire_catalog_tensor_count(const shardwire_catalog* catalog) {
  return catalog ? peek(catalog)->entries().size() : 0;
}

size_t shardwire_catalog_value_count(const shardwire_catalog* catalog) {
  return catalog ? peek(catalog)->values().size() : 0;
}

SHARDWIRE_C_END

}  // namespace shardwire::c_api

// SPDX-License-Identifier: Apache-2.0
#include "shardwire/catalog.hpp"

#include <map>
#include <string>
#include <vector>

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

size_t shardwire_catalog_alias_count(const shardwire_catalog* catalog) {
  return catalog ? peek(catalog)->aliases().size() : 0;
}

int32_t shardwire_catalog_layout_rank(const shardwire_catalog* catalog) {
  return catalog ? to_int(peek(catalog)->layout_rank()) : 0;
}

int32_t shardwire_catalog_rank_count(const shardwire_catalog* catalog) {
  return catalog ? peek(catalog)->ranks() : 0;
}

shardwire_code shardwire_catalog_tensor(const shardwire_catalog* catalog, size_t index, shardwire_tensor* tensor,
                                        const shardwire_layout** layout, shardwire_view* view, shardwire_absent* absent,
                                        shardwire_error** error) {
  return guarded(error, [&] {
    const Catalog::Entry& found = entry(object(catalog, "catalog").entries(), index, "tensor");
    if (tensor) check_initialized(tensor, "tensor");
    if (view) fill(view, view_of(found.view), "view");
    if (tensor) fill(tensor, tensor_of(found.spec), "tensor");
    if (layout) *layout = borrowed<shardwire_layout>(&found.layout);
    if (absent) *absent = static_cast<shardwire_absent>(found.absent);
  });
}

shardwire_code shardwire_catalog_value(const shardwire_catalog* catalog, size_t index, shardwire_key* key,
                                       const shardwire_value** value, shardwire_absent* absent, shardwire_agree* agree,
                                       shardwire_error** error) {
  return guarded(error, [&] {
    const Catalog::ValueEntry& found = entry(object(catalog, "catalog").values(), index, "value");
    if (key) *key = key_of(found.key);
    if (value) *value = borrowed<shardwire_value>(&found.value);
    if (absent) *absent = static_cast<shardwire_absent>(found.absent);
    if (agree) *agree = static_cast<shardwire_agree>(found.agree);
  });
}

shardwire_code shardwire_catalog_alias_at(const shardwire_catalog* catalog, size_t index, const char** alias,
                                          const char** fqn, shardwire_error** error) {
  return guarded(error, [&] {
    const Alias& found = entry(object(catalog, "catalog").aliases(), index, "alias");
    if (alias) *alias = found.alias.c_str();
    if (fqn) *fqn = found.fqn.c_str();
  });
}

bool shardwire_catalog_same(const shardwire_catalog* a, const shardwire_catalog* b) {
  return a && b ? peek(a)->same(*peek(b)) : a == b;
}

shardwire_code shardwire_catalog_to_case(const shardwire_catalog* catalog, shardwire_strings** text,
                                         shardwire_error** error) {
  return create(text, error, [&] { return std::vector{object(catalog, "catalog").to_case()}; });
}

shardwire_code shardwire_fqns_of(const int64_t* ids, size_t count, const int64_t* named_ids, const char* const* names,
                                 size_t name_count, shardwire_strings** fqns, shardwire_error** error) {
  return create(fqns, error, [&] {
    const auto given = array(named_ids, name_count, "named_ids");
    const auto texts = array(names, name_count, "names");
    std::map<std::int64_t, std::string> known;
    for (std::size_t i = 0; i < name_count; ++i) {
      if (!known.emplace(given[i], text(texts[i], "name")).second) refuse(fmt::format("id {} has two names", given[i]));
    }
    return fqns_of(array(ids, count, "ids"), known);
  });
}

SHARDWIRE_C_END

}  // namespace shardwire::c_api

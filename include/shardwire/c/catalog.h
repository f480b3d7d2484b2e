// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "shardwire/c/layout.h"
#include "shardwire/c/memory.h"
#include "shardwire/c/value.h"

SHARDWIRE_C_BEGIN

/// Policy for a wanted key that no source has.
typedef int32_t shardwire_absent;
enum {
  SHARDWIRE_ABSENT_ERROR = 0,  ///< the restore ends with an error that names every such key
  SHARDWIRE_ABSENT_SKIP = 1,   ///< the destination stays as it is
  SHARDWIRE_ABSENT_ZERO = 2,   ///< the destination's elements become zeros; not for values and one-element tensors
};

/// Sources of a wanted value, and whether they have to agree.
typedef int32_t shardwire_agree;
enum {
  SHARDWIRE_AGREE_AUTHORITATIVE = 0,  ///< the ranks that hold part of the parameter, which have to agree
  SHARDWIRE_AGREE_ANY = 1,            ///< of these ranks the lowest that has the value; nothing is compared
  SHARDWIRE_AGREE_PER_RANK = 2,       ///< the source of this layout rank alone: state of a random generator
};

/// The tensors (with layout and local memory) and values that one rank holds or wants. Publish, restore and exchange
/// keep the state at the time of their call; the caller may change or free the catalog afterwards.
/// Threads: functions that take a const catalog may run concurrently; a change needs exclusive use.
typedef struct shardwire_catalog shardwire_catalog;
void shardwire_catalog_free(shardwire_catalog* catalog);
/// `layout_rank` is this rank's number in the layouts, 0..ranks-1.
shardwire_code shardwire_catalog_create(int32_t layout_rank, int32_t ranks, shardwire_catalog** catalog,
                                        shardwire_error** error);
/// Cost: O(1).
shardwire_code shardwire_catalog_copy(const shardwire_catalog* catalog, shardwire_catalog** copy,
                                      shardwire_error** error);

/// Adds a tensor whose local part lies in `view`. Use the same order on all ranks: they then share one description.
/// Memory is read when it is published and while it stays published, not here. A tensor of one element travels by
/// value: publish reads it once, and a restore writes it at commit. `absent` matters on the wanting side only.
/// Errors: LAYOUT_MISMATCH if the layout does not fit the shape, or the view has another size than the rank
///         holds. INVALID_ARGUMENT for a repeated key, NULL data for a rank that holds elements, a view of
///         another dtype, and strides that are negative or map two elements to one address. UNSUPPORTED for
///         strides on a layout without one local array.
shardwire_code shardwire_catalog_add(shardwire_catalog* catalog, const shardwire_tensor* tensor,
                                     const shardwire_layout* layout, const shardwire_view* view,
                                     shardwire_absent absent, shardwire_error** error);
/// Adds a copy of `value` (NULL: None) under (fqn, state); use an empty fqn for values of the whole job. On the wanting
/// side this requests the key, and `value` is ignored. `absent` and `agree` matter on the wanting side only.
/// Errors: INVALID_ARGUMENT for a repeated key, a value that is nested deeper than 16 levels, and
///         SHARDWIRE_ABSENT_ZERO.
shardwire_code shardwire_catalog_add_value(shardwire_catalog* catalog, const char* fqn, const char* state,
                                           const shardwire_value* value, shardwire_absent absent, shardwire_agree agree,
                                           shardwire_error** error);
/// Replaces a value. Existing publications keep theirs.
/// Errors: INVALID_ARGUMENT if the catalog has no value under the key.
shardwire_code shardwire_catalog_set_value(shardwire_catalog* catalog, const char* fqn, const char* state,
                                           const shardwire_value* value, shardwire_error** error);
/// Declares `alias` as a second name of the parameter `fqn`, with all its states and values (tied weights).
/// Errors: INVALID_ARGUMENT if `alias` is already declared, if one of the names is an alias of a third, or if
///         something was added under both names.
shardwire_code shardwire_catalog_alias(shardwire_catalog* catalog, const char* alias, const char* fqn,
                                       shardwire_error** error);

/// Parameters that an optimizer treats alike, and their options as a map: lr, betas, weight_decay.
typedef struct shardwire_param_group {
  const char* const* fqns;
  size_t fqn_count;
  const shardwire_value* options;
} shardwire_param_group;
/// Adds the options of each group as values under every parameter in it, with the state "param_group/<option>"; on the
/// wanting side, requests the options that the groups name. shardwire_restore_param_groups() reads them.
/// Errors: INVALID_ARGUMENT if a parameter is in two groups, or options are no map.
shardwire_code shardwire_catalog_add_param_groups(shardwire_catalog* catalog, const shardwire_param_group* groups,
                                                  size_t count, shardwire_absent absent, shardwire_error** error);

/// Names of parameters by id, e.g. of a "params" list of PyTorch's state_dict(): entry i of `fqns` is the name of
/// `ids[i]`, where `names[k]` is the name of `named_ids[k]`. Errors: INVALID_ARGUMENT for an id that has no name, and
/// for one that has two.
shardwire_code shardwire_fqns_of(const int64_t* ids, size_t count, const int64_t* named_ids, const char* const* names,
                                 size_t name_count, shardwire_strings** fqns, shardwire_error** error);

int32_t shardwire_catalog_layout_rank(const shardwire_catalog* catalog);
int32_t shardwire_catalog_rank_count(const shardwire_catalog* catalog);
/// Number of tensors, of values and of aliases.
size_t shardwire_catalog_tensor_count(const shardwire_catalog* catalog);
size_t shardwire_catalog_value_count(const shardwire_catalog* catalog);
size_t shardwire_catalog_alias_count(const shardwire_catalog* catalog);
// The functions below list the catalog in the order in which it was filled. Out parameters may be NULL; `tensor` and
// `view` are initialised. What they point to lives until the catalog is changed or freed.
/// The view has its offset added to `data`, no owner, and no strides that only repeat the layout.
shardwire_code shardwire_catalog_tensor(const shardwire_catalog* catalog, size_t index, shardwire_tensor* tensor,
                                        const shardwire_layout** layout, shardwire_view* view, shardwire_absent* absent,
                                        shardwire_error** error);
shardwire_code shardwire_catalog_value(const shardwire_catalog* catalog, size_t index, shardwire_key* key,
                                       const shardwire_value** value, shardwire_absent* absent, shardwire_agree* agree,
                                       shardwire_error** error);
/// An alias and the name of its parameter, in ascending order of aliases.
shardwire_code shardwire_catalog_alias_at(const shardwire_catalog* catalog, size_t index, const char** alias,
                                          const char** fqn, shardwire_error** error);
/// True for copies of one catalog while none of them has changed. Restores of such a catalog reuse earlier results.
bool shardwire_catalog_same(const shardwire_catalog* a, const shardwire_catalog* b);
/// As shardwire_inventory_to_case(), of all ranks with this catalog's tensors and layouts on both sides. Lacks what
/// other ranks alone have: shardwire_session_gather_layouts() and shardwire_inventory_to_case() have it.
shardwire_code shardwire_catalog_to_case(const shardwire_catalog* catalog, shardwire_strings** text,
                                         shardwire_error** error);

SHARDWIRE_C_END

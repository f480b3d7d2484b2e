// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shardwire/export.hpp"
#include "shardwire/session.hpp"
#include "shardwire/value.hpp"

SHARDWIRE_API_BEGIN
namespace shardwire {

/// Parameters that an optimizer treats alike, and their options: lr, betas, weight_decay. Optimizers number parameters
/// per rank; groups here use names, so ids and the order of groups may differ between ranks and between the two sides.
struct ParamGroup {
  std::vector<std::string> fqns;
  std::map<std::string, Value> options;
};

/// Names of parameters by id, e.g. a "params" list of PyTorch's state_dict() and the names in the same numbering.
/// Errors: throws Error{invalid_argument} naming an id that has no name.
std::vector<std::string> fqns_of(std::span<const std::int64_t> ids, const std::map<std::int64_t, std::string>& names);

/// Key under which an option of a parameter is stored: (fqn, "param_group/<option>").
TensorKey param_group_key(std::string fqn, std::string_view option);

/// Adds the options of each group as values under every parameter in it; on the wanting side, requests the options that
/// the groups name. A rank lists the parameters it has; conflicts are resolved as for every value (Catalog::add_value).
/// A group without parameters adds nothing.
/// Errors: throws Error{invalid_argument} if a parameter is in two groups, and as Catalog::add_value.
void add_param_groups(Catalog& catalog, std::span<const ParamGroup> groups, Absent absent = Absent::error);

/// Returns `wanted`, as given to add_param_groups, with the received options. An option that no parameter of a group
/// had (Absent::skip) keeps its value in `wanted`. Valid after restore.wait() returned.
/// Errors: throws Error{layout_mismatch}, naming both parameters, if parameters of one group received different values
///         of an option.
std::vector<ParamGroup> param_groups_of(const Restore& restore, std::span<const ParamGroup> wanted);

}  // namespace shardwire
SHARDWIRE_API_END

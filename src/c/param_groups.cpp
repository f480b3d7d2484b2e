// SPDX-License-Identifier: Apache-2.0
#include "c/param_groups.hpp"

#include "c/guard.hpp"

namespace shardwire::c_api {
namespace {

ParamGroup param_group(const shardwire_param_group& given) {
  ParamGroup out;
  for (const char* fqn : array(given.fqns, given.fqn_count, "fqns")) out.fqns.push_back(text(fqn, "fqn"));
  if (given.options == nullptr) return out;
  const auto* options = std::get_if<ValueMap>(peek(given.options));
  if (options == nullptr) refuse("the options of a parameter group are no map");
  for (const ValueMapItem& item : options->items()) out.options[item.key] = item.value;
  return out;
}

}  // namespace

std::vector<ParamGroup> param_groups(std::span<const shardwire_param_group> given) {
  std::vector<ParamGroup> out;
  for (const shardwire_param_group& group : given) out.push_back(param_group(group));
  return out;
}

Value options_of(std::span<const ParamGroup> groups) {
  ValueList out;
  for (const ParamGroup& group : groups) {
    ValueMap& options = out.items.emplace_back().emplace<ValueMap>();
    for (const auto& [name, value] : group.options) options[name] = value;
  }
  return out;
}

}  // namespace shardwire::c_api

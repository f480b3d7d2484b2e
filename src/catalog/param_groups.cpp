// SPDX-License-Identifier: Apache-2.0
#include "shardwire/param_groups.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "shardwire/error.hpp"

namespace shardwire {

namespace {

constexpr std::size_t max_shown_shares = 4;

// The parameters of a group that share one value of an option.
struct Share {
  const Value* value = nullptr;
  const std::string* first = nullptr;
  std::size_t parameters = 0;
};

[[noreturn]] void refuse(const std::string& option, const std::vector<Share>& shares) {
  std::string text = fmt::format("parameters that are wanted as one group had different values of '{}': ", option);
  for (std::size_t i = 0; i < std::min(shares.size(), max_shown_shares); ++i) {
    fmt::format_to(std::back_inserter(text), "{}{} for {}", i == 0 ? "" : ", ", to_string(*shares[i].value),
                   *shares[i].first);
    if (shares[i].parameters > 1) {
      fmt::format_to(std::back_inserter(text), " and {} more", shares[i].parameters - 1);
    }
  }
  if (shares.size() > max_shown_shares) {
    fmt::format_to(std::back_inserter(text), ", and {} more values", shares.size() - max_shown_shares);
  }
  throw Error(ErrorCode::layout_mismatch, text + "; want them in groups of their own");
}

// Null if no parameter of the group had the option.
const Value* common_value(const Restore& restore, const ParamGroup& group, const std::string& option) {
  std::vector<Share> shares;
  for (const std::string& fqn : group.fqns) {
    const TensorKey key = param_group_key(fqn, option);
    if (!restore.has_value(key)) continue;
    const Value& value = restore.value(key);
    const auto same = std::find_if(shares.begin(), shares.end(), [&](const Share& one) { return *one.value == value; });
    if (same == shares.end()) {
      shares.push_back({&value, &fqn, 1});
    } else {
      ++same->parameters;
    }
  }
  if (shares.size() > 1) refuse(option, shares);
  return shares.empty() ? nullptr : shares.front().value;
}

}  // namespace

std::vector<std::string> fqns_of(std::span<const std::int64_t> ids, const std::map<std::int64_t, std::string>& names) {
  std::vector<std::string> fqns;
  fqns.reserve(ids.size());
  for (const std::int64_t id : ids) {
    const auto name = names.find(id);
    if (name == names.end()) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("parameter {} has no name; {} parameters have one", id, names.size()));
    }
    fqns.push_back(name->second);
  }
  return fqns;
}

TensorKey param_group_key(std::string fqn, std::string_view option) {
  return {std::move(fqn), "param_group/" + std::string(option)};
}

void add_param_groups(Catalog& catalog, std::span<const ParamGroup> groups, Absent absent) {
  std::map<std::string_view, std::size_t> group_of;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    for (const std::string& fqn : groups[i].fqns) {
      const auto [entry, fresh] = group_of.emplace(fqn, i);
      if (fresh) continue;
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format("parameter '{}' is in param_groups {} and {}; it has to be in one", fqn, entry->second, i));
    }
  }
  for (const ParamGroup& group : groups) {
    for (const std::string& fqn : group.fqns) {
      for (const auto& [option, value] : group.options) catalog.add_value(param_group_key(fqn, option), value, absent);
    }
  }
}

std::vector<ParamGroup> param_groups_of(const Restore& restore, std::span<const ParamGroup> wanted) {
  std::vector<ParamGroup> groups(wanted.begin(), wanted.end());
  for (ParamGroup& group : groups) {
    for (auto& [option, value] : group.options) {
      if (const Value* restored = common_value(restore, group, option)) value = *restored;
    }
  }
  return groups;
}

}  // namespace shardwire

// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

#include "geometry/layout_rule.hpp"
#include "schema/manifest.capnp.h"
#include "support/checked.hpp"
#include "wire/capnp_input.hpp"
#include "wire/capnp_output.hpp"
#include "wire/enums.hpp"
#include "wire/keys.hpp"
#include "wire/manifest_tables.hpp"
#include "wire/table.hpp"

namespace shardwire::wire {
namespace {

struct DescriptionLess {
  bool operator()(const RuleDescription& a, const RuleDescription& b) const {
    if (a.kind != b.kind) return a.kind < b.kind;
    if (a.fields != b.fields) return a.fields < b.fields;
    return std::lexicographical_compare(a.inner.begin(), a.inner.end(), b.inner.begin(), b.inner.end(), *this);
  }
};

void write_rule(schema::Rule::Builder out, const RuleDescription& rule) {
  out.setKind(text_of(rule.kind));
  auto fields = out.initFields(static_cast<unsigned>(rule.fields.size()));
  for (unsigned i = 0; i < fields.size(); ++i) {
    const auto& [name, values] = rule.fields[i];
    fields[i].setName(text_of(name));
    fill(fields[i].initValues(static_cast<unsigned>(values.size())), values);
  }
  auto inner = out.initInner(static_cast<unsigned>(rule.inner.size()));
  for (unsigned i = 0; i < inner.size(); ++i) write_rule(inner[i], rule.inner[i]);
}

RuleDescription read_rule(schema::Rule::Reader from, Input& in, unsigned depth, std::size_t& size) {
  if (depth == 0) in.reject("is nested too deep");
  RuleDescription rule;
  rule.kind = in.name(from.getKind(), max_name_bytes);
  for (const auto field : in.list(from.getFields())) {
    const auto numbers = in.numbers(field.getValues(), max_message_bytes / sizeof(Extent));
    auto& [name, values] = rule.fields.emplace_back(in.name(field.getName(), max_name_bytes), std::vector<Extent>());
    values.reserve(numbers.size());
    for (const Extent number : numbers) values.push_back(number);
    size += values.size() + 1;
  }
  for (const auto inner : in.list(from.getInner())) rule.inner.push_back(read_rule(inner, in, depth - 1, size));
  return rule;
}

struct Rule {
  Layout layout;
  std::size_t size = 0;  // numbers in its description: minimum cost of checking it
};

std::vector<Rule> read_rules(schema::Manifest::Reader from, Input& in) {
  std::vector<Rule> rules;
  const auto encoded = in.at("Manifest.rules").list(from.getRules());
  rules.reserve(encoded.size());
  for (const auto rule : encoded) {
    in.at("Manifest.rules", rules.size());
    std::size_t size = 1;
    const RuleDescription description = read_rule(rule, in, max_rule_depth, size);
    rules.push_back({layout_from(description), size});
  }
  return rules;
}

// Every name denotes one parameter, and every (parameter, state) one tensor. Errors: throws Error{invalid_argument}.
void check_aliases(const Manifest& manifest) {
  if (manifest.aliases.empty()) return;
  std::map<std::string_view, std::string_view> parameters;
  const Alias* previous = nullptr;
  for (const Alias& alias : manifest.aliases) {
    const auto refuse = [&](const char* why) {
      throw Error(ErrorCode::invalid_argument, fmt::format("alias '{}' of '{}' {}", alias.alias, alias.fqn, why));
    };
    check_key({alias.alias, ""});
    check_key({alias.fqn, ""});
    if (alias.alias.empty() || alias.fqn.empty()) refuse("lacks a name");
    if (previous != nullptr && !(previous->alias < alias.alias)) refuse("is out of order or repeated");
    parameters.emplace(alias.alias, alias.fqn);
    previous = &alias;
  }
  for (const Alias& alias : manifest.aliases) {
    if (parameters.contains(alias.fqn)) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("alias '{}' of '{}' names another alias", alias.alias, alias.fqn));
    }
  }
  std::set<std::pair<std::string_view, std::string_view>> keys;
  for (const TensorLayout& tensor : manifest.tensors) {
    const auto parameter = parameters.find(tensor.spec.key.fqn);
    const std::string_view fqn = parameter == parameters.end() ? tensor.spec.key.fqn : parameter->second;
    if (!keys.emplace(fqn, tensor.spec.key.state).second) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("tensor {} stands under two names of one parameter", to_string(tensor.spec.key)));
    }
  }
}

/// Reads the tables, then the tensors that refer to them.
class ManifestReader {
 public:
  ManifestReader(schema::Manifest::Reader from, Input& in)
      : in_(in),
        names_left_(in.words().asBytes().size(), 16u << 20),
        checks_left_(in.words().asBytes().size(), 16u << 20) {
    manifest_.ranks = in_.at("Manifest.ranks").rank(from.getRanks());
    names_ = decode_names(in_.at("Manifest.names").view(from.getNames()), in_, names_left_);
    for (const auto state : in_.at("Manifest.states").list(from.getStates())) {
      states_.push_back(in_.name(state, max_name_bytes));
    }
    for (const auto shape : in_.at("Manifest.shapes").list(from.getShapes())) {
      shapes_.push_back(in_.shape(shape));
      volumes_.push_back(volume_of(shapes_.back()));
    }
    rules_ = read_rules(from, in_);
    const TableSizes sizes{names_.size(), states_.size(), shapes_.size(), rules_.size()};
    const auto encoded = in_.at("Manifest.tensors").view(from.getTensors());
    const auto tensors = decode_rows(encoded, sizes, in_, "Manifest.tensors");
    manifest_.tensors.reserve(tensors.size());
    for (const TensorRow& tensor : tensors) add(tensor);
    for (const auto alias : in_.at("Manifest.aliases").list(from.getAliases())) {
      manifest_.aliases.push_back({in_.name(alias.getAlias(), max_fqn_bytes), in_.name(alias.getFqn(), max_fqn_bytes)});
    }
    check_aliases(manifest_);
  }
  Manifest take() { return std::move(manifest_); }

 private:
  // Requires: the row's numbers are within their tables.
  void add(const TensorRow& row) {
    in_.at("Manifest.tensors", manifest_.tensors.size());
    const auto& [name, state, shape, rule, number] = row;
    if (!keys_.insert(std::uint64_t{name} << 32 | state).second) in_.reject("has a key that came before");
    const DType dtype = in_.dtype(number);
    (void)support::multiply(static_cast<ByteCount>(volumes_[shape]), item_size(dtype), "size of a tensor");
    if (!names_left_.take(names_[name].size() + states_[state].size())) in_.reject("expands to too many names");
    if (fits_.insert(std::uint64_t{shape} << 32 | rule).second) {
      // A few numbers can demand much work: layouts inside layouts are checked for every outer rank.
      const auto cost = static_cast<std::size_t>(rules_[rule].layout.rule().check_cost(shapes_[shape]));
      if (!checks_left_.take(rules_[rule].size) || !checks_left_.take(cost)) {
        in_.reject("needs too many layouts checked");
      }
      rules_[rule].layout.check(shapes_[shape], manifest_.ranks);
    }
    manifest_.tensors.push_back({{{names_[name], states_[state]}, dtype, shapes_[shape]}, rules_[rule].layout});
  }

  Input& in_;
  Expansion names_left_;
  Expansion checks_left_;
  Manifest manifest_;
  std::vector<std::string> names_;
  std::vector<std::string> states_;
  std::vector<Extents> shapes_;
  std::vector<ElementCount> volumes_;
  std::vector<Rule> rules_;
  std::set<std::uint64_t> keys_;  // ordered: a peer chooses the numbers, and could choose colliding ones
  std::set<std::uint64_t> fits_;
};

}  // namespace

Bytes encode_manifest(const Manifest& manifest) {
  check_aliases(manifest);
  Table<std::string> names;
  Table<std::string> states;
  Table<Extents> shapes;
  Table<RuleDescription, DescriptionLess> rules;
  std::unordered_map<const LayoutRule*, std::uint32_t> known;  // most tensors share a few rule objects
  std::vector<TensorRow> rows;
  rows.reserve(manifest.tensors.size());
  for (const auto& [spec, layout] : manifest.tensors) {
    check_key(spec.key);
    const auto [rule, is_new] = known.try_emplace(&layout.rule(), 0);
    if (is_new) rule->second = rules.index_of(layout.rule().describe());
    const std::uint32_t dtype = number_of(spec.dtype);
    rows.push_back({names.index_of(spec.key.fqn), states.index_of(spec.key.state), shapes.index_of(spec.shape),
                    rule->second, dtype});
  }
  if (states.size() > 0x10000) throw Error(ErrorCode::invalid_argument, "manifest of more than 65536 state names");

  return encode_canonical<schema::Manifest>("manifest", [&](schema::Manifest::Builder out) {
    out.setRanks(manifest.ranks);
    out.setNames(data_of(encode_names(names.values())));
    auto to_states = out.initStates(states.size());
    for (unsigned i = 0; i < states.size(); ++i) to_states.set(i, text_of(states[i]));
    auto to_shapes = out.initShapes(shapes.size());
    for (unsigned i = 0; i < shapes.size(); ++i)
      fill(to_shapes.init(i, static_cast<unsigned>(shapes[i].size())), shapes[i]);
    auto to_rules = out.initRules(rules.size());
    for (unsigned i = 0; i < rules.size(); ++i) write_rule(to_rules[i], rules[i]);
    const TableSizes sizes{names.size(), states.size(), shapes.size(), rules.size()};
    out.setTensors(data_of(encode_rows(rows, sizes)));
    if (manifest.aliases.empty()) return;
    auto aliases = out.initAliases(static_cast<unsigned>(manifest.aliases.size()));
    for (unsigned i = 0; i < aliases.size(); ++i) {
      aliases[i].setAlias(text_of(manifest.aliases[i].alias));
      aliases[i].setFqn(text_of(manifest.aliases[i].fqn));
    }
  });
}

Manifest decode_manifest(std::span<const std::byte> bytes) {
  return read_canonical<schema::Manifest>("Manifest", bytes, [&](schema::Manifest::Reader from, Input& in) {
    Manifest manifest = ManifestReader(from, in).take();
    // Also refuses fields of a newer version that this one cannot honour: they would be lost when encoded again.
    if (!std::ranges::equal(encode_manifest(manifest), bytes)) in.at("Manifest").reject("is not in canonical form");
    return manifest;
  });
}

}  // namespace shardwire::wire

// SPDX-License-Identifier: Apache-2.0
#include "restore/values.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <unordered_map>

#include "geometry/by_value.hpp"
#include "plan/aliases.hpp"
#include "plan/authority.hpp"

namespace shardwire::restore {

namespace {

constexpr std::size_t shown_ranks = 8;
constexpr std::size_t shown_values = 4;

// A key of the source side; fqn as in NameClasses.
struct HeldKey {
  std::string_view fqn;
  std::string_view state;
  bool operator==(const HeldKey&) const = default;
};
struct HeldKeyHash {
  std::size_t operator()(const HeldKey& key) const {
    const std::hash<std::string_view> hash;
    return hash(key.fqn) * 31 + hash(key.state);
  }
};

// Sources that publish one list of values.
struct Sharers {
  const std::vector<wire::NamedValue>* values = nullptr;
  std::vector<Rank> ranks;  // ascending
};

struct Held {
  const TensorSpec* tensor = nullptr;  // if sources have a tensor under the key
  Rank tensor_holder{};
  std::vector<std::pair<std::size_t, const SharedValue*>> values;  // index of the sharers
  [[nodiscard]] bool anything() const { return tensor != nullptr || !values.empty(); }
};

struct Opinion {
  const SharedValue* value = nullptr;
  std::vector<Rank> ranks;
};

std::string ranks_text(std::vector<Rank> ranks) {
  std::sort(ranks.begin(), ranks.end());
  std::string text = ranks.size() == 1 ? "source rank " : "source ranks ";
  for (std::size_t i = 0; i < std::min(ranks.size(), shown_ranks); ++i) {
    fmt::format_to(std::back_inserter(text), "{}{}", i == 0 ? "" : ", ", to_int(ranks[i]));
  }
  if (ranks.size() > shown_ranks) fmt::format_to(std::back_inserter(text), ", .. ({} ranks)", ranks.size());
  return text + (ranks.size() == 1 ? " has " : " have ");
}

std::string text_of(const TensorSpec& tensor) {
  return fmt::format("a {} tensor of shape {}", to_string(tensor.dtype), to_string(tensor.shape));
}

class Resolver {
 public:
  Resolver(const Catalog& wanted, const JobLayout& from, Plan& plan) : wanted_(wanted), from_(from), plan_(plan) {
    search_ = NameSearch(from, JobLayout{wanted.ranks(), {{plan.wanted, {wanted.layout_rank()}}}});
    for (const Catalog::Entry& entry : wanted.entries()) {
      if (wanted_by_value(entry, wanted.layout_rank())) one_element_.push_back(&entry);
    }
  }

  ResolvedValues find(std::span<const ValueSource> sources, ValueScope scope, Agree elements) {
    name_what_is_open();
    if (held_.empty()) return std::move(resolved_);
    gather_sharers(sources);
    look_up();
    tensors_without_holder(scope == ValueScope::all);
    if (resolved_.values_unknown) return std::move(resolved_);
    for (const Catalog::Entry* entry : one_element_) {
      decide({entry->spec.key, &entry->spec, entry->absent, elements});
    }
    for (const Catalog::ValueEntry& entry : wanted_.values()) decide({entry.key, nullptr, entry.absent, entry.agree});
    if (resolved_.refusal && conflicts_ > 1) {
      resolved_.refusal =
          Error(resolved_.refusal->code(),
                fmt::format("{}; {} more keys are in conflict", resolved_.refusal->what(), conflicts_ - 1),
                resolved_.refusal->ranks());
    }
    return std::move(resolved_);
  }

 private:
  // Creates an entry in held_ for every key to look up.
  void name_what_is_open() {
    const auto open = [&](const TensorKey& key) {
      const auto& held = search_.held();
      held_.try_emplace({held.name_of(key.fqn), key.state});
      for (const std::string_view other : search_.wanted().names_of(key.fqn)) {
        held_.try_emplace({held.name_of(other), key.state});
      }
    };
    for (const Catalog::ValueEntry& entry : wanted_.values()) open(entry.key);
    for (const Catalog::Entry* entry : one_element_) open(entry->spec.key);
    for (const Gap& gap : plan_.gaps) with_gaps_.insert({gap.fqn, gap.state});
    for (const TensorKey& key : with_gaps_) open(key);
  }

  void gather_sharers(std::span<const ValueSource> sources) {
    std::unordered_map<const std::vector<wire::NamedValue>*, std::size_t> known;
    for (const ValueSource& source : sources) {
      const auto [entry, fresh] = known.emplace(source.values, sharers_.size());
      if (fresh) sharers_.push_back({source.values, {}});
      sharers_[entry->second].ranks.push_back(source.layout_rank);
    }
    for (Sharers& one : sharers_) {
      std::sort(one.ranks.begin(), one.ranks.end());
      one.ranks.erase(std::unique(one.ranks.begin(), one.ranks.end()), one.ranks.end());  // of copies
    }
  }

  void look_up() {
    const auto find = [&](const TensorKey& key) {
      const auto found = held_.find({search_.held().name_of(key.fqn), key.state});
      return found == held_.end() ? nullptr : &found->second;
    };
    for (const Section& section : from_.sections) {
      for (const TensorLayout& tensor : section.manifest->tensors) {
        Held* held = find(tensor.spec.key);
        if (held == nullptr || held->tensor != nullptr) continue;
        held->tensor = &tensor.spec;
        held->tensor_holder = section.ranks.front();
      }
    }
    for (std::size_t i = 0; i < sharers_.size(); ++i) {
      for (const wire::NamedValue& named : *sharers_[i].values) {
        Held* held = find(named.key);
        if (held != nullptr) held->values.emplace_back(i, &named.value);
      }
    }
  }

  // The source side's entry for a wanted key; null if there is none.
  const std::pair<const HeldKey, Held>* held_for(const TensorKey& key) {
    const auto at = [&](std::string_view name) { return held_.find({name, key.state}); };
    const auto name = search_.find(key.fqn, [&](std::string_view one) { return at(one)->second.anything(); });
    return name ? &*at(*name) : nullptr;
  }

  void tensors_without_holder(bool all_values_known) {
    std::set<TensorKey> gone;  // absent as permitted
    for (const TensorKey& key : with_gaps_) {
      const auto* held = held_for(key);
      if (held != nullptr && held->second.tensor != nullptr) continue;  // only some of its elements have no holder
      if (!all_values_known) {
        resolved_.values_unknown = true;
        return;
      }
      gone.insert(key);
    }
    if (gone.empty()) return;
    for (std::uint32_t t = 0; t < wanted_.entries().size(); ++t) {
      const Catalog::Entry& entry = wanted_.entries()[t];
      const TensorKey& key = entry.spec.key;
      if (!gone.contains(key)) continue;
      if (const auto* held = held_for(key)) {
        const auto& [sharer, value] = held->second.values.front();
        refuse(fmt::format("{}: wanted as {}, but {}{} by value", to_string(key), text_of(entry.spec),
                           ranks_text(sharers_[sharer].ranks), to_string(**value)),
               sharers_[sharer].ranks);
        continue;
      }
      switch (entry.absent) {
        case Absent::error:
          resolved_.absent.push_back({key});
          gone.erase(key);
          break;
        case Absent::skip: resolved_.skipped.push_back(key); break;
        case Absent::zero: resolved_.zeroed.push_back(TensorId{t}); break;
      }
    }
    std::erase_if(plan_.gaps, [&](const Gap& gap) { return gone.contains({gap.fqn, gap.state}); });
  }

  // A value to find.
  struct WantedValue {
    const TensorKey& key;
    const TensorSpec* tensor = nullptr;  // a wanted one-element tensor under the key; null for a plain value
    Absent absent{};
    Agree agree{};
  };

  void decide(const WantedValue& wanted) {
    const TensorKey& key = wanted.key;
    const auto* held = held_for(key);
    if (held == nullptr) return without_source(wanted, {key});
    const std::string text = wanted.tensor == nullptr ? "a value" : text_of(*wanted.tensor);
    const TensorSpec* held_tensor = held->second.tensor;
    if (held_tensor != nullptr && !travels_by_value(*held_tensor)) {
      return refuse(fmt::format("{}: wanted as {}, but it is {} on source rank {}", to_string(key), text,
                                text_of(*held_tensor), to_int(held->second.tensor_holder)),
                    {held->second.tensor_holder});
    }
    if (held->second.values.empty()) return without_holder(key, held_tensor);
    const std::vector<Opinion> opinions = opinions_on(held->first.fqn, held->second, wanted.agree);
    if (opinions.empty()) return without_source(wanted, {key, wanted_.layout_rank()});
    if (opinions.size() > 1) return refuse_conflict(key, opinions);
    const SharedValue& value = *opinions.front().value;
    if (wanted.tensor != nullptr && !is_value_of(*wanted.tensor, *value)) {
      return refuse(fmt::format("{}: wanted as {}, but {}{}", to_string(key), text, ranks_text(opinions.front().ranks),
                                to_string(*value)),
                    opinions.front().ranks);
    }
    resolved_.values.emplace(key, value);
  }

  static bool is_value_of(const TensorSpec& tensor, const Value& value) {
    const auto* theirs = std::get_if<TensorValue>(&value);
    return theirs != nullptr && theirs->dtype == tensor.dtype && theirs->shape == tensor.shape;
  }

  void without_source(const WantedValue& wanted, AbsentKey absent) {
    if (wanted.absent == Absent::skip) return resolved_.skipped.push_back(wanted.key);
    resolved_.absent.push_back(std::move(absent));
    without_holder(wanted.key, wanted.tensor);
  }

  void without_holder(const TensorKey& key, const TensorSpec* tensor) {
    const Box box = tensor == nullptr ? Box{} : Box::whole(tensor->shape);
    plan_.gaps.push_back({key.fqn, key.state, box, wanted_.layout_rank()});
  }

  // Whether a rank has authority.
  auto authority_over(std::string_view name) {
    if (!authority_) authority_.emplace(from_, search_.held());
    return [&authority = authority_->of(name)](Rank rank) {
      return authority.empty() || authority[static_cast<std::size_t>(to_int(rank))];
    };
  }

  // The distinct values that `agree` selects: more than one is a conflict, none an absence.
  std::vector<Opinion> opinions_on(std::string_view name, const Held& held, Agree agree) {
    switch (agree) {
      case Agree::authoritative: return opinions_of_authorities(name, held);
      case Agree::any: return {lowest_opinion(name, held)};
      case Agree::per_rank: return opinion_of(wanted_.layout_rank(), held);
    }
    return {};
  }

  // The value of the rank, if it has one.
  [[nodiscard]] std::vector<Opinion> opinion_of(Rank rank, const Held& held) const {
    for (const auto& [sharers, value] : held.values) {
      const std::vector<Rank>& ranks = sharers_[sharers].ranks;
      if (std::binary_search(ranks.begin(), ranks.end(), rank)) return {{value, {rank}}};
    }
    return {};
  }

  // Requires: a rank has a value.
  Opinion lowest_opinion(std::string_view name, const Held& held) {
    const auto lowest = [&](const auto& counts) {
      std::optional<Opinion> found;
      for (const auto& [sharers, value] : held.values) {
        const std::vector<Rank>& ranks = sharers_[sharers].ranks;
        const auto rank = std::find_if(ranks.begin(), ranks.end(), counts);
        if (rank != ranks.end() && (!found || *rank < found->ranks.front())) found = Opinion{value, {*rank}};
      }
      return found;
    };
    const auto everybody = [](Rank) { return true; };
    if (is_agreed(held)) return *lowest(everybody);
    const std::optional<Opinion> found = lowest(authority_over(name));
    return found ? *found : *lowest(everybody);
  }

  [[nodiscard]] static bool is_agreed(const Held& held) {
    return std::all_of(held.values.begin(), held.values.end(),
                       [&](const auto& one) { return *one.second == *held.values.front().second; });
  }

  // The distinct values of authoritative ranks; of all ranks that have a value if no authoritative one has.
  std::vector<Opinion> opinions_of_authorities(std::string_view name, const Held& held) {
    std::vector<Opinion> opinions;
    if (!is_agreed(held)) opinions = group(held, authority_over(name));
    return opinions.empty() ? group(held, [](Rank) { return true; }) : opinions;
  }

  template <typename Counts>
  std::vector<Opinion> group(const Held& held, Counts&& counts) {
    std::vector<Opinion> opinions;
    for (const auto& entry : held.values) {
      const SharedValue* value = entry.second;
      std::vector<Rank> authorities;
      for (const Rank rank : sharers_[entry.first].ranks) {
        if (counts(rank)) authorities.push_back(rank);
      }
      if (authorities.empty()) continue;
      auto same =
          std::find_if(opinions.begin(), opinions.end(), [&](const Opinion& one) { return *one.value == *value; });
      // Beyond the number shown in a message, one more opinion stands for all the others.
      if (same == opinions.end() && opinions.size() > shown_values) same = opinions.end() - 1;
      if (same == opinions.end()) same = opinions.insert(same, {value, {}});
      same->ranks.insert(same->ranks.end(), authorities.begin(), authorities.end());
    }
    return opinions;
  }

  void refuse_conflict(const TensorKey& key, const std::vector<Opinion>& opinions) {
    ++conflicts_;
    if (resolved_.refusal) return;
    std::string text = to_string(key) + ": the ranks that have a part of it have to agree, but ";
    std::vector<Rank> ranks;
    for (std::size_t i = 0; i < opinions.size(); ++i) {
      if (i > 0) text += ", ";
      text += ranks_text(opinions[i].ranks) + (i < shown_values ? to_string(**opinions[i].value) : "other values");
      ranks.insert(ranks.end(), opinions[i].ranks.begin(), opinions[i].ranks.end());
    }
    std::sort(ranks.begin(), ranks.end());
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    resolved_.refusal = Error(ErrorCode::layout_mismatch, text, std::move(ranks));
  }

  void refuse(const std::string& text, std::vector<Rank> ranks) {
    if (!resolved_.refusal) resolved_.refusal = Error(ErrorCode::layout_mismatch, text, std::move(ranks));
  }

  const Catalog& wanted_;
  const JobLayout& from_;
  Plan& plan_;
  NameSearch search_;
  std::vector<const Catalog::Entry*> one_element_;  // wanted here
  std::optional<Authority> authority_;              // only if sources disagree
  std::vector<Sharers> sharers_;
  std::set<TensorKey> with_gaps_;
  std::unordered_map<HeldKey, Held, HeldKeyHash> held_;
  std::size_t conflicts_ = 0;
  ResolvedValues resolved_;
};

// The first key of each state but that of the first key, which its message has named.
std::string other_states_text(const std::vector<AbsentKey>& absent) {
  constexpr std::size_t named = 16;
  std::set<std::string_view> seen{absent.front().key.state};
  std::vector<std::string> first;
  for (const AbsentKey& one : absent) {
    if (seen.insert(one.key.state).second && first.size() < named) first.push_back(to_string(one.key));
  }
  if (first.empty()) return "";
  const std::size_t left = seen.size() - 1 - first.size();
  return fmt::format(" (of other states: {}{})", fmt::join(first, ", "),
                     left == 0 ? "" : fmt::format(" and {} more states", left));
}

}  // namespace

bool wanted_by_value(const Catalog::Entry& entry, Rank layout_rank) {
  return travels_by_value(entry.spec) && !entry.layout.boxes_of(entry.spec.shape, layout_rank).empty();
}

ValueScope value_scope(const Catalog& wanted) {
  const auto one_element = [&](const Catalog::Entry& entry) { return wanted_by_value(entry, wanted.layout_rank()); };
  const auto of_own_rank = [](const Catalog::ValueEntry& entry) { return entry.agree == Agree::per_rank; };
  if (std::ranges::any_of(wanted.entries(), one_element)) return ValueScope::all;
  if (wanted.values().empty()) return ValueScope::none;
  return std::ranges::all_of(wanted.values(), of_own_rank) ? ValueScope::own_rank : ValueScope::all;
}

Agree agreement_on_elements(Replicas replicas) {
  return replicas == Replicas::first ? Agree::any : Agree::authoritative;
}

ResolvedValues resolve_values(const Catalog& wanted, const JobLayout& from, Plan& plan,
                              std::span<const ValueSource> sources, ValueScope scope, Agree elements) {
  return Resolver(wanted, from, plan).find(sources, scope, elements);
}

void require_complete(const std::vector<Gap>& gaps, const std::vector<AbsentKey>& absent) {
  if (absent.empty()) return require_no_gaps(gaps);
  try {
    require_no_gaps(gaps);
  } catch (const Error& error) {
    const std::optional<Rank>& source = absent.front().source;
    throw Error(error.code(),
                fmt::format("{}; {} {}{}: add what may be missing with Absent::skip or Absent::zero{}", error.what(),
                            source ? fmt::format("source rank {} has no", to_int(*source)) : "no source has",
                            to_string(absent.front().key),
                            absent.size() == 1 ? "" : fmt::format(" and {} more keys", absent.size() - 1),
                            other_states_text(absent)),
                error.gaps(), error.ranks());
  }
}

}  // namespace shardwire::restore

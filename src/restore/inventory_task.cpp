// SPDX-License-Identifier: Apache-2.0
#include "restore/inventory_task.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <set>
#include <utility>

#include "restore/publishers.hpp"
#include "restore/verdict.hpp"
#include "serve/publication.hpp"
#include "support/list_of.hpp"
#include "support/ranks_of.hpp"

namespace shardwire::restore {

InventoryTask::InventoryTask(const Context& context, Request request, Done done)
    : Question(context, request.from, request.timeout),
      request_(std::move(request)),
      done_(std::move(done)),
      descriptions_(context, RestoreOptions().notice,
                    {.holders = [this] { return roster_.publications(); },
                     .described = [this] { look(); },
                     .failed = [this](const std::exception_ptr& error) { end({}, error); }}) {
}

void InventoryTask::look() {
  if (!roster_.is_known()) return;
  const Records all = roster_.publications();
  if (!descriptions_.fetch(all, all)) return;
  Inventory inventory = inventory_of(all);
  if (request_.until_final) {
    require_possible(inventory, all);
    const bool complete = !inventory.publishers.empty() && inventory.absent.empty();
    if (!complete && (inventory.publishers.empty() || !inventory.awaited.empty())) return;
  }
  if (const Records taken = chosen(all); !request_.step && !taken.empty()) {
    warn_of_higher_step(context_, request_.from, all, StateOf::of(taken.front()));
  }
  end(std::move(inventory), nullptr);
}

// Sources go forward: a step that all have passed never comes back.
void InventoryTask::require_possible(const Inventory& inventory, const Records& all) const {
  if (!request_.step || !inventory.publishers.empty() || all.empty() || !inventory.awaited.empty()) return;
  if (std::ranges::all_of(all, [&](const auto& record) { return record.step < *request_.step; })) return;
  throw Error(ErrorCode::step_mismatch,
              fmt::format("no rank publishes step {} of '{}' any more: source rank {} is at step {}", *request_.step,
                          request_.from, all.front().layout_rank, all.front().step));
}

// Publications of one step and one session, if there are any.
InventoryTask::Records InventoryTask::chosen(const Records& all) const {
  std::vector<PublishedState> states = by_preference(all);
  if (request_.step) std::erase_if(states, [&](const PublishedState& one) { return one.of.step != *request_.step; });
  if (states.empty()) return {};
  const auto is_complete = [&](const PublishedState& one) {
    std::set<int> ranks;
    for (const auto& record : one.records) ranks.insert(record.layout_rank);
    const int all_ranks = context_.metadata.manifests.at(one.records.back().manifest)->ranks;
    return ranks.size() == static_cast<std::size_t>(all_ranks);
  };
  const auto complete = std::ranges::find_if(states, is_complete);
  return std::move((complete == states.end() ? states.begin() : complete)->records);
}

std::vector<int> InventoryTask::awaited(const Records& all, std::int64_t step, int ranks) const {
  if (context_.membership.lost() != nullptr) return {};
  const int member = context_.member;
  const bool listed =
      std::ranges::any_of(all, [&](const auto& record) { return record.member == member && record.step == step; });
  const auto own = context_.own_publication(request_.from);
  const bool on_its_way = !listed && own != nullptr && (own->step == step || all.empty());
  std::vector<int> others = possible_publishers(context_.directory, all, {member, on_its_way, step, ranks});
  if (!on_its_way) std::erase(others, member);  // it waits here
  return others;
}

Inventory InventoryTask::inventory_of(const Records& all) const {
  const Metadata& known = context_.metadata;
  Inventory inventory;
  const Records records = chosen(all);
  inventory.step = !records.empty() ? records.front().step : request_.step.value_or(0);
  check_layouts(records, known, request_.from);
  std::vector<std::shared_ptr<const Manifest>> manifests;
  std::set<TensorKey> values;
  for (const auto& record : records) {
    inventory.publishers.push_back({Rank{record.layout_rank}, record.member});
    manifests.push_back(known.manifests.at(record.manifest));
    for (const wire::NamedValue& value : *known.values.at(record.values)) values.insert(value.key);
  }
  inventory.held = side_of(records, manifests);
  // One-element tensors travel with the values.
  for (const Section& section : inventory.held.sections) {
    for (const TensorLayout& tensor : section.manifest->tensors) values.erase(tensor.spec.key);
  }
  inventory.values.assign(values.begin(), values.end());
  // If no member publishes the step, other publications tell the number of ranks.
  const auto& of = records.empty() ? all : records;
  const int ranks = of.empty() ? 0 : known.manifests.at(of.front().manifest)->ranks;
  const PublishersInput input{context_.member, false, inventory.step, ranks};
  inventory.absent = support::ranks_of(open_ranks(records, input));
  if (all.empty() || !inventory.absent.empty()) inventory.awaited = awaited(all, inventory.step, ranks);
  return inventory;
}

// Ranks that were asked in vain, and those that nobody can reach.
std::vector<int> InventoryTask::undescribed() const {
  const Metadata& known = context_.metadata;
  std::vector<int> ranks;
  for (const auto& record : roster_.publications()) {
    if (!known.manifests.contains(record.manifest) || !known.values.contains(record.values)) {
      ranks.push_back(record.layout_rank);
    }
  }
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());  // sorted; several members may publish one
  return ranks;
}

void InventoryTask::timed_out() {
  if (const std::vector<int> silent = undescribed(); !silent.empty()) {
    return end({}, std::make_exception_ptr(Error(
                       ErrorCode::timed_out,
                       fmt::format("source ranks {} of '{}' did not describe what they publish within the timeout",
                                   support::list_of(silent), request_.from),
                       support::ranks_of(silent))));
  }
  std::vector<Rank> absent;
  std::string what = "the publishers are not known yet";
  callbacks_.run([&] {
    if (!roster_.is_known()) return;
    const Records all = roster_.publications();
    const Inventory inventory = inventory_of(all);
    absent = inventory.absent;
    what = all.empty() ? "nobody publishes it" : fmt::format("it is published {}", steps_text(all));
    if (inventory.publishers.empty() || absent.empty()) return;
    what += fmt::format(", not at step {} by {}", inventory.step, source_ranks_text(absent));
  });
  if (!done_) return;
  const std::string step = request_.step ? fmt::format("step {} of ", *request_.step) : "";
  end({}, std::make_exception_ptr(
              Error(ErrorCode::timed_out,
                    fmt::format("{}'{}' was not there within the timeout: {}", step, request_.from, what), absent)));
}

void InventoryTask::end(Inventory inventory, const std::exception_ptr& error) {
  if (!done_) return;
  timer_.stop();
  descriptions_.stop();
  context_.finished(*this);
  std::exchange(done_, nullptr)(std::move(inventory), error);
}

}  // namespace shardwire::restore

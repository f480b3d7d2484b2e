// SPDX-License-Identifier: Apache-2.0
#include "restore/sources.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

namespace shardwire::restore {

SourceProgress progress_of(const Source& source, const Context& context) {
  const wire::PublicationRecord& record = source.binding().record;
  SourceProgress progress{.rank = source.rank(), .unanswered = source.requests().unanswered() > 0};
  if (const auto* at = context.directory.address(record.member, record.epoch)) {
    progress.address = fmt::format("{}:{}", at->address, at->port);
  }
  return progress;
}

Sources::Sources(const SourceContext& context, Listener& listener, const PathInputs& paths,
                 const Source::Options& options, std::vector<Binding> bindings)
    : listener_(listener) {
  Source::Listener& reports = *this;
  for (std::size_t i = 0; i < bindings.size(); ++i) {
    sources_.push_back(std::make_unique<Source>(context, reports, paths, options, i, std::move(bindings[i])));
  }
}

void Sources::start(Source::Leasing leasing) {
  for_each(Awaited::bound, [leasing](Source& source) { source.start(leasing); });
}

void Sources::confirm(const std::function<bool(const Source& source)>& is_proven) {
  for_each(Awaited::confirmed, [&](Source& source) { source.confirm(is_proven(source)); });
}

// Sources may report within the loop; the listener is called after it.
void Sources::for_each(Awaited awaited, const std::function<void(Source&)>& step) {
  awaited_ = awaited;
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    if (sources_[i]->state() != Source::State::lost) pending_.insert(i);
  }
  pending_.insert(sources_.size());
  for (std::size_t i = 0; i < sources_.size() && !stopped_; ++i) step(*sources_[i]);
  reported(sources_.size());
}

void Sources::reported(std::size_t index) {
  if (stopped_ || pending_.erase(index) == 0 || !pending_.empty()) return;
  if (awaited_ == Awaited::bound) return listener_.on_all_bound();
  listener_.on_all_confirmed();
}

void Sources::release() {
  for (const auto& source : sources_) source->release();
}

std::vector<const Binding*> Sources::bindings() const {
  std::vector<const Binding*> bindings;
  for (const auto& source : sources_) bindings.push_back(&source->binding());
  return bindings;
}

std::vector<Binding> Sources::take_bindings() {
  std::vector<Binding> bindings;
  for (const auto& source : sources_) bindings.push_back(source->take_binding());
  return bindings;
}

bool Sources::bound_anew() const {
  return std::ranges::any_of(sources_, &Source::bound_anew);
}

}  // namespace shardwire::restore

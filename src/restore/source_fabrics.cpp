// SPDX-License-Identifier: Apache-2.0
#include "restore/source_fabrics.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

namespace shardwire::restore {

SourceFabrics::SourceFabrics(const SourceContext& context, Events events, const PathInputs& paths,
                             const Options& options, Binding& binding, SourceRequests& requests)
    : context_(context),
      events_(std::move(events)),
      paths_(paths),
      options_(options),
      binding_(binding),
      requests_(requests),
      callbacks_(events_.failed) {
}

void SourceFabrics::restart() {
  attempts_.clear();
  binding_.unbind();
  if (options_.connect == Connect::none) return candidates_.clear();
  const auto common = common_fabrics(context_.fabrics.open, binding_.link->peer().fabrics, binding_.link->is_local());
  candidates_.assign(common.begin(), common.end());
  std::erase_if(candidates_, [this](std::size_t fabric) { return binding_.failed_fabrics.contains(fabric); });
}

bool SourceFabrics::connect_next() {
  if (options_.connect == Connect::needed) {
    const bool sends =
        std::ranges::any_of(binding_.connected, [](const ConnectedFabric& one) { return one.path.message; });
    const int worst = worst_path(binding_, paths_);
    std::erase_if(candidates_, [&](std::size_t fabric) {
      return !worth_connecting(context_.fabrics.preference(fabric), worst, options_.wants_messages && !sends);
    });
  }
  if (candidates_.empty()) return false;
  const std::size_t fabric = candidates_.front();
  candidates_.pop_front();
  const FabricAttempt::Setup setup{.clock = context_.clock,
                                   .binding = binding_,
                                   .lease = requests_.lease(),
                                   .deadline = options_.deadline,
                                   .patience = candidates_.empty() ? max_proof : options_.patience,
                                   .tolerant = options_.connect == Connect::every,
                                   .requests = requests_.count()};
  attempts_.push_back(std::make_unique<FabricAttempt>(
      setup, fabric,
      FabricAttempt::Events{.proving = [this] { events_.changed(Report::proving); },
                            .bound = callbacks_.wrap([this](BoundFabric bound) {
                              add_fabric(binding_, std::move(bound), paths_);
                              events_.changed(Report::bound);
                            }),
                            .excluded = callbacks_.wrap([this, fabric](const Error& why) { exclude(fabric, why); }),
                            .failed = events_.failed}));
  attempts_.back()->start();
  return true;
}

// A failed fabric is fatal only if no other is left.
void SourceFabrics::exclude(std::size_t fabric, const Error& why) {
  binding_.excluded[fabric] = why.what();
  binding_.lacked_resources = binding_.lacked_resources || why.code() == ErrorCode::out_of_resources;
  binding_.peer_ended = binding_.peer_ended || why.code() == ErrorCode::peer_lost;
  context_.log(LogLevel::info, fmt::format("source rank {} is not reached over {}: {}", to_int(binding_.layout_rank),
                                           context_.fabrics.name(fabric), why.what()));
  events_.changed(Report::excluded);
}

void SourceFabrics::choose_path() {
  if (options_.connect == Connect::needed) binding_.path = decide_path(binding_, paths_);
}

// The destination may have moved to other memory since they were connected.
bool SourceFabrics::suffice() const {
  const bool reaches = !paths_.reach.wants_devices() || worst_path(binding_, paths_) != no_path;
  return binding_.still_connected() && (binding_.path.sent_by || (!options_.wants_messages && reaches));
}

void SourceFabrics::end() {
  callbacks_.end();
  for (const auto& attempt : attempts_) attempt->end();
}

}  // namespace shardwire::restore

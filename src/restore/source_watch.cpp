// SPDX-License-Identifier: Apache-2.0
#include "restore/source_watch.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "move/traits.hpp"

namespace shardwire::restore {

namespace {

// A source that has delivered bytes this shortly before the deadline keeps up.
constexpr auto keeping_up = std::chrono::milliseconds(500);

bool comes_by_message(Method method) {
  return move::carrier_of(method) == move::Carrier::messages;
}

}  // namespace

SourceWatch::SourceWatch(const Context& context, ChannelEnded channel_ended, std::string from, Sources sources,
                         const move::Engine& engine, Callbacks::Failed failed)
    : context_(context),
      channel_ended_(std::move(channel_ended)),
      from_(std::move(from)),
      sources_(sources),
      engine_(engine),
      callbacks_(std::move(failed)),
      arrivals_(sources.size(), {0, context.clock.now()}) {
}

ByteCount SourceWatch::arrived(std::size_t source) const {
  return engine_.tally().peer_bytes(static_cast<std::uint32_t>(source));
}

void SourceWatch::look(std::span<const move::Transfer> transfers) {
  const auto now = context_.clock.now();
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    if (const ByteCount bytes = arrived(i); bytes != arrivals_[i].bytes) arrivals_[i] = {bytes, now};
  }
  for (std::size_t i = 0; i < sources_.size() && !callbacks_.ended(); ++i) {
    if (engine_.dropped(static_cast<std::uint32_t>(i))) continue;
    if (arrivals_[i].last != now) look_at_channel(*sources_[i], transfers);
  }
  for (std::size_t i = 0; i < sources_.size() && !callbacks_.ended(); ++i) {
    if (now - arrivals_[i].last >= keeping_up) look_at_reads(*sources_[i]);
  }
}

// The endpoint has failed while messages are due. The fabric reports no error for messages that the source never
// started, so the source is asked.
void SourceWatch::look_at_channel(Source& source, std::span<const move::Transfer> transfers) {
  if (!message_channel_failed(source, transfers)) return;
  if (source.binding().message_channel()->aborted) return channel_ended_(source);
  source.requests().ask_if_live(callbacks_.wrap([this, &source] { channel_ended_(source); }));
}

bool SourceWatch::message_channel_failed(const Source& source, std::span<const move::Transfer> transfers) const {
  const Binding& binding = source.binding();
  const FabricChannel* const channel = binding.message_channel();
  if (binding.is_own() || channel == nullptr || !channel->endpoint->failed()) return false;
  const auto peer = static_cast<std::uint32_t>(source.index());
  ByteCount expected = 0;
  for (const move::Transfer& transfer : transfers) {
    if (transfer.peer == peer && comes_by_message(transfer.method)) expected += move::bytes_of(transfer);
  }
  ByteCount got = 0;
  for (const move::MethodTraits& one : move::method_table) {
    if (comes_by_message(one.method)) got += engine_.tally().peer_bytes(peer, one.method);
  }
  return got < expected;
}

// Hardware may report a refused access late, or never.
void SourceWatch::look_at_reads(Source& source) {
  const Binding& binding = source.binding();
  if (!binding.path.read_by || !engine_.writes_from(static_cast<std::uint32_t>(source.index()))) return;
  const auto published = context_.directory.publication(from_, binding.record.member);
  if (!published || *published != binding.record) source.requests().ask_if_live([] {});
}

SourceProgress progress_of(const Source& source, const Context& context) {
  const wire::PublicationRecord& record = source.binding().record;
  SourceProgress progress{.rank = source.rank(), .unanswered = source.requests().unanswered() > 0};
  if (const auto* at = context.directory.address(record.member, record.epoch)) {
    progress.address = fmt::format("{}:{}", at->address, at->port);
  }
  return progress;
}

std::vector<SourceProgress> SourceWatch::progress(std::span<const move::Transfer> transfers) const {
  std::vector<SourceProgress> progress(sources_.size());
  const auto now = context_.clock.now();
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    progress[i] = progress_of(*sources_[i], context_);
    progress[i].keeps_up = now - arrivals_[i].last < keeping_up;
  }
  if (transfers.empty()) return progress;
  for (const move::Transfer& transfer : transfers)
    progress[transfer.peer].outstanding_bytes += move::bytes_of(transfer);
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    progress[i].outstanding_bytes -= std::min(progress[i].outstanding_bytes, arrived(i));
  }
  return progress;
}

}  // namespace shardwire::restore

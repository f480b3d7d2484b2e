// SPDX-License-Identifier: Apache-2.0
#include "restore/binding.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <span>
#include <utility>

#include "move/traits.hpp"

namespace shardwire::restore {

bool Binding::still_connected() const {
  return std::ranges::none_of(connected, [](const ConnectedFabric& one) { return one.channel->endpoint->failed(); });
}

std::size_t Binding::position_of(std::uint32_t tensor) const {
  return static_cast<std::size_t>(std::ranges::lower_bound(tensors, tensor) - tensors.begin());
}

const std::map<int, ByteCount>& Binding::targets_of(std::size_t position) const {
  static const std::map<int, ByteCount> host{{memory::on_host, 0}};
  return targets.empty() ? host : targets[position];
}

const SourceRegion* Binding::region_of(std::size_t position) const {
  const std::uint32_t region = handles[position].region;
  return region == wire::no_region ? nullptr : &regions[region];
}

std::optional<int> Binding::device_at_source(std::size_t position) const {
  const SourceRegion* region = region_of(position);
  if (region == nullptr) return memory::on_host;
  if (!region->place) return std::nullopt;
  return region->place->kind == MemoryKind::cuda ? region->place->device : memory::on_host;
}

std::string Binding::mapped_by() const {
  std::set<std::string> names;
  for (const SourceRegion& region : regions) names.insert(region.mapped_by);
  names.erase("");
  std::string text;
  for (const std::string& one : names) text += (text.empty() ? "" : ", ") + one;
  return text;
}

std::size_t Binding::max_message_ranges() const {
  return path.sent_by ? connected[*path.sent_by].path.max_message_ranges : 1;
}

const ConnectedFabric* Binding::carrier_of(Method method) const {
  const auto fabric = [this](std::optional<std::size_t> chosen) { return chosen ? &connected[*chosen] : nullptr; };
  switch (move::carrier_of(method)) {
    case move::Carrier::process:
    case move::Carrier::rounds: return nullptr;
    case move::Carrier::mapping: break;
    case move::Carrier::reads: return fabric(path.read_by);
    case move::Carrier::messages: return fabric(path.sent_by);
  }
  const auto maps = std::ranges::find_if(connected, [](const ConnectedFabric& one) { return one.path.map; });
  return maps != connected.end() ? &*maps : fabric(path.sent_by);
}

const FabricChannel* Binding::message_channel() const {
  return path.sent_by ? connected[*path.sent_by].channel.get() : nullptr;
}

void Binding::unbind() {
  generation = 0;
  connected.clear();
  excluded = failed_fabrics;
  lacked_resources = false;
  peer_ended = false;
  regions.clear();
  handles.clear();
  unregistered_path = no_path;
  digests = false;
  keys.clear();
  word = {};
  path = {};
}

PeerFabrics fabrics_of(const Binding& binding) {
  const SourceLink& link = *binding.link;
  return {link.peer(), link.is_local(), link.why_not_local(), binding.connected, binding.excluded};
}

void check_bound(const Binding& binding, const wire::Bound& reply) {
  const auto refuse = [&](const char* what) {
    throw Error(ErrorCode::transport_failed, fmt::format("source rank {} gave {}", to_int(binding.layout_rank), what),
                std::vector<Rank>{binding.layout_rank});
  };
  const bool known = !binding.handles.empty();
  if (reply.addresses.size() != 1) refuse("addresses of other fabrics than it was asked for");
  if (reply.tensors.size() != binding.tensors.size()) refuse("handles for other tensors than it was asked for");
  for (std::size_t i = 0; i < binding.tensors.size(); ++i) {
    const wire::TensorHandle& handle = reply.tensors[i];
    if (handle.tensor != binding.tensors[i]) refuse("handles for other tensors than it was asked for");
    if (handle.region != wire::no_region && handle.region >= reply.regions.size()) refuse("a handle without a region");
    if (known && handle != binding.handles[i]) refuse("other handles than before, of the same generation");
  }
  if (!known) return;
  if (reply.regions.size() != binding.regions.size()) refuse("other regions than before, of the same generation");
  for (std::size_t i = 0; i < binding.regions.size(); ++i) {
    if (place_of(reply.regions[i]) != binding.regions[i].place) refuse("another kind of memory than before");
  }
}

bool is_packed_by_source(const move::Transfer& transfer, const Binding& binding) {
  const move::MethodTraits& method = move::traits_of(transfer.method);
  return method.carrier == move::Carrier::messages && (method.staged || binding.max_message_ranges() > 1);
}

bool all_in_messages(std::span<const move::Transfer> transfers, std::size_t source) {
  return std::ranges::all_of(transfers, [&](const move::Transfer& transfer) {
    return transfer.peer != source || move::carrier_of(transfer.method) == move::Carrier::messages;
  });
}

void read_word(const GenerationWord& word, WordRead done) {
  // Owner: the completion, which may run after the waiting operation has ended.
  const auto landing = std::make_shared<std::uint64_t>(0);
  const transport::ReadRange range{word.offset_bytes,
                                   {reinterpret_cast<std::byte*>(landing.get()), sizeof *landing, {}}};
  word.channel->endpoint->read(
      *word.region, std::span(&range, 1),
      [landing, done = std::move(done)](const transport::Outcome& fault) { done(fault, *landing); });
}

}  // namespace shardwire::restore

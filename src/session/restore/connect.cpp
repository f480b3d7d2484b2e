// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>

#include "session/path_reasons.hpp"
#include "session/restore/run.hpp"

// Part of bind: which fabrics are connected to a source. One after the other, the best first, until no further one would be
// better for any memory that is to be read.
namespace shardwire {

namespace {

bool maps(const SourcePeer& peer) {
  return std::ranges::any_of(peer.connected, [](const ConnectedFabric& one) { return one.path.map; });
}

// Of the first read over a fabric; less when the restore's deadline is near.
constexpr auto max_proof = std::chrono::seconds(10);

bool is_mapped(const SourcePeer& peer, const wire::TensorHandle& handle) {
  if (handle.region == wire::no_region) return false;
  return std::ranges::any_of(peer.regions[handle.region].access, &RegionAccess::mapped);
}

}  // namespace

bool RestoreRun::wants_messages() const {
  return options_.way == Way::packed || options_.way == Way::straight;
}

// The worst path of all that is read from this source, into whichever place.
int RestoreRun::worst_path(const Peer& peer) {
  if (peer.handles.empty()) return peer.tensors.empty() ? 0 : no_path;
  int worst = 0;
  std::set<std::pair<std::uint32_t, int>> known;  // regions, and where they are wanted
  for (std::size_t i = 0; i < peer.handles.size(); ++i) {
    const std::uint32_t region = peer.handles[i].region;
    if (region == wire::no_region) {
      worst = std::max(worst, peer.unregistered_path);
      continue;
    }
    for (const int device : peer.targets_of(i)) {
      if (known.emplace(region, device).second) worst = std::max(worst, path_of(peer, peer.regions[region], device));
    }
  }
  return worst;
}

bool RestoreRun::lacks_path(const Peer& peer) {
  if (worst_path(peer) != no_path) return false;
  for (std::size_t i = 0; i < peer.handles.size(); ++i) {
    const std::uint32_t region = peer.handles[i].region;
    for (const int device : peer.targets_of(i)) {
      const int path = region == wire::no_region ? peer.unregistered_path : path_of(peer, peer.regions[region], device);
      if (path == no_path && !may_come_in_rounds(peer, i, device)) return true;
    }
  }
  return peer.handles.empty();
}

int RestoreRun::path_of(const Peer& peer, const SourceRegion& region, int device) {
  int best = no_path;
  for (std::size_t i = 0; i < region.access.size(); ++i) {
    best =
        best_path(best, core_.fabrics().row(peer.connected[i].fabric).preference, access_into(peer, region, i, device));
  }
  return best;
}

void RestoreRun::connect(std::size_t index) {
  Peer& peer = peers_[index];
  const Link& link = *peer.link;
  peer.unbind();
  peer.candidates = common_fabrics(core_.traits(), link.peer().fabrics, link.is_local());
  connect_next(index);
}

void RestoreRun::connect_next(std::size_t index) {
  Peer& peer = peers_[index];
  const bool sends = std::ranges::any_of(peer.connected, [](const ConnectedFabric& one) { return one.path.message; });
  const int worst = worst_path(peer);
  std::erase_if(peer.candidates, [&](std::size_t fabric) {
    return !worth_connecting(core_.fabrics().row(fabric).preference, worst, wants_messages() && !sends);
  });
  if (peer.candidates.empty()) return connected(index);
  const std::size_t fabric = peer.candidates.front();
  peer.candidates.erase(peer.candidates.begin());
  connect_over(index, fabric, Attempt::first);
}

void RestoreRun::connect_over(std::size_t index, std::size_t fabric, Attempt attempt) {
  Peer& peer = peers_[index];
  ++peer.unanswered;
  peer.link->prepare(fabric, while_running([this, index, fabric, attempt](const Error* why_not) {
                       --peers_[index].unanswered;
                       if (why_not != nullptr) return leave_out(index, fabric, *why_not);
                       bind_over(index, fabric, attempt);
                     }));
}

// One that cannot be connected is no end as long as there are others.
void RestoreRun::leave_out(std::size_t index, std::size_t fabric, const Error& why) {
  Peer& peer = peers_[index];
  peer.left_out[fabric] = why.what();
  peer.lacked_resources = peer.lacked_resources || why.code() == ErrorCode::out_of_resources;
  core_.log(LogLevel::info, fmt::format("source rank {} is not reached over {}: {}", to_int(peer.layout_rank),
                                        core_.fabrics()[fabric].name(), why.what()));
  connect_next(index);
}

void RestoreRun::bind_over(std::size_t index, std::size_t fabric, Attempt attempt) {
  Peer& peer = peers_[index];
  const wire::Bind request{next_request(), peer.lease, {peer.link->handle(fabric)}};
  const std::uint64_t sockets = request.fabrics.front().sockets;
  ++peer.unanswered;
  peer.link->request(request.request, request,
                     while_running([this, index, fabric, attempt, sockets](wire::Message& reply) {
                       Peer& source = peers_[index];
                       --source.unanswered;
                       const auto* failure = std::get_if<wire::Failure>(&reply);
                       if (failure != nullptr && failure->code == ErrorCode::unsupported) {
                         return leave_out(index, fabric, Error(failure->code, failure->message));
                       }
                       // The source may be the first to know that the sockets have ended.
                       const bool ended = failure != nullptr && failure->code == ErrorCode::peer_lost && sockets != 0;
                       if (ended && attempt == Attempt::first) {
                         source.link->give_up(fabric, sockets);
                         return connect_over(index, fabric, Attempt::last);
                       }
                       bound_over(index, fabric, attempt, expect<wire::Bound>(reply, source));
                     }));
}

void RestoreRun::bound_over(std::size_t index, std::size_t fabric, Attempt attempt, wire::Bound& reply) {
  Peer& peer = peers_[index];
  check_bound(peer, reply);
  std::vector<support::Descriptor> descriptors = peer.link->take_descriptors(reply.request);
  Binding binding{.fabric = fabric, .attempt = attempt, .reply = std::move(reply)};
  try {
    binding.channel = peer.link->channel(fabric, binding.reply.addresses.front());
    if (binding.channel) import_regions(peer, binding, std::move(descriptors));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::unsupported && error.code() != ErrorCode::out_of_resources) throw;
    return leave_out(index, fabric, error);
  }
  if (!binding.channel) {  // another restore was given the sockets, and the connection has ended since
    if (attempt == Attempt::first) return connect_over(index, fabric, Attempt::last);
    return leave_out(index, fabric, Error(ErrorCode::peer_lost, "the connection has ended as soon as it was there"));
  }
  binding.path = binding.channel->endpoint->path({});  // some know only now what they read by
  const bool reads = binding.word.region && !binding.word.is_mapped() && binding.path.read;
  if (!reads || binding.channel->proven) return take(index, binding);
  prove_reads(index, std::move(binding));
}

void RestoreRun::import_regions(const Peer& peer, Binding& binding, std::vector<support::Descriptor> descriptors) {
  auto next = descriptors.begin();
  const auto import = [&](const wire::RegionHandle& handle) -> std::shared_ptr<transport::RemoteRegion> {
    if (handle.keys.empty()) return nullptr;
    const wire::RegionKey& key = handle.keys.front();
    if (descriptors.end() - next < key.descriptors) {
      throw Error(
          ErrorCode::transport_failed,
          fmt::format("source rank {} has not handed over the descriptors of a region", to_int(peer.layout_rank)),
          std::vector<Rank>{peer.layout_rank});
    }
    const auto end = next + key.descriptors;
    std::vector<support::Descriptor> own(std::make_move_iterator(next), std::make_move_iterator(end));
    next = end;
    binding.keys.insert(key.key);
    return peer.link->region(binding.fabric, key.key, handle.size_bytes, std::move(own));
  };
  for (const wire::RegionHandle& region : binding.reply.regions) binding.regions.push_back(import(region));
  const auto& word = binding.reply.word;
  if (word && is_generation_word(word->offset_bytes, word->region.size_bytes)) {
    binding.word = {import(word->region), word->offset_bytes, binding.channel};
  }
}

// What says that it reads shows it once, before anything counts on it: a network may be there and carry nothing. From then on
// bytes come without the source. Whose own deadline is near goes on without the fabric, and condemns it for nobody else.
void RestoreRun::prove_reads(std::size_t index, Binding binding) {
  Peer& peer = peers_[index];
  const Duration left = began_ + options_.deadline - Clock::now();
  const Duration limit = std::min<Duration>(max_proof, left / 2);
  const std::uint64_t number = ++proofs_begun_;
  const GenerationWord word = binding.word;
  Proof& proof =
      *proofs_.emplace(index, std::make_unique<Proof>(core_.loop(), number, std::move(binding))).first->second;
  ++peer.unanswered;
  proof.limit.start(limit, while_running([this, index, limit] {
                      const Binding unproven = end_proof(index);
                      const Error why(ErrorCode::transport_failed,
                                      fmt::format("it has read nothing within {:.3g} s",
                                                  std::chrono::duration<double>(limit).count()));
                      if (limit == max_proof && !unproven.channel->proven) {
                        peers_[index].link->rule_out(unproven.fabric, *unproven.channel, why);
                      }
                      leave_out(index, unproven.fabric, why);
                    }));
  read_word(word, while_running([this, index, number](const transport::Outcome& fault, std::uint64_t /*word*/) {
              const auto found = proofs_.find(index);
              if (found == proofs_.end() || found->second->number != number) return;
              Binding proven = end_proof(index);
              if (!fault) {
                proven.channel->proven = true;
                return take(index, proven);
              }
              // It may have failed for what somebody else has read over the same connection.
              if (proven.attempt == Attempt::first) return connect_over(index, proven.fabric, Attempt::last);
              leave_out(index, proven.fabric, Error(fault->code, fault->message));
            }));
}

RestoreRun::Binding RestoreRun::end_proof(std::size_t index) {
  --peers_[index].unanswered;
  return std::move(proofs_.extract(index).mapped()->binding);
}

void RestoreRun::read_word(const GenerationWord& word, WordRead done) {
  const auto landing =
      std::make_shared<std::uint64_t>(0);  // owner: the completion: it may come when nobody waits any more
  const transport::ReadRange range{word.offset_bytes,
                                   {reinterpret_cast<std::byte*>(landing.get()), sizeof *landing, {}}};
  word.channel->endpoint->read(
      *word.region, std::span(&range, 1),
      [landing, done = std::move(done)](const transport::Outcome& fault) { done(fault, *landing); });
}

void RestoreRun::take(std::size_t index, Binding& binding) {
  Peer& peer = peers_[index];
  const wire::Bound& reply = binding.reply;
  auto reads_into = devices_read_into(*binding.channel->endpoint, binding.fabric);
  peer.connected.push_back({binding.fabric, binding.path, std::move(binding.channel), std::move(reads_into)});
  peer.max_pack_bytes = reply.max_pack_bytes;
  peer.handles = reply.tensors;
  peer.regions.resize(reply.regions.size());
  peer.keys.merge(binding.keys);
  for (std::size_t i = 0; i < reply.regions.size(); ++i)
    take_region(peer, i, reply.regions[i], std::move(binding.regions[i]));
  take_region_of_none(peer);
  const bool readable = binding.word.is_mapped() || binding.path.read;
  const bool better = !peer.word.region || (!peer.word.is_mapped() && binding.word.is_mapped());
  if (binding.word.region && readable && better) peer.word = std::move(binding.word);
  connect_next(index);
}

// Answers are the same over each fabric, but for the keys.
void RestoreRun::check_bound(const Peer& peer, const wire::Bound& reply) const {
  const auto nonsense = [&](const char* what) {
    throw Error(ErrorCode::transport_failed, fmt::format("source rank {} gave {}", to_int(peer.layout_rank), what),
                std::vector<Rank>{peer.layout_rank});
  };
  if (reply.addresses.size() != 1) nonsense("addresses of other fabrics than it was asked for");
  if (reply.tensors.size() != peer.tensors.size()) nonsense("handles for other tensors than it was asked for");
  for (std::size_t i = 0; i < peer.tensors.size(); ++i) {
    const wire::TensorHandle& handle = reply.tensors[i];
    if (handle.tensor != peer.tensors[i]) nonsense("handles for other tensors than it was asked for");
    if (handle.region != wire::no_region && handle.region >= reply.regions.size())
      nonsense("a handle without a region");
    if (!peer.handles.empty() && handle != peer.handles[i])
      nonsense("other handles than before, of the same generation");
  }
  if (!peer.handles.empty() && reply.regions.size() != peer.regions.size()) {
    nonsense("other regions than before, of the same generation");
  }
  for (std::size_t i = 0; !peer.handles.empty() && i < peer.regions.size(); ++i) {
    if (place_of(reply.regions[i]) != peer.regions[i].place) nonsense("another kind of memory than before");
  }
}

void RestoreRun::take_region(Peer& peer, std::size_t number, const wire::RegionHandle& handle,
                             std::shared_ptr<transport::RemoteRegion> region) {
  SourceRegion& known = peer.regions[number];
  const ConnectedFabric& over = peer.connected.back();
  const auto place = place_of(handle);
  const transport::Path path = place ? over.channel->endpoint->path(*place) : transport::Path{};
  RegionAccess access = place ? access_to(path, *place, region.get()) : RegionAccess{};
  if (place && place->kind == MemoryKind::cuda) access.message = over.path.message;  // staged through host memory
  if (access.mapped) known.mapped_by = path.carrier;
  known.bytes = handle.size_bytes;
  known.place = place;
  known.over.resize(peer.connected.size());
  known.access.resize(peer.connected.size());
  known.over.back() = std::move(region);
  known.access.back() = access;
}

void RestoreRun::take_region_of_none(Peer& peer) {
  const ConnectedFabric& over = peer.connected.back();
  peer.unregistered_path =
      best_path(peer.unregistered_path, core_.fabrics().row(over.fabric).preference, {.message = over.path.message});
}

void RestoreRun::connected(std::size_t index) {
  Peer& peer = peers_[index];
  if (lacks_path(peer)) {
    std::string why;
    for (const std::string& one : reasons_against(peer, no_path)) why += "; " + one;
    if (const auto reasons = why_not_direct(peer)) {
      for (const std::string& one : *reasons) why += "; " + one;
      why += "; memory of a device that is neither mapped nor read takes messages: open tcp beside it";
    }
    throw Error(peer.lacked_resources ? ErrorCode::out_of_resources : ErrorCode::unsupported,
                fmt::format("no transport of this session carries the bytes of source rank {} (member {}){}",
                            to_int(peer.layout_rank), peer.record.member, why),
                std::vector<Rank>{peer.layout_rank});
  }
  choose_fabrics(peer);
  explain_unmapped(peer);
  explain_staged(peer);
  repetition_.bound_anew();
  peer.bound_generation = peer.record.generation;
  peer.link->bound(options_.from, peer.record.generation, peer.keys);
  peer_bound();
}

void RestoreRun::choose_fabrics(Peer& peer) {
  const auto best = [&](auto can, auto rank) {
    std::optional<std::size_t> chosen;
    for (std::size_t i = 0; i < peer.connected.size(); ++i) {
      const auto rank_of = [&](std::size_t one) {
        return rank(core_.fabrics().row(peer.connected[one].fabric).preference);
      };
      if (can(peer.connected[i].path) && (!chosen || rank_of(i) < rank_of(*chosen))) chosen = i;
    }
    return chosen;
  };
  peer.read_by = best([](const transport::Path& path) { return path.read; },
                      [](const transport::Preference& preference) { return preference.read; });
  prefer_reads_of_devices(peer);
  peer.sent_by = best([](const transport::Path& path) { return path.message; },
                      [](const transport::Preference& preference) { return preference.message; });
}

// For people: why a copy in between, or a message, where there might be none.
void RestoreRun::explain_unmapped(Peer& peer) {
  if (std::ranges::all_of(peer.handles, [&](const auto& handle) { return is_mapped(peer, handle); })) return;
  if (maps(peer)) {
    peer.no_map_reason = "; its memory is not in an arena";
    for (const ConnectedFabric& one : peer.connected) {
      if (one.path.map && !one.path.read) peer.no_map_reason += "; " + one.path.why_not;
    }
    return;
  }
  for (const std::string& one : reasons_against(peer, worst_path(peer))) peer.no_map_reason += "; " + one;
  if (peer.no_map_reason.empty() && peer.sent_by)
    peer.no_map_reason = "; " + peer.connected[*peer.sent_by].path.why_not;
}

std::vector<std::string> RestoreRun::reasons_against(const Peer& peer, int best) const {
  return reasons_against_better(core_.fabrics(), core_.traits(), {*peer.link, peer.connected, peer.left_out}, best);
}

}  // namespace shardwire

// SPDX-License-Identifier: Apache-2.0
#include "keeper/kept_states.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <tuple>
#include <utility>

#include "shardwire/error.hpp"
#include "support/checked.hpp"
#include "wire/limits.hpp"

namespace shardwire::keeper {

namespace {

// A spare buffer that is larger wastes the rest.
bool fits(ByteCount has, ByteCount wanted) {
  return has >= wanted && has - wanted <= wanted / 4;
}

// Complete ones that stay while the next is written.
std::size_t steps_to_keep(const wire::KeepBegin& asked) {
  return std::size_t{asked.steps} + (asked.copied ? 1 : 0);
}

// Of the layout in which the snapshot was published; 0: its trainer wrote something else than a manifest.
std::int32_t ranks_of_layout(const Bytes& manifest) {
  try {
    return wire::decode_manifest(manifest).ranks;
  } catch (const Error&) {
    return 0;
  }
}

}  // namespace

// --- attempts ---

std::uint32_t KeptStates::attempt_of(std::uint64_t session) const {
  const auto found = std::ranges::find(attempts_, session, &Attempt::session);
  return found == attempts_.end() ? 0 : found->number;
}

// An older session counts too: other keepers may hold what it kept under its number, and readers go by that.
std::uint32_t KeptStates::attempt(std::uint64_t session, Clock::Time began, std::uint32_t told) {
  auto found = std::ranges::find(attempts_, session, &Attempt::session);
  if (found == attempts_.end()) found = attempts_.insert(found, Attempt{.began = began, .session = session});
  found->began = std::min(found->began, began);
  found->number = std::max(found->number, told);
  std::ranges::sort(attempts_, {}, [](const Attempt& one) { return std::pair(one.began, one.session); });
  std::uint32_t before = 0;
  for (Attempt& one : attempts_) {
    before = one.number = std::max(one.number, std::min(before, wire::max_attempt - 1) + 1);
  }
  require_newest(session);
  return attempts();
}

void KeptStates::require_newest(std::uint64_t session) const {
  if (session == newest_session()) return;
  throw Error(ErrorCode::cancelled,
              fmt::format("this session of job '{}' is over: a newer one has begun, as attempt {}", job_, attempts()));
}

// --- from begin to done ---

KeptStates::Given KeptStates::begin(std::uint64_t trainer, std::uint64_t session, const wire::KeepBegin& asked) {
  require_newest(session);
  if (asked.steps == 0) throw Error(ErrorCode::invalid_argument, "no snapshot is to be kept");
  require_reserve(trainer, asked);
  make_way(trainer, session, asked);
  Given given;
  Snapshot fresh{.buffer = next_buffer_++,
                 .name = asked.publication,
                 .step = asked.step,
                 .layout_rank = asked.layout_rank,
                 .order = next_order_++,
                 .session = session,
                 .trainer = trainer,
                 .bytes = asked.size_bytes,
                 .is_copy = asked.is_copy,
                 .memory = nullptr};
  // The trainer writes into a buffer again that it has mapped, and that neither side uses any more.
  for (const std::uint64_t buffer : asked.free) {
    const auto found = spares_.find(buffer);
    if (found == spares_.end() || found->second.trainer != trainer) {
      if (!snapshots_.contains(buffer)) given.released.push_back(buffer);
      continue;
    }
    if (!fresh.memory && fits(found->second.memory->bytes(), asked.size_bytes) &&
        found->second.memory.use_count() == 1) {
      fresh.buffer = buffer;
      fresh.memory = std::move(found->second.memory);
    } else {
      given.released.push_back(buffer);
    }
    spares_.erase(found);
  }
  if (!fresh.memory) {
    const auto has_room = [&] { return asked.size_bytes <= budget_bytes_ - std::min(budget_bytes_, used_bytes()); };
    if (!has_room()) reduce_earlier(session, asked.publication, asked.steps);
    if (!has_room()) {
      const Writer writer{trainer, asked.publication, asked.layout_rank};
      if (!writes(writer)) reserves_.erase(writer);
      throw Error(ErrorCode::out_of_resources,
                  fmt::format("{} bytes are wanted for '{}', step {}, rank {}; {} of {} are in use", asked.size_bytes,
                              asked.publication, asked.step, asked.layout_rank, used_bytes(), budget_bytes_));
    }
    given.fresh = true;
  }
  const std::uint64_t buffer = fresh.buffer;
  given.snapshot = &snapshots_.insert_or_assign(buffer, std::move(fresh)).first->second;
  return given;
}

const Snapshot* KeptStates::provide(std::uint64_t buffer, std::shared_ptr<memory::SharedMemory> memory) {
  const auto found = snapshots_.find(buffer);
  if (found == snapshots_.end()) return nullptr;
  found->second.memory = std::move(memory);
  return &found->second;
}

bool KeptStates::writes(const Writer& writer) const {
  return std::ranges::any_of(snapshots_, [&](const auto& one) {
    return one.second.trainer == writer.trainer && one.second.name == writer.name &&
           one.second.layout_rank == writer.layout_rank;
  });
}

// Said before the first snapshot is written, not when one has no room.
void KeptStates::require_reserve(std::uint64_t trainer, const wire::KeepBegin& asked) {
  const ByteCount snapshots = steps_to_keep(asked) + 1;
  const ByteCount wanted = support::multiply(asked.size_bytes, snapshots, "the size of snapshots to be kept");
  const Writer writer{trainer, asked.publication, asked.layout_rank};
  ByteCount others = 0;
  for (const auto& [one, reserve] : reserves_) others += one == writer ? 0 : reserve.bytes;
  if (wanted > budget_bytes_ - std::min(budget_bytes_, others)) {
    throw Error(ErrorCode::out_of_resources,
                fmt::format("{} snapshots of '{}', rank {}, take {} bytes; {} of {} are promised to others of job '{}'",
                            snapshots, asked.publication, asked.layout_rank, wanted, others, budget_bytes_, job_));
  }
  // A trainer that has written two snapshots of its own has waited for all copies of the first.
  const std::size_t own = asked.copied ? 2 : 1;
  Reserve& reserve = reserves_[writer];
  reserve = {wanted, asked.is_copy ? 0 : own, std::max(0, reserve.shown_for - 1)};
}

bool KeptStates::all_have_enough(const std::string& name, std::uint64_t session) const {
  std::map<Writer, std::size_t> complete;
  for (const auto& [buffer, one] : snapshots_) {
    if (one.complete && one.session == session) ++complete[{one.trainer, one.name, one.layout_rank}];
  }
  return std::ranges::all_of(reserves_, [&](const auto& one) {
    const auto& [writer, reserve] = one;
    return writer.name != name || complete[writer] >= reserve.enough;
  });
}

void KeptStates::make_way(std::uint64_t trainer, std::uint64_t session, const wire::KeepBegin& asked) {
  // The trainer begins a snapshot anew that it did not finish.
  drop_if([&](const Snapshot& one) {
    return one.trainer == trainer && one.name == asked.publication && one.layout_rank == asked.layout_rank &&
           !one.complete;
  });
  // Snapshots of this trainer, and of one that had the rank before. Another trainer may publish a copy of the same rank.
  const auto is_mine = [&](const Snapshot& one) {
    return one.session == session && one.name == asked.publication && one.layout_rank == asked.layout_rank &&
           (one.trainer == trainer || one.trainer == 0) && one.complete;
  };
  std::set<std::uint64_t, std::greater<>> orders;
  for (const auto& [buffer, one] : snapshots_) {
    if (is_mine(one)) orders.insert(one.order);
  }
  if (const std::size_t steps = steps_to_keep(asked); orders.size() > steps) {
    const std::uint64_t oldest = *std::next(orders.begin(), static_cast<std::ptrdiff_t>(steps) - 1);
    drop_if([&](const Snapshot& one) { return is_mine(one) && one.order < oldest; });
  }
  const auto is_earlier = [&](const Snapshot& one) { return one.session != session && one.name == asked.publication; };
  if (all_have_enough(asked.publication, session)) return drop_if(is_earlier);
  if (!asked.restored) return;
  // The job goes on from what it has restored: other steps of that time will not be needed.
  const auto& restored = *asked.restored;
  const bool here = std::ranges::any_of(snapshots_, [&](const auto& one) {
    return is_earlier(one.second) && one.second.session == restored.origin && one.second.step == restored.step;
  });
  if (!here) return;
  drop_if([&](const Snapshot& one) {
    return is_earlier(one) && (one.session != restored.origin || one.step != restored.step);
  });
}

// The job did not restore them, or went on from elsewhere.
void KeptStates::reduce_earlier(std::uint64_t session, const std::string& name, std::size_t steps) {
  std::map<std::pair<std::uint64_t, std::int32_t>, std::set<std::int64_t, std::greater<>>> newest;
  const auto is_earlier = [&](const Snapshot& one) { return one.session != session && one.name == name; };
  for (const auto& [buffer, one] : snapshots_) {
    if (is_earlier(one)) newest[{one.session, one.layout_rank}].insert(one.step);
  }
  drop_if([&](const Snapshot& one) {
    if (!is_earlier(one)) return false;
    const auto& all = newest[{one.session, one.layout_rank}];
    return std::distance(all.begin(), all.find(one.step)) >= static_cast<std::ptrdiff_t>(steps);
  });
}

const Snapshot& KeptStates::done(std::uint64_t trainer, wire::KeepDone content) {
  const auto found = snapshots_.find(content.buffer);
  if (found == snapshots_.end() || found->second.trainer != trainer || found->second.complete ||
      !found->second.memory) {
    throw Error(ErrorCode::invalid_argument, fmt::format("buffer {} is not being written", content.buffer));
  }
  Snapshot& one = found->second;
  require_newest(one.session);
  for (const wire::KeptTensor& tensor : content.tensors) {
    const ByteCount size = one.memory->bytes();
    if (tensor.offset_bytes <= size && tensor.size_bytes <= size - tensor.offset_bytes) continue;
    throw Error(ErrorCode::invalid_argument, fmt::format("a tensor of {} bytes at {} is outside of a buffer of {}",
                                                         tensor.size_bytes, tensor.offset_bytes, size));
  }
  one.manifest = std::move(content.manifest);
  one.values = std::move(content.values);
  one.tensors = std::move(content.tensors);
  one.digests = std::move(content.digests);
  one.complete = true;
  // The trainer has gone back to this step.
  drop_if([&](const Snapshot& other) {
    return other.buffer != one.buffer && other.session == one.session && other.name == one.name &&
           other.layout_rank == one.layout_rank && other.step >= one.step &&
           (other.trainer == trainer || other.trainer == 0);
  });
  return one;
}

void KeptStates::quit(std::uint64_t trainer, std::uint64_t buffer, bool forget) {
  const auto found = snapshots_.find(buffer);
  if (found == snapshots_.end() || found->second.trainer != trainer) return;
  const Writer writer{trainer, found->second.name, found->second.layout_rank};
  drop(found);
  if (forget) spares_.erase(buffer);
  if (!writes(writer)) reserves_.erase(writer);
}

bool KeptStates::orphan(std::uint64_t trainer, std::uint64_t buffer, Clock::Time now) {
  const auto found = snapshots_.find(buffer);
  if (found == snapshots_.end() || found->second.trainer != trainer || !found->second.complete) return false;
  const Writer writer{trainer, found->second.name, found->second.layout_rank};
  found->second.trainer = 0;
  found->second.ended = now;
  if (!writes(writer)) reserves_.erase(writer);
  return true;
}

void KeptStates::member_lost() {
  constexpr int snapshots = 2;
  for (auto& [writer, reserve] : reserves_) reserve.shown_for = snapshots;
}

// --- dropping ---

void KeptStates::ended(std::uint64_t trainer, Clock::Time now) {
  drop_if([&](const Snapshot& one) { return one.trainer == trainer && !one.complete; });
  std::erase_if(spares_, [&](const auto& one) { return one.second.trainer == trainer; });
  std::erase_if(reserves_, [&](const auto& one) { return one.first.trainer == trainer; });
  for (auto& [buffer, one] : snapshots_) {
    if (one.trainer != trainer) continue;
    one.trainer = 0;
    one.ended = now;
  }
}

void KeptStates::drop_if(const Which& which) {
  for (auto one = snapshots_.begin(); one != snapshots_.end();) {
    const auto next = std::next(one);
    if (which(one->second)) drop(one);
    one = next;
  }
}

void KeptStates::drop(std::map<std::uint64_t, Snapshot>::iterator one) {
  Snapshot gone = std::move(one->second);
  snapshots_.erase(one);
  if (gone.trainer != 0 && gone.memory) spares_[gone.buffer] = {gone.trainer, std::move(gone.memory)};
}

void KeptStates::drop(const std::string& name) {
  drop_if([&](const Snapshot& one) { return one.trainer == 0 && (name.empty() || one.name == name); });
}

void KeptStates::drop_old(Clock::Time before) {
  drop_if([&](const Snapshot& one) { return one.trainer == 0 && one.ended < before; });
}

// --- queries ---

std::vector<const Snapshot*> KeptStates::without_trainer() const {
  std::vector<const Snapshot*> found;
  for (const auto& [buffer, one] : snapshots_) {
    if (one.complete && one.trainer == 0) found.push_back(&one);
  }
  return found;
}

// The trainer itself publishes the one that it has begun last. It publishes no copy: what its publisher has replaced comes from the
// keeper of that host.
std::vector<const Snapshot*> KeptStates::to_publish() const {
  std::vector<const Snapshot*> found = without_trainer();
  for (const auto& [writer, reserve] : reserves_) {
    if (reserve.shown_for == 0) continue;
    const Snapshot* newest = nullptr;
    for (const auto& [buffer, one] : snapshots_) {
      const bool counts = one.complete && !one.is_copy && one.session == newest_session() &&
                          Writer{one.trainer, one.name, one.layout_rank} == writer;
      if (!counts) continue;
      const Snapshot* replaced = &one;
      if (newest == nullptr || newest->order < one.order) std::swap(newest, replaced);
      if (replaced != nullptr) found.push_back(replaced);
    }
  }
  return found;
}

std::vector<KeptStates::CompleteStep> KeptStates::complete_here() const {
  struct Held {
    std::set<std::int32_t> ranks;
    const Bytes* manifest = nullptr;
  };
  // By name, attempt, session, step: the highest attempt may be that of several sessions.
  std::map<std::tuple<std::string, std::uint32_t, std::uint64_t, std::int64_t>, Held> steps;
  for (const auto& [buffer, one] : snapshots_) {
    if (!one.complete) continue;
    Held& held = steps[{one.name, attempt_of(one.session), one.session, one.step}];
    held.ranks.insert(one.layout_rank);
    held.manifest = &one.manifest;
  }
  std::map<std::string, CompleteStep> newest;  // the last one of a name wins
  for (const auto& [key, held] : steps) {
    const auto& [name, attempt, session, step] = key;
    const std::int32_t ranks = ranks_of_layout(*held.manifest);
    const bool all = held.ranks.size() == static_cast<std::size_t>(ranks) && *held.ranks.rbegin() == ranks - 1;
    if (all) newest[name] = {.name = name, .step = step, .session = session, .ranks = ranks};
  }
  std::vector<CompleteStep> found;
  for (auto& [name, one] : newest) found.push_back(std::move(one));
  return found;
}

ByteCount KeptStates::used_bytes() const {
  ByteCount used = 0;
  for (const auto& [buffer, one] : snapshots_) used += one.memory ? one.memory->bytes() : one.bytes;
  for (const auto& [buffer, one] : spares_) used += one.memory->bytes();
  return used;
}

}  // namespace shardwire::keeper

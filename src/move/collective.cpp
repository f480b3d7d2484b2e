// SPDX-License-Identifier: Apache-2.0
#include "move/collective.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "move/transfer.hpp"

namespace shardwire::move {

namespace {

using transport::Fault;

ByteCount staged_bytes(const std::vector<RoundPart>& parts) {
  ByteCount bytes = 0;
  for (const RoundPart& part : parts) bytes += part.in_place ? 0 : part.bytes;
  return bytes;
}
ByteCount total_bytes(const std::vector<RoundPart>& parts) {
  ByteCount bytes = 0;
  for (const RoundPart& part : parts) bytes += part.bytes;
  return bytes;
}

// Smaller copies are not worth a thread switch.
constexpr ByteCount max_bytes_at_once = 16u << 10;

}  // namespace

/// The pieces of one stream on this side, searchable by stream offset.
struct CollectiveMove::Side {
  std::vector<CollectivePiece> pieces;
  std::vector<ByteCount> ends;  // end of each piece in the stream

  explicit Side(std::vector<CollectivePiece> of) : pieces(std::move(of)) {
    ByteCount end = 0;
    for (const CollectivePiece& piece : pieces) ends.push_back(end += bytes_of_box(piece.box, piece.item_bytes));
  }
  /// Calls visit(piece, box, position) for the boxes of the range in order; `position` is relative to the range.
  template <typename Visit>
  void each(const RoundPart& part, Visit visit) const {
    std::vector<Box> boxes;
    ByteCount at = part.offset_bytes;
    const ByteCount end = part.offset_bytes + part.bytes;
    auto index = static_cast<std::size_t>(std::upper_bound(ends.begin(), ends.end(), at) - ends.begin());
    for (; at < end; ++index) {
      const CollectivePiece& piece = pieces[index];
      const ByteCount begin = ends[index] - bytes_of_box(piece.box, piece.item_bytes);
      const ByteCount part_end = std::min(end, ends[index]);
      boxes.clear();
      split_range(piece.box, static_cast<ElementCount>((at - begin) / piece.item_bytes),
                  static_cast<ElementCount>((part_end - begin) / piece.item_bytes), boxes);
      for (const Box& box : boxes) {
        visit(piece, box, at - part.offset_bytes);
        at += bytes_of_box(box, piece.item_bytes);
      }
    }
  }
  /// Address of a run that is sent or received in place.
  [[nodiscard]] std::byte* place_of(const RoundPart& part) const {
    std::byte* place = nullptr;
    each(part, [&](const CollectivePiece& piece, const Box& box, ByteCount position) {
      const memory::StridedCopy run(box, piece.placed, memory::packed(box), piece.item_bytes);
      if (position == 0) place = piece.memory + run.source_span().first;
    });
    return place;
  }
};

struct CollectiveMove::State : std::enable_shared_from_this<State> {
  State(CollectiveJob job, transport::Collective& own_collective)
      : collective(own_collective),
        rate_limiter(job.ingress_bytes_per_second),
        rounds(plan_rounds(job.streams, job.limits, job.member)),
        outgoing(sides_of(std::move(job.outgoing))),
        incoming(sides_of(std::move(job.incoming))) {
    for (const Round& round : rounds) {
      staging_bytes = std::max(staging_bytes, staged_bytes(round.sends) + staged_bytes(round.receives));
    }
  }

  static std::map<int, Side> sides_of(std::map<int, std::vector<CollectivePiece>> pieces) {
    std::map<int, Side> sides;
    for (auto& [peer, list] : pieces) sides.emplace(peer, Side(std::move(list)));
    return sides;
  }
  [[nodiscard]] const Round& round() const { return rounds[next]; }
  [[nodiscard]] bool over() const { return !under_way && (fault || next == rounds.size()); }
  [[nodiscard]] int device() const {
    return staging.place.kind == MemoryKind::cuda ? staging.place.device : memory::on_host;
  }
  // The rate limiter is charged for a round before it is posted; the other members wait for it meanwhile.
  bool may_begin() {
    if (copies == nullptr || under_way || over()) return false;
    return fault || rate_limiter.take(total_bytes(round().receives), now());
  }

  void fail(Fault why) {
    if (!fault) fault = std::move(why);
  }

  // abort() of the group informs the other members.
  void fail_here(Fault why) {
    if (!fault) failed_here = true;
    fail(std::move(why));
  }

  // --- the three steps of a round; each starts the next one when it ends ---

  void pack() {
    under_way = true;
    ByteCount offset = 0;
    std::vector<memory::QueuedCopy> list;
    for (const RoundPart& part : round().sends) {
      const Side& side = outgoing.at(part.peer);
      if (part.in_place) {
        sends.push_back({part.peer, {side.place_of(part), part.bytes, staging.place}});
        continue;
      }
      std::byte* const to = staging.address + offset;
      side.each(part, [&](const CollectivePiece& piece, const Box& box, ByteCount position) {
        list.push_back({memory::StridedCopy(box, piece.placed, memory::packed(box), piece.item_bytes), piece.memory,
                        to + position, device(), device()});
      });
      sends.push_back({part.peer, {to, part.bytes, staging.place}});
      offset += part.bytes;
    }
    for (const RoundPart& part : round().receives) {
      std::byte* const to = part.in_place ? incoming.at(part.peer).place_of(part) : staging.address + offset;
      receives.push_back({part.peer, {to, part.bytes, staging.place}});
      offset += part.in_place ? 0 : part.bytes;
    }
    copy(std::move(list), &State::post);
  }

  void post() {
    collective.round(sends, receives, [self = weak_from_this()](const transport::Outcome& outcome) {
      const auto state = self.lock();
      if (!state) return;
      state->posted = false;
      state->advance(outcome, &State::unpack);
    });
    posted = true;
  }

  void unpack() {
    std::vector<memory::QueuedCopy> list;
    for (std::size_t i = 0; i < receives.size(); ++i) {
      const RoundPart& part = round().receives[i];
      if (part.in_place) continue;
      incoming.at(part.peer).each(part, [&](const CollectivePiece& piece, const Box& box, ByteCount position) {
        list.push_back({memory::StridedCopy(box, memory::packed(box), piece.placed, piece.item_bytes),
                        receives[i].memory.address + position, piece.memory, device(), device()});
      });
    }
    copy(std::move(list), &State::end_round);
  }

  void end_round() {
    sends.clear();
    receives.clear();
    ++next;
    under_way = false;
  }

  void copy(std::vector<memory::QueuedCopy> list, void (State::*then)()) {
    if (list.empty()) return advance(std::nullopt, then);
    ByteCount bytes = 0;
    for (const memory::QueuedCopy& one : list) bytes += one.copy.bytes();
    const std::size_t count = list.size();
    copies->submit({.count = count,
                    .copy = [list = std::move(list)](std::size_t index) { return list[index]; },
                    .at_once = bytes <= max_bytes_at_once,
                    .on_devices = device() != memory::on_host},
                   [self = weak_from_this(), then](memory::CopyResult& result) {
                     const auto state = self.lock();
                     if (!state) return;
                     if (result.error) state->fail_here(fault_of(result.error));
                     state->advance(std::nullopt, then);
                   });
  }

  void advance(const transport::Outcome& outcome, void (State::*then)()) {
    if (outcome) fail(*outcome);
    if (fault) {
      under_way = false;
      return;
    }
    try {
      (this->*then)();
    } catch (const std::exception&) {
      fail_here(fault_of(std::current_exception()));
      under_way = false;
    }
  }
  static Fault fault_of(const std::exception_ptr& error) {
    try {
      std::rethrow_exception(error);
    } catch (const Error& reason) {
      return {reason.code(), reason.what()};
    } catch (const std::exception& reason) {
      return {ErrorCode::internal, reason.what()};
    }
  }

  transport::Collective& collective;
  Now now;  // from begin() on, as the next
  memory::CopyQueue* copies = nullptr;
  RateLimiter rate_limiter;
  std::vector<Round> rounds;
  std::map<int, Side> outgoing;
  std::map<int, Side> incoming;
  ByteCount staging_bytes = 0;
  transport::Memory staging;
  std::size_t next = 0;
  bool under_way = false;
  bool posted = false;                      // the collective has the round under way
  std::vector<transport::GroupSend> sends;  // of the round under way
  std::vector<transport::GroupReceive> receives;
  std::optional<Fault> fault;
  bool failed_here = false;
};

CollectiveMove::CollectiveMove(CollectiveJob job, transport::Collective& collective, const Staging& staging)
    : state_(std::make_shared<State>(std::move(job), collective)) {
  state_->staging = staging(state_->staging_bytes);
}

CollectiveMove::~CollectiveMove() = default;

void CollectiveMove::begin(Now now, memory::CopyQueue& copies) {
  state_->now = std::move(now);
  state_->copies = &copies;
}

bool CollectiveMove::progress() {
  const bool moved = state_->collective.progress();
  if (!state_->may_begin()) return moved;
  state_->advance(std::nullopt, &State::pack);
  return true;
}

int CollectiveMove::event_descriptor() const {
  return state_->collective.event_descriptor();
}

bool CollectiveMove::arm() {
  const bool waits = over() || state_->under_way || retry_at();
  return state_->collective.arm() && waits;
}

std::optional<RateLimiter::WallClock::time_point> CollectiveMove::retry_at() const {
  return over() || state_->under_way ? std::nullopt : state_->rate_limiter.retry_at();
}

bool CollectiveMove::over() const {
  return state_->over();
}

const std::optional<Fault>& CollectiveMove::fault() const {
  return state_->fault;
}

bool CollectiveMove::failed_here() const {
  return state_->failed_here;
}

void CollectiveMove::abort() {
  state_->fail({ErrorCode::cancelled, "the rounds were aborted by this member"});
  state_->collective.abort();
}

void CollectiveMove::copies_ended() {
  if (!state_->posted) state_->under_way = false;
}

ByteCount CollectiveMove::received_bytes() const {
  ByteCount bytes = 0;
  for (std::size_t i = 0; i < state_->next; ++i) bytes += total_bytes(state_->rounds[i].receives);
  return bytes;
}

std::vector<int> CollectiveMove::peers() const {
  if (state_->next == state_->rounds.size()) return {};
  std::set<int> peers;
  for (const RoundPart& part : state_->round().sends) peers.insert(part.peer);
  for (const RoundPart& part : state_->round().receives) peers.insert(part.peer);
  return {peers.begin(), peers.end()};
}

std::size_t CollectiveMove::rounds() const {
  return state_->rounds.size();
}

ByteCount CollectiveMove::staging_bytes() const {
  return state_->staging_bytes;
}

}  // namespace shardwire::move

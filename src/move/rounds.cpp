// SPDX-License-Identifier: Apache-2.0
#include "move/rounds.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cstddef>

#include "shardwire/error.hpp"

namespace shardwire::move {

namespace {

/// Progress of a stream.
struct Pair {
  const Stream* stream = nullptr;
  std::size_t piece = 0;
  ByteCount in_piece = 0;  // bytes already moved of the current piece
  ByteCount offset = 0;    // in the stream

  [[nodiscard]] bool over() const { return piece == stream->pieces.size(); }
  [[nodiscard]] const StreamPiece& now() const { return stream->pieces[piece]; }
  /// Advances by `bytes` to the next byte to be moved.
  void advance(ByteCount bytes) {
    offset += bytes;
    in_piece += bytes;
    while (!over() && in_piece >= now().bytes) in_piece -= stream->pieces[piece++].bytes;
  }
};

/// A member's remaining capacity in a round.
struct Room {
  int operations = 0;
  ByteCount staging = 0;
  ByteCount share = 0;  // staging per message
};

class RoundPlanner {
 public:
  RoundPlanner(std::span<const Stream> streams, const RoundLimits& limits, int member)
      : limits_(limits), member_(member), rooms_(static_cast<std::size_t>(limits.members)) {
    for (const Stream& stream : streams) {
      Pair pair{&stream};
      pair.advance(0);
      if (!pair.over()) pairs_.push_back(pair);
    }
    // By distance: if all members exchange with all, each then has as many sends as receives in every round.
    std::sort(pairs_.begin(), pairs_.end(), [&](const Pair& a, const Pair& b) {
      return std::pair(distance(a), a.stream->from) < std::pair(distance(b), b.stream->from);
    });
  }

  std::vector<Round> run() {
    std::vector<Round> rounds;
    while (!pairs_.empty()) {
      share_out();
      Round round;
      for (Pair& pair : pairs_) take(pair, round);
      rounds.push_back(std::move(round));
      std::erase_if(pairs_, [](const Pair& pair) { return pair.over(); });
    }
    return rounds;
  }

 private:
  [[nodiscard]] int distance(const Pair& pair) const {
    return (pair.stream->to - pair.stream->from + limits_.members) % limits_.members;
  }
  [[nodiscard]] Room& room(int member) { return rooms_[static_cast<std::size_t>(member)]; }
  [[nodiscard]] bool in_place(const StreamPiece& piece) const { return piece.run_bytes >= limits_.in_place_bytes; }

  // Divides staging among the messages that need it now: the last remaining message gets all of it.
  void share_out() {
    for (Room& room : rooms_) room = {0, limits_.staging_bytes, 0};
    for (const Pair& pair : pairs_) {
      if (in_place(pair.now())) continue;
      ++room(pair.stream->from).operations;
      ++room(pair.stream->to).operations;
    }
    for (Room& room : rooms_) {
      const int sharers = std::clamp(room.operations, 1, limits_.max_operations);
      room.share = limits_.staging_bytes / static_cast<ByteCount>(sharers);
      room.operations = limits_.max_operations;
    }
  }

  void take(Pair& pair, Round& round) {
    Room& from = room(pair.stream->from);
    Room& to = room(pair.stream->to);
    if (from.operations == 0 || to.operations == 0) return;
    const bool whole_run = in_place(pair.now());
    const ByteCount bytes = whole_run ? pair.now().run_bytes : staged_bytes(pair, from, to);
    if (bytes == 0) return;  // no room: in a later round
    for (Room* side : {&from, &to}) {
      --side->operations;
      if (!whole_run) side->staging -= bytes;
    }
    if (pair.stream->from == member_) round.sends.push_back({pair.stream->to, pair.offset, bytes, whole_run});
    if (pair.stream->to == member_) round.receives.push_back({pair.stream->from, pair.offset, bytes, whole_run});
    pair.advance(bytes);
  }

  // Bytes of whole elements of the following pieces, up to the next run that goes in place.
  [[nodiscard]] ByteCount staged_bytes(const Pair& pair, const Room& from, const Room& to) const {
    const ByteCount room = std::min(from.staging, to.staging);
    const ByteCount item_bytes = pair.now().item_bytes;
    if (item_bytes > limits_.staging_bytes) {
      throw Error(ErrorCode::out_of_resources,
                  fmt::format("the staging budget of {} bytes holds no element of {} bytes", limits_.staging_bytes,
                              item_bytes));
    }
    const ByteCount limit = std::min(room, std::max(item_bytes, std::min(from.share, to.share)));
    ByteCount bytes = 0;
    Pair next = pair;
    while (!next.over() && !in_place(next.now())) {
      const StreamPiece& piece = next.now();
      const ByteCount fits =
          std::min(piece.bytes - next.in_piece, (limit - bytes) / piece.item_bytes * piece.item_bytes);
      if (fits == 0) break;
      bytes += fits;
      const bool whole = fits == piece.bytes - next.in_piece;
      next.advance(fits);
      if (!whole) break;
    }
    return bytes;
  }

  RoundLimits limits_;
  int member_;
  std::vector<Pair> pairs_;  // with bytes left
  std::vector<Room> rooms_;  // by member
};

}  // namespace

std::vector<Round> plan_rounds(std::span<const Stream> streams, const RoundLimits& limits, int member) {
  return RoundPlanner(streams, limits, member).run();
}

}  // namespace shardwire::move

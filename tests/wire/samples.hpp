// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <limits>
#include <random>
#include <string>
#include <vector>

#include "wire/exchange_note.hpp"
#include "wire/limits.hpp"
#include "wire/messages.hpp"

// Random but valid values of all types that are sent.
namespace samples {

using namespace shardwire;
using namespace shardwire::wire;

class Maker {
 public:
  explicit Maker(std::uint64_t seed) : random_(seed) {}

  std::uint64_t below(std::uint64_t bound) { return random_() % bound; }
  std::uint64_t word() { return below(4) == 0 ? 0 : random_(); }
  std::int32_t rank() { return static_cast<std::int32_t>(below(4096)); }
  std::uint32_t attempt() { return static_cast<std::uint32_t>(below(max_attempt + std::uint64_t{1})); }
  Bytes bytes(std::size_t most) {
    Bytes result(below(most + 1));
    for (std::byte& byte : result) byte = static_cast<std::byte>(random_());
    return result;
  }
  std::string text(std::size_t most) {
    std::string result(below(most + 1), ' ');
    for (char& c : result) c = static_cast<char>(1 + below(255));
    return result;
  }
  Digest digest() {
    Digest result{};
    for (std::byte& byte : result) byte = static_cast<std::byte>(random_());
    return result;
  }
  Box box() {
    const std::size_t dims = below(max_dims + 1);
    Box result{Extents::filled(dims, 0), Extents::filled(dims, 0)};
    for (std::size_t d = 0; d < dims; ++d) {
      result.offset[d] = static_cast<Extent>(below(1u << 30));
      result.size[d] =
          below(8) == 0 ? std::numeric_limits<Extent>::max() - result.offset[d] : static_cast<Extent>(below(1u << 20));
    }
    return result;
  }
  template <typename T, typename Make>
  std::vector<T> several(std::size_t most, Make make) {
    std::vector<T> result(below(most + 1));
    for (T& value : result) value = make();
    return result;
  }
  std::vector<RequestedBox> parts() {
    return several<RequestedBox>(20, [&] { return RequestedBox{static_cast<std::uint32_t>(random_()), box()}; });
  }
  ErrorCode error() { return static_cast<ErrorCode>(below(9)); }

  ExchangeNote exchange_note() {
    ExchangeNote note;
    if (below(3) == 0) note.failure = {error(), text(200)};
    for (std::uint64_t i = 1 + below(8); i > 0; --i) {
      const auto count = static_cast<std::uint32_t>(1 + below(9));
      note.parts.push_back({{text(40), text(20)}, static_cast<std::uint32_t>(below(count)), count});
    }
    const auto part = [&] { return static_cast<std::uint32_t>(below(note.parts.size())); };
    note.writes = several<ExchangeWrite>(8, [&] {
      return ExchangeWrite{part(), random_(), several<std::uint32_t>(6, part)};
    });
    note.aliases = several<Alias>(4, [&] { return Alias{text(30), text(30)}; });
    note.staging_bytes = random_();
    note.collectives = several<std::string>(3, [&] { return text(40); });
    note.forced = below(2) == 0;
    note.unasked = below(2) == 0;
    note.adopts = below(2) == 0;
    note.indirect = below(2) == 0;
    note.device = static_cast<std::int16_t>(static_cast<int>(below(9)) - 1);
    note.kept_group = bytes(128);
    note.number = random_() % max_exchange_number;
    note.held_rank = below(4) == 0 ? -1 : rank();
    note.kept_size = static_cast<std::uint32_t>(random_());
    note.group_id = bytes(128);
    note.steps = static_cast<std::uint32_t>(random_());
    note.requests = several<ExchangeRequest>(5, [&] {
      const auto item = static_cast<std::uint32_t>(1 + below(8));
      const ByteCount run = item * (1 + below(100));
      return ExchangeRequest{static_cast<std::uint32_t>(rank()),
                             static_cast<std::uint32_t>(below(1000)),
                             box(),
                             run * below(50),
                             run,
                             item};
    });
    return note;
  }

  /// One of each alternative of Message, in its order.
  std::vector<Message> messages() {
    Bound bound{word(), several<Bytes>(3, [&] { return bytes(100); }), word(), {}, {}};
    const auto keys = [&] {
      if (bound.addresses.empty()) return std::vector<RegionKey>{};
      return several<RegionKey>(3, [&] {
        return RegionKey{static_cast<std::uint8_t>(below(bound.addresses.size())), bytes(200),
                         static_cast<std::uint8_t>(below(65))};
      });
    };
    if (below(2) == 0) bound.word = Bound::Word{{4096, keys()}, below(4097)};
    bound.digests = below(2) == 0;
    bound.regions = several<RegionHandle>(5, [&] {
      return RegionHandle{random_(), keys(), static_cast<std::uint8_t>(random_()),
                          static_cast<std::int16_t>(random_())};
    });
    bound.tensors = several<TensorHandle>(9, [&] {
      TensorHandle handle{static_cast<std::uint32_t>(random_()), no_region, random_(), {}};
      const auto stride = static_cast<Extent>(below(1u << 30));  // drawn first
      handle.strides = Extents::filled(below(max_dims + 1), stride);
      if (!bound.regions.empty() && below(2) == 0) {
        handle.region = static_cast<std::uint32_t>(below(bound.regions.size()));
        handle.offset_bytes %= bound.regions[handle.region].size_bytes | 1;
      }
      return handle;
    });
    const auto range = [&] {
      return TensorRange{static_cast<std::uint32_t>(random_()), several<Box>(3, [&] { return box(); })};
    };
    return {
        Hello{protocol_version, several<std::string>(4, [&] { return text(20); }), rank(), rank(), word(), text(200),
              digest(), text(200),
              several<FabricOffer>(4,
                                   [&] {
                                     return FabricOffer{text(20), text(60)};
                                   })},
        Proof{digest()},
        ManifestRequest{digest()},
        ManifestReply{digest(), bytes(3000)},
        ValuesRequest{digest()},
        ValuesReply{digest(), bytes(3000)},
        Lease{word(), text(200), word(), several<TensorRange>(10, range)},
        Leased{word(), word(), static_cast<std::int64_t>(word())},
        Release{word(), word()},
        Released{word(), below(2) == 0},
        Bind{word(), word(),
             several<FabricHandle>(4,
                                   [&] {
                                     return FabricHandle{text(20), text(60), bytes(4000), word()};
                                   })},
        bound,
        PackRequest{word(), word(), parts(), false, below(2) == 0, text(20), word(), below(2) == 0},
        DigestRequest{word(), word(), parts()},
        Digests{word(), several<Digest128>(30,
                                           [&] {
                                             return Digest128{random_(), random_()};
                                           })},
        Failure{word(), error(), text(500), parts()},
        Goodbye{},
        Join{member()},
        Joined{static_cast<std::uint32_t>(random_()), rank(), rank(), word(), attempt(), below(max_age_ns)},
        Publish{text(200), publication()},
        Watch{text(200)},
        roster(),
        MembershipChanges{runs(3)},
        Lookup{members()},
        Addresses{several<Addresses::Entry>(9,
                                            [&] {
                                              return Addresses::Entry{static_cast<std::uint32_t>(random_()), member()};
                                            }),
                  members()},
        Gather{word(), text(300), bytes(1000), below(2) == 0, below(2) == 0},
        Gathered{text(300), several<Bytes>(9, [&] { return bytes(100); })},
        GatherQuit{text(300)},
        GatherAbsent{text(300), below(2) == 0, members()},
        Confirm{word(), text(20), word()},
        Ping{word()},
        Pong{word()},
        Descriptors{word(), static_cast<std::uint8_t>(below(65))},
        Attach{word(), static_cast<std::uint8_t>(random_())},
        Attached{},
        ExchangeGivenUp{word(), rank(), error(), text(200), members(),
                        several<Gap>(5,
                                     [&] {
                                       return Gap{text(40), text(20), Box::whole({3, 4}), Rank{rank()}};
                                     })},
        Unwatch{text(200)},
        BlockRequest{word(), word(),
                     several<BlockRequest::Range>(9,
                                                  [&] {
                                                    return BlockRequest::Range{static_cast<std::uint32_t>(random_()),
                                                                               static_cast<std::uint32_t>(random_()),
                                                                               static_cast<std::uint32_t>(below(1000))};
                                                  })},
        KeepJob{word(), word(), text(40), static_cast<std::uint16_t>(random_()), text(200), rank(), bytes(100),
                attempt(), static_cast<std::int64_t>(word())},
        KeepJoined{word(), attempt(), static_cast<std::uint32_t>(random_())},
        KeepBegin{word(), text(200), static_cast<std::int64_t>(random_()), rank(),
                  static_cast<std::uint32_t>(random_()), word(), words(), restored(), below(2) == 0, below(2) == 0,
                  static_cast<std::int32_t>(below(9)) - 1},
        KeepBuffer{word(), word(), word(), static_cast<std::uint8_t>(below(65)), words()},
        KeepDone{word(), word(), bytes(3000), bytes(3000),
                 several<KeptTensor>(9,
                                     [&] {
                                       const auto stride = static_cast<Extent>(below(1u << 30));
                                       return KeptTensor{word(), word(), Extents::filled(below(max_dims + 1), stride)};
                                     }),
                 several<Digest128>(9,
                                    [&] {
                                      return Digest128{word(), word()};
                                    })},
        KeepQuit{word(), below(2) == 0},
        Kept{word()},
        KeepStatusRequest{word()},
        KeepStatus{word(), text(2000)},
        KeepDrop{word(), text(200)},
        KeepMembersLost{words()},
        AttemptRaised{attempt()},
    };
  }

  std::vector<std::uint64_t> words() {
    return several<std::uint64_t>(9, [&] { return word(); });
  }
  std::optional<KeepBegin::Restored> restored() {
    if (below(2) == 0) return std::nullopt;
    return KeepBegin::Restored{static_cast<std::int64_t>(random_()), word()};
  }
  MemberRecord member() {
    return {rank(), word(), text(100), text(40), static_cast<std::uint16_t>(random_()), text(100), text(100)};
  }
  PublicationRecord publication() {
    return {rank(),        0,        word(),   rank(),   static_cast<std::int64_t>(random_()), word(),
            below(2) == 0, digest(), digest(), attempt()};
  }
  std::vector<std::int32_t> members() {
    std::vector<std::int32_t> result;
    for (std::int32_t next = rank(); below(8) != 0; next += 1 + rank()) result.push_back(next);
    return result;
  }
  /// Ascending and disjoint, of groups below `groups`.
  std::vector<MemberRun> runs(std::uint64_t groups) {
    std::vector<MemberRun> result;
    std::int32_t end = 0;
    while (below(12) != 0) {
      MemberRun run{end + (below(2) == 0 ? 0 : rank()), below(2) == 0 ? 1 : 1 + rank(), rank(),
                    static_cast<std::uint32_t>(below(groups))};
      if (run.group == 0) run.layout_rank = 0;
      end = run.first + run.count;
      result.push_back(run);
    }
    return result;
  }
  Roster roster() {
    Roster result{text(200), below(2) == 0, {}, runs(1u << below(32))};
    const std::vector<Digest> digests{digest(), digest(), digest()};
    for (const std::int32_t number : members()) {
      result.groups.push_back({static_cast<std::uint32_t>(number) + 1, static_cast<std::uint32_t>(random_()), word(),
                               static_cast<std::int64_t>(random_()), word(), digests[below(3)], digests[below(3)],
                               attempt()});
    }
    return result;
  }

  Layout layout(const Extents& shape, int ranks) {
    switch (below(10)) {
      case 0: return Layout::replicated();
      case 1: return Layout::chunk(static_cast<int>(below(shape.size())), ranks);
      case 2: return Layout::mesh({2, ranks / 2}, {Replicate{}, Shard{static_cast<int>(below(shape.size()))}});
      case 3: return Layout::block_cyclic({2, 5}, {1, ranks}, {0, 1});
      case 4: return Layout::within(Layout::chunk(1, 2), 2, Layout::chunk(0, ranks / 2));
      case 5: return Layout::on_ranks(Layout::chunk(0, ranks / 2), Rank{ranks / 2}, ranks / 2);
      case 6:
        return Layout::on_ranks(Layout::chunk(0, 2),
                                below(2) == 0 ? std::vector{Rank{1}, Rank{0}} : std::vector{Rank{0}, Rank{ranks - 1}});
      case 7: return Layout::packed(Layout::block_cyclic({1, 3}, {ranks, 1}));
      case 8: {
        FlatMember member{shape};
        if (below(2) == 0) member.outer = Layout::chunk(1, 2);
        if (below(2) == 0) member.order = {1, 0};
        return Layout::flat(std::vector{FlatMember{{3, 5}}, member}, ranks / 2, 4, 2)[1];
      }
      default: {
        std::map<Rank, std::vector<Box>> boxes;
        for (int r = 0; r < ranks; ++r) {
          Box box = Box::whole(shape);
          box.size[0] = 1;
          boxes[Rank{r}] = {box};
        }
        if (below(2) == 0) return Layout::boxes(boxes);
        PlacedBoxMap placed;
        for (const auto& [rank, list] : boxes) placed[rank] = {{list[0], static_cast<Extent>(below(9)), {500, 2}}};
        return Layout::boxes(placed);
      }
    }
  }
  DType dtype() {
    const std::uint64_t number = below(25);
    return number < 20 ? static_cast<DType>(number) : opaque(1 + below(max_item_bytes));
  }
  Manifest manifest(std::size_t tensors) {
    Manifest result{static_cast<int>(2 * (1 + below(8))), {}};
    for (std::size_t i = 0; i < tensors; ++i) {
      const Extents shape{static_cast<Extent>(1 + below(5)), static_cast<Extent>(1 + below(100))};
      const TensorKey key{fmt::format("layers.{}.weight", i / 3), fmt::format("state{}", i % 3)};
      result.tensors.push_back({{key, dtype(), shape}, layout(shape, result.ranks)});
    }
    for (std::uint64_t i = below(4); i > 0; --i) {
      result.aliases.insert(result.aliases.begin(), {fmt::format("tied.{}", i), "layers.0.weight"});
    }
    return result;
  }
  /// Items of every kind, lists among them.
  ValueList list(std::size_t depth) {
    ValueList result{{std::monostate{}, true, std::int64_t{-3}, 0.1, text(5), bytes(5),
                      TensorValue{DType::f32, {}, Bytes(4, std::byte{7})}, ValueList{}, ValueTuple{}, ValueMap{}}};
    if (depth == 0) return result;
    const auto place = static_cast<long>(below(11));  // drawn first: compilers evaluate arguments in any order
    result.items.insert(result.items.begin() + place, within(list(depth - 1)));
    return result;
  }
  /// A list, a tuple or a map with these items.
  Value within(ValueList list) {
    const std::uint64_t kind = below(3);
    if (kind == 0) return list;
    if (kind == 1) return ValueTuple{std::move(list.items)};
    ValueMap map;
    for (Value& item : list.items) map[text(6)] = std::move(item);
    return map;
  }
  static Value nested(std::size_t depth) {
    Value value;
    for (std::size_t i = 0; i < depth; ++i) value = ValueList{{std::move(value)}};
    return value;
  }
  static Value nested_maps(std::size_t depth) {
    Value value;
    for (std::size_t i = 0; i < depth; ++i) value = ValueMap{{"key", std::move(value)}};
    return value;
  }
  /// Every alternative of Value at least once.
  std::vector<NamedValue> values() {
    const std::vector<Value> all{std::monostate{},
                                 true,
                                 false,
                                 std::int64_t{-3},
                                 std::numeric_limits<std::int64_t>::min(),
                                 0.1,
                                 -0.0,
                                 std::numeric_limits<double>::infinity(),
                                 std::string(),
                                 std::string("a\0b", 3),
                                 Bytes(),
                                 bytes(40),
                                 TensorValue{DType::f32, {}, Bytes(4, std::byte{7})},
                                 TensorValue{DType::bf16, {1}, Bytes(2, std::byte{8})},
                                 TensorValue{DType::i64, {0, 3}, {}},
                                 TensorValue{DType::complex128, {2}, Bytes(32, std::byte{9})},
                                 TensorValue{opaque(300), {}, Bytes(300, std::byte{10})},
                                 ValueList{},
                                 ValueList{{0.9, 0.95}},
                                 list(3),
                                 ValueTuple{},
                                 ValueTuple{{0.9, ValueList{{ValueTuple{{true}}}}}},
                                 ValueMap{},
                                 ValueMap{{"", Value()}},
                                 ValueMap{{std::string("a\0b", 3), 1}, {"a", ValueMap{{"b", ValueTuple{{2}}}}}},
                                 within(list(3)),
                                 nested_maps(max_value_depth),
                                 nested(max_value_depth)};
    std::vector<NamedValue> result;
    for (const Value& value : all) result.push_back({{fmt::format("group{}", below(1u << 30)), text(20)}, value});
    return result;
  }

 private:
  std::mt19937_64 random_;
};

}  // namespace samples

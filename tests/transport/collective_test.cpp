// SPDX-License-Identifier: Apache-2.0
// The contract of collectives, run for each one in this build.
#include "transport/collective.hpp"

#include <poll.h>

#include <algorithm>
#include <atomic>
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <iterator>
#include <numeric>
#include <ostream>
#include <random>
#include <thread>

#include "support/deadline.hpp"
#include "support/rounds.hpp"
#include "support/seed.hpp"
#include "transport/config.hpp"
#if SHARDWIRE_HAVE_NCCL
#include "support/fake_nccl.hpp"
#endif

BOOST_AUTO_TEST_SUITE(transport_collective)

using namespace shardwire;
using namespace shardwire::test;
using namespace shardwire::transport;
using namespace std::chrono_literals;

namespace {

/// A collective under test. NCCL runs over a fake library, so that it is tested without a GPU.
struct Kind {
  const char* name;
  bool watches;  // CollectiveTransport::watches
  MemoryPlace place;
  std::unique_ptr<Collective> (*open)(const GroupSetup& setup);
  Bytes (*make_id)();
};
std::ostream& operator<<(std::ostream& out, const Kind& kind) {
  return out << kind.name;
}

std::unique_ptr<Collective> open_loopback(const GroupSetup& setup) {
  return std::ranges::find(registered_collectives(), "loopback", &CollectiveTransport::name)->open(setup);
}
Bytes make_loopback_id() {
  return std::ranges::find(registered_collectives(), "loopback", &CollectiveTransport::name)->make_id();
}
const std::vector<Kind>& kinds() {
  static const std::vector<Kind> all {
    {"loopback", true, {}, open_loopback, make_loopback_id},
#if SHARDWIRE_HAVE_NCCL
        {"nccl", false, {MemoryKind::cuda, 0}, open_fake_nccl, make_fake_nccl_id},
#endif
  };
  return all;
}
std::vector<Kind> watching() {
  std::vector<Kind> some;
  std::ranges::copy_if(kinds(), std::back_inserter(some), &Kind::watches);
  return some;
}
const auto each_kind = boost::unit_test::data::make(kinds());
const auto each_watching_kind = boost::unit_test::data::make(watching());

std::unique_ptr<Collective> open(const Kind& kind, const Bytes& id, int rank, int size) {
  return kind.open({.id = id, .rank = rank, .size = size, .device = kind.place.device});
}
template <typename Buffer>
auto memory_of(const Kind& kind, Buffer& buffer) {
  auto memory = host_memory(buffer);
  memory.place = kind.place;
  return memory;
}

/// All members of a group in one thread.
struct Group {
  Group(const Kind& kind, int size) {
    const Bytes id = kind.make_id();
    for (int rank = 0; rank < size; ++rank) members.push_back(open(kind, id, rank, size));
  }
  template <typename Met>
  bool until(Met met, std::chrono::milliseconds at_most = promptly) {
    return progress_until(members, met, at_most);
  }
  std::vector<std::unique_ptr<Collective>> members;
};

}  // namespace

BOOST_AUTO_TEST_CASE(each_says_whether_it_works_here) {
  BOOST_REQUIRE(!registered_collectives().empty());
  for (const CollectiveTransport& transport : registered_collectives()) {
    BOOST_TEST_MESSAGE(transport.name << ": " << transport.probe().detail);
    BOOST_TEST(!transport.probe().detail.empty());
  }
}

BOOST_DATA_TEST_CASE(members_of_a_group_know_their_place, each_kind, kind) {
  const Deadline deadline(120s);
  BOOST_TEST((kind.make_id() != kind.make_id()));
  const Group group(kind, 3);
  for (int rank = 0; rank < 3; ++rank) {
    BOOST_TEST(group.members[static_cast<std::size_t>(rank)]->rank() == rank);
    BOOST_TEST(group.members[static_cast<std::size_t>(rank)]->size() == 3);
  }
}

// Every member is a thread; all draw each round's sends and receives from the same seed.
BOOST_DATA_TEST_CASE(random_rounds_bring_every_byte_to_its_place, each_kind* boost::unit_test::data::make({1, 2, 5}),
                     kind, size) {
  const Deadline deadline(120s);
  const std::uint64_t seed = test_seed();
  const Bytes id = kind.make_id();
  std::atomic<int> wrong = 0;
  const auto member = [&](int rank) {
    const auto end = open(kind, id, rank, size);
    std::mt19937_64 random(seed);
    for (int round = 0; round < 60; ++round) {
      std::vector<Bytes> out(static_cast<std::size_t>(size));
      std::vector<Bytes> in(out.size());
      std::vector<GroupSend> sends;
      std::vector<GroupReceive> receives;
      const auto fill_of = [&](int from, int to) { return static_cast<std::byte>(from * 31 + to * 7 + round); };
      for (int from = 0; from < size; ++from) {
        for (int to = 0; to < size; ++to) {
          const std::uint64_t draw = random();
          if (draw % 3 == 0) continue;  // these two exchange nothing
          const std::size_t bytes = draw % 5 == 0 ? 0 : draw % 70'001;
          if (from == rank) {
            auto& memory = out[static_cast<std::size_t>(to)];
            memory.assign(bytes, fill_of(from, to));
            sends.push_back({to, memory_of(kind, std::as_const(memory))});
          }
          if (to == rank) {
            auto& memory = in[static_cast<std::size_t>(from)];
            memory.assign(bytes, std::byte{0});
            receives.push_back({from, memory_of(kind, memory)});
          }
        }
      }
      RoundResult result;
      end->round(sends, receives, result.completion());
      while (!result.done) {
        if (end->progress() || !end->arm()) continue;
        pollfd entry{.fd = end->event_descriptor(), .events = POLLIN, .revents = 0};
        ::poll(&entry, 1, 1000);
      }
      if (result.outcome) ++wrong;
      for (int from = 0; from < size; ++from) {
        for (const std::byte byte : in[static_cast<std::size_t>(from)]) wrong += byte == fill_of(from, rank) ? 0 : 1;
      }
    }
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) threads.emplace_back(member, rank);
  for (auto& thread : threads) thread.join();
  BOOST_TEST(wrong == 0);
}

// A schedule in which one member runs ahead of another must not pass by luck.
BOOST_DATA_TEST_CASE(a_round_is_over_for_nobody_before_all_have_posted_it, each_watching_kind, kind) {
  const Deadline deadline(120s);
  Group group(kind, 3);
  const Bytes memory(100, std::byte{1});
  Bytes place(100);
  const GroupSend send{1, memory_of(kind, memory)};
  const GroupReceive receive{0, memory_of(kind, place)};
  std::array<RoundResult, 3> results;
  group.members[0]->round(std::span(&send, 1), {}, results[0].completion());
  group.members[1]->round({}, std::span(&receive, 1), results[1].completion());
  group.until([&] { return results[0].done || results[1].done; }, 50ms);
  BOOST_TEST((!results[0].done && !results[1].done));
  group.members[2]->round({}, {}, results[2].completion());
  BOOST_TEST(!results[2].done);
  BOOST_REQUIRE(group.until([&] { return results[0].done && results[1].done && results[2].done; }));
  for (const RoundResult& result : results) BOOST_TEST(!result.outcome);
  BOOST_TEST((place == memory));
}

BOOST_DATA_TEST_CASE(rounds_that_are_none_are_refused, each_kind, kind) {
  const Deadline deadline(120s);
  Group group(kind, 2);
  Bytes memory(8);
  const auto invalid = [](const Error& e) { return e.code() == ErrorCode::invalid_argument; };
  const auto refused = [&](std::vector<GroupSend> sends, std::vector<GroupReceive> receives) {
    BOOST_CHECK_EXCEPTION(group.members[0]->round(sends, receives, {}), Error, invalid);
  };
  const ConstMemory from = memory_of(kind, memory);
  const Memory into = memory_of(kind, memory);
  refused({{2, from}}, {});
  refused({{-1, from}}, {});
  refused({}, {{2, into}});
  refused({{1, from}, {1, from}}, {});
  refused({}, {{1, into}, {1, into}});
  RoundResult first;
  group.members[0]->round({}, {}, first.completion());
  refused({}, {});  // a round is in flight
  RoundResult other;
  group.members[1]->round({}, {}, other.completion());
  BOOST_TEST(group.until([&] { return first.done && other.done; }));
}

BOOST_DATA_TEST_CASE(sides_that_do_not_agree_end_with_a_fault_on_all, each_watching_kind, kind) {
  const Deadline deadline(120s);
  Bytes memory(8);
  const GroupSend sent{1, memory_of(kind, std::as_const(memory)).part(0, 7)};
  const GroupReceive wanted{0, memory_of(kind, memory)};
  const auto fails = [&](std::vector<GroupSend> sends, std::vector<GroupReceive> receives) {
    Group group(kind, 2);
    RoundResult left;
    RoundResult right;
    group.members[0]->round(sends, {}, left.completion());
    group.members[1]->round({}, receives, right.completion());
    BOOST_REQUIRE(group.until([&] { return left.done && right.done; }));
    for (const RoundResult& result : {left, right}) {
      BOOST_REQUIRE(result.outcome.has_value());
      BOOST_TEST((result.outcome->code == ErrorCode::transport_failed), result.outcome->message);
    }
  };
  fails({sent}, {wanted});  // the lengths differ
  fails({sent}, {});
  fails({}, {wanted});
  BOOST_TEST((memory == Bytes(8)));
}

// If the collective does not notify the other members, the code that drives the group does, and they abort as well.
BOOST_DATA_TEST_CASE(who_gives_up_has_its_memory_back_and_no_other_round_begins, each_kind, kind) {
  const Deadline deadline(120s);
  Group group(kind, 2);
  Bytes place(1 << 20, std::byte{9});
  const GroupReceive receive{1, memory_of(kind, place)};
  RoundResult result;
  group.members[0]->round({}, std::span(&receive, 1), result.completion());
  group.until([&] { return result.done; }, 20ms);
  const auto began = std::chrono::steady_clock::now();
  group.members[0]->abort();
  BOOST_TEST((std::chrono::steady_clock::now() - began < promptly));
  BOOST_TEST(!result.done);
  BOOST_REQUIRE(group.until([&] { return result.done; }));
  BOOST_TEST((result.outcome && result.outcome->code == ErrorCode::cancelled));
  BOOST_CHECK_THROW(group.members[0]->round({}, {}, {}), Error);
  const Bytes memory(1 << 20, std::byte{1});
  const GroupSend send{0, memory_of(kind, memory)};
  RoundResult late;
  group.members[1]->round(std::span(&send, 1), {}, late.completion());
  group.members[1]->abort();
  BOOST_REQUIRE(group.until([&] { return late.done; }));
  BOOST_TEST(late.outcome.has_value());
  BOOST_TEST(std::ranges::all_of(place, [](std::byte one) { return one == std::byte{9}; }));
}

BOOST_DATA_TEST_CASE(who_aborts_ends_the_round_on_all_and_no_other_begins, each_watching_kind, kind) {
  const Deadline deadline(120s);
  Group group(kind, 3);
  Bytes place(1 << 20, std::byte{9});
  const GroupReceive receive{2, memory_of(kind, place)};
  std::array<RoundResult, 2> results;
  group.members[0]->round({}, std::span(&receive, 1), results[0].completion());
  group.members[1]->round({}, {}, results[1].completion());
  const auto began = std::chrono::steady_clock::now();
  group.members[1]->abort();
  BOOST_TEST((std::chrono::steady_clock::now() - began < promptly));
  BOOST_REQUIRE(group.until([&] { return results[0].done && results[1].done; }));
  BOOST_REQUIRE((results[0].outcome && results[1].outcome));
  BOOST_TEST((results[0].outcome->code == ErrorCode::peer_lost));
  BOOST_TEST((results[1].outcome->code == ErrorCode::cancelled));
  BOOST_CHECK_THROW(group.members[1]->round({}, {}, {}), Error);
  RoundResult late;
  const Bytes memory(1 << 20, std::byte{1});
  const GroupSend send{0, memory_of(kind, memory)};
  group.members[2]->round(std::span(&send, 1), {}, late.completion());
  BOOST_REQUIRE(group.until([&] { return late.done; }));
  BOOST_TEST((late.outcome && late.outcome->code == ErrorCode::peer_lost));
  BOOST_TEST(std::ranges::all_of(place, [](std::byte one) { return one == std::byte{9}; }));
}

BOOST_DATA_TEST_CASE(a_member_that_goes_ends_the_round_of_the_others, each_watching_kind, kind) {
  const Deadline deadline(120s);
  Group group(kind, 2);
  RoundResult result;
  group.members[0]->round({}, {}, result.completion());
  group.members[1].reset();
  BOOST_REQUIRE(group.until([&] { return result.done; }));
  BOOST_TEST((result.outcome && result.outcome->code == ErrorCode::peer_lost));
}

BOOST_AUTO_TEST_SUITE_END()

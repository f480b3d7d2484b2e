// SPDX-License-Identifier: Apache-2.0
#include "move/collective.hpp"

#include <algorithm>
#include <array>
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <deque>
#include <numeric>

#include "memory/copier.hpp"
#include "move/transfer.hpp"
#include "support/deadline.hpp"
#include "support/random_layout.hpp"

BOOST_AUTO_TEST_SUITE(move_collective)

using namespace shardwire;
using namespace shardwire::move;
using move::Stream;  // not that of runtime
using test::pick;
using test::Random;
using namespace std::chrono_literals;
namespace data = boost::unit_test::data;

namespace {

const transport::CollectiveTransport& loopback() {
  return *std::ranges::find(transport::registered_collectives(), "loopback", &transport::CollectiveTransport::name);
}

// A random placement of a box, with any order of dims and sometimes with gaps.
PlacedBox random_placed(Random& random, const Box& box) {
  PlacedBox placed{box, pick(random, 0, 3), Extents::filled(box.dims(), 0)};
  std::vector<std::size_t> order(box.dims());
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (pick(random, 0, 1) == 0) std::shuffle(order.begin(), order.end(), random);
  Extent stride = pick(random, 0, 2) == 0 ? 2 : 1;
  for (std::size_t i = order.size(); i-- > 0;) {
    placed.local_strides[order[i]] = stride;
    stride *= box.size[order[i]] + pick(random, 0, 1);
  }
  return placed;
}

/// One piece on both sides, with its own memory.
struct Both {
  Box box;
  ByteCount item_bytes;
  PlacedBox held;
  PlacedBox wanted;
  Bytes source;
  Bytes target;
  Bytes expected;
};

Both random_piece(Random& random) {
  Extents shape = Extents::filled(static_cast<std::size_t>(pick(random, 1, 3)), 1);
  for (Extent& extent : shape) extent = pick(random, 1, 12);
  Both both{Box::whole(shape), ByteCount{1} << pick(random, 0, 3), {}, {}, {}, {}, {}};
  both.held = random_placed(random, both.box);
  both.wanted = random_placed(random, both.box);
  const memory::StridedCopy copy(both.box, both.held, both.wanted, both.item_bytes);
  both.source.resize(static_cast<std::size_t>(copy.source_span().end));
  for (std::byte& byte : both.source) byte = static_cast<std::byte>(random());
  both.target.assign(static_cast<std::size_t>(copy.target_span().end), std::byte{0x5a});
  both.expected = both.target;
  copy.run_all(both.source.data(), both.expected.data());
  return both;
}

/// All members of a job on one thread.
struct Job {
  Job(Random& random, int members, RoundLimits limits) : moves(static_cast<std::size_t>(members)) {
    limits.members = members;
    jobs.resize(moves.size());
    for (CollectiveJob& job : jobs) job.limits = limits;
    for (int from = 0; from < members; ++from) {
      for (int to = 0; to < members; ++to) {
        if (from == to || pick(random, 0, 2) == 0) continue;
        Stream& stream = streams.emplace_back(Stream{from, to, {}});
        for (int i = pick(random, 1, 4); i > 0; --i) {
          Both& both = pieces.emplace_back(random_piece(random));
          const memory::StridedCopy copy(both.box, both.held, both.wanted, both.item_bytes);
          stream.pieces.push_back({copy.bytes(), copy.run_bytes(), both.item_bytes});
          jobs[static_cast<std::size_t>(from)].outgoing[to].push_back(
              {both.box, both.held, both.item_bytes, both.source.data()});
          jobs[static_cast<std::size_t>(to)].incoming[from].push_back(
              {both.box, both.wanted, both.item_bytes, both.target.data()});
        }
      }
    }
    const Bytes id = loopback().make_id();
    staging.resize(moves.size());
    for (int member = 0; member < members; ++member) {
      const auto index = static_cast<std::size_t>(member);
      jobs[index].member = member;
      jobs[index].streams = streams;
      groups.push_back(loopback().open({.id = id, .rank = member, .size = members}));
      moves[index] = std::make_unique<CollectiveMove>(std::move(jobs[index]), *groups.back(), [&](ByteCount bytes) {
        staging[index].resize(static_cast<std::size_t>(bytes));
        return transport::host_memory(staging[index]);
      });
      moves[index]->begin(RateLimiter::WallClock::now, copies);
    }
  }
  bool run() {
    return test::run_until(
        [&] {
          for (const auto& move : moves) move->progress();
          copies.poll();
        },
        [&] { return std::ranges::all_of(moves, [](const auto& move) { return move->over(); }); }, 20s);
  }

  memory::Copier copier{2, [] {}};
  memory::HostCopies copies{copier};
  std::vector<std::unique_ptr<transport::Collective>> groups;
  std::vector<Stream> streams;
  std::deque<Both> pieces;
  std::vector<CollectiveJob> jobs;
  std::vector<Bytes> staging;
  std::vector<std::unique_ptr<CollectiveMove>> moves;
};

/// Copies nothing, and fails with a reason.
class NoCopies final : public memory::CopyQueue {
 public:
  void submit(memory::CopyBatch /*batch*/, Done done) override {
    memory::CopyResult result;
    result.error = std::make_exception_ptr(Error(ErrorCode::transport_failed, "there are no copies"));
    done(result);
  }
  unsigned poll() override { return 0; }
};

}  // namespace

BOOST_DATA_TEST_CASE(every_piece_comes_to_its_place_whatever_is_cut, data::xrange(25), repeat) {
  const test::Deadline deadline(120s);
  Random random(test::seed() + static_cast<std::uint64_t>(repeat));
  const RoundLimits limits{
      .staging_bytes = static_cast<ByteCount>(pick(random, 0, 1) == 0 ? pick(random, 8, 100) : 5000),
      .max_operations = pick(random, 1, 12),
      .in_place_bytes = static_cast<ByteCount>(pick(random, 1, 200))};
  Job job(random, pick(random, 2, 7), limits);
  BOOST_REQUIRE(job.run());
  for (const auto& move : job.moves) {
    BOOST_TEST(!move->fault());
    BOOST_TEST(move->staging_bytes() <= limits.staging_bytes);
  }
  for (const Both& both : job.pieces) BOOST_REQUIRE((both.target == both.expected));
}

BOOST_AUTO_TEST_CASE(who_gives_up_ends_it_for_all) {
  const test::Deadline deadline(120s);
  Random random(test::seed());
  Job job(random, 4, {.staging_bytes = 64});
  for (int i = 0; i < 3; ++i) {
    for (const auto& move : job.moves) move->progress();
    job.copies.poll();
  }
  job.moves[2]->abort();
  BOOST_REQUIRE(job.run());
  for (std::size_t member = 0; member < 4; ++member) {
    BOOST_REQUIRE(job.moves[member]->fault());
    BOOST_TEST((job.moves[member]->fault()->code == (member == 2 ? ErrorCode::cancelled : ErrorCode::peer_lost)));
  }
}

BOOST_AUTO_TEST_CASE(who_cannot_copy_knows_that_it_is_its_own_fault) {
  const test::Deadline deadline(120s);
  memory::Copier copier{1, [] {}};
  memory::HostCopies copies{copier};
  NoCopies none;
  const std::array<memory::CopyQueue*, 2> queues{&none, &copies};
  const Box box = Box::whole({8});
  Bytes memory(8);
  const Bytes id = loopback().make_id();
  std::vector<std::unique_ptr<transport::Collective>> groups;
  std::vector<std::unique_ptr<CollectiveMove>> moves;
  std::array<Bytes, 2> staging;
  for (int member = 0; member < 2; ++member) {
    CollectiveJob job;
    job.limits.members = 2;
    job.limits.staging_bytes = 64;
    job.member = member;
    job.streams = {{0, 1, {{8, 8, 1}}}};
    (member == 0 ? job.outgoing[1] : job.incoming[0]) = {{box, memory::packed(box), 1, memory.data()}};
    groups.push_back(loopback().open({.id = id, .rank = member, .size = 2}));
    moves.push_back(std::make_unique<CollectiveMove>(std::move(job), *groups.back(), [&](ByteCount bytes) {
      Bytes& own = staging[static_cast<std::size_t>(member)];
      own.resize(static_cast<std::size_t>(bytes));
      return transport::host_memory(own);
    }));
    moves.back()->begin(RateLimiter::WallClock::now, *queues[static_cast<std::size_t>(member)]);
    BOOST_TEST((moves.back()->peers() == std::vector{1 - member}));
  }
  for (int i = 0; i < 3; ++i) {
    for (const auto& move : moves) move->progress();
  }
  BOOST_REQUIRE(moves[0]->over());
  BOOST_TEST(moves[0]->failed_here());
  BOOST_TEST((moves[0]->fault()->code == ErrorCode::transport_failed));
  BOOST_TEST(!moves[1]->over());
  groups[0]->abort();
  BOOST_REQUIRE(test::run_until([&] { moves[1]->progress(); }, [&] { return moves[1]->over(); }, 10s));
  BOOST_TEST((moves[1]->fault()->code == ErrorCode::peer_lost));
  BOOST_TEST(!moves[1]->failed_here());
}

BOOST_DATA_TEST_CASE(ranges_of_a_box_come_in_row_major_order, data::xrange(40), repeat) {
  Random random(test::seed() + static_cast<std::uint64_t>(repeat));
  const Box box = random_piece(random).box;
  const ElementCount first = pick(random, 0, static_cast<int>(box.volume()));
  const ElementCount end = pick(random, static_cast<int>(first), static_cast<int>(box.volume()));
  std::vector<Box> parts;
  split_range(box, first, end, parts);
  BOOST_TEST(parts.size() <= 2 * box.dims());
  // With elements numbered, the parts together equal the range.
  std::vector<ElementCount> numbers(static_cast<std::size_t>(box.volume()));
  std::iota(numbers.begin(), numbers.end(), ElementCount{0});
  std::vector<ElementCount> found;
  for (const Box& part : parts) {
    std::vector<ElementCount> some(static_cast<std::size_t>(part.volume()));
    memory::StridedCopy(part, memory::packed(box), memory::packed(part), sizeof(ElementCount))
        .run_all(reinterpret_cast<const std::byte*>(numbers.data()), reinterpret_cast<std::byte*>(some.data()));
    found.insert(found.end(), some.begin(), some.end());
  }
  BOOST_TEST((found == std::vector<ElementCount>(numbers.begin() + first, numbers.begin() + end)));
}

BOOST_AUTO_TEST_SUITE_END()

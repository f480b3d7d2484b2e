// SPDX-License-Identifier: Apache-2.0
// One-sided reads from their post to their end, including failures and aborts.
#include <poll.h>

#include <atomic>
#include <boost/test/unit_test.hpp>
#include <cstring>
#include <optional>
#include <thread>

#include "conformance/pair.hpp"

namespace reads {

using namespace shardwire;
using namespace shardwire::test;
using transport::WallClock;

namespace {

const std::size_t large = on_slow_machine() ? 1 << 20 : 12 << 20;
// Number of rounds that interrupt at different moments.
const int interruptions = on_slow_machine() ? 3 : 6;
const int withdrawals = on_slow_machine() ? 20 : 60;

/// Memory of the left fabric that the right one reads: allocated memory, and adopted memory if the transport reads it.
struct Readable {
  Pair pair;
  Bytes content = pattern(large, 3);
  Bytes memory = content;
  std::unique_ptr<transport::Region> arena = pair.left->allocate(large);
  std::unique_ptr<transport::Region> adopted = pair.left->adopt(transport::host_memory(memory));
  std::vector<std::unique_ptr<transport::RemoteRegion>> remotes;

  Readable() {
    std::memcpy(arena->memory().address, content.data(), large);
    for (const auto* region : {arena.get(), adopted.get()}) {
      if (!region->key().empty()) remotes.push_back(import_region(*pair.to_left, *region, large));
    }
  }
};

// Marks memory that its owner has back, which must not change any more. One call each, since tests are not optimized.
void mark(Bytes& bytes) {
  std::memset(bytes.data(), 0x5a, bytes.size());
}
bool equal_bytes(const Bytes& left, const Bytes& right) {
  return left.size() == right.size() && std::memcmp(left.data(), right.data(), left.size()) == 0;
}
bool is_marked(const Bytes& bytes) {
  return bytes.front() == std::byte{0x5a} && std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0;
}

bool all_done(const std::vector<Result>& results) {
  return std::ranges::all_of(results, &Result::done);
}

}  // namespace

/// Makes progress for the peer's fabric on a thread, as another process would; its reads may need that.
class Progressing {
 public:
  explicit Progressing(transport::Fabric& fabric)
      : thread_([this, &fabric] {
          while (!stop_) fabric.progress();
        }) {}
  ~Progressing() {
    stop_ = true;
    thread_.join();
  }
  Progressing(const Progressing&) = delete;
  Progressing& operator=(const Progressing&) = delete;

 private:
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

}  // namespace reads

BOOST_AUTO_TEST_SUITE(reads, *boost::unit_test::label("reads") * boost::unit_test::precondition(paths_read))

BOOST_AUTO_TEST_CASE(an_empty_list_completes_in_progress) {
  const Deadline deadline(120s);
  Readable readable;
  for (const auto& remote : readable.remotes) {
    for (const std::size_t count : {0UL, 3UL}) {
      Result result;
      const std::vector<transport::ReadRange> empty(count, {large, {}});
      readable.pair.to_left->read(*remote, empty, result.completion());
      BOOST_TEST(!result.done);
      BOOST_REQUIRE(readable.pair.until([&] { return result.done; }));
      BOOST_TEST(result.succeeded());
    }
  }
}

BOOST_AUTO_TEST_CASE(many_reads_under_way_get_their_own_bytes) {
  const Deadline deadline(120s);
  Readable readable;
  constexpr std::size_t count = 100;
  const std::size_t part = large / (count + 4) | 1;
  for (const auto& remote : readable.remotes) {
    std::vector<Bytes> into(count, Bytes(part));
    std::vector<Result> results(count);
    for (std::size_t i = 0; i < count; ++i) {
      read(*readable.pair.to_left, *remote, i * part, into[i], results[i].completion());
    }
    BOOST_REQUIRE(readable.pair.until([&] { return all_done(results); }));
    for (std::size_t i = 0; i < count; ++i) {
      BOOST_TEST(results[i].succeeded());
      BOOST_TEST(same_bytes(into[i], std::span(readable.content).subspan(i * part, part)));
    }
  }
}

BOOST_AUTO_TEST_CASE(the_descriptor_wakes_who_waits_for_a_read) {
  const Deadline deadline(120s);
  Readable readable;
  transport::Fabric& fabric = *readable.pair.right;
  BOOST_REQUIRE(fabric.event_descriptor() >= 0);
  Bytes into(large);
  // Connect first: the handshake may need both sides.
  for (const auto& remote : readable.remotes) {
    Result first;
    read(*readable.pair.to_left, *remote, 0, std::span(into).first(10), first.completion());
    BOOST_REQUIRE(readable.pair.until([&] { return first.done; }));
  }
  const bool alone = !readable.pair.to_left->path({}).reads_need_peer;
  std::optional<Progressing> peer;
  if (!alone) peer.emplace(*readable.pair.left);
  for (int round = 0; round < 20; ++round) {
    Result result;
    const std::size_t bytes = round % 2 == 0 ? large : 10;
    read(*readable.pair.to_left, *readable.remotes[static_cast<std::size_t>(round) % readable.remotes.size()], 0,
         std::span(into).first(bytes), result.completion());
    const auto started = WallClock::now();
    int wakings = 0;
    while (!result.done) {
      ++wakings;
      if (fabric.progress() || !fabric.arm()) continue;
      pollfd entry{.fd = fabric.event_descriptor(), .events = POLLIN, .revents = 0};
      ::poll(&entry, 1, 10'000);
    }
    BOOST_TEST((WallClock::now() - started < promptly));
    if (alone) BOOST_TEST(wakings < 10);  // no unnecessary wake-ups
  }
  peer.reset();
  // Then it sleeps, except for a late message of the handshake.
  const auto sleeps = [&] {
    pollfd entry{.fd = fabric.event_descriptor(), .events = POLLIN, .revents = 0};
    return fabric.arm() && ::poll(&entry, 1, 50) == 0;
  };
  BOOST_TEST(run_until([&] { readable.pair.step(); }, sleeps, promptly));
}

BOOST_AUTO_TEST_CASE(the_descriptor_wakes_who_sleeps_when_the_peer_closes) {
  const Deadline deadline(120s);
  Readable readable;
  transport::Fabric& fabric = *readable.pair.right;
  while (fabric.progress()) continue;
  std::thread closer([&] {
    std::this_thread::sleep_for(50ms);
    readable.arena.reset();
    readable.adopted.reset();
    readable.pair.to_right.reset();
    readable.pair.left.reset();
  });
  const auto started = WallClock::now();
  while (!readable.pair.to_left->failed() && WallClock::now() - started < promptly) {
    if (fabric.progress() || !fabric.arm()) continue;
    pollfd entry{.fd = fabric.event_descriptor(), .events = POLLIN, .revents = 0};
    ::poll(&entry, 1, fabric_under_test() == "loopback" ? 10 : 10'000);  // loopback never wakes a sleeper
  }
  closer.join();
  BOOST_TEST(readable.pair.to_left->failed());
  BOOST_TEST((WallClock::now() - started < promptly));
  Bytes into(100);
  Result late;
  read(*readable.pair.to_left, *readable.remotes.front(), 0, into, late.completion());
  BOOST_REQUIRE(run_until([&] { fabric.progress(); }, [&] { return late.done; }, promptly));
  BOOST_REQUIRE(late.outcome.has_value());
  BOOST_TEST((late.outcome->code == ErrorCode::peer_lost), late.outcome->message);
}

BOOST_AUTO_TEST_CASE(an_abort_ends_reads_and_nothing_is_written_any_more) {
  const Deadline deadline(120s);
  for (int round = 0; round < interruptions; ++round) {
    Readable readable;
    std::vector<Bytes> into(8, Bytes(large));
    std::vector<Result> results(into.size());
    for (std::size_t i = 0; i < into.size(); ++i) {
      read(*readable.pair.to_left, *readable.remotes[i % readable.remotes.size()], 0, into[i], results[i].completion());
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(6 * round / interruptions));
    readable.pair.to_left->abort();
    BOOST_TEST(std::ranges::none_of(results, &Result::done));  // never inside abort()
    for (std::size_t i = 0; i < into.size(); ++i) {
      BOOST_REQUIRE(readable.pair.until([&] { return results[i].done; }));
      if (results[i].succeeded()) BOOST_TEST(equal_bytes(into[i], readable.content));  // some had ended before
      mark(into[i]);
    }
    run_until([&] { readable.pair.step(); }, [] { return false; }, 30ms);
    for (const Bytes& one : into) BOOST_TEST(is_marked(one));
    readable.pair.to_left->abort();
    BOOST_TEST(!readable.pair.to_right->path({}).carrier.empty());  // the other side still works
  }
}

BOOST_AUTO_TEST_CASE(completions_of_reads_of_a_destroyed_endpoint_never_run) {
  const Deadline deadline(120s);
  for (int round = 0; round < interruptions; ++round) {
    Readable readable;
    int ran = 0;
    std::vector<Bytes> into(6, Bytes(large));
    for (std::size_t i = 0; i < into.size(); ++i) {
      read(*readable.pair.to_left, *readable.remotes[i % readable.remotes.size()], 0, into[i],
           [&](const transport::Outcome&) { ++ran; });
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(6 * round / interruptions));
    const auto started = WallClock::now();
    readable.remotes.clear();
    readable.pair.to_left.reset();
    BOOST_TEST((WallClock::now() - started < promptly));
    std::ranges::for_each(into, mark);
    run_until([&] { readable.pair.step(); }, [] { return false; }, 30ms);
    BOOST_TEST(ran == 0);
    BOOST_TEST(std::ranges::all_of(into, is_marked));
  }
}

BOOST_AUTO_TEST_CASE(an_endpoint_may_be_destroyed_by_the_completion_of_a_read_and_another_one_throw) {
  const Deadline deadline(120s);
  Readable readable;
  Bytes into(1000);
  bool thrown = false;
  Result after;
  read(*readable.pair.to_left, *readable.remotes.front(), 0, into, [&](const transport::Outcome&) {
    thrown = true;
    throw std::runtime_error("completion");
  });
  Bytes other(1000);
  read(*readable.pair.to_left, *readable.remotes.front(), 0, other, after.completion());
  int caught = 0;
  BOOST_REQUIRE(run_until(
      [&] {
        try {
          readable.pair.step();
        } catch (const std::runtime_error&) {
          ++caught;
        }
      },
      [&] { return after.done && thrown; }, promptly));
  BOOST_TEST(caught == 1);
  bool destroyed = false;
  read(*readable.pair.to_left, *readable.remotes.front(), 0, into, [&](const transport::Outcome&) {
    readable.remotes.clear();
    readable.pair.to_left.reset();
    destroyed = true;
  });
  BOOST_REQUIRE(readable.pair.until([&] { return destroyed; }));
}

BOOST_AUTO_TEST_CASE(a_fabric_is_closed_before_its_endpoints) {
  const Deadline deadline(120s);
  Readable readable;
  std::vector<Bytes> into(4, Bytes(large));
  bool ran = false;
  for (Bytes& one : into) {
    read(*readable.pair.to_left, *readable.remotes.front(), 0, one, [&](const transport::Outcome&) { ran = true; });
  }
  readable.pair.right.reset();
  std::ranges::for_each(into, mark);
  BOOST_REQUIRE(readable.pair.until([&] { return readable.pair.to_right->failed(); }));
  BOOST_TEST(!ran);
  BOOST_TEST(std::ranges::all_of(into, is_marked));
}

// The owner may reuse the memory once the region is gone: a later read must not return the new bytes as the old ones.
BOOST_AUTO_TEST_CASE(reads_of_memory_that_is_withdrawn_meanwhile_are_whole_or_fail) {
  const Deadline deadline(120s);
  Pair pair;
  const Bytes content = pattern(on_slow_machine() ? 1 << 16 : 4 << 20, 7);
  int withdrawn = 0;
  int whole = 0;
  for (int round = 0; round < withdrawals; ++round) {
    Bytes memory = content;
    auto region = pair.left->adopt(transport::host_memory(memory));
    BOOST_REQUIRE(!region->key().empty());
    // A NIC that rejects a read leaves that endpoint unusable.
    if (pair.to_left->failed()) pair.to_left = connect_anew(*pair.right, *pair.left, pair.to_right);
    const auto remote = import_region(*pair.to_left, *region, memory.size());
    Bytes into(memory.size());
    Result first;  // its first read also establishes the connection
    read(*pair.to_left, *remote, 0, std::span(into).first(10), first.completion());
    BOOST_REQUIRE(pair.until([&] { return first.done; }));
    Result result;
    read(*pair.to_left, *remote, 0, into, result.completion());
    const auto until = WallClock::now() + std::chrono::microseconds(2400 * round / withdrawals);
    run_until([&] { pair.step(); }, [&] { return WallClock::now() > until; }, promptly);
    region.reset();
    std::memset(memory.data(), 0xee, memory.size());
    BOOST_REQUIRE(pair.until([&] { return result.done; }));
    if (result.succeeded()) {
      ++whole;
      BOOST_TEST(equal_bytes(into, content));
    } else {
      ++withdrawn;
      BOOST_TEST((result.outcome->code == ErrorCode::withdrawn), result.outcome->message);
    }
  }
  BOOST_TEST_MESSAGE("whole " << whole << ", withdrawn " << withdrawn);
}

BOOST_AUTO_TEST_SUITE_END()

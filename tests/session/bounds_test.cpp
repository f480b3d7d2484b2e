// SPDX-License-Identifier: Apache-2.0
// Limits on the memory that peers can make a member keep, and for how long.
#include <boost/test/unit_test.hpp>

#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "support/job.hpp"
#include "support/resident_bytes.hpp"
#include "support/sanitizer.hpp"

namespace bounds {

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t mib = 1u << 20;
constexpr std::size_t arena_bytes = 24 * mib;

// Whether memory use falls to `bytes` within a time limit.
bool falls_to(std::size_t bytes) {
  const auto deadline = std::chrono::steady_clock::now() + 20s;
  while (resident_bytes() > bytes) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(20ms);
  }
  return true;
}

const TensorSpec large{{"w", "exp_avg"}, DType::u8, {static_cast<Extent>(arena_bytes)}};

Catalog catalog_at(void* data) {
  Catalog catalog(Rank{0}, 1);
  catalog.add(large, Layout::replicated(), View{.data = data});
  return catalog;
}

// A member that publishes from an arena of its own until the test reports that all have read.
class Source {
 public:
  Source(Session& session, int step) : arena_(session.allocate(arena_bytes)) {
    std::memset(arena_.data(), step, arena_bytes);
    PublishOptions options;
    options.step = step;
    publication_ = session.publish(catalog_at(arena_.data()), options);
  }
  void retire() { publication_.retire(20s); }

 private:
  Arena arena_;
  Publication publication_;
};

void read_step(Session& session, std::vector<std::byte>& memory, int step) {
  RestoreOptions options = within(patience);
  options.step = step;
  session.restore(catalog_at(memory.data()), options).wait();
  require(memory.front() == std::byte(step) && memory.back() == std::byte(step), "every element arrived");
}

/// Leaves this process this many bytes of further addresses.
class AddressLimit {
 public:
  explicit AddressLimit(std::size_t left) {
    std::ifstream file("/proc/self/statm");
    std::size_t pages = 0;
    file >> pages;
    BOOST_REQUIRE(::getrlimit(RLIMIT_AS, &before_) == 0);
    const rlimit tight{pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)) + left, before_.rlim_max};
    BOOST_REQUIRE(::setrlimit(RLIMIT_AS, &tight) == 0);
  }
  ~AddressLimit() { ::setrlimit(RLIMIT_AS, &before_); }
  AddressLimit(const AddressLimit&) = delete;
  AddressLimit& operator=(const AddressLimit&) = delete;

 private:
  rlimit before_{};
};

boost::test_tools::assertion_result addresses_may_run_out(boost::unit_test::test_unit_id) {
  boost::test_tools::assertion_result result(!with_address_sanitizer && !with_thread_sanitizer);
  result.message() << "sanitizers reserve addresses of their own";
  return result;
}

boost::test_tools::assertion_result peers_memory_is_mapped(boost::unit_test::test_unit_id) {
  boost::test_tools::assertion_result mapped(maps_arenas());
  mapped.message() << "nothing of a peer is mapped over this fabric";
  return mapped;
}

}  // namespace

}  // namespace bounds

BOOST_AUTO_TEST_SUITE(bounds, *boost::unit_test::precondition(peers_memory_is_mapped))

BOOST_AUTO_TEST_CASE(mapped_memory_is_given_back_when_its_publication_is_withdrawn) {
  const auto port = free_port();
  std::unique_ptr<Session> source_session;
  Session session = Session::join(member(0, 2, port), quick());
  source_session = std::make_unique<Session>(Session::join(member(1, 2, port), quick()));
  std::vector<std::byte> memory(arena_bytes);
  const std::size_t before = resident_bytes();
  {
    Source source(*source_session, 1);
    read_step(session, memory, 1);
    BOOST_TEST(resident_bytes() >= before + arena_bytes / 2);
    source.retire();
  }
  // Staging kept for the next restore does not count.
  BOOST_TEST(falls_to(before + arena_bytes / 2));
}

BOOST_AUTO_TEST_CASE(steps_from_arenas_of_their_own_do_not_add_up) {
  const auto port = free_port();
  Session session = Session::join(member(0, 2, port), quick());
  Session other = Session::join(member(1, 2, port), quick());
  std::vector<std::byte> memory(arena_bytes);
  const std::size_t before = resident_bytes();
  std::size_t most = 0;
  for (int step = 1; step <= 20; ++step) {
    Source source(other, step);
    read_step(session, memory, step);
    source.retire();
    most = std::max(most, resident_bytes());
  }
  // 20 arenas are 480 MiB; two of them are there at a time, and at most 256 MiB are idle.
  BOOST_TEST(most <= before + 2 * arena_bytes + 300 * mib);
  BOOST_TEST(falls_to(before + arena_bytes / 2));
}

BOOST_AUTO_TEST_CASE(members_that_were_replaced_leave_nothing_behind) {
  const auto port = free_port();
  Session session = Session::join(member(0, 2, port), quick());
  std::vector<std::byte> memory(arena_bytes);
  const std::size_t before = resident_bytes();
  for (int step = 1; step <= 5; ++step) {
    Session other = Session::join(member(1, 2, port), quick());
    const Source source(other, step);
    read_step(session, memory, step);
  }
  BOOST_TEST(falls_to(before + arena_bytes));
}

BOOST_AUTO_TEST_CASE(an_arena_that_is_published_again_stays_mapped) {
  const auto port = free_port();
  Session session = Session::join(member(0, 2, port), quick());
  Session other = Session::join(member(1, 2, port), quick());
  Arena arena = other.allocate(arena_bytes);
  std::vector<std::byte> memory(arena_bytes);
  for (int step = 1; step <= 3; ++step) {
    std::memset(arena.data(), step, arena_bytes);
    PublishOptions options;
    options.step = step;
    Publication publication = other.publish(catalog_at(arena.data()), options);
    read_step(session, memory, step);
    publication.retire(20s);
  }
}

BOOST_AUTO_TEST_CASE(a_reader_without_addresses_for_a_peers_memory_lacks_resources,
                     *boost::unit_test::label("shm") * boost::unit_test::precondition(addresses_may_run_out)) {
  const auto port = free_port();
  SessionOptions options = quick();
  options.transport = "shm";
  Session source = Session::join(member(0, 2, port), options);
  Session reader = Session::join(member(1, 2, port), options);
  const TensorSpec spec{{"w", "exp_avg"}, DType::u8, {512, mib}};  // of an arena that is never touched, but for one row
  const Arena arena = source.allocate(512 * mib);
  Catalog held(Rank{0}, 1);
  held.add(spec, Layout::replicated(), View{.data = arena.data()});
  const Publication publication = source.publish(held);
  std::vector<std::byte> row(mib);
  Catalog wanted(Rank{0}, 1);
  wanted.add(spec, Layout::boxes({{Rank{0}, {{{7, 0}, {1, mib}}}}}), View{.data = row.data()});
  const auto restore = [&] { reader.restore(wanted, within(patience)).wait(); };
  {
    const AddressLimit limit(256 * mib);
    const Error error = failure_of(restore);
    BOOST_TEST((error.code() == ErrorCode::out_of_resources), error.what());
    BOOST_TEST((error.ranks() == std::vector<Rank>{Rank{0}}));
  }
  restore();
}

BOOST_AUTO_TEST_SUITE_END()

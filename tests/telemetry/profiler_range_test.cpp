// SPDX-License-Identifier: Apache-2.0
// Ranges that operations show to a profiler. These tests take its place.
#include <boost/test/unit_test.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>

#include "support/job.hpp"
#include "telemetry/profiler_range.hpp"
#include "telemetry/two_shards.hpp"

// At the first range, NVTX calls it in programs that bring a profiler along.
extern "C" {
int (*InitializeInjectionNvtx2_fnptr)(const void* (*export_table)(std::uint32_t id)) = nullptr;
}

BOOST_AUTO_TEST_SUITE(profiler_range)

using namespace shardwire;
using namespace shardwire::test;
using telemetry::ProfilerRange;

namespace {

using ExportTable = const void* (*)(std::uint32_t id);
int take_place_of_profiler(ExportTable export_table);

/// The ranges that a profiler sees.
struct Profiler {
  std::mutex mutex;
  std::map<std::string, int> begun;  // guarded by mutex, as all that follows
  std::map<std::uint64_t, std::string> open;
  std::uint64_t last = 0;
  int unknown_ends = 0;

  Profiler() { InitializeInjectionNvtx2_fnptr = &take_place_of_profiler; }
  /// Call it before the first range. Other units of the program have no profiler.
  static Profiler& instance() {
    static Profiler one;
    return one;
  }
  std::set<std::string> now() {
    const std::lock_guard lock(mutex);
    std::set<std::string> names;
    for (const auto& [number, name] : open) names.insert(name);
    return names;
  }
};

std::uint64_t begin_range(const char* name) {
  Profiler& seen = Profiler::instance();
  const std::lock_guard lock(seen.mutex);
  ++seen.begun[name];
  seen.open[++seen.last] = name;
  return seen.last;
}

void end_range(std::uint64_t number) {
  Profiler& seen = Profiler::instance();
  const std::lock_guard lock(seen.mutex);
  if (seen.open.erase(number) == 0) ++seen.unknown_ends;
}

// The interface of NVTX to a profiler: tables of pointers to the functions that a program calls.
using Function = void (*)();
struct Callbacks {
  std::size_t struct_size;
  int (*function_table)(int module, Function*** table, unsigned* size);
};
constexpr std::uint32_t callbacks_id = 1;
constexpr int core_module = 1;
constexpr std::size_t range_start = 5;
constexpr std::size_t range_end = 7;

int take_place_of_profiler(ExportTable export_table) {
  Function** functions = nullptr;
  unsigned size = 0;
  const auto* const callbacks = static_cast<const Callbacks*>(export_table(callbacks_id));
  if (callbacks == nullptr || callbacks->function_table(core_module, &functions, &size) == 0) return 0;
  *functions[range_start] = reinterpret_cast<Function>(&begin_range);
  *functions[range_end] = reinterpret_cast<Function>(&end_range);
  return 1;
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_range_lasts_until_the_next_begins_or_it_ends) {
  Profiler& seen = Profiler::instance();
  {
    ProfilerRange range("a");
    BOOST_TEST(seen.now() == std::set<std::string>{"a"}, boost::test_tools::per_element());
    range.begin("b");
    BOOST_TEST(seen.now() == std::set<std::string>{"b"}, boost::test_tools::per_element());
    range.end();
    range.end();
    BOOST_TEST(seen.now().empty());
    range.begin("c");
  }
  BOOST_TEST(seen.now().empty());
  BOOST_TEST(seen.unknown_ends == 0);
}

BOOST_AUTO_TEST_CASE(operations_of_a_session_are_ranges) {
  Profiler& seen = Profiler::instance();
  seen.begun.clear();
  const auto port = free_port();
  on_members(2, [&](int rank) {
    Session session = Session::join(member(rank, 2, port), quick());
    Shards shards(rank);
    Publication publication = session.publish(shards.source);
    session.restore(shards.target, within(patience)).wait();
    session.barrier(patience);
    publication.retire(patience);
    session.exchange(shards.source, shards.target);
    session.close(patience);
  });
  for (const char* name : {"shardwire.join", "shardwire.publish", "shardwire.exchange"}) {
    BOOST_TEST_CONTEXT(name) {
      BOOST_TEST(seen.begun[name] == 2);
    }
  }
  BOOST_TEST(seen.begun["shardwire.restore"] >= 4);  // also those of the exchange
  for (const char* stage : {"plan", "bind", "move", "verify", "commit"}) {
    BOOST_TEST_CONTEXT(stage) {
      BOOST_TEST(seen.begun[std::string("shardwire.restore.") + stage] >= 2);
    }
  }
  BOOST_TEST(seen.now().empty());
  BOOST_TEST(seen.unknown_ends == 0);
}

BOOST_AUTO_TEST_SUITE_END()

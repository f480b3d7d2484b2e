// SPDX-License-Identifier: Apache-2.0
#include "memory/page_placement.hpp"

#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>

#include "memory/shared_memory.hpp"

BOOST_AUTO_TEST_SUITE(page_placement)

using namespace shardwire;
using memory::SharedMemory;
using Pages = SharedMemory::Pages;

namespace {

struct Policy {
  int mode = -1;
  std::array<unsigned long, 16> nodes{};
};

Policy policy_at(const std::byte* address) {
  Policy found;
  const long status = ::syscall(SYS_get_mempolicy, &found.mode, found.nodes.data(), 1025UL, address, MPOL_F_ADDR);
  BOOST_REQUIRE(status == 0);
  return found;
}

// Containers may forbid it.
boost::test_tools::assertion_result has_policies(boost::unit_test::test_unit_id) {
  int mode = 0;
  return ::syscall(SYS_get_mempolicy, &mode, nullptr, 0UL, nullptr, 0UL) == 0;
}

}  // namespace

BOOST_AUTO_TEST_CASE(the_node_of_a_thread_is_that_of_its_processor) {
  cpu_set_t before;
  BOOST_REQUIRE(::sched_getaffinity(0, sizeof before, &before) == 0);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &before)) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    BOOST_REQUIRE(::sched_setaffinity(0, sizeof one, &one) == 0);
    const std::filesystem::path folder = "/sys/devices/system/cpu/cpu" + std::to_string(cpu);
    const int node = memory::node_of_thread();
    const bool has_nodes = std::filesystem::exists("/sys/devices/system/node/node0");
    BOOST_TEST((has_nodes ? std::filesystem::exists(folder / ("node" + std::to_string(node))) : node == 0));
  }
  BOOST_REQUIRE(::sched_setaffinity(0, sizeof before, &before) == 0);
}

BOOST_AUTO_TEST_CASE(memory_prefers_the_node_that_is_wanted, *boost::unit_test::precondition(has_policies)) {
  const int node = memory::node_of_thread();
  const SharedMemory anywhere(8192, Pages::at_once);
  BOOST_TEST(policy_at(anywhere.address()).mode == MPOL_DEFAULT);
  const SharedMemory placed(8192, Pages::at_once, {.node = node});
  BOOST_TEST(placed.misplaced() == "");
  const Policy found = policy_at(placed.address() + 4096);
  BOOST_TEST(found.mode == MPOL_PREFERRED);
  BOOST_TEST(found.nodes[static_cast<std::size_t>(node) / 64] == 1UL << static_cast<unsigned>(node) % 64);
  int thread_policy = -1;
  BOOST_TEST(::syscall(SYS_get_mempolicy, &thread_policy, nullptr, 0UL, nullptr, 0UL) == 0);
  BOOST_TEST(thread_policy == MPOL_DEFAULT);  // the keeper's other memory goes on as before
}

BOOST_AUTO_TEST_CASE(a_node_that_does_not_exist_changes_nothing) {
  for (const int node : {1000, 1023, 1024, 1'000'000'000}) {
    const SharedMemory memory(3u << 20, Pages::at_once, {.node = node});
    BOOST_TEST(memory.misplaced().find("NUMA node " + std::to_string(node)) != std::string::npos, memory.misplaced());
    BOOST_TEST(memory.untouched_bytes() == 0U);
    memory.address()[(3u << 20) - 1] = std::byte{1};
  }
  const SharedMemory unknown(8192, Pages::at_once, {.node = -1});
  BOOST_TEST(unknown.misplaced() == "");
}

BOOST_AUTO_TEST_CASE(advice_is_given_where_the_system_waits_for_it) {
  BOOST_TEST(memory::huge_pages_by_advice("always within_size [advise] never deny force"));
  for (const char* const other :
       {"[always] within_size advise never deny force", "always [within_size] advise never",
        "always within_size advise [never] deny force", "always within_size advise never [deny] force", "advise", ""}) {
    BOOST_TEST(!memory::huge_pages_by_advice(other), other);
  }
}

// Also where the system makes no huge pages: the pages are then taken through the mapping, and are small.
BOOST_AUTO_TEST_CASE(advised_memory_has_all_its_pages_before_anybody_writes) {
  constexpr ByteCount bytes = (5u << 20) + 4096;
  const SharedMemory memory(bytes, Pages::at_once, {.huge = true});
  BOOST_TEST(memory.untouched_bytes() == 0U);
  const SharedMemory later(bytes, Pages::on_touch, {.huge = true});
  BOOST_TEST(later.untouched_bytes() == bytes);
}

BOOST_AUTO_TEST_CASE(pages_are_taken_through_an_advised_mapping) {
  const SharedMemory memory(4u << 20, Pages::on_touch);
  BOOST_TEST(memory.untouched_bytes() == 4u << 20);
  const std::string refusal = memory::take_huge_pages({memory.address(), 4u << 20});
  BOOST_TEST(memory.untouched_bytes() == (refusal.empty() ? 0U : 4u << 20), refusal);
  std::array<std::byte, 8192> beside{};
  BOOST_TEST(memory::take_huge_pages({beside.data() + 1, 1}) != "");  // no whole page
}

BOOST_AUTO_TEST_CASE(mappings_that_may_have_huge_pages_begin_where_one_can) {
  for (const ByteCount bytes : {ByteCount{2} << 20, (ByteCount{2} << 20) + 4096, (ByteCount{7} << 20) + 8192}) {
    const SharedMemory memory(bytes, Pages::on_touch);
    BOOST_TEST(reinterpret_cast<std::uintptr_t>(memory.address()) % memory::huge_page_bytes == 0U);
    memory.address()[0] = memory.address()[bytes - 1] = std::byte{1};
  }
}

BOOST_AUTO_TEST_SUITE_END()

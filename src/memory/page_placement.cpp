// SPDX-License-Identifier: Apache-2.0
#include "memory/page_placement.hpp"

#include <fmt/core.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <fstream>

#ifndef MADV_POPULATE_WRITE  // Linux 5.14
#define MADV_POPULATE_WRITE 23
#endif

namespace shardwire::memory {

namespace {

constexpr unsigned word_bits = sizeof(unsigned long) * CHAR_BIT;
constexpr unsigned max_nodes = 1024;  // of any kernel

std::string refusal_of(const std::string& what) {
  return fmt::format("{}: {}", what, std::strerror(errno));
}

}  // namespace

int node_of_thread() {
  unsigned cpu = 0;
  unsigned node = 0;
  return ::syscall(SYS_getcpu, &cpu, &node, nullptr) == 0 ? static_cast<int>(node) : -1;
}

// The policy belongs to the memory, not to the mapping or the thread: fallocate() follows it.
std::string prefer_node(std::span<std::byte> mapped, int node) {
  if (node < 0 || static_cast<unsigned>(node) >= max_nodes) return fmt::format("there is no NUMA node {}", node);
  const auto bit = static_cast<unsigned>(node);
  std::array<unsigned long, max_nodes / word_bits> nodes{};
  nodes[bit / word_bits] = 1UL << bit % word_bits;
  // The kernel looks at one bit less than it is told.
  const long status =
      ::syscall(SYS_mbind, mapped.data(), mapped.size(), MPOL_PREFERRED, nodes.data(), max_nodes + 1UL, 0U);
  return status == 0 ? std::string() : refusal_of(fmt::format("NUMA node {} cannot be preferred", node));
}

bool huge_pages_by_advice(std::string_view setting) {
  return setting.find("[advise]") != std::string_view::npos;
}

bool huge_pages_by_advice() {
  static const bool by_advice = [] {
    std::string setting;
    std::ifstream file("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
    std::getline(file, setting);
    return huge_pages_by_advice(setting);
  }();
  return by_advice;
}

std::string take_huge_pages(std::span<std::byte> mapped) {
  if (::madvise(mapped.data(), mapped.size(), MADV_HUGEPAGE) != 0) return refusal_of("huge pages cannot be advised");
  if (::madvise(mapped.data(), mapped.size(), MADV_POPULATE_WRITE) == 0) return {};
  return refusal_of("huge pages cannot be taken at once");
}

}  // namespace shardwire::memory

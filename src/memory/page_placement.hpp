// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "shardwire/types.hpp"

// On which NUMA node pages of shared memory lie, and of what size they are. A system that refuses leaves everything as it is.
namespace shardwire::memory {

/// For memory whose pages have not been taken yet.
struct PagePlacement {
  int node = -1;      ///< NUMA node that is preferred to others; -1: that of the thread that takes the pages
  bool huge = false;  ///< see huge_pages_by_advice()
};

/// Mappings that are at least as large begin at a multiple of it. Huge pages of other sizes get no advice.
inline constexpr ByteCount huge_page_bytes = ByteCount{2} << 20;

/// NUMA node of the processor that this thread runs on; -1 if the kernel does not say.
int node_of_thread();

/// Prefers a node for pages of mapped shared memory that nobody has taken yet, by whichever process. Returns why not; empty if
/// it does.
std::string prefer_node(std::span<std::byte> mapped, int node);

/// Whether shared memory has huge pages exactly where a mapping was advised. `setting`: what the kernel says in
/// /sys/kernel/mm/transparent_hugepage/shmem_enabled, such as "always within_size [advise] never deny force".
bool huge_pages_by_advice(std::string_view setting);
/// The same for this machine, which is asked once.
bool huge_pages_by_advice();

/// Advises huge pages for a mapping of shared memory, and takes its pages through it. Returns why not; empty if it does.
/// Some pages may be taken then.
std::string take_huge_pages(std::span<std::byte> mapped);

}  // namespace shardwire::memory

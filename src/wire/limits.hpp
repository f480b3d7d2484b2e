// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

// Further limits of a reader, in addition to those of messages.hpp. Generous for honest peers, small enough to bound
// the damage by a dishonest one.
namespace shardwire::wire {

inline constexpr std::size_t max_fqn_bytes = 4096;
/// Names under which one member publishes, and names that it watches. Members keep to it; the rendezvous refuses more.
inline constexpr std::size_t max_names_of_member = 4096;
inline constexpr std::size_t max_name_bytes = 256;  ///< state, publication, host, fabric, domain, capability, ..
inline constexpr std::size_t max_store_key_bytes = 1024;
inline constexpr std::size_t max_region_key_bytes = 4096;
inline constexpr std::size_t max_address_bytes = 64 * 1024;
inline constexpr std::size_t max_failure_bytes = 64 * 1024;
inline constexpr std::size_t max_capabilities = 64;
inline constexpr std::size_t max_kept_buffers = 4096;      ///< of one connection to a keeper
inline constexpr std::size_t max_kept_digests = 1u << 22;  ///< of one snapshot: of 4 TiB, as blocks are at most 1 MiB
inline constexpr std::int32_t max_rank = 1 << 24;
inline constexpr std::uint32_t max_attempt = 1u << 30;   ///< of a job; see AttemptRaised
inline constexpr std::uint64_t max_age_ns = 1ull << 62;  ///< of a session
inline constexpr std::size_t max_rows = 1u << 22;        ///< of a manifest or a list of values
inline constexpr unsigned max_rule_depth = 8;            ///< layouts inside layouts
inline constexpr std::size_t max_list_items = 1u << 20;  ///< of all lists, tuples and maps that differ, in one message

}  // namespace shardwire::wire

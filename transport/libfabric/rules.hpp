// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <rdma/fabric.h>

#include <cstdint>
#include <optional>
#include <string>
#include <variant>

#include "shardwire/types.hpp"

// Our behaviour as a pure function of the provider's answer.
namespace shardwire::transport::libfabric {

/// How memory is exported to peers and read over a provider. The provider's answer is binding: the bits of its mr_mode
/// state what the caller must do.
struct Rules {
  std::string provider;             ///< e.g. "verbs;ofi_rxm"
  std::string device;               ///< the provider's name for its domain
  bool hardware = false;            ///< serves reads without the peer's processor
  bool virtual_addresses = false;   ///< a region begins at its address, else at 0
  bool provider_keys = false;       ///< the provider chooses keys, else we do
  bool bound_regions = false;       ///< a region is bound to an endpoint, then enabled
  bool local_registration = false;  ///< targets of reads must be registered too
  bool device_memory = false;       ///< GPU memory is supported, and must be registered for every use
  bool close_ends_reads = true;     ///< an endpoint may be closed while it reads
  std::uint64_t largest_key = 0;    ///< that we may choose
  ByteCount max_read_bytes = 0;     ///< per operation
  std::size_t window = 0;           ///< maximum operations under way
  std::uint32_t address_format = 0;
  std::uint32_t protocol = 0;  ///< the provider's number of its wire protocol
  std::uint32_t protocol_version = 0;

  bool operator==(const Rules&) const = default;
};

/// Identifies what two sides must have in common to read each other: wire protocol and meaning of keys.
std::string protocol_of(const Rules& rules);

/// The rules for one answer of fi_getinfo, or the reason, for people, why it is not used. `library_version`: result of
/// fi_version().
std::variant<Rules, std::string> rules_from(const fi_info& info, std::uint32_t library_version);

/// Whether reads over an open EFA endpoint are messages answered by the peer's processor, as on devices without RDMA
/// reads.
/// Empty: this libfabric cannot tell.
std::optional<bool> emulates_reads(fid_ep& endpoint);

}  // namespace shardwire::transport::libfabric

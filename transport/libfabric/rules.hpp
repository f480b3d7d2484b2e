// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <rdma/fabric.h>

#include <cstdint>
#include <optional>
#include <string>
#include <variant>

#include "shardwire/types.hpp"

// What a provider has answered, and what we do then: pure functions of it.
namespace shardwire::transport::libfabric {

/// How memory is shown to peers and read over a provider. What it has answered is an order, not a wish: the bits of its
/// mr_mode say what the caller has to do.
struct Rules {
  std::string provider;             ///< e.g. "verbs;ofi_rxm"
  std::string device;               ///< as the provider calls its domain
  bool hardware = false;            ///< serves reads without the processor of who is read
  bool virtual_addresses = false;   ///< a region begins at its address, else at 0
  bool provider_keys = false;       ///< keys are the provider's choice, else ours
  bool bound_regions = false;       ///< a region is bound to an endpoint, then enabled
  bool local_registration = false;  ///< what is read into has to be registered as well
  bool device_memory = false;       ///< memory of GPUs is taken as well, and is registered whatever is done with it
  bool close_ends_reads = true;     ///< an endpoint may be closed while it reads
  std::uint64_t largest_key = 0;    ///< that we may choose
  ByteCount max_read_bytes = 0;     ///< of one operation
  std::size_t window = 0;           ///< operations under way
  std::uint32_t address_format = 0;
  std::uint32_t protocol = 0;  ///< on the wire, as the provider numbers it
  std::uint32_t protocol_version = 0;

  bool operator==(const Rules&) const = default;
};

/// What two sides have to have in common to read each other: how they talk, and what the key of one means to the other.
std::string protocol_of(const Rules& rules);

/// The rules for one answer of fi_getinfo, or for people why it is not used.
/// `library_version`: what fi_version() says.
std::variant<Rules, std::string> rules_from(const fi_info& info, std::uint32_t library_version);

/// Whether reads over an open endpoint of EFA are messages that the peer's processor answers, as on devices without RDMA reads.
/// Empty: this libfabric cannot say.
std::optional<bool> emulates_reads(fid_ep& endpoint);

}  // namespace shardwire::transport::libfabric

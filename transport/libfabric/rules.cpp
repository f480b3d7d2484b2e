// SPDX-License-Identifier: Apache-2.0
#include "transport/libfabric/rules.hpp"

#include <fmt/core.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_ext.h>

#include <algorithm>
#include <array>
#include <limits>
#include <string_view>

namespace shardwire::transport::libfabric {
namespace {

// A NIC processes a few reads of a peer at a time; further posted reads queue in it.
constexpr std::size_t max_under_way = 64;

/// A provider, and whether it checks a key before it reads memory.
struct KnownProvider {
  std::string_view name;
  bool hardware;
  std::string_view refusal;  ///< empty: it is used
};
constexpr std::array known_providers{
    KnownProvider{"verbs;ofi_rxm", true, ""},
    KnownProvider{"efa", true, ""},
    KnownProvider{"cxi", true, ""},
    KnownProvider{"tcp;ofi_rxm", false, ""},
    KnownProvider{"shm", false, "it reads whatever address a peer names and checks no key"},
    KnownProvider{"efa-direct", true, "a source would have to know the address of each reading endpoint; use efa"},
    KnownProvider{"tcp", false, "all its endpoints progress together, so one alone cannot be aborted; use tcp;ofi_rxm"},
    KnownProvider{"net", false, "all its endpoints progress together, so one alone cannot be aborted; use tcp;ofi_rxm"},
};

constexpr std::uint64_t known_mr_modes =
    FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT | FI_MR_HMEM;
constexpr std::uint64_t known_modes = FI_CONTEXT | FI_CONTEXT2;
constexpr std::uint64_t needed_capabilities = FI_RMA | FI_READ | FI_REMOTE_READ;

std::string_view text(const char* value) {
  return value == nullptr ? std::string_view() : std::string_view(value);
}

std::uint64_t largest_of(std::size_t bytes) {
  if (bytes >= sizeof(std::uint64_t)) return std::numeric_limits<std::uint64_t>::max();
  return (std::uint64_t{1} << (8 * bytes)) - 1;
}

// Before 1.18, closing a tcp endpoint in the middle of an answer frees the answer twice.
bool may_be_closed_while_it_reads(bool hardware, std::uint32_t library_version) {
  return hardware || FI_VERSION_GE(library_version, FI_VERSION(1, 18));
}

bool is_hardware(std::string_view name) {
  const auto* const known = std::ranges::find(known_providers, name, &KnownProvider::name);
  return known != known_providers.end() && known->hardware;
}

std::string_view why_not(std::string_view name) {
  const auto* const known = std::ranges::find(known_providers, name, &KnownProvider::name);
  return known == known_providers.end() ? "it is not known to check keys" : known->refusal;
}

std::string why_not(const fi_info& info) {
  const std::uint64_t mr_mode = static_cast<std::uint32_t>(info.domain_attr->mr_mode);
  if (const auto refusal = why_not(text(info.fabric_attr->prov_name)); !refusal.empty()) return std::string(refusal);
  if ((info.caps & needed_capabilities) != needed_capabilities) return "it has no one-sided reads";
  if ((mr_mode & ~known_mr_modes) != 0) {
    return fmt::format("it wants more of registered memory (mr_mode {:#x}) than is known here", mr_mode);
  }
  if ((info.mode & ~known_modes) != 0) {
    return fmt::format("it wants more of its caller (mode {:#x}) than is known here", info.mode);
  }
  if (info.domain_attr->mr_key_size == 0 || info.domain_attr->mr_key_size > sizeof(std::uint64_t)) {
    return fmt::format("its keys have {} bytes", info.domain_attr->mr_key_size);
  }
  if ((mr_mode & FI_MR_HMEM) != 0 && (info.caps & FI_HMEM) == 0) {
    return "it requires registration of device memory, but does not offer it";
  }
  if (!is_hardware(text(info.fabric_attr->prov_name)) && (mr_mode & FI_MR_LOCAL) != 0) {
    return "it wants local memory registered that software has no use for";
  }
  if (info.ep_attr->max_msg_size == 0 || info.tx_attr->size == 0) return "it has no room for a read";
  if (info.domain_attr->threading != FI_THREAD_SAFE) return "it is for one thread only";
  return {};
}

}  // namespace

std::variant<Rules, std::string> rules_from(const fi_info& info, std::uint32_t library_version) {
  if (std::string refusal = why_not(info); !refusal.empty()) return refusal;
  const auto mr_mode = static_cast<std::uint32_t>(info.domain_attr->mr_mode);
  const std::string_view name = text(info.fabric_attr->prov_name);
  const bool hardware = is_hardware(name);
  return Rules{.provider = std::string(name),
               .device = std::string(text(info.domain_attr->name)),
               .hardware = hardware,
               .virtual_addresses = (mr_mode & FI_MR_VIRT_ADDR) != 0,
               .provider_keys = (mr_mode & FI_MR_PROV_KEY) != 0,
               .bound_regions = (mr_mode & FI_MR_ENDPOINT) != 0,
               .local_registration = (mr_mode & FI_MR_LOCAL) != 0,
               .device_memory = hardware && (info.caps & FI_HMEM) != 0,
               .close_ends_reads = may_be_closed_while_it_reads(hardware, library_version),
               .largest_key = largest_of(info.domain_attr->mr_key_size),
               .max_read_bytes = info.ep_attr->max_msg_size,
               .window = std::min(max_under_way, info.tx_attr->size),
               .address_format = info.addr_format,
               .protocol = info.ep_attr->protocol,
               .protocol_version = info.ep_attr->protocol_version};
}

std::string protocol_of(const Rules& rules) {
  return fmt::format("{}, protocol {}.{}, addresses of format {}, regions begin at {}, keys are the {}'s, up to {:#x}",
                     rules.provider, rules.protocol, rules.protocol_version, rules.address_format,
                     rules.virtual_addresses ? "their address" : "0", rules.provider_keys ? "provider" : "caller",
                     rules.largest_key);
}

std::optional<bool> emulates_reads(fid_ep& endpoint) {
  // FI_OPT_EFA_EMULATED_READ, which headers of 1.17 lack.
  constexpr int emulated_read = FI_OPT_EFA_RNR_RETRY + 1;
  bool emulated = false;
  std::size_t bytes = sizeof emulated;
  if (fi_getopt(&endpoint.fid, FI_OPT_ENDPOINT, emulated_read, &emulated, &bytes) != 0) return std::nullopt;
  return emulated;
}

}  // namespace shardwire::transport::libfabric

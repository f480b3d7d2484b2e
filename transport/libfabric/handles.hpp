// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>

#include <memory>

#include "transport/transport.hpp"

// One C handle per object, and the only place that converts libfabric's statuses to errors.
namespace shardwire::transport::libfabric {

/// The requested API version: newer libraries support it, and their additions are detected at run time.
inline constexpr std::uint32_t api_version = FI_VERSION(1, 17);

ErrorCode code_of(int error);
/// `error`: one of FI_E*, positive.
Fault fault_of(int error, const char* operation);
/// Errors: throws Error for every status but 0. (The built-ins replace std::source_location, which clang has only from
///         15 on.)
void check(int status, const char* operation, const char* file = __builtin_FILE(), int line = __builtin_LINE());

/// Closes it, once: some providers have already freed a part when they report "busy". Objects that stay open are
/// recorded.
void close(fid& one) noexcept;
/// Objects of this process that could not be closed since the last call, for people; empty: none. Any thread.
std::string take_unclosed();

struct InfoDeleter {
  void operator()(fi_info* info) const { fi_freeinfo(info); }
};
using Info = std::unique_ptr<fi_info, InfoDeleter>;

template <typename Fid>
struct Closer {
  void operator()(Fid* one) const { close(one->fid); }
};
using FabricHandle = std::unique_ptr<fid_fabric, Closer<fid_fabric>>;
using DomainHandle = std::unique_ptr<fid_domain, Closer<fid_domain>>;
using QueueHandle = std::unique_ptr<fid_cq, Closer<fid_cq>>;
using AddressesHandle = std::unique_ptr<fid_av, Closer<fid_av>>;
using EndpointHandle = std::unique_ptr<fid_ep, Closer<fid_ep>>;
using RegistrationHandle = std::unique_ptr<fid_mr, Closer<fid_mr>>;

}  // namespace shardwire::transport::libfabric

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "shardwire/types.hpp"

namespace shardwire::perf {

/// A fault or an avoidable slowness of a host.
struct Flag {
  std::string about;    ///< "port", "locked memory", ..
  std::string subject;  ///< e.g. "mlx5_0:1"
  std::string says;     ///< the finding, and what to do
};

/// Flags about RDMA; none if the kernel has no device. `pinnable`: see transport::pinnable_bytes(). `needed`: memory
/// that a process of a job is read from and reads into; empty: unknown job. `root` is a prefix for /dev and /sys.
std::vector<Flag> find_flags(const std::optional<ByteCount>& pinnable, const std::optional<ByteCount>& needed = {},
                             const std::string& root = {});

}  // namespace shardwire::perf

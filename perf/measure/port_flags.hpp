// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "shardwire/types.hpp"

namespace shardwire::perf {

/// Something that is wrong with a host, or slower than it need be.
struct Flag {
  std::string about;    ///< "port", "locked memory", ..
  std::string subject;  ///< e.g. "mlx5_0:1"
  std::string says;     ///< of the subject, and what to do
};

/// Of RDMA; none where the kernel has no device. `pinnable`: see transport::pinnable_bytes(). `needed`: memory that a process of
/// a job is read from and reads into; none: of a job that is not known. `root` is put before /dev and /sys.
std::vector<Flag> find_flags(const std::optional<ByteCount>& pinnable, const std::optional<ByteCount>& needed = {},
                             const std::string& root = {});

}  // namespace shardwire::perf

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cli/links.hpp"
#include "memory/device.hpp"
#include "perf/measure/port_flags.hpp"

// GPUs that this process sees, and their location among processors and NICs: devices from their runtime, locations from
// the kernel. `root` is a prefix for /sys.
namespace shardwire::cli {

struct GpuFinding {
  int number = 0;
  memory::DeviceDetails details{};
  Place place{};
  std::vector<std::string> near_nics{};  ///< of its node, nearest on its buses first
  std::string why_no_gpu_direct{};       ///< empty: NICs reach its memory, as far as kernel and driver know
  std::string iommu{};                   ///< a possible obstacle for them; empty: none known
};

struct GpuFindings {
  std::string version{};  ///< of runtime and driver
  std::string why_none{};
  std::vector<GpuFinding> gpus{};
};
GpuFindings find_gpus(const memory::FoundRuntime& found, const std::string& root = {});

/// GPUs whose NICs are all on another socket. If there are NICs that read by themselves, also GPUs that they do not
/// reach or that are behind an IOMMU. If `net_devices`, a value of UCX_NET_DEVICES, allows no port on the socket of any GPU, also each GPU
/// with another port there.
std::vector<perf::Flag> flag_gpus(const GpuFindings& findings, const std::string& root = {},
                                  std::string_view net_devices = {});

/// Under a title, or one line of JSON each; if there is none, a line with the reason.
void print_gpus(const GpuFindings& findings, bool json);

}  // namespace shardwire::cli

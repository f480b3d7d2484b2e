// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "memory/device.hpp"
#include "perf/measure/port_flags.hpp"

// GPUs that this process sees, and where they lie among processors and NICs: devices by their runtime, places by the kernel.
// `root` is put before /sys.
namespace shardwire::cli {

/// Where a device is plugged in; -1: the kernel does not say.
struct Place {
  int node = -1;  ///< of memory and processors (NUMA)
  int socket = -1;
};

struct GpuFinding {
  int number = 0;
  memory::DeviceDetails details{};
  Place place{};
  std::vector<std::string> near_nics{};  ///< of its node, those first that are nearest on its buses
  std::string why_no_gpu_direct{};       ///< empty: NICs reach its memory, as far as kernel and driver know
  std::string iommu{};                   ///< what may keep them from it; empty: nothing that is known
};

struct GpuFindings {
  std::string version{};  ///< of runtime and driver
  std::string why_none{};
  std::vector<GpuFinding> gpus{};
};
GpuFindings find_gpus(const memory::FoundRuntime& found, const std::string& root = {});

/// GPUs all of whose NICs are on another socket; with NICs that read by themselves, GPUs that they do not reach, or that an IOMMU
/// lies before.
std::vector<perf::Flag> flag_gpus(const GpuFindings& findings, const std::string& root = {});

/// Under a title, or a line of JSON each; where there is none, a line with the reason.
void print_gpus(const GpuFindings& findings, bool json);

}  // namespace shardwire::cli

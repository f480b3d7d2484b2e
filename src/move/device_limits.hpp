// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace shardwire::move {

/// Of what passes the bus of a device, whichever way it goes: PCIe 4.0 with 16 lanes, as pinned copies use it. No device says how fast
/// its bus is.
inline constexpr double bus_bytes_per_second = 20e9;

/// What a copy brings in a second at most. `source`, `target`: devices, or memory::on_host for one of them.
/// `memory_bytes_per_second`: of the device, where it is both; see memory::DeviceDetails. 0: no limit is known.
inline double device_limit(int source, int target, double memory_bytes_per_second) {
  return source == target ? memory_bytes_per_second / 2 : bus_bytes_per_second;  // each byte is read and written
}

}  // namespace shardwire::move

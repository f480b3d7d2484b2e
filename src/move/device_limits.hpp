// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace shardwire::move {

/// Bandwidth of a device's bus in either direction: PCIe 4.0 with 16 lanes, with pinned copies. No device reports the
/// speed of its bus.
inline constexpr double bus_bytes_per_second = 20e9;

/// Upper limit of a copy in bytes per second. `source`, `target`: devices, or memory::on_host for one of them.
/// `memory_bytes_per_second`: of the device if it is both; see memory::DeviceDetails. 0: no limit is known.
inline double device_limit(int source, int target, double memory_bytes_per_second) {
  return source == target ? memory_bytes_per_second / 2 : bus_bytes_per_second;  // each byte is read and written
}

}  // namespace shardwire::move

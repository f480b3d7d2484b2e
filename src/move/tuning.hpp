// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "shardwire/costs.hpp"

namespace shardwire {

/// How the transport tcp requests bytes from a peer. Requested bytes that have not arrived wait in socket buffers:
/// while these fit into the caches, a byte costs a third less processor time (measured: 256 KiB against 1 to 4 MiB).
struct TcpSettings {
  ByteCount request_bytes = 256u << 10;  ///< per request; requests under way fill the network for one round trip
  int streams = 1;                       ///< to each peer

  bool operator==(const TcpSettings&) const = default;
};

/// The fastest copy kernels on processors of one model.
struct FastestKernels {
  struct Entry {
    std::string run_bytes_class;  ///< the class of run lengths: "runs to 1 KiB", "longer runs, digested"
    std::string kernel;           ///< a name as in SHARDWIRE_COPY_KERNEL

    bool operator==(const Entry&) const = default;
  };
  std::string processor{};  ///< the system's name for it; empty: unknown, and no process starts with these kernels
  std::vector<Entry> entries{};

  bool operator==(const FastestKernels&) const = default;
};

/// Contents of a calibration file other than costs.
struct detail::Tuning {
  TcpSettings tcp{};
  FastestKernels kernels{};  ///< on the same processor, sessions skip this measurement

  bool operator==(const Tuning&) const = default;
};

/// As save_costs(), with the other measurements. `tcp`: empty if not measured; it is then not written.
void save_calibration(const std::string& path, const std::string& machine, const std::vector<MeasuredCost>& measured,
                      const FastestKernels& kernels, const std::optional<TcpSettings>& tcp);

}  // namespace shardwire

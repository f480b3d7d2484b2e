// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "shardwire/costs.hpp"
#include "shardwire/export.hpp"
#include "shardwire/memory.hpp"
#include "shardwire/types.hpp"

SHARDWIRE_API_BEGIN
namespace shardwire {

/// One fabric between this process and a peer, for memory of one kind.
struct FabricPath {
  std::string transport;         ///< as in SessionOptions::transport, or "local" for this process itself
  std::string carrier{};         ///< for people: protocol and device
  Reach reach = Reach::network;  ///< host: the bytes do not pass a network interface
  bool map = false;              ///< memory in the peer's arenas, or on its devices, is directly addressable
  bool read =
      false;  ///< memory registered by the peer is readable; with some fabrics only while the peer makes progress
  bool message = false;                ///< the peer sends any memory on request
  bool gpu_direct = false;             ///< device memory moves without passing host memory
  std::size_t max_message_ranges = 0;  ///< per message; 0: no messages
  std::size_t max_read_ranges = 0;     ///< per list of reads; 0: no reads
  ByteCount max_read_bytes = 0;        ///< per list of reads
  int max_reads = 0;                   ///< lists that are worth keeping in flight at once
  std::string why_not{};  ///< for people: reason for not mapping, not reading, or staging through host memory
};

/// Paths for memory of one kind from a peer.
struct MemoryPaths {
  MemoryKind memory = MemoryKind::host;
  std::vector<FabricPath> fabrics{};      ///< connected ones, best first; each does what those before it cannot
  std::vector<std::string> not_better{};  ///< "<transport>: <reason>", for each that would come before the first
};

/// Paths between this process and one publisher. See Session::paths().
struct PeerPath {
  int member = 0;
  Rank rank{};            ///< in the publication's layout
  std::string address{};  ///< of its control port, as "10.0.0.7:51234"; empty for this process
  /// Host memory, then device memory if this process uses any; for this process itself, the single fabric "local".
  std::vector<MemoryPaths> memory{};
  std::string why_not{};  ///< reason if the paths, or some of them, could not be determined; else empty
};

}  // namespace shardwire
SHARDWIRE_API_END

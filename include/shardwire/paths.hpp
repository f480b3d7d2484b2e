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
  std::string transport;               ///< as in SessionOptions::transport, or "local" for this process itself
  std::string carrier{};               ///< for people: protocol and device
  Reach reach = Reach::network;        ///< host: the bytes pass no network interface
  bool map = false;                    ///< memory in the peer's arenas, or on its devices, can be addressed in place
  bool read = false;                   ///< what the peer has registered is read, by some only while it makes progress
  bool message = false;                ///< any memory is asked for and sent
  bool gpu_direct = false;             ///< device memory moves without passing host memory
  std::size_t max_message_ranges = 0;  ///< of one message; 0: there are none
  std::size_t max_read_ranges = 0;     ///< of one list of reads; 0: there are none
  ByteCount max_read_bytes = 0;        ///< of one list of reads
  int max_reads = 0;                   ///< lists that are worth having under way at once
  std::string why_not{};               ///< for people: why not mapped, not read, or through host memory
};

/// How memory of one kind comes from a peer.
struct MemoryPaths {
  MemoryKind memory = MemoryKind::host;
  std::vector<FabricPath> fabrics{};  ///< those that are connected, best first; what the first cannot do the next does
  std::vector<std::string> not_better{};  ///< "<transport>: <reason>", for each that would come before the first
};

/// What lies between this process and one that publishes. See Session::paths().
struct PeerPath {
  int member = 0;
  Rank rank{};            ///< in the layout that it publishes
  std::string address{};  ///< of its control port, as "10.0.0.7:51234"; empty for this process
  /// Host memory, then that of devices where this process uses some; for this process itself the one fabric "local".
  std::vector<MemoryPaths> memory{};
  std::string why_not{};  ///< why it could not be found out, or not all of it; empty: it was
};

}  // namespace shardwire
SHARDWIRE_API_END

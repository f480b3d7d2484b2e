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

/// One open transport between this process and a peer, for memory of one kind.
struct TransportPath {
  std::string transport;         ///< as in SessionOptions::transport, or "local" for this process itself
  std::string device{};          ///< for people: device and protocol
  Reach reach = Reach::network;  ///< host: the bytes do not pass a network interface
  bool map = false;              ///< memory in the peer's arenas, or on its devices, is directly addressable
  bool read = false;        ///< memory registered by the peer is readable; over some only while the peer makes progress
  bool message = false;     ///< the peer sends any memory on request
  bool gpu_direct = false;  ///< device memory moves without passing host memory
  std::size_t max_message_ranges = 0;  ///< per message; 0: no messages
  std::size_t max_read_ranges = 0;     ///< per list of reads; 0: no reads
  ByteCount max_read_bytes = 0;        ///< per list of reads
  int max_reads = 0;                   ///< lists that are worth keeping in flight at once
  FallbackReason fallback_reason{};    ///< why memory is not mapped, not read, or staged through host memory
  std::string fallback_detail{};       ///< the same for people; empty if there is no reason
};

/// A transport that is not used, although it would come before the first one that is.
struct RejectedTransport {
  std::string transport;
  FallbackReason reason{};
  std::string detail;  ///< the same for people
};

/// Paths for memory of one kind from a peer.
struct MemoryPaths {
  MemoryKind memory = MemoryKind::host;
  std::vector<TransportPath> transports{};  ///< connected ones, best first; each does what those before it cannot
  std::vector<RejectedTransport> rejected{};
};

/// Paths between this process and one publisher. See Session::paths().
struct PeerPath {
  int member = 0;
  Rank rank{};            ///< in the publication's layout
  std::string address{};  ///< of its control port, as "10.0.0.7:51234"; empty for this process
  /// Host memory, then device memory if this process uses any; for this process itself, the single path "local".
  std::vector<MemoryPaths> memory{};
  std::string failure{};  ///< for people: why the paths, or some of them, could not be determined; else empty
};

}  // namespace shardwire
SHARDWIRE_API_END

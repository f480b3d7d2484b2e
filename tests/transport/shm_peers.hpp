// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/prctl.h>

#include <stdexcept>

#include "conformance/other_process.hpp"
#include "support/require.hpp"

// Two processes over the shm transport: one publishes, the other reads.
namespace shardwire::test {

inline constexpr std::size_t region_bytes = 3 << 20;
inline constexpr std::size_t adopted_bytes = 1 << 20;

inline std::unique_ptr<transport::Fabric> open_shm() {
  return transport::choose("shm").open();
}

/// Publishes an arena and adopted memory to the process at the other end of `socket`, then executes its commands:
/// "withdraw", "undumpable" or any other word, and answers each with a frame. Ends with its socket.
inline void serve(int socket) {
  const auto fabric = open_shm();
  const auto region = fabric->allocate(region_bytes);
  std::ranges::copy(pattern(region_bytes, 5), region->memory().span().begin());
  Bytes memory = pattern(adopted_bytes, 6);
  auto adopted = fabric->adopt(transport::host_memory(memory));
  write_frame(socket, fabric->address());
  send_key(socket, *region);
  send_key(socket, *adopted);
  auto sockets = connect_sockets(socket, *fabric);
  const Bytes address = read_frame(socket);
  const auto endpoint = fabric->connect({.address = address, .sockets = std::move(sockets)});
  while (true) {
    Bytes order;
    try {
      order = read_frame(socket);
    } catch (const std::runtime_error&) {
      return;  // the other side has closed
    }
    if (order == text("withdraw")) {
      adopted.reset();
      std::ranges::fill(memory, std::byte{0xee});
    }
    if (order == text("undumpable")) ::prctl(PR_SET_DUMPABLE, 0);
    write_frame(socket, text("done"));
  }
}

/// The reading side of serve().
struct Reader {
  std::unique_ptr<transport::Fabric> fabric = open_shm();
  ReceivedKey arena_key;
  ReceivedKey adopted_key;
  std::unique_ptr<transport::Endpoint> endpoint;

  explicit Reader(int socket) {
    const Bytes address = read_frame(socket);
    arena_key = read_key(socket);
    adopted_key = read_key(socket);
    auto sockets = accept_sockets(socket, *fabric);
    endpoint = fabric->connect({.address = address, .sockets = std::move(sockets)});
    write_frame(socket, fabric->address());
  }
  transport::Outcome read_all(const transport::RemoteRegion& region, Bytes& into) {
    Result result;
    test::read(*endpoint, region, 0, into, result.completion());
    if (!run_until([&] { fabric->progress(); }, [&] { return result.done; }, promptly))
      throw std::runtime_error("no end");
    return result.outcome;
  }
};

inline void send_order(int socket, std::string_view order) {
  write_frame(socket, text(order));
  if (read_frame(socket) != text("done")) throw std::runtime_error("not done");
}

/// Fails unless the reader can read everything that serve() has published.
inline void require_all(Reader& reader, bool attach) {
  const auto arena = reader.endpoint->import_region(reader.arena_key.key(), region_bytes);
  require(same_bytes(arena->mapped().span(), pattern(region_bytes, 5)), "other bytes in the arena");
  const transport::Path path = reader.endpoint->path({});
  require(path.read == attach, attach ? "no attach: " + path.why_not.detail : "attach works");
  if (!attach) return;
  const auto adopted = reader.endpoint->import_region(reader.adopted_key.key(), adopted_bytes);
  Bytes into(adopted_bytes);
  const transport::Outcome outcome = reader.read_all(*adopted, into);
  require(!outcome, outcome ? outcome->message : "");
  require(same_bytes(into, pattern(adopted_bytes, 6)), "other bytes in adopted memory");
}

}  // namespace shardwire::test

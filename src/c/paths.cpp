// SPDX-License-Identifier: Apache-2.0
#include "shardwire/paths.hpp"

#include "c/guard.hpp"
#include "c/structs.hpp"

namespace shardwire::c_api {
namespace {

const PeerPath& peer_at(const shardwire_paths* paths, size_t peer) {
  return entry(object(paths, "paths"), peer, "peer");
}

const MemoryPaths& memory_at(const shardwire_paths* paths, size_t peer, size_t memory) {
  return entry(peer_at(paths, peer).memory, memory, "memory");
}

shardwire_peer_path path_of(const PeerPath& peer) {
  auto out = defaults<shardwire_peer_path>();
  out.member = peer.member;
  out.rank = to_int(peer.rank);
  out.address = peer.address.c_str();
  out.why_not = peer.why_not.c_str();
  out.memory_count = peer.memory.size();
  return out;
}

shardwire_fabric_path path_of(const FabricPath& fabric) {
  auto out = defaults<shardwire_fabric_path>();
  out.reach = static_cast<shardwire_reach>(fabric.reach);
  out.transport = fabric.transport.c_str();
  out.carrier = fabric.carrier.c_str();
  out.why_not = fabric.why_not.c_str();
  out.max_read_bytes = fabric.max_read_bytes;
  out.max_message_ranges = fabric.max_message_ranges;
  out.max_read_ranges = fabric.max_read_ranges;
  out.max_reads = fabric.max_reads;
  out.map = fabric.map;
  out.read = fabric.read;
  out.message = fabric.message;
  out.gpu_direct = fabric.gpu_direct;
  return out;
}

template <typename Number, typename Value>
void give_if_asked(Number* out, Value value) {
  if (out) *out = static_cast<Number>(value);
}

}  // namespace

SHARDWIRE_C_BEGIN

void shardwire_peer_path_init(shardwire_peer_path* path, size_t size) {
  initialize(path, size);
}

void shardwire_fabric_path_init(shardwire_fabric_path* path, size_t size) {
  initialize(path, size);
}

void shardwire_paths_free(shardwire_paths* paths) {
  destroy(paths);
}

shardwire_code shardwire_session_paths(shardwire_session* session, const char* name, int64_t timeout_ns,
                                       shardwire_paths** paths, shardwire_error** error) {
  return create(paths, error,
                [&] { return object(session, "session").paths(text(name, "name"), duration(timeout_ns)); });
}

size_t shardwire_paths_peer_count(const shardwire_paths* paths) {
  return count_of(paths);
}

shardwire_code shardwire_paths_peer(const shardwire_paths* paths, size_t peer, shardwire_peer_path* path,
                                    shardwire_error** error) {
  return guarded(error, [&] { fill(path, path_of(peer_at(paths, peer)), "peer_path"); });
}

shardwire_code shardwire_paths_memory(const shardwire_paths* paths, size_t peer, size_t memory,
                                      shardwire_memory_kind* kind, size_t* fabric_count, size_t* not_better_count,
                                      shardwire_error** error) {
  return guarded(error, [&] {
    const MemoryPaths& found = memory_at(paths, peer, memory);
    give_if_asked(kind, found.memory);
    give_if_asked(fabric_count, found.fabrics.size());
    give_if_asked(not_better_count, found.not_better.size());
  });
}

shardwire_code shardwire_paths_fabric(const shardwire_paths* paths, size_t peer, size_t memory, size_t fabric,
                                      shardwire_fabric_path* path, shardwire_error** error) {
  return guarded(error, [&] {
    fill(path, path_of(entry(memory_at(paths, peer, memory).fabrics, fabric, "fabric")), "fabric_path");
  });
}

shardwire_code shardwire_paths_not_better(const shardwire_paths* paths, size_t peer, size_t memory, size_t index,
                                          const char** reason, shardwire_error** error) {
  return give(reason, error, [&] { return entry(memory_at(paths, peer, memory).not_better, index, "reason").c_str(); });
}

SHARDWIRE_C_END

}  // namespace shardwire::c_api

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
  out.failure = peer.failure.c_str();
  out.memory_count = peer.memory.size();
  return out;
}

shardwire_transport_path path_of(const TransportPath& path) {
  auto out = defaults<shardwire_transport_path>();
  out.reach = static_cast<shardwire_reach>(path.reach);
  out.transport = path.transport.c_str();
  out.device = path.device.c_str();
  out.fallback_reason = static_cast<shardwire_fallback_reason>(path.fallback_reason);
  out.fallback_detail = path.fallback_detail.c_str();
  out.max_read_bytes = path.max_read_bytes;
  out.max_message_ranges = path.max_message_ranges;
  out.max_read_ranges = path.max_read_ranges;
  out.max_reads = path.max_reads;
  out.map = path.map;
  out.read = path.read;
  out.message = path.message;
  out.gpu_direct = path.gpu_direct;
  return out;
}

shardwire_rejected_transport rejected_of(const RejectedTransport& rejected) {
  auto out = defaults<shardwire_rejected_transport>();
  out.transport = rejected.transport.c_str();
  out.reason = static_cast<shardwire_fallback_reason>(rejected.reason);
  out.detail = rejected.detail.c_str();
  return out;
}

template <typename Number, typename Value>
void give_if_asked(Number* out, Value value) {
  if (out) *out = static_cast<Number>(value);
}

}  // namespace

static_assert(fallback_reason_count == SHARDWIRE_FALLBACK_COUNT);
static_assert(static_cast<int>(FallbackReason::memlock) == SHARDWIRE_FALLBACK_MEMLOCK);
static_assert(static_cast<int>(FallbackReason::failed) == SHARDWIRE_FALLBACK_FAILED);

SHARDWIRE_C_BEGIN

const char* shardwire_fallback_reason_name(shardwire_fallback_reason reason) {
  if (reason < 0 || reason >= SHARDWIRE_FALLBACK_COUNT) return "unknown";
  return to_string(static_cast<FallbackReason>(reason)).data();
}

void shardwire_peer_path_init(shardwire_peer_path* path, size_t size) {
  initialize(path, size);
}

void shardwire_transport_path_init(shardwire_transport_path* path, size_t size) {
  initialize(path, size);
}

void shardwire_rejected_transport_init(shardwire_rejected_transport* rejected, size_t size) {
  initialize(rejected, size);
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
                                      shardwire_memory_kind* kind, size_t* transport_count, size_t* rejected_count,
                                      shardwire_error** error) {
  return guarded(error, [&] {
    const MemoryPaths& found = memory_at(paths, peer, memory);
    give_if_asked(kind, found.memory);
    give_if_asked(transport_count, found.transports.size());
    give_if_asked(rejected_count, found.rejected.size());
  });
}

shardwire_code shardwire_paths_transport(const shardwire_paths* paths, size_t peer, size_t memory, size_t index,
                                         shardwire_transport_path* path, shardwire_error** error) {
  return guarded(error, [&] {
    fill(path, path_of(entry(memory_at(paths, peer, memory).transports, index, "transport")), "transport_path");
  });
}

shardwire_code shardwire_paths_rejected(const shardwire_paths* paths, size_t peer, size_t memory, size_t index,
                                        shardwire_rejected_transport* rejected, shardwire_error** error) {
  return guarded(error, [&] {
    fill(rejected, rejected_of(entry(memory_at(paths, peer, memory).rejected, index, "rejected transport")),
         "rejected_transport");
  });
}

SHARDWIRE_C_END

}  // namespace shardwire::c_api

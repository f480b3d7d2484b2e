// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shardwire/costs.hpp"
#include "shardwire/export.hpp"
#include "shardwire/plan.hpp"
#include "shardwire/types.hpp"

SHARDWIRE_API_BEGIN
namespace shardwire {

using Duration = std::chrono::nanoseconds;

enum class LogLevel : std::uint8_t { debug, info, warning, error };
using LogSink = std::function<void(LogLevel, std::string_view)>;

/// How a session's thread waits for its fabrics. Default: polls for up to 0.1 ms, then sleeps.
struct ProgressMode {
  /// How long it polls the fabrics after the last activity (data moved, or a wake-up) before it sleeps on their
  /// descriptors. Saves the wake-up latency of messages that arrive within that time. Between two polls it yields its
  /// core to other runnable threads.
  Duration spin = std::chrono::microseconds(100);

  /// Sleeps as soon as there is nothing to do.
  static constexpr ProgressMode wakeup() { return {Duration::zero()}; }
  static constexpr ProgressMode spinning(Duration at_most) { return {at_most}; }
};

// Structs of options, here and in other headers, grow: a new minor version may append fields, each with a default that
// keeps the former behaviour. Fill them by designated initializers ({.deadline = 60s}) or field by field, never by
// position. A new field changes the size of its struct, so recompile C++ programs for each new minor version; the
// soname, which counts major versions, does not enforce it. The structs of the C API carry size and version, so C
// programs need not be recompiled.

/// Fields left empty take their value from the environment, else the stated default. Unknown SHARDWIRE_* variables
/// produce one warning.
struct SessionOptions {
  /// "auto": every fabric that works on this machine, with the best one for each peer. Or a list: "shm,tcp", "tcp",
  /// "ucx", "loopback" (between sessions of one process, for tests). Empty: SHARDWIRE_TRANSPORT, else auto.
  std::string transport{};
  /// Limit of the staging that serves readers of this member's publications. Empty: SHARDWIRE_STAGING_BYTES (a number,
  /// optionally with K, M or G), else 256 MiB.
  std::optional<ByteCount> staging_bytes{};
  /// Empty: SHARDWIRE_JOIN_TIMEOUT (seconds, as 90 or 0.5), else 60 s.
  std::optional<Duration> join_timeout{};
  /// Maximum number of concurrent copy threads; they start on demand. 0: the number of cores per process of this host
  /// (by the launcher's local size, else the world size), between 1 and 4. Large restores choose their copy kernel by
  /// measuring; SHARDWIRE_COPY_KERNEL sets one for all sessions of the process (memcpy, sse2, avx2-interleaved, ..).
  unsigned copy_threads = 0;
  /// Cost model by which restores of this session choose methods; see load_costs(). Empty: the file named by
  /// SHARDWIRE_CALIBRATION, else the built-in costs.
  std::optional<CostModel> costs{};
  ProgressMode progress{};  ///< how the session's thread waits
  /// Called from the session's thread with every message; must not block. Empty: standard error, from the level that
  /// SHARDWIRE_LOG names (debug, info, warning, error), else from warnings. An exception it throws ends the running
  /// restores, or the next one, and comes out of their wait().
  LogSink log{};
  /// For programs that handle signals between calls, such as interpreters: every call of this session that waits calls
  /// it on its own thread about ten times a second. If it returns true or throws, the call ends with Error{cancelled}
  /// or that exception. Empty: calls wait until they end. Destructors never call it.
  /// Join, gather, inventory, await_step, paths: the call is over. Publish: nothing is published.
  /// Restore::wait, wait_for: only the wait is over; the restore goes on.
  /// Retire, update, close: as if the timeout had passed at this moment; the caller may reuse the memory.
  /// Exchange: ends on every member, as after a failure. If no byte has moved yet, waits at most a second for the others.
  std::function<bool()> interrupted{};
};

enum class Snapshot : std::uint8_t {
  none,  ///< publish in place: the bytes must not change until retire() returns
  copy,  ///< copy into the session's own arena first: training may go on at once
};

struct PublishOptions {
  std::string name = "state";
  std::int64_t step = 0;
  Snapshot snapshot = Snapshot::none;
};

enum class Verify : std::uint8_t {
  none,  ///< the source's step and generation are checked after the read
  /// Also compares a digest of every piece as written here with one that its source takes after the last byte was read.
  /// If a source has changed the memory by then, the restore fails; holds for every method that reads from another
  /// process.
  digest,
};

/// An event of the caller's that a restore records on its device.
struct DoneEvent {
  void* event = nullptr;  ///< a cudaEvent_t of that device
  int device = 0;
};

struct RestoreOptions {
  std::string from = "state";          ///< name of the publications to read
  std::optional<std::int64_t> step{};  ///< refuse any other step; empty: all sources must agree on one
  Duration deadline = std::chrono::seconds(60);
  ByteCount staging_bytes = 256u << 20;  ///< limit of this restore's own staging
  Verify verify = Verify::none;
  ByteCount ingress_bytes_per_second = 0;  ///< cap of remote bytes into this rank; 0: none
  /// Choice between sources that hold the same elements. With Replicas::first the holders of a one-element tensor need
  /// not agree either. Restores that begin while different ranks publish may see different lowest ranks: let all sources
  /// publish first, see Session::await_step().
  /// With Replicas::compare an element comes from the same rank as with Replicas::first. Once everything is in place, the
  /// restore asks every other rank that holds wanted elements, this process included, for digests of them. If any
  /// differ, it commits nothing and fails with Error{layout_mismatch}: gaps() lists the differing boxes, ranks() the
  /// ranks that differ from the one that was read. The holders of a one-element tensor have to agree. Ranks that have
  /// not published are not compared. A holder that is lost before it has answered ends the restore with
  /// Error{peer_lost}. Cost: each holder reads its part of the wanted bytes once, and this process reads the destination
  /// once; no further bytes move.
  Replicas replicas = Replicas::spread;
  /// The only method for bytes of other processes. Empty: SHARDWIRE_METHOD, else the cheapest by SessionOptions::costs.
  /// A piece that it cannot move ends the restore with Error{unsupported}.
  std::optional<Method> method{};
  /// Only plans, connects to the sources, takes leases, and chooses a path and a method for every byte. Moves nothing
  /// and does not write the destination, which is checked as always. The report shows the intended transfers. A later
  /// restore of the same catalog reuses the results.
  bool bind_only = false;
  /// Once the cover is complete: how long to wait for further replicas, and for keys that may be absent, if ranks named
  /// by the sources' layouts have not published and still could. Zero: not at all.
  Duration discovery_grace = std::chrono::seconds(2);
  /// Recorded on streams of the library once everything is in place and committed, even if no byte had to move, and
  /// before wait() returns or poll() returns true. For code that orders its work, or a view's next ready_event, by
  /// events. CUDA treats an unrecorded event as one that has happened, so queue work behind these only after poll() has
  /// returned true; it then needs no further wait on the host.
  /// Borrowed until the restore has ended. A restore that fails, or whose session ends, before everything is in place
  /// records no event. If an event cannot be recorded by the deadline, the restore fails, although every byte is in
  /// place and other events of the list may be recorded. Other restores are not affected.
  std::vector<DoneEvent> done_events{};
};

struct ExchangeOptions {
  Duration deadline = std::chrono::seconds(60);
  ByteCount staging_bytes = 256u << 20;  ///< limit of all staging that this member uses at once
  Verify verify = Verify::none;
  ByteCount ingress_bytes_per_second = 0;  ///< cap of remote bytes into this rank; 0: none
  /// As RestoreOptions::replicas. Replicas::compare fails with Error{unsupported} on every member.
  Replicas replicas = Replicas::spread;
  /// As RestoreOptions::method. If any member gives Method::collective, all remote bytes go in collective rounds, or
  /// the exchange fails with Error{unsupported}. Empty: SHARDWIRE_METHOD; else device memory goes in rounds if some
  /// pair of members has no direct path for it and the session's transport is "auto", and all other bytes go as
  /// restores choose. While an exchange uses NCCL, no other NCCL work may run on these devices: two communicators can
  /// deadlock.
  std::optional<Method> method{};
  /// An ncclComm_t of all members that have device memory in this exchange, in their order, for NCCL rounds to use in
  /// place of a communicator of the library; on all of these members, or on none. It is neither aborted nor destroyed.
  /// It has to come from the NCCL that the process loads as libnccl.so.2, and be idle. Throws Error{unsupported} if
  /// NCCL is unavailable. Unused if no bytes go in rounds: if all members have direct paths, or the session's
  /// transports are named and no member forces Method::collective.
  /// A blocking communicator is allowed, but a member that gives up in the middle of a round cannot end the round: 10 s
  /// after the deadline the exchange fails, and its memory may be written until the program aborts the communicator.
  /// PyTorch's is `group._get_backend(torch.device("cuda"))._comm_ptr()`, which is 0 before the group's first
  /// collective.
  void* communicator = nullptr;
};

}  // namespace shardwire
SHARDWIRE_API_END

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
#include "shardwire/types.hpp"

SHARDWIRE_API_BEGIN
namespace shardwire {

using Duration = std::chrono::nanoseconds;

enum class LogLevel : std::uint8_t { debug, info, warning, error };
using LogSink = std::function<void(LogLevel, std::string_view)>;

/// How a session's thread waits for its fabrics. Default: it looks for more for a tenth of a millisecond, and then sleeps.
struct ProgressMode {
  /// After the last activity (something moved, or woke the thread) it first asks the fabrics again and again, for at most
  /// this long, and only then sleeps on their descriptors. Saves the wake-up of each message that comes within that time.
  /// Between two looks it gives way to whoever else is ready to run on its core.
  Duration spin = std::chrono::microseconds(100);

  /// Sleeps as soon as there is nothing to do.
  static constexpr ProgressMode wakeup() { return {Duration::zero()}; }
  static constexpr ProgressMode spinning(Duration at_most) { return {at_most}; }
};

/// What is left open here is taken from the environment, and has the stated default where that is silent too. SHARDWIRE_*
/// variables that do not exist are warned of once.
struct SessionOptions {
  /// "auto" for all that work here, of which each peer gets the best, or some of them: "shm,tcp", "tcp", "ucx", "loopback"
  /// (between sessions of one process, for tests). Empty: SHARDWIRE_TRANSPORT, else auto.
  std::string transport{};
  /// Bound of the slots that serve readers of this member's publications. Empty: SHARDWIRE_STAGING_BYTES (a number, or with K,
  /// M or G), else 256 MiB.
  std::optional<ByteCount> staging_bytes{};
  /// Empty: SHARDWIRE_JOIN_TIMEOUT (seconds, as 90 or 0.5), else 60 s.
  std::optional<Duration> join_timeout{};
  /// Most threads that copy at once; they start when there is work. 0: as many as there are cores for each process of this
  /// host (the launcher's local size, else the whole world), 1 to 4. How large restores are copied is found out by measuring;
  /// SHARDWIRE_COPY_KERNEL names one way for all sessions of the process (memcpy, sse2, avx2-interleaved, ..).
  unsigned copy_threads = 0;
  /// What restores of this session choose ways by; see load_costs(). Empty: the file that SHARDWIRE_CALIBRATION names, else the
  /// built-in ones.
  std::optional<CostModel> costs{};
  ProgressMode progress{};  ///< how the session's thread waits: sleeping, or spinning for a while first
  /// Called from the session's thread, with everything; must not block. Empty: standard error, from the level that
  /// SHARDWIRE_LOG names (debug, info, warning, error) on, else from warnings on.
  /// What it throws ends the running restores, or the next one, and comes out of their wait().
  LogSink log{};
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
  /// And a digest of every piece as it was written here is compared with one that its source takes after the last byte was
  /// read: memory that a source has changed by then is an error, in every way that reads from another process.
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
  ByteCount staging_bytes = 256u << 20;  ///< bound of this restore's own staging
  Verify verify = Verify::none;
  ByteCount ingress_bytes_per_second = 0;  ///< cap of remote bytes into this rank; 0: none
  /// The only way for bytes of other processes, where it is possible; empty: SHARDWIRE_WAY, else the cheapest by
  /// SessionOptions::costs. A piece that it cannot move ends the restore with Error{unsupported}.
  std::optional<Way> way{};
  /// Plans, connects to the sources, takes leases, chooses a path and a way for every byte, and ends there: nothing is moved, and
  /// the destination, checked as always, is not written. The report says what would be done. A later restore of the same
  /// catalog begins with what was found out.
  bool bind_only = false;
  /// Once the cover is complete, how long to wait for further replicas, and for what may be absent, where ranks that the
  /// layouts of the sources name have not published and still could. Zero: not at all.
  Duration discovery_grace = std::chrono::seconds(2);
  /// Recorded on streams of the library once everything is in place and committed, also where nothing had to be moved, and before
  /// wait() returns or poll() says so: for code that orders its work, or views' next ready_event, by events. CUDA takes an event that
  /// nobody has recorded yet for one that has happened, so nothing may be queued behind one of these before poll() says that the
  /// restore has ended; then it needs no more waiting on the host.
  /// Borrowed until the restore has ended. One that fails, or whose session ends, before everything is in place records none, and
  /// leaves these as they were. One that cannot be recorded, or not before the deadline, is the restore's error, though every byte is
  /// in place then, and others of these may have been recorded. No other restore is ended by it.
  std::vector<DoneEvent> done_events{};
};

struct ExchangeOptions {
  Duration deadline = std::chrono::seconds(60);
  ByteCount staging_bytes = 256u << 20;  ///< bound of all that this member keeps aside at once
  Verify verify = Verify::none;
  ByteCount ingress_bytes_per_second = 0;  ///< cap of remote bytes into this rank; 0: none
  /// As RestoreOptions::way. Way::grouped, on any member: all that crosses goes in rounds of a collective, or the exchange ends
  /// with Error{unsupported}. Empty: SHARDWIRE_WAY, else memory of devices goes in rounds where some pair of members has no direct
  /// path for it and the session's transport is "auto", and all else as restores choose. Where NCCL is taken, no other work of
  /// NCCL may be under way on these devices meanwhile: two communicators at once can wait for each other.
  std::optional<Way> way{};
  /// An ncclComm_t of all members that have device memory here, in their order, which rounds of NCCL are to use instead of one of
  /// our own; on all of these members, or on none. It is neither aborted nor destroyed. Of the NCCL that the process loads as
  /// libnccl.so.2, with nothing of it under way; Error{unsupported} where NCCL is off here. Not used where nothing goes in rounds: where
  /// all have direct paths, or the session's transports are named and no member forces Way::grouped.
  /// It may block, but who gives up in the middle of a round cannot end it then: 10 s after the deadline the exchange fails, and its
  /// memory may be written until the program aborts the communicator.
  /// PyTorch's is `group._get_backend(torch.device("cuda"))._comm_ptr()`, which is 0 before the group's first collective.
  void* communicator = nullptr;
};

}  // namespace shardwire
SHARDWIRE_API_END

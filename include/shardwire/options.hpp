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

/// What a session has counted or observed, under its name of OpenTelemetry: that of docs/metrics.md with dots, without the
/// unit and `_total`, such as "shardwire.restore.duration". Valid during the call that passes it.
struct MetricUpdate {
  struct Attribute {
    std::string_view key;  ///< with dots too, such as "error.type"
    std::string_view value;
  };
  std::string_view name;
  double value = 0;  ///< seconds, bytes, or a number
  std::vector<Attribute> attributes{};
};

/// Functions that receive the metrics of docs/metrics.md as they change. Those that are empty are left out. Called one at a
/// time with a lock held, on the thread that counts: they must not block, nor call the session. What they throw is dropped.
/// The last call comes at the end of the session, which then drops them.
struct Telemetry {
  /// An amount to add to a sum; negative if what is active becomes less. 0 for each sum as the session is made.
  std::function<void(const MetricUpdate&)> counter{};
  std::function<void(const MetricUpdate&)> gauge{};      ///< the latest value
  std::function<void(const MetricUpdate&)> histogram{};  ///< a value to put into a bucket
};

/// How a session's thread waits for its transports. Default: polls for up to 0.1 ms, then sleeps.
struct ProgressMode {
  /// How long it polls the transports after the last activity (data moved, or a wake-up) before it sleeps on their
  /// descriptors. Saves the wake-up latency of messages that arrive within that time. Between two polls it yields its
  /// core to other runnable threads.
  Duration spin = std::chrono::microseconds(100);

  /// Sleeps as soon as there is nothing to do.
  static constexpr ProgressMode wakeup() { return {Duration::zero()}; }
  static constexpr ProgressMode spinning(Duration at_most) { return {at_most}; }
};

// Structs of options, here and in other headers, grow: a new minor version may append fields, each with a default that
// keeps the former behaviour. Fill them by designated initializers ({.timeout = 60s}) or field by field, never by
// position. A new field changes the size of its struct, so recompile C++ programs for each new minor version: until 1.0
// the soname carries major and minor version, and a program does not load a library of another minor version. The
// structs of the C API carry size and version, so C programs need not be recompiled, but linked again.

/// The keeper of a host: a process that holds snapshots of publications when their trainers have ended (`shardwire keep`).
struct KeeperOptions {
  /// Name of the job whose state is kept, the same in every submission. Empty: SHARDWIRE_KEEPER, else no keeper is used.
  std::string job{};
  /// Local socket of the keeper: a path if it begins with '/', else a name in the abstract namespace (unix(7)). Empty:
  /// SHARDWIRE_KEEPER_SOCKET, else a name made of user and job.
  std::string socket{};
};

/// Fields left empty take their value from the environment, else the stated default. Unknown SHARDWIRE_* variables
/// produce one warning.
struct SessionOptions {
  /// "auto": every transport that works on this machine, with the best one for each peer. Or a list: "shm,tcp", "tcp",
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
  /// Bytes of tensors that move over the library's own `tcp` are encrypted like control messages (TLS 1.3), in both
  /// directions: as a reader, and as a source. Without a job key, join fails with Error{invalid_argument}; without OpenSSL 3
  /// with Error{unsupported}. Members that cannot encrypt are refused, and a reader that does not ask for it gets nothing
  /// over `tcp` from this member. Shared memory, `ucx`, `libfabric` and NCCL stay as they are: name the transports that may
  /// be used, such as "shm,tcp". Also set by SHARDWIRE_ENCRYPT_PAYLOAD=1. docs/performance-results.md has what it costs.
  bool encrypt_payload = false;
  /// Cost model by which restores of this session choose methods; see load_costs(). Empty: the file named by
  /// SHARDWIRE_CALIBRATION, else the built-in costs.
  std::optional<CostModel> costs{};
  ProgressMode progress{};  ///< how the session's thread waits
  /// Joining tells the keeper of this host about the session, if there is one: it then publishes here what it holds of
  /// earlier sessions, before join() returns. A keeper that does not answer costs a warning.
  KeeperOptions keeper{};
  /// Failure domain of this host: hosts that may fail together (a rack, a power supply) have the same name, and are no
  /// buddies of each other. Empty: SHARDWIRE_HOST_DOMAIN, else the host itself. See PublishOptions::buddies.
  std::string host_domain{};
  /// Called from the session's thread with every message; must not block. Empty: standard error, from the level that
  /// SHARDWIRE_LOG names (debug, info, warning, error), else from warnings, in lines of the format that
  /// SHARDWIRE_LOG_FORMAT names (text, json), else as text. An exception it throws ends the running restores, or the next
  /// one, and comes out of their wait().
  LogSink log{};
  /// For programs that handle signals between calls, such as interpreters: every call of this session that waits calls
  /// it on its own thread about ten times a second. If it returns true or throws, the call ends with Error{cancelled}
  /// or that exception. Empty: calls wait until they end. Destructors never call it.
  /// Join, gather, inventory, await_step, paths: the call is over. Publish: nothing is published.
  /// Restore::wait, wait_for: only the wait is over; the restore goes on.
  /// Retire, update, close: as if the timeout had passed at this moment; the caller may reuse the memory.
  /// Exchange: ends on every member, as after a failure. If no byte has moved yet, waits at most a second for the others.
  std::function<bool()> interrupted{};
  /// Receives what this session counts, beside the files that SHARDWIRE_METRICS_FOLDER asks for.
  Telemetry telemetry{};
};

enum class Snapshot : std::uint8_t {
  none,  ///< publish in place: the bytes must not change until retire() returns
  copy,  ///< copy into the session's own arena first: training may go on at once
};

/// Asks the keeper of this host to hold a publication beyond the end of its trainer.
struct Keep {
  /// Snapshots of this name that it holds when the next one begins. Its budget has to hold one more. 0: none is kept.
  int steps = 0;
};

struct PublishOptions {
  std::string name = "state";
  std::int64_t step = 0;
  Snapshot snapshot = Snapshot::none;
  /// Takes digests of the published bytes, in blocks of at most 1 MiB, before publish() returns. From then on this source
  /// checks the blocks of whatever it sends, and readers check what they load from its memory, this process alive or not: no
  /// restore commits bytes that differ. See RestoreReport::corrupt. The bytes must not change while they are published.
  bool digest = false;
  /// With steps > 0 publish() copies once, into memory of the keeper, and publishes that copy; `snapshot` is ignored, and
  /// training may go on at once. When this process has ended, in whatever manner, the keeper goes on publishing the copy: in
  /// this session, and in later ones whose members name the same keeper. See SessionOptions::keeper.
  Keep keep{};
  /// Copies on other hosts, of other failure domains: after publish() has returned, members there restore the snapshot into
  /// memory of their keepers, which publish it as the same layout rank once this host is gone. Every rank of the layouts
  /// publishes with the same number, keep.steps > 0, and in step with the others, as training does; fewer domains than
  /// buddies + 1 make fewer copies, with a warning. The next publish() or update() under this name waits until this member has
  /// made its copies, and others have made theirs of this one. Until then the publication stays readable; retire() returns
  /// at once, since the bytes lie in memory of the keeper. Each keeper then holds one more snapshot of each rank than
  /// keep.steps says, and as many of each copied rank. A copy that fails costs a warning. While a member is lost that
  /// published under the name, publish() fails with Error{peer_lost}: the step would never be complete, and replace one that is.
  int buddies = 0;
  /// Limit for the copies that this member makes; 0: none. Copies that take longer than a step hold up training.
  ByteCount buddy_bytes_per_second = 0;
};

enum class Verify : std::uint8_t {
  generation,  ///< the source's step and generation are checked after the read
  /// The same, and compares a digest of every piece as written here with one that its source takes after the last byte
  /// was read. If a source has changed the memory by then, the restore fails; holds for every method that reads from
  /// another process.
  digest,
};

/// Which step a restore takes if sources have several.
enum class StepRule : std::uint8_t {
  /// The newest at which all ranks are that publish at all; if there is none, the restore fails with Error{step_mismatch}.
  agreed,
  /// The newest of which every wanted element has a holder. A step that is not complete is passed over once no further rank
  /// can publish it, or after RestoreOptions::discovery_grace; see RestoreReport::incomplete_steps. Sources that have
  /// published a step and do not describe it pass it over after RestoreOptions::notice. What may be absent
  /// (Absent::skip, Absent::zero) does not count. Each restore chooses for itself: ranks that restore one state together
  /// agree on a step (Session::inventory(), Session::gather()) and name it. Steps may have different layouts: state that outlived an earlier job beside
  /// that of the present one. State of the present one comes first, then that of later attempts of the job before that of earlier ones,
  /// whatever the steps: restore before the first publication, which hides what keepers hold. A warning names a higher step of theirs.
  newest_complete,
};

/// An event of the caller's that a restore records on its device.
struct DoneEvent {
  void* event = nullptr;  ///< a cudaEvent_t of that device: as_event() of shardwire/cuda.hpp
  int device = 0;
};

/// Methods that a restore may be asked to use for bytes of other processes; Method describes each.
enum class RestoreMethod : std::uint8_t {
  mapped = static_cast<std::uint8_t>(Method::mapped),
  read = static_cast<std::uint8_t>(Method::read),
  sieved_read = static_cast<std::uint8_t>(Method::sieved_read),
  zcopy = static_cast<std::uint8_t>(Method::zcopy),
  packed = static_cast<std::uint8_t>(Method::packed),
};

/// The same for an exchange.
enum class ExchangeMethod : std::uint8_t {
  mapped = static_cast<std::uint8_t>(Method::mapped),
  read = static_cast<std::uint8_t>(Method::read),
  sieved_read = static_cast<std::uint8_t>(Method::sieved_read),
  zcopy = static_cast<std::uint8_t>(Method::zcopy),
  packed = static_cast<std::uint8_t>(Method::packed),
  collective = static_cast<std::uint8_t>(Method::collective),
};

/// The name that reports have for it.
constexpr Method to_method(RestoreMethod method) {
  return static_cast<Method>(method);
}
constexpr Method to_method(ExchangeMethod method) {
  return static_cast<Method>(method);
}
/// Empty for Method::local and Method::collective.
constexpr std::optional<RestoreMethod> to_restore_method(Method method) {
  if (method == Method::local || method == Method::collective) return std::nullopt;
  return static_cast<RestoreMethod>(method);
}

struct RestoreOptions {
  std::string name = "state";          ///< of the publications to read
  std::optional<std::int64_t> step{};  ///< refuse any other step; empty: by `step_rule`
  StepRule step_rule = StepRule::agreed;
  Duration timeout = std::chrono::seconds(60);  ///< the deadline is this long after the call
  ByteCount staging_bytes = 256u << 20;         ///< limit of this restore's own staging
  Verify verify = Verify::generation;
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
  std::optional<RestoreMethod> method{};
  /// Only plans, connects to the sources, takes leases, and chooses a path and a method for every byte. Moves nothing
  /// and does not write the destination, which is checked as always. The report shows the intended transfers. A later
  /// restore of the same catalog reuses the results.
  bool bind_only = false;
  /// The restore stops once all values have arrived, before a byte is written or a lease is taken: Restore::wait_values() returns
  /// then, and Restore::proceed() lets it go on. For callers that look at values before they let tensors be overwritten.
  /// The timeout includes the time that it stands.
  bool stop_at_values = false;
  /// Once the cover is complete: how long to wait for further replicas, and for keys that may be absent, if ranks named
  /// by the sources' layouts have not published and still could. Each further rank that publishes begins the wait anew;
  /// updates of ranks that have published do not. Zero: not at all.
  Duration discovery_grace = std::chrono::seconds(2);
  /// A source that owes something and has not been heard from for this long counts as lost where others hold the same:
  /// what it has not delivered comes from those. Bytes and answers of any kind are signs of life. Where it is the only
  /// holder, the restore goes on waiting until its deadline. A source whose connection ends is lost at once. One that is
  /// only slow keeps what is under way: with Replicas::spread, if at its pace the rest takes longer than this, and the best
  /// pace of this restore was more than four times as high, holders that owe nothing deliver what waits for it. A
  /// connection over which nothing comes for twice this long, though its source answers, is given up for another one.
  /// Before a restore ends because what is published does not fit, it asks the publishers whether that still stands, and
  /// waits this long for their answers.
  Duration notice = std::chrono::seconds(5);
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
  Duration timeout = std::chrono::seconds(60);  ///< the deadline is this long after the call
  ByteCount staging_bytes = 256u << 20;         ///< limit of all staging that this member uses at once
  Verify verify = Verify::generation;
  ByteCount ingress_bytes_per_second = 0;  ///< cap of remote bytes into this rank; 0: none
  /// As RestoreOptions::replicas. Replicas::compare fails with Error{unsupported} on every member.
  Replicas replicas = Replicas::spread;
  /// As RestoreOptions::method. If any member gives ExchangeMethod::collective, all remote bytes go in collective rounds, or
  /// the exchange fails with Error{unsupported}. Empty: SHARDWIRE_METHOD; else device memory goes in rounds if some
  /// pair of members has no direct path for it and the session's transport is "auto", and all other bytes go as
  /// restores choose. While an exchange uses NCCL, no other NCCL work may run on these devices: two communicators can
  /// deadlock.
  std::optional<ExchangeMethod> method{};
  /// An ncclComm_t (as_nccl() of shardwire/nccl.hpp) of all members that have device memory in this exchange, in their
  /// order, for NCCL rounds to use in place of a communicator of the library; on all of these members, or on none. It is
  /// neither aborted nor destroyed. It has to come from the NCCL that the process loads as libnccl.so.2, and be idle.
  /// Throws Error{unsupported} if NCCL is unavailable. Unused if no bytes go in rounds: if all members have direct paths,
  /// or the session's transports are named and no member forces ExchangeMethod::collective.
  /// A blocking communicator is allowed, but a member that gives up in the middle of a round cannot end the round: 10 s
  /// after the deadline the exchange fails, and its memory may be written until the program aborts the communicator.
  /// PyTorch's is `group._get_backend(torch.device("cuda"))._comm_ptr()`, which is 0 before the group's first
  /// collective.
  void* communicator = nullptr;
};

}  // namespace shardwire
SHARDWIRE_API_END

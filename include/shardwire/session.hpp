// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shardwire/bootstrap.hpp"
#include "shardwire/catalog.hpp"
#include "shardwire/export.hpp"
#include "shardwire/memory.hpp"
#include "shardwire/options.hpp"
#include "shardwire/paths.hpp"
#include "shardwire/report.hpp"
#include "shardwire/tensor.hpp"
#include "shardwire/value.hpp"

SHARDWIRE_API_BEGIN
namespace shardwire {

namespace detail {
class SHARDWIRE_LOCAL SessionState;
struct SHARDWIRE_LOCAL PublicationState;
class SHARDWIRE_LOCAL RestoreState;
}  // namespace detail

/// A catalog that peers can read, pinned to one step. Movable; the destructor retires without waiting.
/// Threads: a handle is for one thread at a time; different handles may be used at once.
class Publication {
 public:
  Publication();
  ~Publication();
  Publication(Publication&&) noexcept;
  Publication& operator=(Publication&&) noexcept;

  /// False for a handle that was made empty or moved from: its other members throw Error{invalid_argument}.
  [[nodiscard]] bool valid() const noexcept { return state_ != nullptr; }
  /// Withdraws the publication and returns when no reader holds a lease on it; after that the memory is the caller's.
  /// A publication that is retired already, or whose session is closed, is left as it is.
  /// Errors: throws Error{timed_out} naming the readers that are left; they will find their lease revoked, and their
  ///         restore does not commit what it has read.
  void retire(Duration timeout);
  /// Publishes `held` at `step` in this publication's place, under its name: peers see the old generation or the new one,
  /// never neither. Then waits until no reader holds a lease on the old one, as retire() does; the handle stands for the new
  /// one from the moment that it is shown.
  /// Errors: throws Error{invalid_argument} when the publication was retired, or when `held` is published in place and
  ///         shares memory with what is published in place now, and as Session::publish(); the old one stays then.
  ///         Error{timed_out} naming the readers that are left; the new one is published, their leases are revoked, and the
  ///         old memory is the caller's.
  void update(const Catalog& held, std::int64_t step, Snapshot snapshot, Duration timeout);

 private:
  friend class Session;
  friend class detail::SessionState;
  SHARDWIRE_LOCAL explicit Publication(std::shared_ptr<detail::PublicationState> state);
  std::shared_ptr<detail::PublicationState> state_;  // owners: this handle and the session
};

/// One running restore. Movable; the destructor cancels what is still running and waits until no write can follow.
/// Threads: wait() and what is valid after it are for one thread; poll() and cancel() may come from any meanwhile.
class Restore {
 public:
  Restore();
  ~Restore();
  Restore(Restore&&) noexcept;
  Restore& operator=(Restore&&) noexcept;

  /// False for a handle that was made empty or moved from: its other members throw Error{invalid_argument}.
  [[nodiscard]] bool valid() const noexcept { return state_ != nullptr; }
  /// `callback` runs on the session's thread, at most every `interval`, and once at the end; it must not block. What it
  /// throws ends the restore and comes out of wait().
  void on_progress(std::function<void(const Progress&)> callback, Duration interval = std::chrono::milliseconds(100));
  /// Returns when every wanted element is in place and committed; with RestoreOptions::bind_only, when it is known how they
  /// would come.
  /// A source that withdraws what is being read is no end: the restore plans again with what takes its place.
  /// Errors: throws what ended the restore; which boxes did not arrive is in gaps().
  ///         layout_mismatch   before any byte moved: boxes that nobody holds, all of them in gaps(); dtype or shape differ
  ///                           between the two sides; values that those who count disagree about, in ranks()
  ///         step_mismatch     what is published is not at the step asked for, or not at one step
  ///         withdrawn         a source has withdrawn and nothing took its place by the deadline
  ///         peer_lost         a source that is needed died, or this process is out of the session
  ///         timed_out         the deadline passed; ranks() are those that were waited for
  ///         cancelled         by cancel(), by the destructor or with the session
  ///         unsupported       RestoreOptions::way cannot move a piece, or a source has another fabric
  ///         out_of_resources  the staging budget holds not even one element, or the system gave no memory
  ///         transport_failed  the fabric failed, or digests differ (Verify::digest)
  ///         What a progress callback or the log sink has thrown comes out as it was thrown.
  void wait();
  /// True once wait() would not block.
  [[nodiscard]] bool poll() const;
  /// Stops the restore; wait() then throws Error{cancelled}. The destination is unspecified, its memory reusable.
  void cancel();
  /// Valid after wait() returned or threw.
  [[nodiscard]] const RestoreReport& report() const;
  /// Value that travelled for `key`. Valid after wait() returned. Errors: throws Error{invalid_argument} for a key that the
  /// wanted catalog does not name, or that was skipped.
  [[nodiscard]] const Value& value(const TensorKey& key) const;
  [[nodiscard]] bool has_value(const TensorKey& key) const;

 private:
  friend class Session;
  friend class detail::SessionState;
  SHARDWIRE_LOCAL explicit Restore(std::shared_ptr<detail::RestoreState> state);
  std::shared_ptr<detail::RestoreState> state_;  // owners: this handle and the session's thread while it runs
};

/// What an exchange has brought besides the tensors.
struct ExchangeResult {
  RestoreReport report;
  std::map<TensorKey, Value> values;  ///< those that the wanted catalog names
};

/// Membership of one process in a job. Joining is no barrier: members may come and go at any time.
/// Threads: all calls may come from any thread, but for moves and the destructor; the session has one thread of its own
///          that serves readers, so a publisher needs to call nothing.
/// End:     destroying a session ends its restores with Error{cancelled} and its publications without waiting for their
///          readers; arenas stay until their own handles and publications are gone. After close() every call but rank(),
///          world_size(), transport() and close() throws Error{invalid_argument}.
/// Fork:    in a child of fork() the session, its publications and its restores are inert: their destructors return at
///          once, calls throw Error{invalid_argument}. Its control connections are closed there.
class Session {
 public:
  /// Member 0 serves the rendezvous; the others retry until it answers. With a store in `bootstrap`, member 0 puts its
  /// addresses there once it listens, and the others wait for them, all within the time to join.
  /// Errors: throws Error{timed_out} when it does not, with rank 0 in ranks(). Error{invalid_argument} when the port is taken;
  ///         when run id, job key or world size differ from member 0's; when a live member has the rank; for addresses,
  ///         interfaces, options and SHARDWIRE_* variables that mean nothing. Error{unsupported} when the transport is not in
  ///         this build, does not work here, or member 0 speaks another protocol. Error{out_of_resources} when the process
  ///         may not open the descriptors that it takes. With a store, what differs from member 0 does not end the waiting,
  ///         since who refuses may be of another job: it is logged at once, and is what Error{timed_out} says in the end.
  static Session join(Bootstrap bootstrap, SessionOptions options = {});

  ~Session();
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;

  /// False for a session that was moved from: its other members throw Error{invalid_argument}.
  [[nodiscard]] bool valid() const noexcept { return state_ != nullptr; }
  [[nodiscard]] int rank() const;
  [[nodiscard]] int world_size() const;
  /// Name and version of every fabric that is open, e.g. {"shm 1 (Linux 6.1)", "tcp 1"}; a path is chosen for each peer and
  /// its memory.
  [[nodiscard]] std::vector<std::string> transport() const;

  /// Memory that peers can map or read directly. Zero bytes are legal.
  /// Errors: throws Error{out_of_resources} when the system gives no such memory, Error{invalid_argument} after close().
  Arena allocate(ByteCount bytes);
  /// The same in memory of a device (MemoryKind::cuda), or of the host: MemoryKind::host, where `device` means nothing. Fabrics that
  /// know the device's memory offer it to peers; where none does it is staged, as paths() and reports say. Blocks until it is zeros.
  /// Errors: throws besides Error{unsupported} where there is no device, Error{invalid_argument} for no such device and for
  ///         MemoryKind::detect, Error{out_of_resources} when its memory is exhausted, Error{transport_failed} for one that has failed.
  Arena allocate(ByteCount bytes, MemoryKind kind, int device = 0);
  /// Offers memory of the caller, a dense `view` that says its size, for direct reading by peers: by the hardware of a fabric
  /// that knows it, or by the kernel within a host. Publications of it are read in place then, and messages need no
  /// registration of their own. Blocks while the system pins it; the report says for how long.
  /// Devices: what the memory is is found out as of views that are published. Memory of a device that no fabric of this session knows
  ///         is taken all the same, and changes nothing: it is staged through host memory, as paths() and reports say. A program need
  ///         not know what each machine can do.
  /// Errors: throws Error{invalid_argument} for a view without a size, with strides, of memory that is not mapped, or that is
  ///         said to be a device's and is another one's, none's, or too small; Error{unsupported} for that in a process that has no
  ///         device; Error{out_of_resources} when it cannot be pinned.
  Registration register_memory(const View& view);
  /// Makes `held` readable by peers. Memory in arenas and registrations of this session is offered for direct reading; any
  /// other is read by the kernel's leave within the host (cross-memory attach), or else sent. A new publication under a name
  /// that this member still publishes is refused: retire the old one first.
  /// Errors: throws Error{invalid_argument} for a name that is taken, empty or longer than 256 characters, and for memory
  ///         that is not mapped readable, naming the tensor; Error{out_of_resources} when a snapshot finds no memory. For memory that is
  ///         said to be a device's, naming the tensor: Error{unsupported} where there is no device, Error{invalid_argument} where it
  ///         is another one's, none's, or too small, Error{transport_failed} for a device that has failed. What is read of a device at
  ///         once (one-element tensors, snapshots) cannot be from within a callback of the session: Error{unsupported}.
  Publication publish(const Catalog& held, PublishOptions options = {});
  /// Starts pulling everything `wanted` lists from whoever published it. One-sided: sources only have to have published.
  /// Errors: throws Error{invalid_argument} when destination memory overlaps memory that this member publishes or
  ///         itself, or is not mapped writable, for a staging budget of 0 bytes, and for a SHARDWIRE_WAY that names no way;
  ///         for memory of a device as publish() does; for RestoreOptions::done_events of no device Error{invalid_argument}, and
  ///         Error{unsupported} where there is none. Everything else surfaces in wait().
  Restore restore(const Catalog& wanted, RestoreOptions options = {});
  /// The collective form of publish and restore, for callers that all change layout at once: every member of the session
  /// calls it, as its n-th exchange, with what it holds and what it wants (either may be empty).
  /// Aliasing:  wanted memory may share bytes with held memory in any way, on any number of members; nothing is
  ///            overwritten before its last reader on any of them. Wanted tensors may not share a byte with one another
  ///            nor with other publications of this member.
  /// Names:     the aliases that any member declares count for all; what is one by them may be wanted once per member.
  /// Staging:   tensors go through staging where their place is still being read. What that takes depends on the order in
  ///            which tensors are in each other's way; all members agree on one that fits the smallest of their budgets,
  ///            cutting tensors into slices where that helps. A quarter of a budget is for messages on their way.
  /// Way:       as restores choose; in rounds of a collective where ExchangeOptions::way or SHARDWIRE_WAY says so on any member, and
  ///            for device memory without a direct path. Error{unsupported} where they are asked for and cannot be had.
  /// Ownership: borrows the memory of both catalogs until it returns; held memory is the caller's again then.
  /// Errors:    throws on every member, before any byte is written: Error{out_of_resources} naming tensors, bytes and
  ///            budget when no order fits, Error{layout_mismatch} naming two wanted tensors that an alias of another
  ///            member makes one. What fails on one member ends the exchange on all, at the latest at its deadline; a
  ///            member that dies is Error{peer_lost}. After any error that names a later stage, destination and source
  ///            bytes are unspecified wherever the two share memory.
  ExchangeResult exchange(const Catalog& held, const Catalog& wanted, ExchangeOptions options = {});
  /// Exchanges one small value per member under a name used once, e.g. to agree that all are done: returns the values of
  /// members 0..world_size-1. Blocks until all have called.
  /// Errors: throws Error{peer_lost} naming a member that died, Error{timed_out} naming those that did not come,
  ///         Error{invalid_argument} on all members when the values together do not fit one message of 256 MiB.
  std::vector<Bytes> gather(const std::string& name, Bytes value, Duration timeout);
  /// What lies between this process and each that publishes under `from` now: connects to them over every fabric that both
  /// have open, and moves nothing. Ascending by layout rank, this process among them; empty when nobody publishes.
  /// Who cannot be reached, or has not answered when `timeout` is over, says so in PeerPath::why_not.
  /// Errors: throws Error{timed_out} when it is not known in time who publishes, Error{peer_lost} when that cannot be known
  ///         any more, Error{cancelled} when the session is closed meanwhile.
  /// Cost:   a connection and sockets for each of them, kept for later restores; meant for people and logs.
  std::vector<PeerPath> paths(const std::string& from = "state", Duration timeout = std::chrono::seconds(10));
  /// For members that only serve: what a restore's report says of its own session.
  [[nodiscard]] SessionUsage usage() const;
  /// Leaves in order: retires what is published, waits for readers at most `timeout`. The destructor leaves at once.
  /// A second call does nothing.
  void close(Duration timeout);

 private:
  SHARDWIRE_LOCAL explicit Session(std::shared_ptr<detail::SessionState> state);
  SHARDWIRE_LOCAL [[nodiscard]] detail::SessionState& state() const;
  std::shared_ptr<detail::SessionState> state_;  // owners: this handle and running operations
};

}  // namespace shardwire
SHARDWIRE_API_END

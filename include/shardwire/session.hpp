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
#include "shardwire/inventory.hpp"
#include "shardwire/memory.hpp"
#include "shardwire/options.hpp"
#include "shardwire/paths.hpp"
#include "shardwire/plan.hpp"
#include "shardwire/report.hpp"
#include "shardwire/tensor.hpp"
#include "shardwire/value.hpp"

SHARDWIRE_API_BEGIN
namespace shardwire {

namespace detail {
class SHARDWIRE_LOCAL Completion;
class SHARDWIRE_LOCAL SessionState;
struct SHARDWIRE_LOCAL PublicationState;
class SHARDWIRE_LOCAL RestoreState;
class SHARDWIRE_LOCAL ExchangeState;
}  // namespace detail

/// A publication that is being retired. Movable; the destructor does not wait, and the retirement goes on.
/// Threads: any thread may make any call except moves and destruction.
class Retirement {
 public:
  Retirement();
  ~Retirement();
  Retirement(Retirement&&) noexcept;
  Retirement& operator=(Retirement&&) noexcept;

  /// False for a default-constructed or moved-from handle; its other members throw Error{invalid_argument}.
  [[nodiscard]] bool valid() const noexcept { return completion_ != nullptr; }
  /// Returns when no reader holds a lease. Errors: as Publication::retire().
  void wait();
  /// As wait(), for at most `timeout`. Returns false if the retirement is still running then.
  bool wait_for(Duration timeout);
  /// True once wait() would not block.
  [[nodiscard]] bool poll() const;
  /// As Restore::event_descriptor() and Restore::on_done().
  [[nodiscard]] int event_descriptor();
  void on_done(std::function<void()> callback);

 private:
  friend class Publication;
  SHARDWIRE_LOCAL explicit Retirement(std::shared_ptr<detail::Completion> completion);
  std::shared_ptr<detail::Completion> completion_;  // owners: this handle and the session
};

/// A catalog that peers can read, pinned to one step. Movable; the destructor retires it without waiting for readers.
/// Threads: use one handle from one thread at a time; different handles may be used concurrently.
class Publication {
 public:
  Publication();
  ~Publication();
  Publication(Publication&&) noexcept;
  Publication& operator=(Publication&&) noexcept;

  /// False for a default-constructed or moved-from handle; its other members throw Error{invalid_argument}.
  [[nodiscard]] bool valid() const noexcept { return state_ != nullptr; }
  /// Withdraws the publication and returns when no reader holds a lease on it. The caller may then change or free the
  /// memory.
  /// Does nothing if the publication is already retired or its session is closed. Returns at once while copies for other hosts
  /// are made of it (PublishOptions::buddies), which stays readable until they are.
  /// Errors: throws Error{timed_out} naming the remaining readers. Their leases are revoked, and their restores do not
  ///         commit the bytes they read.
  void retire(Duration timeout);
  /// As retire(), without waiting: the result tells when the caller may change or free the memory.
  Retirement start_retire(Duration timeout);
  /// Replaces this publication by `held` at `step` under the same name. Peers see either the old or the new generation,
  /// never neither. Then waits, as retire() does, until no reader holds a lease on the old generation. The handle
  /// refers to the new one as soon as peers can see it.
  /// Errors: throws Error{invalid_argument} if the publication was retired, or if both `held` and the current
  ///         generation are published in place and share memory; also throws as Session::publish(). The old generation
  ///         stays published in these cases. Throws Error{timed_out} naming the remaining readers: the new generation
  ///         is then published, their leases are revoked, and the caller may reuse the old memory.
  void update(const Catalog& held, std::int64_t step, Snapshot snapshot, Duration timeout);

 private:
  friend class Session;
  friend class detail::SessionState;
  SHARDWIRE_LOCAL explicit Publication(std::shared_ptr<detail::PublicationState> state);
  std::shared_ptr<detail::PublicationState> state_;  // owners: this handle and the session
};

/// One running restore. Movable; the destructor cancels a running restore and returns once no more writes can follow.
/// Threads: call wait(), resume(), and the members valid after wait(), from one thread; poll(), cancel(),
///          event_descriptor() and on_done() may run concurrently on any thread.
class Restore {
 public:
  Restore();
  ~Restore();
  Restore(Restore&&) noexcept;
  Restore& operator=(Restore&&) noexcept;

  /// False for a default-constructed or moved-from handle; its other members throw Error{invalid_argument}.
  [[nodiscard]] bool valid() const noexcept { return state_ != nullptr; }
  /// Calls `callback` on the session's thread, at most once per `interval`, and once at the end, with the stage "done" or
  /// "failed". A restore that ends with its session makes no last call. An interval of 0 reports every change of stage or
  /// bytes, at most once per millisecond. The callback must not block. An exception it throws ends the restore and comes out
  /// of wait().
  void on_progress(std::function<void(const Progress&)> callback, Duration interval = std::chrono::milliseconds(100));
  /// Returns when every wanted element is in place and committed. With RestoreOptions::bind_only it returns when every
  /// byte has a path and a method. If a source withdraws a publication in use, the restore plans again with its
  /// replacement. What a lost source has not delivered comes from other holders, see RestoreOptions::notice.
  /// Errors: throws the error that ended the restore; gaps() lists the boxes that did not arrive.
  ///         layout_mismatch   before any byte moves: all ranks have published and none holds some boxes (gaps() lists
  ///                           them all); dtype or shape differ between the two sides; members publish one rank at one
  ///                           step with different manifests; authoritative ranks disagree about values (ranks() names
  ///                           them). Before the commit: replicas differ (Replicas::compare)
  ///         step_mismatch     the publications are not at the requested step, or not all at one step
  ///         withdrawn         a source withdrew and no replacement appeared by the deadline
  ///         corrupt           boxes differ from what was published (PublishOptions::digest) in the memory of every rank
  ///                           that holds them: gaps() lists them, ranks() those ranks
  ///         peer_lost         the last holder of some boxes died, or members left or died before they published it
  ///                           (gaps() lists the boxes), or this process lost its membership
  ///         timed_out         the deadline passed; ranks() lists the ranks the restore was waiting for
  ///         cancelled         cancel(), the destructor or the end of the session stopped the restore
  ///         unsupported       RestoreOptions::method cannot move a piece, this process and a source share no transport,
  ///                           or one of them encrypts and the other cannot
  ///         out_of_resources  the staging budget is smaller than one element, or the system is out of memory
  ///         transport_failed  the transport failed, or digests differ (Verify::digest)
  ///         Exceptions of a progress callback or of the log sink come out unchanged.
  void wait();
  /// As wait(), for at most `timeout`. Returns false if the restore is still running then.
  bool wait_for(Duration timeout);
  /// Returns once all values have arrived, with RestoreOptions::stop_at_values before a byte is written; value() gives them
  /// from then on. Without it, returns at the end.
  /// Errors: throws the error that ended the restore.
  void wait_values();
  /// True once wait_values() would not block.
  [[nodiscard]] bool values_ready() const;
  /// Lets a restore that stops at its values go on; one that has not reached them yet does not stop. Does nothing else.
  /// If it has to read values again later, for another generation of a source, and they differ, wait() throws
  /// Error{withdrawn}.
  void proceed();
  /// True once wait() would not block.
  [[nodiscard]] bool poll() const;
  /// A descriptor that is readable, and stays so, once wait() would not block: for poll(), epoll and event loops.
  /// Ownership: the restore's; do not read or close it. Errors: throws Error{out_of_resources}.
  [[nodiscard]] int event_descriptor();
  /// Calls `callback` once when wait() would not block any more: on the session's thread, or on this thread if that is
  /// so already. Replaces an earlier callback. It must not block or throw.
  void on_done(std::function<void()> callback);
  /// Stops the restore; wait() then throws Error{cancelled}. The destination's contents are unspecified; its memory is
  /// reusable.
  void cancel();
  /// Continues a restore that has failed, or was cancelled, for at most `timeout`; wait() and the other members then apply
  /// to it as after Session::restore(). What is in place stays, provided that something proves that it was read while its
  /// publication was live: bytes that came in messages, and from mapped memory that was published until the end.
  /// The rest is read from members that publish the same step: the same ranks with the same manifest as before, again or
  /// a second time (spares), and ranks that had not published before. The restore waits for such members. A restore that had no plan, or
  /// compares replicas, begins anew.
  /// Between its end and this call, the restore holds no lease and no connection; it keeps the owner of the destination.
  /// The caller leaves the destination and the events of its views alone in that time; writing to it makes the result
  /// undefined. on_progress() stays; on_done() has to be called again. The report counts the bytes of all attempts,
  /// with the seconds of methods and peers for them, and the stages of the last.
  /// Errors: throws Error{invalid_argument} if the restore runs or has completed, if the session is closed, or if a
  ///         publication of this process shares memory with the destination. wait() throws, besides its other errors:
  ///         layout_mismatch   a member publishes a missing rank at the step, but with other tensors or layouts
  ///         step_mismatch     the deadline passed, and the missing ranks are published at other steps
  ///         timed_out         the deadline passed, and nobody publishes the ranks that ranks() lists
  void resume(Duration timeout);
  /// Valid after wait() returned or threw.
  [[nodiscard]] const RestoreReport& report() const;
  /// The value received for `key`. Valid after wait() or wait_values() returned. Errors: throws Error{invalid_argument} if the wanted
  /// catalog does not name `key`, or the restore skipped it.
  [[nodiscard]] const Value& value(const TensorKey& key) const;
  [[nodiscard]] bool has_value(const TensorKey& key) const;

 private:
  friend class Session;
  friend class detail::SessionState;
  SHARDWIRE_LOCAL explicit Restore(std::shared_ptr<detail::RestoreState> state);
  std::shared_ptr<detail::RestoreState> state_;  // owners: this handle and the session's thread while it runs
};

/// Result of an exchange, apart from the tensors.
struct ExchangeResult {
  RestoreReport report;
  std::map<TensorKey, Value> values;  ///< the values that the wanted catalog names
};

/// A running exchange of Session::start_exchange(). Movable; the destructor cancels a running exchange and returns once
/// it has ended.
/// Threads: call wait() and result() from one thread; the other members may be called concurrently on any thread.
class Exchange {
 public:
  Exchange();
  ~Exchange();
  Exchange(Exchange&&) noexcept;
  Exchange& operator=(Exchange&&) noexcept;

  /// False for a default-constructed or moved-from handle; its other members throw Error{invalid_argument}.
  [[nodiscard]] bool valid() const noexcept { return state_ != nullptr; }
  /// Calls `callback` as Restore::on_progress() does, with the bytes that this member wants as total. The stages may
  /// repeat, because an exchange can consist of several restores. An exception it throws ends the exchange on every
  /// member and comes out of wait().
  void on_progress(std::function<void(const Progress&)> callback, Duration interval = std::chrono::milliseconds(100));
  /// Returns when this member has all that it wants. Errors: as Session::exchange().
  void wait();
  /// As wait(), for at most `timeout`. Returns false if the exchange is still running then.
  bool wait_for(Duration timeout);
  /// True once wait() would not block.
  [[nodiscard]] bool poll() const;
  /// Ends the exchange on every member; here wait() then throws Error{cancelled}.
  void cancel();
  /// As Restore::event_descriptor() and Restore::on_done(); the callback runs on a thread of the exchange.
  [[nodiscard]] int event_descriptor();
  void on_done(std::function<void()> callback);
  /// Valid after wait() returned.
  [[nodiscard]] const ExchangeResult& result() const;

 private:
  friend class Session;
  SHARDWIRE_LOCAL explicit Exchange(std::shared_ptr<detail::ExchangeState> state);
  std::shared_ptr<detail::ExchangeState> state_;  // owners: this handle and the thread of the exchange
};

/// Membership of one process in a job. Joining is no barrier: members may come and go at any time.
/// Threads: any thread may make any call except moves and destruction. The session serves readers on a thread of its
///          own, so a publisher needs to call nothing.
/// End:     destroying a session ends its restores with Error{cancelled} and its publications without waiting for their
///          readers. Arenas stay until their own handles and publications are gone. After close() every call except
///          rank(), world_size(), transports() and close() throws Error{invalid_argument}.
/// Callbacks: functions of the caller that run on the session's thread (progress, on_done(), the log sink) may not call
///          what waits for that thread: restore(), resume(), exchange(), start_exchange(), gather(), barrier(),
///          gather_layouts(), paths(), inventory(), await_step(), close(), and the waits of operations that are not over.
///          These throw Error{unsupported} there. They may publish memory of the host, start a retirement, cancel, poll,
///          and destroy handles except those of running exchanges.
/// Fork:    in a child of fork() the session, its publications and its restores are inert: destructors return at once
///          and calls throw Error{invalid_argument}. The child's copies of the control connections are closed.
class Session {
 public:
  /// Joins the job. Member 0 serves the rendezvous; the others retry until it answers. With a store in `bootstrap`,
  /// member 0 puts its addresses there once it listens, with a job key if none is given, and the others wait for them. All of this has to end within
  /// SessionOptions::join_timeout.
  /// Errors: throws Error{timed_out}, with rank 0 in ranks(), if member 0 does not answer. Error{invalid_argument} if
  ///         the port is taken; if run id, job key or world size differ from member 0's; if a live member has the same
  ///         rank; for invalid addresses, interfaces, options and SHARDWIRE_* variables. Error{unsupported} if the
  ///         transport is not in this build, does not work on this machine, or member 0 speaks another protocol.
  ///         Error{out_of_resources} if the process may not open enough descriptors. With a store, a refusal does not
  ///         end the wait, because the refusing process may belong to another job: the session logs it at once, and
  ///         Error{timed_out} quotes it.
  static Session join(Bootstrap bootstrap, SessionOptions options = {});

  ~Session();
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;

  /// False for a moved-from session; its other members throw Error{invalid_argument}.
  [[nodiscard]] bool valid() const noexcept { return state_ != nullptr; }
  /// The member number. Of a guest (Bootstrap::guest): the one that it got, not below world_size().
  [[nodiscard]] int rank() const;
  [[nodiscard]] int world_size() const;
  /// Name and version of every open transport, e.g. {"shm 1 (Linux 6.1)", "tcp 1"}. The session chooses a path for each
  /// peer and kind of memory.
  [[nodiscard]] std::vector<std::string> transports() const;

  /// Allocates host memory that peers can map or read directly. Zero bytes are legal.
  /// Errors: throws Error{out_of_resources} if the system has no such memory, Error{invalid_argument} after close().
  Arena allocate(ByteCount bytes);
  /// Allocates zeroed memory of a device (MemoryKind::cuda) or of the host (MemoryKind::host, which ignores `device`).
  /// Peers can read device memory through transports that support it; otherwise it is staged through host memory, as
  /// paths() and reports show. Blocks until the memory is zeroed.
  /// Errors: in addition, throws Error{unsupported} if the process has no device, Error{invalid_argument} for an
  ///         unknown device and for MemoryKind::detect, Error{out_of_resources} if device memory is exhausted,
  ///         Error{transport_failed} if the device has failed.
  Arena allocate(ByteCount bytes, MemoryKind kind, int device = 0);
  /// Offers a dense range of the caller's memory, with its size given in `view`, for direct reading by peers: by the
  /// hardware of a transport that supports it, or by the kernel within a host. Publications in that range are then read in
  /// place, and messages need no registration of their own. Blocks while the system pins the memory; the report gives
  /// the time.
  /// Devices: the kind of memory is detected as for published views. Memory of a device that no transport of this session
  ///          supports is accepted too; it is staged through host memory, as paths() and reports show. The same program
  ///          therefore runs on machines with and without such transports.
  /// Errors: throws Error{invalid_argument} for a view without a size or with strides, and for unmapped memory. For a
  ///         view that names a device, throws Error{invalid_argument} if the memory is on another device, on none, or
  ///         too small, and Error{unsupported} if the process has no device. Throws Error{out_of_resources} if the
  ///         memory cannot be pinned.
  Registration register_memory(const View& view);
  /// Makes `held` readable by peers. Peers read memory in arenas and registrations of this session directly. Within a
  /// host they read other memory through the kernel (cross-memory attach) where it permits that; else this member sends
  /// it. Retire a publication before publishing under its name again.
  /// Errors: throws Error{invalid_argument} for a name that is in use, empty or longer than 256 characters, and for
  ///         memory that is not mapped readable, naming the tensor; Error{out_of_resources} if a snapshot finds no
  ///         memory, or if this member publishes under 4096 names already. For a view that names a device, naming the
  ///         tensor: Error{unsupported} if the process has no device, Error{invalid_argument} if the memory is on another
  ///         device, on none, or too small, Error{transport_failed} if the device has failed. From within a callback of
  ///         the session, throws Error{unsupported} for device memory that has to be read at once (one-element tensors,
  ///         snapshots). Memory of the host may be published there.
  Publication publish(const Catalog& held, PublishOptions options = {});
  /// Starts pulling everything that `wanted` lists from its publishers. One-sided: sources only have to have published.
  /// Errors: throws Error{invalid_argument} if destination memory overlaps itself or memory that this member publishes,
  ///         or is not mapped writable; for a staging budget of 0 bytes; for a SHARDWIRE_METHOD that names no method.
  ///         Treats device memory as publish() does. For RestoreOptions::done_events throws Error{invalid_argument} for
  ///         an unknown device and Error{unsupported} if the process has no device. All other errors surface in wait().
  Restore restore(const Catalog& wanted, RestoreOptions options = {});
  /// The collective form of publish and restore, for callers that all change layout at once. Every member of the
  /// session calls it with what it holds and wants; either catalog may be empty. It begins when all members are in the
  /// call, whichever exchanges they took part in before.
  /// Aliasing:  wanted memory may share bytes with held memory in any way, on any number of members: no byte is
  ///            overwritten before its last reader on any member. Wanted tensors may not share a byte with one another,
  ///            nor with other publications of this member.
  /// Names:     aliases declared by any member hold for all members. Each member may want a tensor under only one of
  ///            its names.
  /// Staging:   a tensor goes through staging while other tensors are still read from its destination. The amount
  ///            depends on the order in which tensors block one another. All members agree on an order that fits the
  ///            smallest of their budgets, and split tensors into slices where that helps. A quarter of a budget is
  ///            reserved for messages in flight.
  /// Method:    chosen as in restores. The collective method is used if ExchangeOptions::method or SHARDWIRE_METHOD
  ///            asks for it on any member, and for device memory without a direct path. Throws Error{unsupported} if it
  ///            was asked for and is not available.
  /// Ownership: borrows the memory of both catalogs until it returns.
  /// Errors:    throws on every member, before any byte is written: Error{out_of_resources}, naming tensors, bytes and
  ///            budget, if no order fits; Error{layout_mismatch}, naming two wanted tensors that are one by an alias of
  ///            another member. A failure on one member ends the exchange on all of them, about a second later, by the
  ///            deadline at the latest. Its error has the same code, members and boxes on all, at most 64 boxes on the
  ///            others. After an error of a later stage, destination and source bytes are unspecified wherever the two
  ///            share memory.
  /// Losses:    a member that dies ends the exchange on all others with Error{peer_lost}, which names it and boxes that
  ///            it has not delivered, unless all others have, map, or get from other holders all that they want from it.
  ///            Another exchange fails at once until another process has joined under its number. Others wait for a
  ///            member that has stopped until the deadline.
  ExchangeResult exchange(const Catalog& held, const Catalog& wanted, ExchangeOptions options = {});
  /// As exchange(), on a thread of the library. Keeps copies of both catalogs; the memory stays borrowed until the
  /// exchange has ended.
  /// Errors: throws Error{invalid_argument} while an earlier exchange that was started this way is running: exchanges
  ///         have to begin in the same order on every member. All other errors surface in wait().
  Exchange start_exchange(const Catalog& held, const Catalog& wanted, ExchangeOptions options = {});
  /// Exchanges one small value per member, e.g. to agree on a step. Returns the values of members 0..world_size-1.
  /// Blocks until all members have called. A `name` may be used again once the call has returned on this member.
  /// Errors: throws Error{peer_lost} naming a member that died, also one that had called and waited; the others may call
  ///         again, together with its replacement. Error{timed_out} naming the members that did not call: the value of this
  ///         one counts further on, until the others have called or this one calls again. Error{invalid_argument} on all
  ///         members if the values together exceed one message of 256 MiB.
  std::vector<Bytes> gather(const std::string& name, Bytes value, Duration timeout);
  /// Returns once all members have called it, as often as this one has. Members that leave, or change what they publish,
  /// call it before, so that no other still reads.
  /// Errors: throws Error{timed_out} naming the members that did not come within `timeout`, Error{peer_lost} naming one
  ///         that died. This member has then not come: the next call begins anew, also with a replacement of one that died.
  void barrier(Duration timeout);
  /// The layouts of the catalogs of all members, as one side of plan() or the target of Inventory::to_case(). Every
  /// member calls it with what it holds or wants. A member without a layout rank passes a catalog without tensors, of any
  /// rank. Blocks until all members have called; reads no memory.
  /// Errors: throws Error{layout_mismatch} on all members if two of them have one layout rank, or layouts over different
  ///         numbers of ranks; otherwise as barrier(), and Error{invalid_argument} as gather().
  JobLayout gather_layouts(const Catalog& catalog, Duration timeout);
  /// The path from this process to each current publisher of `name`. Connects to each over every transport that both have
  /// open; moves no data. Ascending by layout rank, this process included; empty if there is no publisher. For a peer
  /// that is unreachable or does not answer within `timeout`, PeerPath::failure gives the reason.
  /// Errors: throws Error{timed_out} if the publishers are not known within `timeout`, Error{peer_lost} if they can no
  ///         longer be determined, Error{cancelled} if the session is closed meanwhile.
  /// Cost:   one connection and its sockets per publisher, kept for later restores. Intended for people and logs.
  std::vector<PeerPath> paths(const std::string& name = "state", Duration timeout = std::chrono::seconds(10));
  /// What members publish under `name` at this moment, at `step`; without a step, at the newest step at which no rank is
  /// absent, else at the newest. What keepers publish of earlier attempts of the job counts as older, as with
  /// StepRule::newest_complete. Reads descriptions of publications, no tensors; they are kept for later restores.
  /// Errors: throws Error{layout_mismatch} if publishers of the step declare layouts over different numbers of ranks, or
  ///         one rank twice with different ones; Error{timed_out} naming the ranks that did not describe themselves
  ///         within `timeout`; as paths().
  Inventory inventory(const std::string& name = "state", std::optional<std::int64_t> step = {},
                      Duration timeout = std::chrono::seconds(10));
  /// Returns the inventory as soon as every rank of the layouts is published at `step`, or the absent ones can appear no
  /// more, because their members have left or went on to a later step. Without a step: as soon as this holds for any, the newest
  /// complete one.
  /// Errors: throws Error{timed_out} naming the absent ranks, or none if nobody publishes; Error{step_mismatch} if all
  ///         publishers went on to later steps; otherwise as inventory().
  Inventory await_step(const std::string& name, std::optional<std::int64_t> step, Duration timeout);
  /// The session-wide figures of a restore's report, for members that only serve.
  [[nodiscard]] SessionUsage usage() const;
  /// Leaves in order: retires all publications and waits for their readers at most `timeout`. The destructor leaves at
  /// once. A second call does nothing.
  void close(Duration timeout);

 private:
  friend class detail::SessionState;
  SHARDWIRE_LOCAL explicit Session(std::shared_ptr<detail::SessionState> state);
  SHARDWIRE_LOCAL [[nodiscard]] detail::SessionState& state() const;
  std::shared_ptr<detail::SessionState> state_;  // owners: this handle and running operations
};

}  // namespace shardwire
SHARDWIRE_API_END

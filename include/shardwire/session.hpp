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
#include "shardwire/costs.hpp"
#include "shardwire/layout.hpp"
#include "shardwire/memory.hpp"
#include "shardwire/report.hpp"
#include "shardwire/tensor.hpp"
#include "shardwire/value.hpp"

namespace shardwire {

using Duration = std::chrono::nanoseconds;

/// What to do about something wanted that no source has: whose key, under any of its names, is in no manifest and among no
/// values. It counts once all places of the source layout have published, or RestoreOptions::settle has passed with
/// everything else covered. A tensor of which only some elements have no holder is an error always.
enum class Absent : std::uint8_t {
  error,  ///< the restore ends with an error that names every such key
  skip,   ///< the destination stays as it is
  zero,   ///< the destination's elements become zeros at commit; tensors of more than one element only
};

/// What one rank holds or wants: tensors with layout and local memory, and values.
/// Ownership: borrows the memory of its views.
class Catalog {
 public:
  /// `place` is this rank's number in the layouts, 0..ranks-1.
  Catalog(Rank place, int ranks);

  /// Adds a tensor. `view` is where this rank's boxes lie; its data may be null when the rank holds no element. Two ranks
  /// that declare the same tensors in the same order share one manifest, so add tensors in an order all ranks agree on.
  /// One-element tensors become values: a held one is read here and now, a wanted one is written at commit.
  /// The entry keeps the view with its offset added to data, and without strides that only repeat the layout.
  /// `absent` matters on the wanting side only; Absent::zero is not for one-element tensors.
  /// Errors: throws Error{layout_mismatch} when the layout does not fit the shape or view.elements differs from what the
  ///         rank holds, Error{invalid_argument} on a repeated key (also under an alias), a null view for a rank that
  ///         holds elements, or strides that are negative or let elements share an address, Error{unsupported} for device
  ///         views and for strides on a layout without one local array.
  void add(TensorSpec spec, Layout layout, View view, Absent absent = Absent::error);
  /// Adds a value under (fqn, state); an empty fqn serves values of the whole job. On the wanting side the value given is
  /// ignored: adding it asks for the key. Where sources disagree, those count that hold an element of a tensor called fqn,
  /// in any state; all count where no source has such a tensor, or when only others have the value. Those that count have
  /// to be equal, None included, else the restore ends with an error that names key, ranks and values.
  /// Errors: throws Error{invalid_argument} on a repeated key, for lists deeper than max_value_depth, and for
  ///         Absent::zero: a step of zero would break Adam's bias correction.
  void add_value(TensorKey key, Value value = {}, Absent absent = Absent::error);

  /// Declares that `alias` is a second name of the parameter `fqn`, with all its states and values. Each side may call the
  /// parameter by any of its names: it is held once, wanted once and moved once. Every rank that has the parameter
  /// declares its names, in any order and before or after adding it.
  /// Errors: throws Error{invalid_argument} when `alias` is declared already, when one of the names is an alias of a third,
  ///         or when something was added under both names.
  void alias(std::string alias, std::string fqn);

  struct Entry {
    TensorSpec spec;
    Layout layout;
    View view;
    Absent absent = Absent::error;
  };
  struct ValueEntry {
    TensorKey key;
    Value value;
    void* destination = nullptr;  ///< where a wanted one-element tensor is written; null for plain values
    Absent absent = Absent::error;
  };
  [[nodiscard]] Rank place() const { return place_; }
  [[nodiscard]] int ranks() const { return ranks_; }
  [[nodiscard]] const std::vector<Entry>& entries() const { return body_->entries; }
  [[nodiscard]] const std::vector<ValueEntry>& values() const { return body_->values; }
  [[nodiscard]] const std::vector<Alias>& aliases() const { return body_->aliases; }
  /// True for copies of one catalog to which nothing was added since. Restores of such a catalog skip what they have worked
  /// out before. Cost of this and of copies: O(1).
  [[nodiscard]] bool same(const Catalog& other) const { return body_ == other.body_; }

 private:
  struct Keys;
  struct Body {
    std::vector<Entry> entries;
    std::vector<ValueEntry> values;
    std::vector<Alias> aliases;
    std::shared_ptr<Keys> keys;  // owners: bodies that were one before something was added
  };
  void check_new(const TensorKey& key);
  Body& own_body();
  Keys& own_keys();

  Rank place_;
  int ranks_;
  std::shared_ptr<Body> body_;  // owners: copies of this catalog; copied before it is written while there are several
};

enum class LogLevel : std::uint8_t { debug, info, warning, error };
using LogSink = std::function<void(LogLevel, std::string_view)>;

/// How a session's thread waits for its fabric. Default: it sleeps on the fabric's descriptor as soon as there is nothing
/// to do, and a core is free for the trainer.
struct ProgressMode {
  /// After the last activity (something moved, or woke the thread) it first asks the fabric again and again, for at most
  /// this long, and only then sleeps. Saves the wake-up of each message that comes within that time, for a busy core.
  Duration spin{};

  static constexpr ProgressMode wakeup() { return {}; }
  static constexpr ProgressMode spinning(Duration at_most) { return {at_most}; }
};

struct SessionOptions {
  std::string transport = "auto";        ///< "auto", "ucx", "loopback"; auto takes the best that probes well
  ByteCount staging_bytes = 256u << 20;  ///< bound of the slots that serve readers of this member's publications
  Duration join_timeout = std::chrono::seconds(60);
  /// Most threads that copy at once; they start when there is work. 0: as many as there are cores for each process of this
  /// host (the launcher's local size, else the whole world), 1 to 4.
  unsigned copy_threads = 0;
  CostModel costs{};        ///< what restores of this session choose ways by; see load_costs()
  ProgressMode progress{};  ///< how the session's thread waits: sleeping, or spinning for a while first
  LogSink log{};            ///< called from the session's thread; must not block; empty: silent
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

namespace detail {
class SessionState;
struct PublicationState;
class RestoreState;
}  // namespace detail

/// A catalog that peers can read, pinned to one step. Movable; the destructor retires without waiting.
class Publication {
 public:
  Publication();
  ~Publication();
  Publication(Publication&&) noexcept;
  Publication& operator=(Publication&&) noexcept;

  /// Withdraws the publication and returns when no reader holds a lease on it; after that the memory is the caller's.
  /// Errors: throws Error{timed_out} naming the readers that are left; they will find their lease revoked, and their
  ///         restore does not commit.
  void retire(Duration timeout);

 private:
  friend class Session;
  friend class detail::SessionState;
  explicit Publication(std::shared_ptr<detail::PublicationState> state);
  std::shared_ptr<detail::PublicationState> state_;  // owners: this handle and the session
};

enum class Verify : std::uint8_t {
  none,    ///< the source's step and generation are checked after the read
  digest,  ///< and a digest of every piece is compared between source and destination memory
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
  /// Once the cover is complete, how long to wait for further replicas, and for what may be absent.
  Duration settle = std::chrono::seconds(2);
};

/// One running restore. Movable; the destructor cancels what is still running and waits until no write can follow.
class Restore {
 public:
  Restore();
  ~Restore();
  Restore(Restore&&) noexcept;
  Restore& operator=(Restore&&) noexcept;

  /// `callback` runs on the session's thread, at most every `interval`, and once at the end; it must not block.
  void on_progress(std::function<void(const Progress&)> callback, Duration interval = std::chrono::milliseconds(100));
  /// Returns when every wanted element is in place and committed. Call from one thread.
  /// Errors: throws what ended the restore: Error{layout_mismatch} with all gaps before any byte moved, peer_lost naming
  ///         the source, timed_out naming what is missing, cancelled. Which boxes did not arrive is in gaps().
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
  explicit Restore(std::shared_ptr<detail::RestoreState> state);
  std::shared_ptr<detail::RestoreState> state_;  // owners: this handle and the session's thread while it runs
};

struct ExchangeOptions {
  Duration deadline = std::chrono::seconds(60);
  ByteCount staging_bytes = 256u << 20;  ///< bound of all that this member keeps aside at once
  Verify verify = Verify::none;
  ByteCount ingress_bytes_per_second = 0;  ///< cap of remote bytes into this rank; 0: none
};

/// What an exchange has brought besides the tensors.
struct ExchangeResult {
  RestoreReport report;
  std::map<TensorKey, Value> values;  ///< those that the wanted catalog names
};

/// Membership of one process in a job. Joining is no barrier: members may come and go at any time.
/// Threads: all calls may come from any thread; the session has one thread of its own that serves readers, so a publisher
///          needs to call nothing.
class Session {
 public:
  /// Member 0 serves the rendezvous; the others retry until it answers.
  /// Errors: throws Error{timed_out} when it does not, Error{invalid_argument} when the port is taken, the job key differs
  ///         or the rank is already there, Error{unsupported} when the transport is not in this build,
  ///         Error{out_of_resources} when the process may not open the descriptors that it takes.
  static Session join(Bootstrap bootstrap, SessionOptions options = {});

  ~Session();
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;

  [[nodiscard]] int rank() const;
  [[nodiscard]] int world_size() const;
  /// Name and loaded version of the fabric, e.g. "ucx 1.13.1".
  [[nodiscard]] std::string transport() const;

  /// Memory that peers can map or read directly. Zero bytes are legal.
  /// Errors: throws Error{out_of_resources}.
  Arena allocate(ByteCount bytes);
  /// Makes `held` readable by peers. Memory in arenas of this session is offered for direct reading, any other is served
  /// by copies. A new publication under a name that this member still publishes is refused: retire the old one first.
  /// Errors: throws Error{invalid_argument}.
  Publication publish(const Catalog& held, PublishOptions options = {});
  /// Starts pulling everything `wanted` lists from whoever published it. One-sided: sources only have to have published.
  /// Errors: throws Error{invalid_argument} when destination memory overlaps memory that this member publishes or
  ///         itself; everything else surfaces in wait().
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
  /// For members that only serve: what a restore's report says of its own session.
  [[nodiscard]] SessionUsage usage() const;
  /// Leaves in order: retires what is published, waits for readers. The destructor leaves at once.
  void close(Duration timeout);

 private:
  explicit Session(std::shared_ptr<detail::SessionState> state);
  std::shared_ptr<detail::SessionState> state_;  // owners: this handle and running operations
};

}  // namespace shardwire

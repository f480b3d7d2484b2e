// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "catalog/copied_rank.hpp"
#include "restore/buddy_task.hpp"
#include "restore/state.hpp"
#include "runtime/call_thread.hpp"
#include "session/keeping.hpp"
#include "shardwire/session.hpp"

namespace shardwire {

/// Copies of other hosts' publications that this member makes for the keeper of its host, one after the other on a thread of
/// its own:
///
///   publish() ── add() ──► BuddyTask (which, and what they are) ──► memory of the keeper ──► restore into it ──► KeepDone
///             ──► says so to the others ──► CopiesMade (the others have copied what this member publishes)
///
/// A publication stays readable until then, although its caller may have retired it: it lies in memory of the keeper.
/// Threads: any, apart from the session's and its own.
class BuddyCopies {
 public:
  /// Of this member; copies are made of its step.
  using Publication = std::shared_ptr<detail::PublicationState>;
  /// The calls that it needs of its session.
  struct Host {
    /// Errors: as SessionState::running().
    std::function<std::shared_ptr<Loop>()> running;
    std::function<const restore::Context&()> context;                    ///< on the loop
    std::function<void(std::unique_ptr<Operation>)> start;               ///< on the loop
    std::function<void(const Publication&, Duration timeout)> withdraw;  ///< on the loop
    /// Says to the others that this member is done with its copies of a step.
    std::function<void(const detail::PublicationState& of)> say_copied;
    /// A restore from `only`, of which no later one is to know. `digests`: see restore::Request.
    std::function<std::shared_ptr<detail::RestoreState>(
        const Catalog& wanted, RestoreOptions options, const Interruption& interruption,
        const wire::PublicationRecord& only, std::shared_ptr<BlockDigests> digests)>
        restore;
    std::function<void(std::uint64_t buffer, const KeptCopies::Copy&)> copied;  ///< on the loop
    std::function<void(LogLevel, const std::string&)> log;                      ///< on the loop
    Core* core = nullptr;                                                       ///< on the loop
    const MemoryTable* memory = nullptr;
    KeptMemory* kept = nullptr;
    StartThread start_thread;
  };

  explicit BuddyCopies(Host host) : host_(std::move(host)) {}
  /// Requires: the loop has ended.
  ~BuddyCopies() { stop(); }
  BuddyCopies(const BuddyCopies&) = delete;
  BuddyCopies& operator=(const BuddyCopies&) = delete;

  /// Starts the thread. Errors: throws Error{out_of_resources}.
  void start();
  /// Requires: start() was called.
  void add(Publication publication);
  /// Withdraws it once its copies are made; false: they are, or none are wanted.
  bool retire(const Publication& publication, Duration timeout);
  /// Waits until copies of what was published under a name are made, or have failed: here, and by others. Errors: an
  /// interruption.
  void wait_for(const std::string& name, const Interruption& interruption);
  /// Errors: throws Error{peer_lost} if a member is lost that published under the name: the next step could not be complete
  /// any more, and would replace one that is.
  void require_publishers(const std::string& name);
  /// The same for all names, until `deadline` at most.
  void wait_for_all(std::chrono::steady_clock::time_point deadline, const Interruption& interruption);
  /// Ends the thread. Requires: the loop has ended.
  void stop();

 private:
  void run();
  void finish_first();
  template <typename Done>
  void wait(std::chrono::steady_clock::time_point deadline, const Interruption& interruption, Done done);
  template <typename Part>
  void attempt(const detail::PublicationState& of, const char* otherwise, Part part);
  /// Returns the members that copy what this one publishes.
  std::vector<int> make_all(const detail::PublicationState& of);
  void wait_for_others(const detail::PublicationState& of, const std::vector<int>& holders);
  void make(const detail::PublicationState& of, const restore::BuddyTask::Copy& copy);
  /// Returns the digests that the publisher has of the blocks.
  BlockDigests restore_into(const detail::PublicationState& of, const restore::BuddyTask::Copy& copy,
                            const CopiedRank& places, std::byte* to);
  void say(LogLevel level, const std::string& text);
  /// Repeated warnings on one topic are logged ever more rarely.
  void warn(const std::string& topic, const std::string& text);

  const Host host_;
  const Interruption interruption_{[this] { return ending_.load(); }};
  std::atomic<bool> ending_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  struct Job {
    Publication publication;
    std::optional<Duration> retired{};  // by the caller, with this timeout
  };
  std::deque<Job> jobs_;  // guarded by mutex_, as the next two; the first one is being worked at
  std::map<std::string, std::vector<int>> publishers_;  // members, by name
  std::unique_ptr<CallThread> thread_;
  // Of the thread. Restores of the same catalog reuse their plans; a copy has few buffers, which are used in turn.
  using Place = std::tuple<wire::Digest, int, std::byte*>;  // manifest, rank, memory
  std::map<std::pair<wire::Digest, int>, CopiedRank> places_;
  std::map<Place, Catalog> catalogs_;
  std::map<std::string, std::uint64_t> warnings_;  // by topic
};

}  // namespace shardwire

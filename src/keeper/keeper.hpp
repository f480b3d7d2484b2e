// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "control/connection.hpp"
#include "keeper/kept_publications.hpp"
#include "keeper/kept_states.hpp"
#include "memory/copier.hpp"
#include "runtime/loop.hpp"
#include "shardwire/error.hpp"
#include "shardwire/options.hpp"

namespace shardwire::keeper {

/// The keeper of one job on this host: serves the job's members over a local socket, and publishes for trainers that have
/// ended.
///
///   trainer ── KeepJob ──────────► its session is the newest, or refused; publishes what is left of earlier sessions in this one
///           ── KeepBegin ────────► KeptStates ──► memory, taken by a worker ──► by descriptors
///           ── KeepDone ─────────► complete
///           ── (end of file) ────► without a trainer ──► KeptPublications
///
/// Threads: any; it runs on a thread of its own. Workers take memory, so that other trainers do not wait meanwhile.
class Keeper {
 public:
  struct Options {
    KeeperOptions keeper{};
    ByteCount budget_bytes = 0;
    Bytes job_key{};
    /// Snapshots are dropped this long after the end of their trainers; empty: never.
    std::optional<Duration> time_to_live{};
    SessionOptions session{};  ///< of its guests
    /// Memory for a snapshot, with all its pages. Called on any thread. Empty: as the host gives it.
    std::function<std::shared_ptr<memory::SharedMemory>(ByteCount bytes, int numa_node)> allocate{};
    LogSink log{};
  };
  /// Errors: throws PortTaken if this job has a keeper on this host already.
  explicit Keeper(Options options);
  ~Keeper();
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;

 private:
  struct Trainer {
    std::shared_ptr<Connection> connection;        // owners: this, and requests in flight
    std::uint64_t session = 0;                     // 0: it has named none
    std::optional<std::uint64_t> awaits_joined{};  // request
  };
  void accept(const AcceptedStream& open);
  void serve(Connection& connection, const wire::Message& message);
  void take(Connection& connection, const wire::KeepJob& job);
  void take(Connection& connection, const wire::KeepBegin& begin);
  void take_memory(std::uint64_t trainer, const wire::KeepBegin& begin, wire::KeepBuffer answer);
  void give(Connection& connection, wire::KeepBuffer answer, std::shared_ptr<memory::SharedMemory> memory);
  void refuse(Connection& connection, std::uint64_t request, const std::exception_ptr& why);
  void publish_left();
  /// As publish_left(); who joins meanwhile waits for it.
  void publish_anew();
  /// Something is to be published, and is not.
  [[nodiscard]] bool lacks_publications() const;
  void published(std::uint64_t session, std::size_t failed);
  void dismiss_older(std::uint32_t attempt);
  void closed(const Connection& connection);
  void drop_superseded();
  void sweep();
  [[nodiscard]] std::string status() const;
  void log(LogLevel level, const std::string& text) const { options_.log(level, text); }

  Options options_;
  Identity identity_;
  std::shared_ptr<Loop> loop_;  // owners: this, and callbacks of publications
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  KeptStates states_;
  std::optional<wire::KeepJob> job_;           // the session that is served: the newest, once a member of it has come
  std::uint64_t published_in_ = 0;             // the session in which everything that was left has been published
  std::map<std::uint64_t, Trainer> trainers_;  // by connection
  std::set<std::pair<std::uint64_t, ErrorCode>> refused_;  // incarnations, and why: warned of once
  std::unique_ptr<Listener> listener_;
  std::unique_ptr<Timer> sweep_timer_;
  unsigned sweeps_ = 0;
  std::unique_ptr<KeptPublications> publications_;
  memory::Copier takers_;  // of memory; last: ends first
};

}  // namespace shardwire::keeper

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "handles/session_state.hpp"
#include "keeper/kept_states.hpp"
#include "shardwire/options.hpp"
#include "wire/messages.hpp"

namespace shardwire::keeper {

/// Publishes snapshots in sessions of the job, each as a guest of its own: a snapshot of a rank is a member's whole
/// publication, and members have one under a name.
/// Threads: calls from any one; joining takes its time on a thread of its own.
class KeptPublications {
 public:
  /// `options`: of the guests' sessions. `log`: called on the thread of this object.
  KeptPublications(SessionOptions options, Bytes job_key, LogSink log);
  ~KeptPublications();
  KeptPublications(const KeptPublications&) = delete;
  KeptPublications& operator=(const KeptPublications&) = delete;

  /// Publishes what is to be published (KeptStates::to_publish), as far as it is not published in this session yet, and leaves earlier
  /// sessions. `done` runs on the thread of this object, with the number of those that could not be published; not if a newer
  /// session is wanted meanwhile.
  using Done = std::function<void(std::size_t failed)>;
  void publish(const wire::KeepJob& job, const KeptStates& states, Done done);
  /// Ends the publications of other buffers, and lets go of their memory.
  void keep_only(std::set<std::uint64_t> buffers);
  /// Buffers that are published now.
  [[nodiscard]] std::set<std::uint64_t> published() const;

 private:
  struct Published {
    std::uint64_t session = 0;
    std::shared_ptr<detail::SessionState> member;
    std::shared_ptr<detail::PublicationState> publication;
  };
  struct Wanted {
    std::uint64_t buffer = 0;
    detail::SessionState::KeptSnapshot snapshot;
  };
  void post(std::function<void()> task);
  void run();
  std::size_t publish_all(const wire::KeepJob& job, std::vector<Wanted> wanted);
  Published publish_one(const wire::KeepJob& job, const Wanted& wanted);
  void leave_if(const std::function<bool(std::uint64_t buffer, const Published&)>& which);

  /// A newer session is wanted, or none any more: what joins an older one gives up.
  [[nodiscard]] bool is_over(std::uint64_t session) const { return ending_ || wanted_session_ != session; }

  const SessionOptions options_;
  const Bytes job_key_;
  const LogSink log_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;  // guarded by mutex_
  std::atomic<bool> ending_ = false;
  std::atomic<std::uint64_t> wanted_session_ = 0;
  std::uint64_t silent_session_ = 0;  // its member 0 did not answer; of the thread, as the next
  std::chrono::steady_clock::time_point silent_until_{};
  std::map<std::uint64_t, Published> published_;  // by buffer; changed on the thread alone, under mutex_
  std::thread thread_;
};

}  // namespace shardwire::keeper

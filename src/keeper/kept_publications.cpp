// SPDX-License-Identifier: Apache-2.0
#include "keeper/kept_publications.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <tuple>
#include <utility>

#include "session/surroundings.hpp"
#include "shardwire/error.hpp"

namespace shardwire::keeper {

namespace {

// A session whose member 0 does not answer for this long has ended, or is of no use.
constexpr std::chrono::seconds join_limit(10);

// That a session ends is what a keeper is there for: a guest's warnings of it are none of the keeper's.
SessionOptions with_log(SessionOptions options, const LogSink& log) {
  if (options.log) return options;
  options.log = [log](LogLevel level, std::string_view text) {
    log(level >= LogLevel::error ? level : LogLevel::debug, fmt::format("a guest: {}", text));
  };
  return options;
}

}  // namespace

KeptPublications::KeptPublications(SessionOptions options, Bytes job_key, LogSink log)
    : options_(with_log(std::move(options), log)),
      job_key_(std::move(job_key)),
      log_(std::move(log)),
      thread_([this] { run(); }) {
}

KeptPublications::~KeptPublications() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void KeptPublications::post(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  changed_.notify_all();
}

void KeptPublications::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ending_ || !tasks_.empty(); });
    if (ending_) break;
    const auto task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
    lock.lock();
  }
  auto left = std::move(published_);
  lock.unlock();
  left.clear();
}

std::set<std::uint64_t> KeptPublications::published() const {
  const std::lock_guard lock(mutex_);
  std::set<std::uint64_t> buffers;
  for (const auto& [buffer, one] : published_) buffers.insert(buffer);
  return buffers;
}

void KeptPublications::publish(const wire::KeepJob& job, const KeptStates& states, Done done) {
  wanted_session_ = job.session;
  std::vector<Wanted> wanted;
  for (const Snapshot* one : states.to_publish()) {
    const bool earlier = one->session != job.session;
    wanted.push_back({one->buffer,
                      {.name = one->name,
                       .step = one->step,
                       .origin = earlier ? one->session : 0,
                       .attempt = earlier ? states.attempt_of(one->session) : 0,
                       .layout_rank = one->layout_rank,
                       .manifest = one->manifest,
                       .values = one->values,
                       .tensors = one->tensors,
                       .digests = one->digests,
                       .memory = one->memory}});
  }
  // In the order of restore::by_preference: a state is complete only when each that is preferred and can be is.
  const auto preference = [](const Wanted& one) {
    return std::tuple(one.snapshot.origin == 0, one.snapshot.attempt, one.snapshot.step);
  };
  std::ranges::stable_sort(wanted, std::ranges::greater(), preference);
  post([this, job, wanted = std::move(wanted), done = std::move(done)]() mutable {
    const std::size_t failed = publish_all(job, std::move(wanted));
    if (!is_over(job.session)) done(failed);
  });
}

std::size_t KeptPublications::publish_all(const wire::KeepJob& job, std::vector<Wanted> wanted) {
  leave_if([&](std::uint64_t, const Published& one) { return one.session != job.session; });
  std::erase_if(wanted, [&](const Wanted& one) { return published_.contains(one.buffer); });
  std::size_t failed = 0;
  for (const Wanted& one : wanted) {
    const bool silent = job.session == silent_session_ && std::chrono::steady_clock::now() < silent_until_;
    if (silent || is_over(job.session)) {
      ++failed;
      continue;
    }
    const std::string what =
        fmt::format("'{}', step {}, rank {}", one.snapshot.name, one.snapshot.step, one.snapshot.layout_rank);
    try {
      Published published = publish_one(job, one);
      log_(LogLevel::info, fmt::format("publishes {} for its trainer, as member {}", what, published.member->member()));
      const std::lock_guard lock(mutex_);
      published_[one.buffer] = std::move(published);
    } catch (const std::exception& error) {
      ++failed;
      if (is_over(job.session)) continue;
      const auto* const known = dynamic_cast<const Error*>(&error);
      const bool unanswered = known != nullptr && known->code() == ErrorCode::timed_out;  // usual at the end of a job
      log_(
          unanswered ? LogLevel::info : LogLevel::warning,
          fmt::format("cannot publish {} in the session at {} port {}: {}", what, job.address, job.port, error.what()));
      if (!unanswered) continue;
      silent_session_ = job.session;
      silent_until_ = std::chrono::steady_clock::now() + join_limit;
    }
  }
  return failed;
}

KeptPublications::Published KeptPublications::publish_one(const wire::KeepJob& job, const Wanted& wanted) {
  Bootstrap bootstrap;
  bootstrap.guest = true;
  bootstrap.world_size = job.world_size;
  bootstrap.local_size = 1;
  bootstrap.address = job.address;
  bootstrap.port = job.port;
  bootstrap.run_id = job.run_id;
  if (const char* interface = std::getenv("SHARDWIRE_INTERFACE")) bootstrap.interface = interface;
  bootstrap.job_key = job.job_key.empty() ? job_key_ : job.job_key;
  SessionOptions options = options_;
  options.join_timeout = join_limit;
  options.interrupted = [this, session = job.session] { return is_over(session); };
  auto member =
      std::make_shared<detail::SessionState>(detail::surroundings_of_process(), std::move(bootstrap), options);
  member->join(std::chrono::steady_clock::now());
  // A job that has begun again may listen where the earlier one did.
  if (member->session_number() != job.session) {
    throw Error(ErrorCode::timed_out, "another session has begun there");
  }
  auto publication = member->publish_kept(wanted.snapshot, join_limit);
  return {job.session, std::move(member), std::move(publication)};
}

void KeptPublications::keep_only(std::set<std::uint64_t> buffers) {
  post([this, buffers = std::move(buffers)] {
    leave_if([&](std::uint64_t buffer, const Published&) { return !buffers.contains(buffer); });
  });
}

void KeptPublications::leave_if(const std::function<bool(std::uint64_t buffer, const Published&)>& which) {
  std::vector<Published> gone;
  {
    const std::lock_guard lock(mutex_);
    for (auto one = published_.begin(); one != published_.end();) {
      if (which(one->first, one->second)) {
        gone.push_back(std::move(one->second));
        one = published_.erase(one);
      } else {
        ++one;
      }
    }
  }
  for (Published& one : gone) {
    try {
      one.member->close(Duration::zero());  // readers that are still at it plan again
    } catch (const std::exception& error) {
      log_(LogLevel::debug, error.what());
    }
  }
}

}  // namespace shardwire::keeper

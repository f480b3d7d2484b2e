// SPDX-License-Identifier: Apache-2.0
#include "session/buddies.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "geometry/by_value.hpp"
#include "restore/buddy_task.hpp"
#include "runtime/await.hpp"
#include "shardwire/error.hpp"
#include "support/list_of.hpp"
#include "support/ranks_of.hpp"

namespace shardwire {

namespace {

// For ranks that have not published a step yet, and afterwards for what they are.
constexpr std::chrono::minutes patience(5);
constexpr std::chrono::minutes search_limit(6);
// For a copy, beside twice what it takes at the rate, or at one that a network of the last decade exceeds.
constexpr std::chrono::seconds copy_limit(60);
constexpr ByteCount low_bytes_per_second = 50'000'000;
constexpr std::chrono::seconds waiting_to_be_said(2);
constexpr std::size_t max_catalogs = 64;

Duration limit_for(ByteCount bytes, ByteCount bytes_per_second) {
  const double seconds =
      static_cast<double>(bytes) / static_cast<double>(bytes_per_second > 0 ? bytes_per_second : low_bytes_per_second);
  return copy_limit + std::chrono::duration_cast<Duration>(std::chrono::duration<double>(2 * std::min(seconds, 1e6)));
}

// Of all blocks of all tensors, in this order. None if not all of them are known.
std::vector<Digest128> digests_in_order(const BlockDigests& known, const Manifest& manifest, Rank rank) {
  std::vector<Digest128> all;
  for (std::uint32_t i = 0; i < manifest.tensors.size(); ++i) {
    const auto& [spec, layout] = manifest.tensors[i];
    if (travels_by_value(spec)) continue;
    const std::size_t blocks = move::Blocks(layout.boxes_of(spec.shape, rank), item_size(spec.dtype)).size();
    const auto found = known.find(i);
    if ((found == known.end() ? 0 : found->second.size()) != blocks) return {};
    if (blocks == 0) continue;
    all.insert(all.end(), found->second.begin(), found->second.end());
  }
  return all;
}

}  // namespace

void BuddyCopies::start() {
  const std::lock_guard lock(mutex_);
  if (thread_ || ending_) return;
  try {
    thread_ = host_.start_thread([this] { run(); });
  } catch (const std::system_error& error) {
    throw Error(ErrorCode::out_of_resources, fmt::format("a thread for copies on other hosts: {}", error.what()));
  }
}

void BuddyCopies::add(Publication publication) {
  const std::lock_guard lock(mutex_);
  if (ending_) return;
  jobs_.push_back({std::move(publication)});
  changed_.notify_all();
}

bool BuddyCopies::retire(const Publication& publication, Duration timeout) {
  const std::lock_guard lock(mutex_);
  const auto job = std::ranges::find(jobs_, publication, &Job::publication);
  if (job == jobs_.end() || ending_) return false;
  job->retired = std::max(job->retired.value_or(timeout), timeout);
  return true;
}

template <typename Done>
void BuddyCopies::wait(std::chrono::steady_clock::time_point deadline, const Interruption& interruption, Done done) {
  interruption.wait([&](Interruption::Slice slice) {
    std::unique_lock lock(mutex_);
    const auto until = std::min(deadline, std::chrono::steady_clock::now() + slice);
    return changed_.wait_until(lock, until, [&] { return ending_ || done(); }) ||
           std::chrono::steady_clock::now() >= deadline;
  });
}

void BuddyCopies::wait_for(const std::string& name, const Interruption& interruption) {
  using RealTime = std::chrono::steady_clock;
  const auto made = [&] {
    return std::ranges::none_of(jobs_, [&](const Job& one) { return one.publication->name == name; });
  };
  const auto began = RealTime::now();
  wait(began + waiting_to_be_said, interruption, made);
  if (RealTime::now() - began >= waiting_to_be_said) {
    say(LogLevel::warning,
        fmt::format("the next publication of '{}' waits for copies of the one before, here or on other hosts: a low "
                    "buddy_bytes_per_second, a rank that is late or stopped, or one that publishes without buddies",
                    name));
  }
  wait(RealTime::time_point::max(), interruption, made);
}

void BuddyCopies::require_publishers(const std::string& name) {
  std::vector<int> members;
  {
    const std::lock_guard lock(mutex_);
    members = publishers_[name];
  }
  host_.running()->call([&] {
    std::erase_if(members,
                  [&](int member) { return host_.context().directory.presence(member) != wire::Presence::lost; });
  });
  if (members.empty()) return;
  throw Error(ErrorCode::peer_lost,
              fmt::format("members {} are lost, which published '{}': the next step would replace one that is complete",
                          support::list_of(members), name),
              support::ranks_of(members));
}

void BuddyCopies::wait_for_all(std::chrono::steady_clock::time_point deadline, const Interruption& interruption) {
  wait(deadline, interruption, [&] { return jobs_.empty(); });
}

void BuddyCopies::stop() {
  std::unique_ptr<CallThread> thread;
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    thread = std::move(thread_);
  }
  changed_.notify_all();
  if (thread) thread->join();
}

void BuddyCopies::run() {
  while (true) {
    Publication publication;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return ending_ || !jobs_.empty(); });
      if (ending_) return;
      publication = jobs_.front().publication;
    }
    std::vector<int> holders;
    attempt(*publication, "no copies for other hosts", [&] { holders = make_all(*publication); });
    attempt(*publication, "copies on other hosts may be missing", [&] { wait_for_others(*publication, holders); });
    finish_first();
  }
}

template <typename Part>
void BuddyCopies::attempt(const detail::PublicationState& of, const char* otherwise, Part part) {
  try {
    part();
  } catch (const std::exception& error) {
    warn(of.name + otherwise, fmt::format("'{}', step {}: {}: {}", of.name, of.step, otherwise, error.what()));
  } catch (...) {
    warn(of.name + otherwise,
         fmt::format("'{}', step {}: {}: an exception of the caller's", of.name, of.step, otherwise));
  }
}

void BuddyCopies::finish_first() {
  std::unique_lock lock(mutex_);
  if (const auto retired = jobs_.front().retired) {
    const Publication publication = jobs_.front().publication;
    lock.unlock();
    try {
      host_.running()->call([&] { host_.withdraw(publication, *retired); });
    } catch (const Error&) {  // the session has ended
    }
    lock.lock();
  }
  jobs_.pop_front();
  changed_.notify_all();
}

void BuddyCopies::warn(const std::string& topic, const std::string& text) {
  const std::uint64_t times = ++warnings_[topic];
  if ((times & (times - 1)) != 0) return;
  say(LogLevel::warning, times == 1 ? text : fmt::format("{} ({} times so far)", text, times));
}

void BuddyCopies::say(LogLevel level, const std::string& text) {
  if (ending_) return;
  try {
    host_.running()->call([&] { host_.log(level, text); });
  } catch (const Error&) {  // the session has ended
  }
}

std::vector<int> BuddyCopies::make_all(const detail::PublicationState& of) {
  using Found = restore::BuddyTask::Found;
  const restore::BuddyTask::Request request{.name = of.name,
                                            .step = of.step,
                                            .layout_rank = to_int(of.layout_rank),
                                            .ranks = of.described.manifest->ranks,
                                            .copies = of.buddies,
                                            .patience = patience,
                                            .timeout = search_limit};
  const Found found = await<Found>(*host_.running(), interruption_, [&](const Answer<Found>& answer) {
    host_.start(std::make_unique<restore::BuddyTask>(host_.context(), request, answer));
  });
  {
    const std::lock_guard lock(mutex_);
    publishers_[of.name] = found.publishers;
  }
  if (found.domains <= of.buddies) {
    warn(of.name + " domains",
         fmt::format(
             "{} copies on other hosts are wanted, and the ranks of '{}' are in {} failure domains: there are {} "
             "(SHARDWIRE_HOST_DOMAIN)",
             of.buddies, of.name, found.domains, std::max(0, found.domains - 1)));
  }
  if (!found.missed.empty()) {
    warn(of.name + " missed",
         fmt::format("no copy of source ranks {} of '{}': they do not publish step {}, which is not complete",
                     support::list_of(found.missed), of.name, of.step));
  }
  for (const restore::BuddyTask::Copy& copy : found.copies) {
    try {
      make(of, copy);
    } catch (const std::exception& error) {
      warn(fmt::format("{} copy {}", of.name, copy.record.layout_rank),
           fmt::format("no copy of source rank {} of '{}', step {}: {}", copy.record.layout_rank, of.name, of.step,
                       error.what()));
    }
    if (ending_) break;
  }
  return found.holders;
}

// The publication of this member has to stay readable until then.
void BuddyCopies::wait_for_others(const detail::PublicationState& of, const std::vector<int>& holders) {
  host_.say_copied(of);
  // Each of them makes as many copies as there are of this member, or a few more.
  const ByteCount bytes = of.snapshot->memory().bytes * (2 + static_cast<ByteCount>(of.buddies));
  const restore::CopiesMade::Request others{
      .name = of.name, .step = of.step, .members = holders, .timeout = limit_for(bytes, of.buddy_bytes_per_second)};
  await<void>(*host_.running(), interruption_, [&](const Answer<void>& answer) {
    host_.start(std::make_unique<restore::CopiesMade>(host_.context(), others, answer));
  });
}

void BuddyCopies::make(const detail::PublicationState& of, const restore::BuddyTask::Copy& copy) {
  const int rank = copy.record.layout_rank;
  auto places = places_.find({copy.record.manifest, rank});
  if (places == places_.end()) {
    if (places_.size() >= max_catalogs) places_.clear();
    places = places_.emplace(std::pair(copy.record.manifest, rank), places_for_copy(*copy.manifest, Rank{rank})).first;
  }
  Keeping keeping({host_.running(), *host_.core, *host_.memory, *host_.kept, interruption_},
                  {.publication = of.name,
                   .step = of.step,
                   .layout_rank = rank,
                   .steps = static_cast<std::uint32_t>(of.keep.steps),
                   .copied = true,
                   .is_copy = true});
  const auto memory = keeping.allocate(places->second.bytes);
  const BlockDigests known = restore_into(of, copy, places->second, memory->memory().address);
  std::vector<Digest128> digests = digests_in_order(known, *copy.manifest, Rank{rank});
  if (digests.empty() && !known.empty()) {
    warn(fmt::format("{} digests {}", of.name, rank),
         fmt::format(
             "the copy of source rank {} of '{}', step {}, has no digests: its publisher did not send all of them",
             rank, of.name, of.step));
  }
  keeping.done({.manifest = wire::encode_manifest(*copy.manifest),
                .values = wire::encode_values(*copy.values),
                .tensors = places->second.tensors,
                .digests = std::move(digests)});
  const std::uint64_t buffer = keeping.buffer();
  const KeptCopies::Copy made{keeping.connection(), copy.record.member};
  keeping.settle();
  host_.running()->call([&] { host_.copied(buffer, made); });
}

BlockDigests BuddyCopies::restore_into(const detail::PublicationState& of, const restore::BuddyTask::Copy& copy,
                                       const CopiedRank& places, std::byte* to) {
  const Place place{copy.record.manifest, copy.record.layout_rank, to};
  auto known = catalogs_.find(place);
  if (known == catalogs_.end()) {
    if (catalogs_.size() >= max_catalogs) catalogs_.clear();
    known = catalogs_.emplace(place, catalog_of_copy(*copy.manifest, Rank{copy.record.layout_rank}, places, to)).first;
  }
  if (known->second.entries().empty()) return {};
  RestoreOptions options;
  options.name = of.name;
  options.step = of.step;
  options.timeout = limit_for(places.bytes, of.buddy_bytes_per_second);
  options.ingress_bytes_per_second = of.buddy_bytes_per_second;
  options.discovery_grace = Duration::zero();
  const auto digests = std::make_shared<BlockDigests>();
  const auto state = host_.restore(known->second, options, interruption_, copy.record, digests);
  detail::RestoreState& restore = *state;
  try {
    restore.completion().wait();
  } catch (...) {
    restore.cancel();
    restore.completion().wait_for_end();  // until then it writes
    throw;
  }
  return *digests;
}

}  // namespace shardwire

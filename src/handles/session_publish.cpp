// SPDX-License-Identifier: Apache-2.0
// Publications of a session, their copies by the keeper and by other hosts, and the ends of both.
#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "catalog/memory_check.hpp"
#include "catalog/tensor_places.hpp"
#include "exchange/aliasing.hpp"
#include "handles/session_state.hpp"
#include "memory/device_events.hpp"
#include "memory/digest.hpp"
#include "restore/buddy_task.hpp"
#include "runtime/await.hpp"
#include "serve/refusal.hpp"
#include "support/list_of.hpp"
#include "support/ranks_of.hpp"

namespace shardwire::detail {

namespace {

Error still_read(const std::string& name, const char* what, const std::vector<int>& readers) {
  const bool one = readers.size() == 1;
  return {ErrorCode::timed_out,
          fmt::format("'{}' was {} while member{} {} still read it; {} leases are revoked", name, what, one ? "" : "s",
                      support::list_of(readers), one ? "its" : "their"),
          support::ranks_of(readers)};
}

/// Waits until member 0 lists a publication of this member.
class Listing final : public Operation {
 public:
  /// Ownership: borrows the core.
  Listing(Core& core, const PublicationState& publication, Answer<void> listed)
      : core_(core), name_(publication.name), generation_(publication.generation), listed_(std::move(listed)) {}

  void start() override {
    watch_ = core_.membership().watch(name_);
    directory_changed();
  }
  void directory_changed() override {
    const auto record = core_.directory().publication(name_, core_.member());
    if (given_ || !record || record->generation != generation_) return;
    given_ = true;
    core_.finished(*this);
    listed_.give();
  }
  void abandon() override {}

 private:
  Core& core_;
  std::string name_;
  std::uint64_t generation_;
  Answer<void> listed_;
  Membership::Watch watch_;
  bool given_ = false;
};

}  // namespace

std::shared_ptr<PublicationState> SessionState::publish(const Catalog& held, const PublishOptions& options) {
  return counted(options, [&] { return publish(held, options, interruption_); });
}

std::shared_ptr<PublicationState> SessionState::publish(const Catalog& held, const PublishOptions& options,
                                                        const Interruption& interruption) {
  const auto loop = running();
  std::optional<Keeping> keeping;
  const auto publication = describe_publication(held, options, interruption, keeping);
  list(publication);
  loop->call([&] { core_->publish(publication); });
  if (keeping) keeping->settle();
  if (publication->buddies > 0) buddies().add(publication);
  return publication;
}

std::shared_ptr<PublicationState> SessionState::publish_kept(const KeptSnapshot& kept, Duration timeout) {
  const auto loop = running();
  const auto deadline = WallClock::now() + timeout;
  auto publication = std::make_shared<PublicationState>();
  publication->name = kept.name;
  publication->layout_rank = Rank{kept.layout_rank};
  publication->step = kept.step;
  publication->origin = kept.origin;
  publication->attempt = kept.attempt;
  publication->generation = next_generation_++;
  publication->described = described(kept.manifest, kept.values);
  publication->use_kept(kept.tensors, memory->adopt_shared(kept.memory));
  if (!kept.digests.empty()) publication->use_digests(kept.digests);
  publication->session = weak_from_this();
  publication->interruption = interruption_;
  list(publication);
  // A session that joins or gathers afterwards has to see it. Member 0 lists it once it has told all.
  Awaited<void> listed = begin_on<void>(*loop, [&](const Answer<void>& answer) {
    core_->publish(publication);
    core_->start(std::make_unique<Listing>(*core_, *publication, answer));
  });
  while (!listed.ready_within(Interruption::interval)) {
    interruption_.check();
    if (WallClock::now() > deadline) {
      throw Error(ErrorCode::timed_out, "member 0 does not answer", std::vector<Rank>{Rank{0}});
    }
  }
  listed.take();  // throws if the session has ended meanwhile
  return publication;
}

SessionState::Retirement SessionState::retire(const std::shared_ptr<PublicationState>& publication, Duration timeout) {
  const auto loop = open_loop();
  if (!loop) return nullptr;
  const StartedRetirement started = retirement_of(publication, "retired");
  if (auto* const copies = made_buddies();
      copies != nullptr && copies->retire(publication, timeout)) {  // it lies in memory of the keeper
    started.retired({});
    return started.retirement;
  }
  try {
    loop->call([&] { core_->withdraw(publication, timeout, started.retired); });
    return started.retirement;
  } catch (const LoopEnded&) {
    return nullptr;
  }
}

SessionState::Retirement SessionState::replace(const std::shared_ptr<PublicationState>& old, const Update& update,
                                               std::shared_ptr<PublicationState>& fresh) {
  const auto loop = running();
  const PublishOptions options{.name = old->name,
                               .step = update.step,
                               .snapshot = update.snapshot,
                               .digest = old->digests.has_value(),
                               .keep = old->keep,
                               .buddies = old->buddies,
                               .buddy_bytes_per_second = old->buddy_bytes_per_second};
  Retirement retirement;
  fresh = counted(options, [&] {
    if (old->retired) refuse_update(old->name);
    std::optional<Keeping> keeping;
    const auto publication = describe_publication(update.held, options, old->interruption, keeping);
    check_update(*old, *publication);
    list(publication);
    StartedRetirement started = retirement_of(old, "updated");
    loop->call([&] { core_->replace(old, publication, update.timeout, started.retired); });
    if (keeping) keeping->settle();
    if (publication->buddies > 0) buddies().add(publication);
    retirement = std::move(started.retirement);
    return publication;
  });
  return retirement;
}

SessionState::StartedRetirement SessionState::retirement_of(const std::shared_ptr<PublicationState>& publication,
                                                            const char* what) const {
  auto retirement = std::make_shared<Completion>(publication->interruption, on_loop());
  auto retired = [retirement, publication, what, metrics = metrics_,
                  began = WallClock::now()](const std::vector<int>& readers) {
    if (metrics) {
      metrics->retired(publication->generation, seconds_of(WallClock::now() - began),
                       readers.empty() ? std::nullopt : std::optional(ErrorCode::timed_out));
    }
    publication->retired = true;
    publication->owners.release();
    retirement->finish(readers.empty() ? nullptr
                                       : std::make_exception_ptr(still_read(publication->name, what, readers)));
  };
  return {retirement, std::move(retired)};
}

void SessionState::wait(const std::shared_ptr<PublicationState>& publication, const Completion& retirement) {
  const auto loop = open_loop();
  if (loop && loop->waits_for_itself() && !retirement.is_done()) {
    throw Error(ErrorCode::unsupported, "a callback of the session cannot wait for the readers of a publication");
  }
  retirement.wait([&] {
    if (loop) loop->post([this, publication] { core_->end_retirement(*publication); });
  });
}

void SessionState::wait_for_end(const Completion& retirement) noexcept {
  const auto loop = open_loop();
  if (loop && loop->waits_for_itself()) return;
  retirement.wait_for_end();
}

void SessionState::list(const std::shared_ptr<PublicationState>& publication) {
  const std::lock_guard lock(mutex_);
  std::erase_if(published_, [](const auto& one) { return one.expired(); });
  published_.push_back(publication);
}

// Runs on the caller's thread.
void SessionState::copy_and_wait(std::vector<memory::QueuedCopy> copies) {
  const auto loop = running();
  if (loop->is_current()) {
    throw Error(ErrorCode::unsupported,
                "device memory cannot be read or written from within a callback of the session");
  }
  Awaited<void> copied = begin_on<void>(*loop, [&](const Answer<void>& answer) {
    core_->copies().submit(on_devices(std::move(copies)), [answer](const memory::CopyResult& result) {
      result.error ? answer.fail(result.error) : answer.give();
    });
  });
  try {
    copied.take();
  } catch (const LoopEnded&) {
    throw Error(ErrorCode::cancelled, "the session was closed while device memory was copied");
  }
}

// Runs on the caller's thread, which may be the session's own: a callback may publish host memory.
std::vector<Digest128> SessionState::digest_and_wait(std::vector<memory::QueuedCopy> blocks) {
  const auto loop = running();
  const bool on_device =
      std::ranges::any_of(blocks, [](const auto& one) { return one.source_device != memory::on_host; });
  if (loop->is_current() && on_device) {
    throw Error(ErrorCode::unsupported, "device memory cannot be digested from within a callback of the session");
  }
  std::vector<Digest128> digests;
  if (loop->is_current()) {
    for (const memory::QueuedCopy& one : blocks) digests.push_back(memory::digest_runs(one.copy, one.source));
    return digests;
  }
  const std::size_t count = blocks.size();
  Awaited<std::vector<Digest128>> taken = begin_on<std::vector<Digest128>>(*loop, [&](const auto& answer) {
    core_->copies().submit({.count = count,
                            .copy = [blocks = std::move(blocks)](std::size_t index) { return blocks[index]; },
                            .work = memory::CopyWork::digest,
                            .on_devices = on_device},
                           [answer](memory::CopyResult& result) {
                             result.error ? answer.fail(result.error) : answer.give(std::move(result.digests));
                           });
  });
  try {
    return taken.take();
  } catch (const LoopEnded&) {
    throw Error(ErrorCode::cancelled, "the session was closed while digests were taken");
  }
}

wire::KeepBegin SessionState::keep_begin(const Catalog& held, const PublishOptions& options) const {
  wire::KeepBegin begin{.publication = options.name,
                        .step = options.step,
                        .layout_rank = to_int(held.layout_rank()),
                        .steps = static_cast<std::uint32_t>(options.keep.steps),
                        .copied = options.buddies > 0};
  const std::lock_guard lock(mutex_);
  if (const auto found = last_restored_.find(options.name); found != last_restored_.end())
    begin.restored = found->second;
  return begin;
}

// Not yet visible to peers.
std::shared_ptr<PublicationState> SessionState::describe_publication(const Catalog& held, const PublishOptions& options,
                                                                     const Interruption& interruption,
                                                                     std::optional<Keeping>& keeping) {
  if (options.name.empty() || options.name.size() > 256) {
    throw Error(ErrorCode::invalid_argument, "the name of a publication has 1 to 256 characters");
  }
  if (options.keep.steps < 0) throw Error(ErrorCode::invalid_argument, "the number of kept snapshots is negative");
  if (options.buddies < 0) throw Error(ErrorCode::invalid_argument, "the number of buddies is negative");
  if (options.buddies > 0) {
    require_member("publish with buddies");
    if (options.keep.steps == 0) throw Error(ErrorCode::invalid_argument, "buddies copy what a keeper holds: set keep");
    static_cast<void>(waiting_in("publish with buddies"));
    buddies().start();
  }
  // The step before is copied now or never: others go on from it as soon as this member does.
  if (auto* const copies = made_buddies()) {
    copies->wait_for(options.name, interruption);
    if (options.buddies > 0) copies->require_publishers(options.name);
  }
  const TensorPlaces places = places_of(held);
  require_readable(held, places);
  memory::wait_until_ready(events_of(held, places), [&] { interruption.check(); });
  const CopyAndWait copy = [this](std::vector<memory::QueuedCopy> copies) { copy_and_wait(std::move(copies)); };
  auto publication = std::make_shared<PublicationState>();
  publication->name = options.name;
  publication->layout_rank = held.layout_rank();
  publication->step = options.step;
  publication->generation = next_generation_++;
  publication->described = describe(held, places, copy);
  if (options.keep.steps > 0) {
    static_cast<void>(waiting_in("publish with a keeper"));
    keeping.emplace(Keeping::Setup{running(), *core_, *memory, kept_memory_, interruption}, keep_begin(held, options));
    publication->copy_from(
        held, places, *memory, [&](ByteCount bytes) { return keeping->allocate(bytes); }, copy);
  } else if (options.snapshot == Snapshot::copy) {
    publication->copy_from(
        held, places, *memory, [this](ByteCount bytes) { return memory->allocate(bytes); }, copy);
  } else {
    publication->use_in_place(held, places, *memory);
    publication->owners = KeptOwners(held.owners());
  }
  if (options.digest) {
    publication->digest_blocks(
        [this](std::vector<memory::QueuedCopy> blocks) { return digest_and_wait(std::move(blocks)); });
  }
  if (keeping) keeping->done(kept_content(*publication));
  publication->keep = options.keep;
  publication->buddies = options.buddies;
  publication->buddy_bytes_per_second = options.buddy_bytes_per_second;
  publication->session = weak_from_this();
  publication->interruption = interruption;
  return publication;
}

BuddyCopies* SessionState::made_buddies() const {
  const std::lock_guard lock(mutex_);
  return buddies_.get();
}

BuddyCopies& SessionState::buddies() {
  const std::lock_guard lock(mutex_);
  if (!buddies_) {
    buddies_ = std::make_unique<BuddyCopies>(BuddyCopies::Host{
        .running = [this] { return running(); },
        .context = [this]() -> const restore::Context& { return core_->context(); },
        .start = [this](std::unique_ptr<Operation> task) { core_->start(std::move(task)); },
        .withdraw = [this](const std::shared_ptr<PublicationState>& publication,
                           Duration timeout) { core_->withdraw(publication, timeout, [](const std::vector<int>&) {}); },
        .say_copied = [this](const PublicationState& of) { say_copied(of); },
        .restore =
            [this](const Catalog& wanted, RestoreOptions options, const Interruption& interruption,
                   const wire::PublicationRecord& only, std::shared_ptr<BlockDigests> digests) {
              return restore(wanted, std::move(options), interruption, std::nullopt, only, std::move(digests));
            },
        .copied =
            [this](std::uint64_t buffer, const KeptCopies::Copy& copy) {
              core_->copies_of_others().add(buffer, copy);
              core_->report_losses();  // it may be lost already
            },
        .log = [this](LogLevel level, const std::string& text) { core_->log(level, text); },
        .core = core_.get(),
        .memory = memory.get(),
        .kept = &kept_memory_,
        .start_thread = start_thread_,
    });
  }
  return *buddies_;
}

void SessionState::say_copied(const PublicationState& of) {
  auto said = std::make_shared<PublicationState>();
  said->name = restore::CopiesMade::name_for(of.name);
  said->layout_rank = of.layout_rank;
  said->step = of.step;
  said->generation = next_generation_++;
  said->described = describe(Catalog(of.layout_rank, of.described.manifest->ranks));
  said->session = weak_from_this();
  auto& before = said_copied_[of.name];
  running()->call([&] {
    before ? core_->replace(before, said, Duration::zero(), [](const std::vector<int>&) {}) : core_->publish(said);
  });
  before = std::move(said);
}

std::vector<std::shared_ptr<PublicationState>> SessionState::published() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<PublicationState>> result;
  for (const auto& one : published_) {
    if (auto publication = one.lock()) result.push_back(std::move(publication));
  }
  return result;
}

}  // namespace shardwire::detail

// SPDX-License-Identifier: Apache-2.0
#include "session/session_state.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "catalog/memory_check.hpp"
#include "catalog/tensor_places.hpp"
#include "control/bootstrap.hpp"
#include "control/stored_rendezvous.hpp"
#include "exchange/aliasing.hpp"
#include "move/tuning.hpp"
#include "restore/path_survey.hpp"
#include "restore/task.hpp"
#include "runtime/await.hpp"
#include "session/settings.hpp"
#include "support/boot_id.hpp"
#include "support/environment.hpp"
#include "support/list_of.hpp"
#include "wire/limits.hpp"

namespace shardwire {

namespace {

using detail::PublicationState;

constexpr std::chrono::seconds store_interval(1);
constexpr std::size_t max_addresses = 16;  // of member 0: hosts of containers have one for each of these

// Rendezvous addresses of member 0, as far as the bootstrap gives them.
std::vector<SocketAddress> rendezvous_of(const Bootstrap& bootstrap) {
  if (!bootstrap.store) return {{resolve(bootstrap.address), bootstrap.port}};
  std::vector<std::string> hosts{"127.0.0.1"};
  if (!bootstrap.interface.empty()) {
    hosts = {interface_address(bootstrap.interface)};
  } else if (bootstrap.local_size != bootstrap.world_size) {
    hosts = reachable_addresses();
  }
  hosts.resize(std::min(hosts.size(), max_addresses));
  std::vector<SocketAddress> addresses;
  for (std::string& host : hosts) addresses.push_back({std::move(host), bootstrap.port});
  return addresses;
}

Bootstrap named(Bootstrap bootstrap) {
  if (bootstrap.run_id.empty()) bootstrap.run_id = run_id_of_environment();
  return bootstrap;
}

void check_bootstrap(const Bootstrap& bootstrap) {
  if (bootstrap.world_size < 1 || bootstrap.rank < 0 || bootstrap.rank >= bootstrap.world_size) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("member {} is not among {} members", bootstrap.rank, bootstrap.world_size));
  }
  if (bootstrap.run_id.size() > wire::max_name_bytes || bootstrap.run_id.find('\0') != std::string::npos) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("a run id has at most {} characters, and no NUL among them", wire::max_name_bytes));
  }
}

Error still_read(const std::string& name, const char* what, const std::vector<int>& readers) {
  std::vector<Rank> ranks;
  for (const int reader : readers) ranks.push_back(Rank{reader});
  return {ErrorCode::timed_out,
          fmt::format("'{}' was {} while members {} still read it; their leases are revoked", name, what,
                      support::list_of(readers)),
          std::move(ranks)};
}

/// A restore that has not begun; it ends with its session if the loop never runs it.
class PostedRestore {
 public:
  explicit PostedRestore(std::shared_ptr<detail::RestoreState> state) : state_(std::move(state)) {}
  ~PostedRestore() {
    if (!state_) return;
    state_->finish({}, {}, std::make_exception_ptr(Error(ErrorCode::cancelled, "the session was closed")));
  }
  PostedRestore(const PostedRestore&) = delete;
  PostedRestore& operator=(const PostedRestore&) = delete;
  void begins() { state_.reset(); }

 private:
  std::shared_ptr<detail::RestoreState> state_;  // owners: see restore::RestoreTask
};

}  // namespace

namespace detail {

SessionState::SessionState(std::shared_ptr<Loop> loop, Bootstrap from, const SessionOptions& options)
    : bootstrap(named(std::move(from))), interruption_(options.interrupted), loop_(std::move(loop)) {
  check_bootstrap(bootstrap);
  Settings settings = resolve_settings(options, bootstrap.rank);
  rounds_unasked_ = settings.transport == transport::automatic;
  force_kernel_of_environment();
  begin_with_kernels_of(settings.costs);
  const auto began = Clock::now();
  const Duration timeout = settings.join_timeout;
  make_core(std::move(settings));
  try {
    join(began, timeout);
  } catch (...) {
    stop(Clock::now());
    throw;
  }
  join_seconds_ = std::chrono::duration<double>(Clock::now() - began).count();
}

void SessionState::make_core(Settings settings) {
  Core::Setup setup;
  setup.bootstrap = bootstrap;
  setup.identity.job_key = bootstrap.job_key;
  wire::Hello& hello = setup.identity.hello;
  hello.rank = bootstrap.rank;
  hello.world_size = bootstrap.world_size;
  hello.incarnation = loop_->random_number();
  // By the kernel's boot; the possible memory access between its processes is probed later.
  hello.host = support::boot_id();
  hello.run_id = bootstrap.run_id;
  setup.options = std::move(settings);
  loop_->call([&] {
    std::vector<std::string> left_out;
    fabrics = std::make_shared<Fabrics>(setup.options.transport, setup.options.costs.tuning().tcp.streams,
                                        [&](const std::string& why) { left_out.push_back(why); });
    memory = std::make_shared<MemoryTable>(fabrics);
    setup.identity.hello.fabrics = fabrics->offers();
    setup.fabrics = fabrics;
    setup.memory = memory;
    core_ = std::make_unique<Core>(*loop_, std::move(setup));
    for (const std::string& why : left_out) core_->log(LogLevel::warning, why);
    core_->log_warnings();
    const std::string unknown = support::unknown_variables_warning();
    if (!unknown.empty()) core_->log(LogLevel::warning, unknown);
  });
}

void SessionState::join(Clock::time_point began, Duration timeout) {
  const auto left = [&] { return std::max<Duration>(timeout - (Clock::now() - began), std::chrono::milliseconds(1)); };
  std::optional<StoredRendezvous> stored;
  if (bootstrap.store) stored.emplace(bootstrap, interruption_);
  // Last, so that the connection gets all the remaining time once the address is known.
  std::vector<SocketAddress> rendezvous =
      stored && bootstrap.rank != 0 ? stored->wait(left(), timeout) : rendezvous_of(bootstrap);
  Awaited<void> joined = begin_on<void>(*loop_, [&](const Answer<void>& answer) {
    core_->membership().join(std::move(rendezvous), left(),
                             [answer](const std::exception_ptr& error) { error ? answer.fail(error) : answer.give(); });
  });
  // The stored address may be that of an earlier member 0.
  while (stored && bootstrap.rank != 0 && !joined.ready_within(store_interval)) {
    interruption_.check();
    auto addresses = stored->new_addresses(std::min<Duration>(left(), store_interval));
    if (addresses) loop_->call([&] { core_->membership().rendezvous_moved(std::move(*addresses)); });
  }
  joined.take(interruption_);
  if (stored && bootstrap.rank == 0) {
    loop_->call([&] { rendezvous = core_->membership().rendezvous(); });
    stored->put(rendezvous, left());
  }
}

void SessionState::stop(Clock::time_point until) {
  if (!owner_.is_this()) return abandon();
  std::shared_ptr<Loop> ended;  // owners: see running()
  {
    const std::lock_guard lock(mutex_);
    ended = std::exchange(loop_, nullptr);
  }
  if (!ended) return;
  ended->end([this] { core_.reset(); });
  // A running exchange fails, since it can reach no other member; only waits for the caller's events can delay it. In
  // that case it gives up its group itself.
  const TimedLock no_exchange(exchanges_, until);
  if (no_exchange.owns()) kept_group_ = {};
}

// Threads, locks and fabrics belong to the parent process and cannot be ended here.
void SessionState::abandon() {
  if (!loop_) return;
  static_cast<void>(core_.release());
  static_cast<void>(new auto(std::move(loop_)));
  static_cast<void>(new auto(std::move(fabrics)));
  static_cast<void>(new auto(std::move(memory)));
  static_cast<void>(new auto(std::move(kept_group_)));
}

std::shared_ptr<Loop> SessionState::open_loop() const {
  if (!owner_.is_this()) return nullptr;  // another thread of the parent may hold the lock forever
  const std::lock_guard lock(mutex_);
  return loop_;
}

std::shared_ptr<Loop> SessionState::running() const {
  if (!owner_.is_this()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the session is that of process {}, which has forked: this process has to join by itself",
                            owner_.id()));
  }
  auto found = open_loop();
  if (!found) throw LoopEnded();
  return found;
}

std::shared_ptr<RegisteredMemory> SessionState::allocate(ByteCount bytes, MemoryKind kind, int device) {
  static_cast<void>(running());
  switch (kind) {
    case MemoryKind::host: return memory->allocate(bytes);
    case MemoryKind::cuda: return memory->allocate_on_device(bytes, device);
    case MemoryKind::detect: break;
  }
  throw Error(ErrorCode::invalid_argument, "an arena is of host memory or of a device's: say which");
}

std::shared_ptr<RegistrationState> SessionState::register_memory(const View& view) {
  static_cast<void>(running());
  const Registrable asked = registrable(view);
  return memory->add(asked.memory, asked.place);
}

std::shared_ptr<PublicationState> SessionState::publish(const Catalog& held, const PublishOptions& options,
                                                        const Interruption& interruption) {
  const auto loop = running();
  const auto publication = describe_publication(held, options, interruption);
  list(publication);
  loop->call([&] { core_->publish(publication); });
  return publication;
}

PublicationOwner::Retirement SessionState::retire(const std::shared_ptr<PublicationState>& publication,
                                                  Duration timeout) {
  const auto loop = open_loop();
  if (!loop) return nullptr;
  const StartedRetirement started = retirement_of(publication, "retired");
  try {
    loop->call([&] { core_->withdraw(publication, timeout, started.retired); });
    return started.retirement;
  } catch (const LoopEnded&) {
    return nullptr;
  }
}

PublicationOwner::Retirement SessionState::replace(const std::shared_ptr<PublicationState>& old, const Update& update,
                                                   std::shared_ptr<PublicationState>& fresh) {
  const auto loop = running();
  const PublishOptions options{.name = old->name, .step = update.step, .snapshot = update.snapshot};
  const auto publication = describe_publication(update.held, options, old->interruption);
  check_update(*old, *publication);
  list(publication);
  const StartedRetirement started = retirement_of(old, "updated");
  loop->call([&] { core_->replace(old, publication, update.timeout, started.retired); });
  fresh = publication;
  return started.retirement;
}

SessionState::StartedRetirement SessionState::retirement_of(const std::shared_ptr<PublicationState>& publication,
                                                            const char* what) const {
  auto retirement = std::make_shared<detail::Completion>(publication->interruption);
  auto retired = [retirement, publication, what](const std::vector<int>& readers) {
    publication->retired = true;
    publication->owners.release();
    retirement->finish(readers.empty() ? nullptr
                                       : std::make_exception_ptr(still_read(publication->name, what, readers)));
  };
  return {retirement, std::move(retired)};
}

void SessionState::wait(const std::shared_ptr<PublicationState>& publication, const detail::Completion& retirement) {
  const auto loop = open_loop();
  if (loop && loop->is_current() && !retirement.is_done()) {
    throw Error(ErrorCode::unsupported, "a callback of the session cannot wait for the readers of a publication");
  }
  retirement.wait([&] {
    if (loop) loop->post([this, publication] { core_->end_retirement(*publication); });
  });
}

void SessionState::wait_for_end(const detail::Completion& retirement) noexcept {
  const auto loop = open_loop();
  if (loop && loop->is_current()) return;
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

// Not yet visible to peers.
std::shared_ptr<PublicationState> SessionState::describe_publication(const Catalog& held, const PublishOptions& options,
                                                                     const Interruption& interruption) {
  if (options.name.empty() || options.name.size() > 256) {
    throw Error(ErrorCode::invalid_argument, "the name of a publication has 1 to 256 characters");
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
  if (options.snapshot == Snapshot::copy) {
    publication->copy_from(held, places, *memory, copy);
  } else {
    publication->use_in_place(held, places, *memory);
    publication->owners = KeptOwners(held.owners());
  }
  publication->session = weak_from_this();
  publication->interruption = interruption;
  return publication;
}

std::vector<std::shared_ptr<PublicationState>> SessionState::published() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<PublicationState>> result;
  for (const auto& one : published_) {
    if (auto publication = one.lock()) result.push_back(std::move(publication));
  }
  return result;
}

// Disjoint memory stays disjoint while neither the wanted catalog nor the publications change.
void SessionState::refuse_aliasing(const Catalog& wanted) {
  const auto now = published();
  std::vector<std::uint64_t> generations;
  for (const auto& publication : now) {
    if (!publication->retired) generations.push_back(publication->generation);
  }
  {
    const std::lock_guard lock(mutex_);
    if (checked_ && checked_->same(wanted) && checked_against_ == generations) return;
  }
  check_aliasing(wanted, now);
  const std::lock_guard lock(mutex_);
  checked_ = wanted;
  checked_against_ = std::move(generations);
}

std::shared_ptr<RestoreState> SessionState::restore(const Catalog& asked, RestoreOptions options, Aliasing aliasing,
                                                    const Interruption& interruption,
                                                    std::shared_ptr<RoundsStep> rounds) {
  const auto loop = running();
  const auto began = loop->now();
  if (options.staging_bytes == 0) throw Error(ErrorCode::invalid_argument, "the staging budget is 0 bytes");
  const Catalog wanted = asked.without_owners();  // caches keep it after the end
  TensorPlaces places = places_of(wanted);
  require_writable(wanted, places);
  static_cast<void>(done_events_of(options));
  if (aliasing == Aliasing::refused) refuse_aliasing(wanted);
  if (!options.method) options.method = method_of_environment();
  auto state = std::make_shared<RestoreState>(interruption, KeptOwners(asked.owners()));
  auto run = std::make_shared<restore::RestoreTask*>(
      nullptr);  // owners: the task that starts the run and cancel(); loop thread only
  state->cancel = [session = weak_from_this(), run, weak = std::weak_ptr<RestoreState>(state)] {
    const auto owner = session.lock();
    const auto open = owner ? owner->open_loop() : nullptr;
    if (!open) return;
    try {
      open->call([&] {
        const auto still = weak.lock();
        if (!still || still->completion().is_done() || *run == nullptr) return;
        (*run)->fail(std::make_exception_ptr(Error(ErrorCode::cancelled, "the restore was cancelled")));
      });
    } catch (const LoopEnded&) {  // the restore ends with it
    }
  };
  const double join_seconds = join_seconds_.exchange(0);
  // An exchange never publishes a replacement.
  const auto withdrawal = aliasing == Aliasing::refused ? restore::RestoreTask::Withdrawal::restarts
                                                        : restore::RestoreTask::Withdrawal::ends;
  const auto posted = std::make_shared<PostedRestore>(state);  // owners: this call and the task
  loop->post([this, state, run, wanted, places = std::move(places), options = std::move(options), withdrawal, began,
              join_seconds, rounds = std::move(rounds), posted] {
    posted->begins();
    auto made = std::make_unique<restore::RestoreTask>(
        core_->services(), state, restore::Request{wanted, places, options, rounds}, withdrawal, began, join_seconds);
    *run = made.get();
    core_->start(std::move(made));
  });
  return state;
}

std::vector<Bytes> SessionState::gather(const std::string& name, Bytes value, Duration timeout,
                                        const Interruption& interruption) {
  return await<std::vector<Bytes>>(*running(), interruption, [&](const auto& answer) {
    core_->membership().gather(name, value, timeout,
                               [answer](std::vector<Bytes> values, const std::exception_ptr& error) {
                                 error ? answer.fail(error) : answer.give(std::move(values));
                               });
  });
}

std::vector<PeerPath> SessionState::paths(const std::string& from, Duration timeout) {
  return await<std::vector<PeerPath>>(*running(), interruption_, [&](const auto& answer) {
    core_->start(std::make_unique<restore::PathSurvey>(
        core_->services(), from, timeout, [answer](std::vector<PeerPath> paths, const std::exception_ptr& error) {
          error ? answer.fail(error) : answer.give(std::move(paths));
        }));
  });
}

Inventory SessionState::inventory(restore::InventoryTask::Request request) {
  return await<Inventory>(*running(), interruption_, [&](const auto& answer) {
    core_->start(std::make_unique<restore::InventoryTask>(
        core_->services(), std::move(request), [answer](Inventory inventory, const std::exception_ptr& error) {
          error ? answer.fail(error) : answer.give(std::move(inventory));
        }));
  });
}

SessionUsage SessionState::usage() const {
  const auto registration = memory->registration();
  return running()->call([&] {
    return SessionUsage{core_->publisher().serving().staging().budget_bytes(),
                        core_->publisher().serving().staging().peak_bytes(), registration.bytes, registration.seconds,
                        core_->copies().pinned_bytes()};
  });
}

void SessionState::close(Duration timeout) {
  const auto open = open_loop();
  if (!open) return;
  const auto deadline = Clock::now() + timeout;
  std::exception_ptr interrupted;
  for (const auto& publication : published()) {
    const Duration left =
        interrupted ? Duration::zero() : std::max(Duration::zero(), Duration(deadline - Clock::now()));
    const Retirement retirement = retire(publication, left);
    try {
      if (retirement) wait(publication, *retirement);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::timed_out) interrupted = std::current_exception();
    } catch (...) {
      interrupted = std::current_exception();
    }
  }
  try {
    open->call([this] { core_->leave(); });
  } catch (const LoopEnded&) {  // another thread closes it as well
  }
  stop(interrupted ? Clock::now() : deadline);
  if (interrupted) std::rethrow_exception(interrupted);
}

}  // namespace detail

}  // namespace shardwire

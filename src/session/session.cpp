// SPDX-License-Identifier: Apache-2.0
#include "shardwire/session.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <system_error>
#include <utility>

#include "catalog/memory_check.hpp"
#include "catalog/tensor_places.hpp"
#include "control/bootstrap.hpp"
#include "control/stored_rendezvous.hpp"
#include "exchange/aliasing.hpp"
#include "exchange/exchange.hpp"
#include "exchange/failure_notices.hpp"
#include "move/tuning.hpp"
#include "restore/path_survey.hpp"
#include "restore/task.hpp"
#include "runtime/await.hpp"
#include "runtime/uv_loop.hpp"
#include "session/core.hpp"
#include "session/settings.hpp"
#include "support/boot_id.hpp"
#include "support/environment.hpp"
#include "support/fork.hpp"
#include "support/handle.hpp"
#include "wire/limits.hpp"

namespace shardwire {

namespace detail {

/// Scoped lock with a deadline. (The thread sanitizer of GCC 12 does not know std::timed_mutex.)
class SHARDWIRE_LOCAL TimedLock {
 public:
  struct State {
    std::mutex mutex{};
    std::condition_variable free{};
    bool taken = false;  // guarded by mutex
  };

  TimedLock(State& state, std::chrono::steady_clock::time_point until) : state_(state) {
    std::unique_lock lock(state_.mutex);
    mine_ = state_.free.wait_until(lock, until, [this] { return !state_.taken; });
    if (mine_) state_.taken = true;
  }
  ~TimedLock() {
    if (!mine_) return;
    const std::lock_guard lock(state_.mutex);
    state_.taken = false;
    state_.free.notify_one();
  }
  TimedLock(const TimedLock&) = delete;
  TimedLock& operator=(const TimedLock&) = delete;
  /// False: the deadline passed while another thread held the lock.
  [[nodiscard]] bool owns() const { return mine_; }

 private:
  State& state_;
  bool mine_ = false;
};

/// Shared state of the public handles. Owns the loop; objects that live on the loop are in the core.
class SHARDWIRE_LOCAL SessionState : public std::enable_shared_from_this<SessionState> {
 public:
  using Clock = std::chrono::steady_clock;

  SessionState(Bootstrap bootstrap, const SessionOptions& options);
  ~SessionState() { stop(Clock::now()); }

  /// `until`: deadline of the wait for a running exchange.
  void stop(Clock::time_point until);
  std::shared_ptr<RegisteredMemory> allocate(ByteCount bytes, MemoryKind kind, int device);
  std::shared_ptr<RegistrationState> register_memory(const View& view);
  std::shared_ptr<PublicationState> publish(const Catalog& held, const PublishOptions& options);
  std::vector<int> replace(const std::shared_ptr<PublicationState>& old, const PublicationState::Update& update,
                           std::shared_ptr<PublicationState>& fresh);
  enum class Aliasing : std::uint8_t { refused, checked_before };
  std::shared_ptr<RestoreState> restore(const Catalog& wanted, RestoreOptions options, Aliasing aliasing,
                                        std::shared_ptr<RoundsStep> rounds = nullptr);
  ExchangeResult exchange(const Catalog& held, const Catalog& wanted, const ExchangeOptions& options);
  std::vector<Bytes> gather(const std::string& name, Bytes value, Duration timeout);
  std::vector<PeerPath> paths(const std::string& from, Duration timeout);
  void close(Duration timeout);
  [[nodiscard]] SessionUsage usage() const;
  /// The loop; a call in progress keeps it if the session is closed meanwhile. Errors: throws Error{invalid_argument}
  /// if the session is closed or belongs to another process.
  [[nodiscard]] std::shared_ptr<Loop> running() const;

  const Bootstrap bootstrap;
  std::shared_ptr<Fabrics> fabrics;     // owners: see RegisteredMemory
  std::shared_ptr<MemoryTable> memory;  // owners: this session and its core

 private:
  class Exchanging;

  [[nodiscard]] std::vector<std::shared_ptr<PublicationState>> published() const;
  void list(const std::shared_ptr<PublicationState>& publication);
  void copy_and_wait(std::vector<memory::QueuedCopy> copies);
  std::shared_ptr<PublicationState> describe_publication(const Catalog& held, const PublishOptions& options);
  void refuse_aliasing(const Catalog& wanted);
  void abandon();
  /// Null if running() throws.
  [[nodiscard]] std::shared_ptr<Loop> open_loop() const;

  support::OwningProcess owner_;
  std::shared_ptr<Loop> loop_;  // before core_: the core lives on it; owners: see running(); guarded by mutex_
  std::unique_ptr<Core> core_;  // loop thread only
  std::atomic<std::uint64_t> next_generation_{1};
  std::atomic<std::uint64_t> next_exchange_{1};
  std::atomic<double> join_seconds_{0};  // until the first restore has taken it
  mutable std::mutex mutex_;
  std::vector<std::weak_ptr<PublicationState>> published_;  // guarded by mutex_
  std::optional<Catalog> checked_;                          // the last one found disjoint; guarded by mutex_
  std::vector<std::uint64_t> checked_against_;              // from publications of these generations; likewise
  bool rounds_unasked_ = false;                             // the transports were not named
  TimedLock::State exchanges_;
  KeptGroup kept_group_;  // of the exchange that holds the lock
};

}  // namespace detail

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

std::optional<Method> method_of_environment() {
  const char* name = std::getenv("SHARDWIRE_METHOD");
  if (name == nullptr || *name == '\0') return std::nullopt;
  const auto method = method_from(name);
  if (!method)
    throw Error(ErrorCode::invalid_argument, fmt::format("SHARDWIRE_METHOD='{}' is not the name of a method", name));
  return method;
}

}  // namespace

namespace detail {

SessionState::SessionState(Bootstrap from, const SessionOptions& options) : bootstrap(named(std::move(from))) {
  if (bootstrap.world_size < 1 || bootstrap.rank < 0 || bootstrap.rank >= bootstrap.world_size) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("member {} is not among {} members", bootstrap.rank, bootstrap.world_size));
  }
  if (bootstrap.run_id.size() > wire::max_name_bytes || bootstrap.run_id.find('\0') != std::string::npos) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("a run id has at most {} characters, and no NUL among them", wire::max_name_bytes));
  }
  Settings settings = resolve_settings(options, bootstrap.rank);
  rounds_unasked_ = settings.transport == transport::automatic;
  force_kernel_of_environment();
  begin_with_kernels_of(settings.costs);
  const auto began = Clock::now();
  const Duration timeout = settings.join_timeout;
  const auto left = [&] { return std::max<Duration>(timeout - (Clock::now() - began), std::chrono::milliseconds(1)); };

  loop_ = std::make_shared<UvLoop>();
  Core::Setup setup;
  setup.bootstrap = bootstrap;
  setup.identity.job_key = bootstrap.job_key;
  wire::Hello& hello = setup.identity.hello;
  hello.rank = bootstrap.rank;
  hello.world_size = bootstrap.world_size;
  hello.incarnation = loop_->random_number();
  hello.host =
      support::boot_id();  // by the kernel's boot; the possible memory access between its processes is probed later
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
  try {
    std::optional<StoredRendezvous> stored;
    if (bootstrap.store) stored.emplace(bootstrap);
    // Last, so that the connection gets all the remaining time once the address is known.
    std::vector<SocketAddress> rendezvous =
        stored && bootstrap.rank != 0 ? stored->wait(left(), timeout) : rendezvous_of(bootstrap);
    Awaited<void> joined = begin_on<void>(*loop_, [&](const Answer<void>& answer) {
      core_->membership().join(std::move(rendezvous), left(), [answer](const std::exception_ptr& error) {
        error ? answer.fail(error) : answer.give();
      });
    });
    // The stored address may be that of an earlier member 0.
    while (stored && bootstrap.rank != 0 && !joined.ready_within(store_interval)) {
      auto addresses = stored->new_addresses(std::min<Duration>(left(), store_interval));
      if (addresses) loop_->call([&] { core_->membership().rendezvous_moved(std::move(*addresses)); });
    }
    joined.take();
    if (stored && bootstrap.rank == 0) {
      loop_->call([&] { rendezvous = core_->membership().rendezvous(); });
      stored->put(rendezvous, left());
    }
  } catch (...) {
    stop(Clock::now());
    throw;
  }
  join_seconds_ = std::chrono::duration<double>(Clock::now() - began).count();
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

std::shared_ptr<PublicationState> SessionState::publish(const Catalog& held, const PublishOptions& options) {
  const auto loop = running();
  const auto publication = describe_publication(held, options);
  list(publication);
  loop->call([&] { core_->publish(publication); });
  return publication;
}

std::vector<int> SessionState::replace(const std::shared_ptr<PublicationState>& old,
                                       const PublicationState::Update& update,
                                       std::shared_ptr<PublicationState>& fresh) {
  const auto loop = running();
  const PublishOptions options{.name = old->name, .step = update.step, .snapshot = update.snapshot};
  const auto publication = describe_publication(update.held, options);
  check_update(*old, *publication);
  list(publication);
  Awaited<std::vector<int>> readers = begin_on<std::vector<int>>(*loop, [&](const auto& answer) {
    core_->replace(old, publication, update.timeout, [answer](std::vector<int> left) { answer.give(std::move(left)); });
  });
  fresh = publication;
  auto left = readers.take();
  old->retired = true;
  return left;
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
std::shared_ptr<PublicationState> SessionState::describe_publication(const Catalog& held,
                                                                     const PublishOptions& options) {
  if (options.name.empty() || options.name.size() > 256) {
    throw Error(ErrorCode::invalid_argument, "the name of a publication has 1 to 256 characters");
  }
  const TensorPlaces places = places_of(held);
  require_readable(held, places);
  memory::wait_until_ready(events_of(held, places));
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
  }
  publication->retire = [session = weak_from_this(),
                         self = std::weak_ptr<PublicationState>(publication)](Duration timeout) -> std::vector<int> {
    const auto state = session.lock();
    const auto own = self.lock();
    const auto loop = state ? state->open_loop() : nullptr;
    if (!loop || !own) return {};
    try {
      auto left = await<std::vector<int>>(*loop, [&](const auto& answer) {
        state->core_->withdraw(own, timeout, [answer](std::vector<int> readers) { answer.give(std::move(readers)); });
      });
      own->retired = true;
      return left;
    } catch (const LoopEnded&) {
      return {};
    }
  };
  publication->replace = [session = weak_from_this(), self = std::weak_ptr<PublicationState>(publication)](
                             const PublicationState::Update& update, std::shared_ptr<PublicationState>& fresh) {
    const auto state = session.lock();
    const auto own = self.lock();
    if (!state || !own) throw Error(ErrorCode::invalid_argument, "the session is closed");
    return state->replace(own, update, fresh);
  };
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

std::shared_ptr<RestoreState> SessionState::restore(const Catalog& wanted, RestoreOptions options, Aliasing aliasing,
                                                    std::shared_ptr<RoundsStep> rounds) {
  const auto loop = running();
  const auto began = loop->now();
  if (options.staging_bytes == 0) throw Error(ErrorCode::invalid_argument, "the staging budget is 0 bytes");
  TensorPlaces places = places_of(wanted);
  require_writable(wanted, places);
  static_cast<void>(done_events_of(options));
  if (aliasing == Aliasing::refused) refuse_aliasing(wanted);
  if (!options.method) options.method = method_of_environment();
  auto state = std::make_shared<RestoreState>();
  auto run = std::make_shared<restore::RestoreTask*>(
      nullptr);  // owners: the task that starts the run and cancel(); loop thread only
  state->cancel = [session = weak_from_this(), run, weak = std::weak_ptr<RestoreState>(state)] {
    const auto owner = session.lock();
    const auto open = owner ? owner->open_loop() : nullptr;
    if (!open) return;
    try {
      open->call([&] {
        const auto still = weak.lock();
        if (!still || still->done() || *run == nullptr) return;
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

/// This session, as one of its exchanges sees it.
class SessionState::Exchanging final : public ExchangeHost, private RoundsHost {
 public:
  Exchanging(SessionState& session, std::uint64_t exchange) : session_(session), exchange_(exchange) {}

  std::vector<Bytes> gather(const std::string& name, Bytes value, Duration timeout) override {
    return session_.gather(name, std::move(value), timeout);
  }
  TensorPlaces check_destination(const Catalog& wanted) override {
    TensorPlaces places = places_of(wanted);
    require_writable(wanted, places);
    check_aliasing(wanted, session_.published());
    memory::wait_until_ready(events_of(wanted, places));
    return places;
  }
  void copy(std::vector<memory::QueuedCopy> copies) override { session_.copy_and_wait(std::move(copies)); }
  Publication publish(const Catalog& held, const PublishOptions& options) override {
    return Publication(session_.publish(held, options));
  }
  Restore restore(const Catalog& wanted, RestoreOptions options, std::shared_ptr<RoundsStep> rounds) override {
    return Restore(session_.restore(wanted, std::move(options), Aliasing::checked_before, std::move(rounds)));
  }
  void give_up() override {
    if (const auto open = session_.open_loop()) {
      open->post(
          [&session = session_, exchange = exchange_] { give_up_exchange(session.core_->membership(), exchange); });
    }
  }
  std::shared_ptr<Loop> loop() override { return session_.running(); }
  RoundsHost& rounds() override { return *this; }

 private:
  shardwire::Clock& clock() override { return core().loop(); }
  FabricDriver& driver() override { return core().driver(); }
  memory::CopyQueue& copies() override { return core().copies(); }
  [[nodiscard]] FailureNotices failure_notices() const override {
    return failure_notices_of(core().membership(), exchange_);
  }
  void start(std::unique_ptr<RunningRestore> rounds) override { core().start(std::move(rounds)); }
  void finished(RunningRestore& rounds) override { core().finished(rounds); }
  [[nodiscard]] Core& core() const { return *session_.core_; }

  SessionState& session_;
  std::uint64_t exchange_;
};

ExchangeResult SessionState::exchange(const Catalog& held, const Catalog& wanted, const ExchangeOptions& options) {
  const auto began = Clock::now();
  const TimedLock one_at_a_time(exchanges_, began + options.deadline);
  ExchangeSetup setup;
  setup.member = bootstrap.rank;
  // Numbered in running order, including an exchange whose time is up: other members count it too.
  setup.number = next_exchange_++;
  if (!one_at_a_time.owns()) {
    throw Error(ErrorCode::timed_out, "another exchange of this session was not over by the deadline of this one");
  }
  setup.method = options.method ? options.method : method_of_environment();
  setup.rounds_unasked = rounds_unasked_;
  setup.kept = &kept_group_;
  ExchangeOptions left = options;
  left.deadline -= Clock::now() - began;
  Exchanging host(*this, setup.number);
  return shardwire::exchange(held, wanted, left, setup, host);
}

std::vector<Bytes> SessionState::gather(const std::string& name, Bytes value, Duration timeout) {
  return await<std::vector<Bytes>>(*running(), [&](const auto& answer) {
    core_->membership().gather(name, value, timeout,
                               [answer](std::vector<Bytes> values, const std::exception_ptr& error) {
                                 error ? answer.fail(error) : answer.give(std::move(values));
                               });
  });
}

std::vector<PeerPath> SessionState::paths(const std::string& from, Duration timeout) {
  return await<std::vector<PeerPath>>(*running(), [&](const auto& answer) {
    core_->start(std::make_unique<restore::PathSurvey>(
        core_->services(), from, timeout, [answer](std::vector<PeerPath> paths, const std::exception_ptr& error) {
          error ? answer.fail(error) : answer.give(std::move(paths));
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
  for (const auto& publication : published())
    publication->retire(std::max(Duration::zero(), Duration(deadline - Clock::now())));
  try {
    open->call([this] { core_->leave(); });
  } catch (const LoopEnded&) {  // another thread closes it as well
  }
  stop(deadline);
}

}  // namespace detail

// --- the public handle ---

Session::Session(std::shared_ptr<detail::SessionState> state) : state_(std::move(state)) {
}
Session::~Session() {
  if (state_) state_->stop(std::chrono::steady_clock::now());
}
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&& other) noexcept {
  std::swap(state_, other.state_);
  return *this;
}

Session Session::join(Bootstrap bootstrap, SessionOptions options) {
  try {
    return Session(std::make_shared<detail::SessionState>(std::move(bootstrap), options));
  } catch (const std::system_error& error) {  // a thread could not be started
    throw Error(ErrorCode::out_of_resources, fmt::format("joining: {}", error.what()));
  }
}

detail::SessionState& Session::state() const {
  return detail::checked(state_, "session");
}
int Session::rank() const {
  return state().bootstrap.rank;
}
int Session::world_size() const {
  return state().bootstrap.world_size;
}
std::vector<std::string> Session::transport() const {
  return state().fabrics->versions();
}
Arena Session::allocate(ByteCount bytes) {
  return allocate(bytes, MemoryKind::host);
}
Arena Session::allocate(ByteCount bytes, MemoryKind kind, int device) {
  return Arena(state().allocate(bytes, kind, device));
}
Registration Session::register_memory(const View& view) {
  return Registration(state().register_memory(view));
}
Publication Session::publish(const Catalog& held, PublishOptions options) {
  return Publication(state().publish(held, options));
}
Restore Session::restore(const Catalog& wanted, RestoreOptions options) {
  return Restore(state().restore(wanted, std::move(options), detail::SessionState::Aliasing::refused));
}
ExchangeResult Session::exchange(const Catalog& held, const Catalog& wanted, ExchangeOptions options) {
  return state().exchange(held, wanted, options);
}
std::vector<Bytes> Session::gather(const std::string& name, Bytes value, Duration timeout) {
  return state().gather(name, std::move(value), timeout);
}
std::vector<PeerPath> Session::paths(const std::string& from, Duration timeout) {
  return state().paths(from, timeout);
}
SessionUsage Session::usage() const {
  return state().usage();
}
void Session::close(Duration timeout) {
  state().close(timeout);
}

Restore::Restore() = default;
Restore::Restore(std::shared_ptr<detail::RestoreState> state) : state_(std::move(state)) {
}
Restore::Restore(Restore&&) noexcept = default;
Restore& Restore::operator=(Restore&& other) noexcept {
  std::swap(state_, other.state_);
  return *this;
}
Restore::~Restore() {
  if (!state_ || state_->inherited() || state_->done()) return;
  state_->cancel();
  state_->wait_done();
}
void Restore::on_progress(std::function<void(const Progress&)> callback, Duration interval) {
  detail::checked(state_, "restore").listen(std::move(callback), interval);
}
void Restore::wait() {
  detail::checked(state_, "restore").wait();
}
bool Restore::poll() const {
  return detail::checked(state_, "restore").done();
}
void Restore::cancel() {
  detail::checked(state_, "restore").cancel();
}
const RestoreReport& Restore::report() const {
  return detail::checked(state_, "restore").report();
}
bool Restore::has_value(const TensorKey& key) const {
  return detail::checked(state_, "restore").values().contains(key);
}
const Value& Restore::value(const TensorKey& key) const {
  const auto found = detail::checked(state_, "restore").values().find(key);
  if (found == detail::checked(state_, "restore").values().end()) {
    throw Error(ErrorCode::invalid_argument, fmt::format("no value was restored for {}", to_string(key)));
  }
  return found->second;
}

}  // namespace shardwire

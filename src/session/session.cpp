// SPDX-License-Identifier: Apache-2.0
#include "shardwire/session.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <fstream>
#include <future>
#include <mutex>
#include <system_error>
#include <utility>

#include "session/control/bootstrap.hpp"
#include "session/control/stored_rendezvous.hpp"
#include "session/core.hpp"
#include "session/exchange/aliasing.hpp"
#include "session/exchange/exchange.hpp"
#include "session/exchange/news.hpp"
#include "session/handle.hpp"
#include "session/memory_check.hpp"
#include "session/path_survey.hpp"
#include "session/restore/run.hpp"
#include "session/settings.hpp"
#include "session/tensor_places.hpp"
#include "support/environment.hpp"
#include "support/fork.hpp"
#include "wire/limits.hpp"

namespace shardwire {

namespace detail {

/// Who does something that only one may at a time, until it goes. (The thread sanitizer of GCC 12 does not know std::timed_mutex.)
class SHARDWIRE_LOCAL Turn {
 public:
  struct Order {
    std::mutex mutex{};
    std::condition_variable free{};
    bool taken = false;  // guarded by mutex
  };

  Turn(Order& order, std::chrono::steady_clock::time_point until) : order_(order) {
    std::unique_lock lock(order_.mutex);
    mine_ = order_.free.wait_until(lock, until, [this] { return !order_.taken; });
    if (mine_) order_.taken = true;
  }
  ~Turn() {
    if (!mine_) return;
    const std::lock_guard lock(order_.mutex);
    order_.taken = false;
    order_.free.notify_one();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  /// False: others had it until then.
  [[nodiscard]] bool has_come() const { return mine_; }

 private:
  Order& order_;
  bool mine_ = false;
};

/// What the public handles share. Owns the loop; everything on it is in the core.
class SHARDWIRE_LOCAL SessionState : public std::enable_shared_from_this<SessionState> {
 public:
  using Clock = std::chrono::steady_clock;

  SessionState(Bootstrap bootstrap, const SessionOptions& options);
  ~SessionState() { stop(Clock::now()); }

  /// `until`: how long to wait for an exchange that is running.
  void stop(Clock::time_point until);
  std::shared_ptr<RegisteredMemory> allocate(ByteCount bytes, MemoryKind kind, int device);
  std::shared_ptr<RegistrationState> register_memory(const View& view);
  std::shared_ptr<PublicationState> publish(const Catalog& held, const PublishOptions& options);
  std::vector<int> replace(const std::shared_ptr<PublicationState>& old, const PublicationState::Update& update,
                           std::shared_ptr<PublicationState>& fresh);
  enum class Aliasing : std::uint8_t { refused, checked_before };
  std::shared_ptr<RestoreState> restore(const Catalog& wanted, RestoreOptions options, Aliasing aliasing,
                                        std::shared_ptr<GroupedHandover> grouped = nullptr);
  ExchangeResult exchange(const Catalog& held, const Catalog& wanted, const ExchangeOptions& options);
  std::vector<Bytes> gather(const std::string& name, Bytes value, Duration timeout);
  std::vector<PeerPath> paths(const std::string& from, Duration timeout);
  void close(Duration timeout);
  [[nodiscard]] SessionUsage usage() const;
  /// The loop, which calls under way keep when the session is closed meanwhile. Errors: throws Error{invalid_argument} when it
  /// is closed, or another process's.
  [[nodiscard]] std::shared_ptr<Loop> running() const;

  const Bootstrap bootstrap;
  std::shared_ptr<Fabrics> fabrics;     // owners: see RegisteredMemory
  std::shared_ptr<MemoryTable> memory;  // owners: this session and its core

 private:
  [[nodiscard]] std::vector<std::shared_ptr<PublicationState>> published() const;
  void list(const std::shared_ptr<PublicationState>& publication);
  void copy_and_wait(std::vector<memory::QueuedCopy> copies);
  std::shared_ptr<PublicationState> describe_publication(const Catalog& held, const PublishOptions& options);
  void refuse_aliasing(const Catalog& wanted);
  void abandon();
  /// Null where running() throws.
  [[nodiscard]] std::shared_ptr<Loop> open_loop() const;

  support::OwningProcess owner_;
  std::shared_ptr<Loop> loop_;  // before core_: the core lives on it; owners: see running(); guarded by mutex_
  std::unique_ptr<Core> core_;  // loop thread only
  std::atomic<std::uint64_t> next_generation_{1};
  std::atomic<std::uint64_t> next_exchange_{1};
  std::atomic<double> join_seconds_{0};  // until the first restore has taken it
  mutable std::mutex mutex_;
  std::vector<std::weak_ptr<PublicationState>> published_;  // guarded by mutex_
  std::optional<Catalog> checked_;                          // the last that was found apart; guarded by mutex_
  std::vector<std::uint64_t> checked_beside_;               // from publications of these generations; likewise
  bool rounds_unasked_ = false;                             // nobody has named transports
  Turn::Order exchanges_;
  KeptGroup kept_group_;  // of who has the turn
};

}  // namespace detail

namespace {

using detail::PublicationState;

std::string first_line(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// Processes that give the same answer run under one kernel. What they can do with each other's memory is found out.
std::string host_identity() {
  return first_line("/proc/sys/kernel/random/boot_id");
}

constexpr std::chrono::seconds store_interval(1);
constexpr std::size_t max_addresses = 16;  // of member 0: hosts of containers have one for each of these

// Where member 0 listens, as far as the bootstrap says it.
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

/// A restore that has not begun: it ends with its session when its turn does not come.
class PostedRestore {
 public:
  PostedRestore(std::shared_ptr<detail::RestoreState> state, std::shared_ptr<GroupedHandover> grouped)
      : state_(std::move(state)), grouped_(std::move(grouped)) {}
  ~PostedRestore() {
    if (!state_) return;
    state_->finish({}, {}, std::make_exception_ptr(Error(ErrorCode::cancelled, "the session was closed")));
    if (grouped_) grouped_->stop();
  }
  PostedRestore(const PostedRestore&) = delete;
  PostedRestore& operator=(const PostedRestore&) = delete;
  void begins() { state_.reset(); }

 private:
  std::shared_ptr<detail::RestoreState> state_;  // owners: see RestoreRun, as the next
  std::shared_ptr<GroupedHandover> grouped_;
};

std::optional<Way> way_of_environment() {
  const char* name = std::getenv("SHARDWIRE_WAY");
  if (name == nullptr || *name == '\0') return std::nullopt;
  const auto way = way_from(name);
  if (!way) throw Error(ErrorCode::invalid_argument, fmt::format("SHARDWIRE_WAY='{}' is not the name of a way", name));
  return way;
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
  Settings settings = settle(options, bootstrap.rank);
  rounds_unasked_ = settings.transport == transport::automatic;
  force_kernel_of_environment();
  begin_with_kernels_of(settings.costs);
  const auto began = Clock::now();
  const Duration timeout = settings.join_timeout;
  const auto left = [&] { return std::max<Duration>(timeout - (Clock::now() - began), std::chrono::milliseconds(1)); };

  Core::Setup setup;
  setup.bootstrap = bootstrap;
  setup.identity.job_key = bootstrap.job_key;
  wire::Hello& hello = setup.identity.hello;
  hello.capabilities = {"packed",    "digest",  "strides",
                        "straight",  "confirm", "unleased",
                        "withdrawn", "ping",    std::string(wire::tree_digest_capability)};
  hello.rank = bootstrap.rank;
  hello.world_size = bootstrap.world_size;
  hello.incarnation = wire::random_number();
  hello.host = host_identity();
  hello.run_id = bootstrap.run_id;

  loop_ = std::make_shared<Loop>();
  setup.options = std::move(settings);
  const auto joined = std::make_shared<std::promise<void>>();  // owners: this call and the core's callback
  auto outcome = joined->get_future();
  loop_->call([&] {
    std::vector<std::string> left_out;
    fabrics = std::make_shared<Fabrics>(setup.options.transport, setup.options.costs.tcp().streams,
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
    // Last: once the address is known, all the time that is left is for the connection.
    std::vector<SocketAddress> rendezvous =
        stored && bootstrap.rank != 0 ? stored->wait(left(), timeout) : rendezvous_of(bootstrap);
    loop_->call([&] {
      core_->membership().join(std::move(rendezvous), left(), [joined](const std::exception_ptr& error) {
        if (error) {
          joined->set_exception(error);
        } else {
          joined->set_value();
        }
      });
    });
    // What was stored may be from a member 0 that is gone.
    while (stored && bootstrap.rank != 0 && outcome.wait_for(store_interval) != std::future_status::ready) {
      auto news = stored->news(std::min<Duration>(left(), store_interval));
      if (news) loop_->call([&] { core_->membership().rendezvous_moved(std::move(*news)); });
    }
    outcome.get();
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
  // One that is running ends, since it can ask nobody any more, but for what it waits for of the caller's. Then its group is
  // given up with this.
  const Turn no_exchange(exchanges_, until);
  if (no_exchange.has_come()) kept_group_ = {};
}

// Threads, locks and the fabrics are the parent's: nothing of theirs can be ended here.
void SessionState::abandon() {
  if (!loop_) return;
  static_cast<void>(core_.release());
  static_cast<void>(new auto(std::move(loop_)));
  static_cast<void>(new auto(std::move(fabrics)));
  static_cast<void>(new auto(std::move(memory)));
  static_cast<void>(new auto(std::move(kept_group_)));
}

std::shared_ptr<Loop> SessionState::open_loop() const {
  if (!owner_.is_this()) return nullptr;  // a lock may be another thread's for ever
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
  const auto readers = std::make_shared<std::promise<std::vector<int>>>();  // owners: this call and the core's callback
  loop->call([&] {
    core_->replace(old, publication, update.timeout,
                   [readers](std::vector<int> left) { readers->set_value(std::move(left)); });
  });
  fresh = publication;
  auto left = readers->get_future().get();
  old->retired = true;
  return left;
}

void SessionState::list(const std::shared_ptr<PublicationState>& publication) {
  const std::lock_guard lock(mutex_);
  std::erase_if(published_, [](const auto& one) { return one.expired(); });
  published_.push_back(publication);
}

// On the caller's thread.
void SessionState::copy_and_wait(std::vector<memory::QueuedCopy> copies) {
  const auto loop = running();
  if (loop->is_current()) {
    throw Error(ErrorCode::unsupported,
                "device memory cannot be read or written from within a callback of the session");
  }
  // owners: this call and the batch's completion
  const auto outcome = std::make_shared<std::promise<std::exception_ptr>>();
  loop->call([&] {
    core_->copies().submit(on_devices(std::move(copies)),
                           [outcome](const memory::CopyResult& result) { outcome->set_value(result.error); });
  });
  try {
    if (const std::exception_ptr error = outcome->get_future().get()) std::rethrow_exception(error);
  } catch (const std::future_error&) {
    throw Error(ErrorCode::cancelled, "the session was closed while device memory was copied");
  }
}

// Not shown to anybody yet.
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
    const auto readers =
        std::make_shared<std::promise<std::vector<int>>>();  // owners: this call and the core's callback
    try {
      loop->call([&] {
        state->core_->withdraw(own, timeout, [readers](std::vector<int> left) { readers->set_value(std::move(left)); });
      });
    } catch (const LoopEnded&) {
      return {};
    }
    auto left = readers->get_future().get();
    own->retired = true;
    return left;
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

// What was found to be apart stays apart as long as neither the wanted catalog nor what is published changes.
void SessionState::refuse_aliasing(const Catalog& wanted) {
  const auto now = published();
  std::vector<std::uint64_t> generations;
  for (const auto& publication : now) {
    if (!publication->retired) generations.push_back(publication->generation);
  }
  {
    const std::lock_guard lock(mutex_);
    if (checked_ && checked_->same(wanted) && checked_beside_ == generations) return;
  }
  check_aliasing(wanted, now);
  const std::lock_guard lock(mutex_);
  checked_ = wanted;
  checked_beside_ = std::move(generations);
}

std::shared_ptr<RestoreState> SessionState::restore(const Catalog& wanted, RestoreOptions options, Aliasing aliasing,
                                                    std::shared_ptr<GroupedHandover> grouped) {
  const auto loop = running();
  const auto began = Clock::now();
  if (options.staging_bytes == 0) throw Error(ErrorCode::invalid_argument, "the staging budget is 0 bytes");
  TensorPlaces places = places_of(wanted);
  require_writable(wanted, places);
  static_cast<void>(done_events_of(options));
  if (aliasing == Aliasing::refused) refuse_aliasing(wanted);
  if (!options.way) options.way = way_of_environment();
  auto state = std::make_shared<RestoreState>();
  auto run =
      std::make_shared<RestoreRun*>(nullptr);  // owners: the task that starts the run and cancel(); loop thread only
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
    } catch (const LoopEnded&) {  // and the restore with it
    }
  };
  const double join_seconds = join_seconds_.exchange(0);
  // Of an exchange nobody publishes a second time.
  const auto withdrawal =
      aliasing == Aliasing::refused ? RestoreRun::Withdrawal::plans_anew : RestoreRun::Withdrawal::ends;
  const auto posted = std::make_shared<PostedRestore>(state, grouped);  // owners: this call and the task
  loop->post([this, state, run, wanted, places = std::move(places), options = std::move(options), withdrawal, began,
              join_seconds, grouped = std::move(grouped), posted] {
    posted->begins();
    auto made =
        std::make_unique<RestoreRun>(*core_, state, wanted, places, options, withdrawal, began, join_seconds, grouped);
    *run = made.get();
    core_->start(std::move(made));
  });
  return state;
}

ExchangeResult SessionState::exchange(const Catalog& held, const Catalog& wanted, const ExchangeOptions& options) {
  const auto began = Clock::now();
  const Turn one_at_a_time(exchanges_, began + options.deadline);
  ExchangeCalls calls;
  calls.member = bootstrap.rank;
  // In the order in which they run, and of one that has no time left too: others count it.
  calls.number = next_exchange_++;
  if (!one_at_a_time.has_come()) {
    throw Error(ErrorCode::timed_out, "another exchange of this session was not over by the deadline of this one");
  }
  calls.gather = [this](const std::string& name, Bytes value, Duration timeout) {
    return gather(name, std::move(value), timeout);
  };
  calls.check_destination = [this](const Catalog& catalog) {
    TensorPlaces places = places_of(catalog);
    require_writable(catalog, places);
    check_aliasing(catalog, published());
    memory::wait_until_ready(events_of(catalog, places));
    return places;
  };
  calls.copy = [this](std::vector<memory::QueuedCopy> copies) { copy_and_wait(std::move(copies)); };
  calls.publish = [this](const Catalog& catalog, const PublishOptions& how) {
    return Publication(publish(catalog, how));
  };
  calls.restore = [this](const Catalog& catalog, RestoreOptions how, std::shared_ptr<GroupedHandover> grouped) {
    return Restore(restore(catalog, std::move(how), Aliasing::checked_before, std::move(grouped)));
  };
  calls.post = [this](std::function<void()> task) { running()->post(std::move(task)); };
  calls.news = [this, number = calls.number] {
    return running()->call([&] { return exchange_news(core_->membership(), number); });
  };
  calls.give_up = [this, number = calls.number] {
    if (const auto open = open_loop()) {
      open->post([this, number] { give_up_exchange(core_->membership(), bootstrap.rank, number); });
    }
  };
  calls.way = options.way ? options.way : way_of_environment();
  calls.rounds_unasked = rounds_unasked_;
  calls.kept = &kept_group_;
  ExchangeOptions left = options;
  left.deadline -= Clock::now() - began;
  return shardwire::exchange(held, wanted, left, calls);
}

std::vector<Bytes> SessionState::gather(const std::string& name, Bytes value, Duration timeout) {
  const auto result =
      std::make_shared<std::promise<std::vector<Bytes>>>();  // owners: this call and the core's callback
  running()->call([&] {
    core_->membership().gather(name, value, timeout,
                               [result](std::vector<Bytes> values, const std::exception_ptr& error) {
                                 if (error) {
                                   result->set_exception(error);
                                 } else {
                                   result->set_value(std::move(values));
                                 }
                               });
  });
  return result->get_future().get();
}

std::vector<PeerPath> SessionState::paths(const std::string& from, Duration timeout) {
  const auto result = std::make_shared<std::promise<std::vector<PeerPath>>>();  // owners: as of gather()
  running()->call([&] {
    core_->start(std::make_unique<PathSurvey>(*core_, from, timeout,
                                              [result](std::vector<PeerPath> paths, const std::exception_ptr& error) {
                                                if (error) {
                                                  result->set_exception(error);
                                                } else {
                                                  result->set_value(std::move(paths));
                                                }
                                              }));
  });
  return result->get_future().get();
}

SessionUsage SessionState::usage() const {
  const auto registration = memory->registration();
  return running()->call([&] {
    return SessionUsage{core_->publisher().staging_budget_bytes(), core_->publisher().staging_peak_bytes(),
                        registration.bytes, registration.seconds, core_->copies().pinned_bytes()};
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
  } catch (const std::system_error& error) {  // a thread that could not be started
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

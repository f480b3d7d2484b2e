// SPDX-License-Identifier: Apache-2.0
#include "handles/session_state.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <system_error>
#include <thread>
#include <utility>

#include "catalog/gathered_layouts.hpp"
#include "catalog/memory_check.hpp"
#include "catalog/tensor_places.hpp"
#include "control/bootstrap.hpp"
#include "control/key_file.hpp"
#include "control/stored_rendezvous.hpp"
#include "exchange/aliasing.hpp"
#include "move/tuning.hpp"
#include "restore/path_survey.hpp"
#include "runtime/await.hpp"
#include "runtime/release_queue.hpp"
#include "session/settings.hpp"
#include "support/environment.hpp"
#include "wire/limits.hpp"

namespace shardwire {

namespace {

constexpr std::chrono::seconds store_interval(1);
constexpr std::size_t drawn_key_bytes = 32;
constexpr std::chrono::seconds keeper_patience(30);
constexpr std::chrono::milliseconds look_up_interval(200);
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
  if (bootstrap.guest) bootstrap.rank = wire::no_member;
  return bootstrap;
}

void check_bootstrap(const Bootstrap& bootstrap) {
  if (bootstrap.guest && bootstrap.world_size < 0) {
    throw Error(ErrorCode::invalid_argument, fmt::format("a job of {} members", bootstrap.world_size));
  }
  if (!bootstrap.guest && (bootstrap.world_size < 1 || bootstrap.rank < 0 || bootstrap.rank >= bootstrap.world_size)) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("member {} is not among {} members", bootstrap.rank, bootstrap.world_size));
  }
  if (bootstrap.run_id.size() > wire::max_name_bytes || bootstrap.run_id.find('\0') != std::string::npos) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("a run id has at most {} characters, and no NUL among them", wire::max_name_bytes));
  }
  if (!bootstrap.job_key.empty() && bootstrap.job_key.size() < min_key_bytes) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format(
            "Bootstrap::job_key: a key of {} bytes can be guessed, {} are the least; 'shardwire key FILE' makes one",
            bootstrap.job_key.size(), min_key_bytes));
  }
}

// The transports that carry bytes to other processes as they are, for people.
std::string plain_transports(const Fabrics& fabrics) {
  std::string names;
  for (std::size_t i = 0; i < fabrics.size(); ++i) {
    if (fabrics.row(i).reach == Reach::process || fabrics[i].sockets().encrypt) continue;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", fabrics[i].name());
  }
  return names;
}

/// A restore that has not begun; it ends with its session if the loop never runs it.
class PostedRestore {
 public:
  explicit PostedRestore(std::shared_ptr<detail::RestoreState> state) : state_(std::move(state)) {}
  ~PostedRestore() {
    const auto state = begin();
    if (!state) return;
    state->finish({}, {}, std::make_exception_ptr(Error(ErrorCode::cancelled, "the session was closed")));
  }
  PostedRestore(const PostedRestore&) = delete;
  PostedRestore& operator=(const PostedRestore&) = delete;
  /// Null: it has begun, or a callback has destroyed its handle.
  std::shared_ptr<detail::RestoreState> begin() {
    auto state = std::exchange(state_, nullptr);
    if (state && state->completion().is_done()) state.reset();
    return state;
  }

 private:
  std::shared_ptr<detail::RestoreState> state_;  // owners: see restore::RestoreOperation
};

std::exception_ptr cancelled() {
  return std::make_exception_ptr(Error(ErrorCode::cancelled, "the restore was cancelled"));
}

}  // namespace

namespace detail {

Session SessionState::join_in(const std::function<Surroundings()>& surroundings, Bootstrap bootstrap,
                              const SessionOptions& options) {
  try {
    const auto began = WallClock::now();
    auto state = std::make_shared<SessionState>(surroundings(), std::move(bootstrap), options);
    state->join_and_count(began);
    state->begin_trace(began);
    return Session(std::move(state));
  } catch (const std::system_error& error) {  // a thread could not be started
    throw Error(ErrorCode::out_of_resources, fmt::format("joining: {}", error.what()));
  }
}

SessionState::SessionState(Surroundings surroundings, Bootstrap from, const SessionOptions& options)
    : bootstrap(named(std::move(from))),
      interruption_(options.interrupted),
      load_tls_(surroundings.load_tls),
      start_thread_(surroundings.start_thread),
      collectives_(surroundings.collectives),
      loop_(std::move(surroundings.loop)),
      member_(bootstrap.rank),
      world_size_(bootstrap.world_size) {
  check_bootstrap(bootstrap);
  Settings settings = resolve_settings(options, bootstrap);
  rounds_unasked_ = settings.transport == transport::automatic;
  force_kernel_of_environment();
  begin_with_kernels_of(settings.costs);
  join_timeout_ = settings.join_timeout;
  encrypt_payload_ = settings.encrypt_payload;
  has_keeper_ = !settings.keeper.job.empty() && !bootstrap.guest;
  metrics_at_ = {.folder = settings.metrics_folder, .host = settings.metrics_address, .port = settings.metrics_port};
  trace_file_ = settings.trace_file;
  if (encrypt_payload_ && bootstrap.job_key.empty() && !bootstrap.store) {
    throw Error(ErrorCode::invalid_argument,
                "SessionOptions::encrypt_payload needs a job key, or a store to get one from");
  }
  if (std::string why_not; !bootstrap.job_key.empty()) static_cast<void>(load_encryption(why_not));
  make_core(surroundings, std::move(settings));
}

void SessionState::make_core(const Surroundings& surroundings, Settings settings) {
  Core::Setup setup;
  setup.bootstrap = bootstrap;
  setup.identity.encrypt_payload = settings.encrypt_payload;
  setup.identity.open_network = bootstrap.allow_open_network || support::is_set("SHARDWIRE_ALLOW_OPEN_NETWORK");
  setup.identity.domain = settings.host_domain;
  wire::Hello& hello = setup.identity.hello;
  hello.rank = bootstrap.rank;
  hello.world_size = bootstrap.world_size;
  hello.incarnation = loop_->random_number();
  hello.host = surroundings.host;
  hello.run_id = bootstrap.run_id;
  setup.options = std::move(settings);
  loop_->call([&] {
    std::vector<std::string> left_out;
    fabrics = surroundings.open_fabrics(setup.options, [&](const std::string& why) { left_out.push_back(why); });
    memory = std::make_shared<MemoryTable>(fabrics);
    setup.identity.hello.fabrics = fabrics->offers();
    setup.fabrics = fabrics;
    setup.memory = memory;
    setup.probe = surroundings.probe;
    const Telemetry& callbacks = setup.options.telemetry;
    const bool called_back = callbacks.counter || callbacks.gauge || callbacks.histogram;
    if (called_back || !metrics_at_.folder.empty()) make_metrics(callbacks);
    setup.metrics = metrics_;
    core_ = std::make_unique<Core>(*loop_, std::move(setup));
    for (const std::string& why : left_out) core_->log(LogLevel::warning, why);
    core_->log_warnings();
    if (const std::string plain = plain_transports(*fabrics); encrypt_payload_ && !plain.empty()) {
      core_->log(LogLevel::warning,
                 fmt::format(
                     "SessionOptions::encrypt_payload covers tcp alone, and bytes of tensors that move over {} are not "
                     "encrypted: SHARDWIRE_TRANSPORT names the transports that may be used",
                     plain));
    }
    const std::string unknown = support::unknown_variables_warning();
    if (!unknown.empty()) core_->log(LogLevel::warning, unknown);
    if (bootstrap.job_key.empty() && !bootstrap.store && support::variable("SHARDWIRE_JOB_KEY_FILE")) {
      core_->log(LogLevel::warning,
                 "SHARDWIRE_JOB_KEY_FILE is set, but this Bootstrap has no key: bootstrap_from_env() reads the file");
    }
  });
  if (!bootstrap.job_key.empty()) give_job_key(bootstrap.job_key);
}

void SessionState::join(WallClock::time_point began) {
  const auto left = [&] {
    return std::max<Duration>(join_timeout_ - (WallClock::now() - began), std::chrono::milliseconds(1));
  };
  std::optional<StoredRendezvous> stored;
  if (bootstrap.store) stored.emplace(bootstrap, interruption_);
  // Last, so that the connection gets all the remaining time once the address is known.
  StoredRendezvous::Contact contact = stored && bootstrap.rank != 0 ? stored->wait(left(), join_timeout_)
                                                                    : StoredRendezvous::Contact{find_rendezvous(began)};
  // With as much trust as the store: who can read it could be sent there too.
  if (stored && bootstrap.rank == 0 && bootstrap.job_key.empty()) {
    contact.job_key.resize(drawn_key_bytes);
    loop_->fill_random(contact.job_key);
  }
  use_job_key(contact.job_key);
  Awaited<void> joined = begin_on<void>(
      *loop_, [&](const Answer<void>& answer) { core_->membership().join(contact.addresses, left(), answer); });
  // The stored address may be that of an earlier member 0.
  while (stored && bootstrap.rank != 0 && !joined.ready_within(store_interval)) {
    interruption_.check();
    auto later = stored->changed(std::min<Duration>(left(), store_interval));
    if (!later) continue;
    use_job_key(later->job_key);
    loop_->call([&] { core_->membership().rendezvous_moved(std::move(later->addresses)); });
  }
  joined.take(interruption_);
  if (bootstrap.guest) {
    loop_->call([this] {
      member_ = core_->member();
      world_size_ = core_->directory().members();
    });
  }
  if (stored && bootstrap.rank == 0) {
    loop_->call([&] { contact.addresses = core_->membership().rendezvous(); });
    stored->put(contact, left());
  }
  if (has_keeper_) meet_keeper();
  join_seconds_ = seconds_of(WallClock::now() - began);
}

// Names of pods and of virtual machines may become known some seconds after the processes that ask for them have started.
std::vector<SocketAddress> SessionState::find_rendezvous(WallClock::time_point began) {
  const std::string who = fmt::format("member {} of {}", bootstrap.rank, bootstrap.world_size);
  bool logged = false;
  while (true) {
    try {
      return rendezvous_of(bootstrap);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::timed_out) throw;
      const Duration waited = WallClock::now() - began;
      if (waited + look_up_interval > join_timeout_) {
        throw Error(ErrorCode::timed_out, fmt::format("{} could not join: {}", who, error.what()),
                    std::vector<Rank>{Rank{0}});
      }
      if (!logged && waited > Membership::log_after) {
        logged = true;
        const std::string text = fmt::format("{} waits for member 0: {}", who, error.what());
        loop_->call([&] { core_->log(LogLevel::warning, text); });
      }
    }
    interruption_.check();
    std::this_thread::sleep_for(look_up_interval);
  }
}

// The keeper publishes what it holds before it answers. Without it the job goes on, with less behind it.
void SessionState::meet_keeper() {
  const auto deadline = WallClock::now() + keeper_patience;
  Awaited<void> met = begin_on<void>(*loop_, [&](const Answer<void>& answer) { core_->meet_keeper(answer); });
  std::string why_not;
  while (why_not.empty() && !met.ready_within(Interruption::interval)) {
    interruption_.check();
    if (WallClock::now() >= deadline) why_not = fmt::format("no answer in {:.0f} s", seconds_of(keeper_patience));
  }
  try {
    if (why_not.empty()) return met.take();
  } catch (const Error& error) {
    why_not = error.what();
  }
  loop_->call([&] {
    core_->log(LogLevel::warning, fmt::format("nothing is restored from a keeper of this host: {}", why_not));
  });
}

// A key that the caller has given counts more than that of the store.
void SessionState::use_job_key(const Bytes& key) {
  if (!key.empty() && bootstrap.job_key.empty()) give_job_key(key);
}

const TlsModule* SessionState::load_encryption(std::string& why_not) const {
  const TlsModule* const tls = load_tls_ ? load_tls_(why_not) : nullptr;
  if (encrypt_payload_ && tls == nullptr) {
    throw Error(ErrorCode::unsupported, fmt::format("bytes cannot be encrypted: {}", why_not));
  }
  return tls;
}

void SessionState::give_job_key(const Bytes& key) {
  std::string why_not;
  const TlsModule* const tls = load_encryption(why_not);
  loop_->call([&] {
    core_->use_job_key(key, tls);
    if (load_tls_ && tls == nullptr) {
      core_->log(LogLevel::warning, fmt::format("control connections are not encrypted: {}", why_not));
    }
  });
}

void SessionState::begin_join(Duration timeout, std::function<void(const std::exception_ptr&)> joined) {
  running()->call([&] { core_->membership().join(rendezvous_of(bootstrap), timeout, std::move(joined)); });
}

void SessionState::stop(WallClock::time_point until) {
  if (!owner_.is_this()) return abandon();
  std::shared_ptr<Loop> ended;  // owners: see running()
  {
    const std::lock_guard lock(mutex_);
    ended = std::exchange(loop_, nullptr);
  }
  if (!ended) return;
  if (ended->waits_for_itself()) {  // a callback destroys the session, whose thread cannot wait for its own end
    const auto self = shared_from_this();
    return ReleaseQueue::instance().release(
        std::shared_ptr<const void>(ended.get(), [self, ended](const void*) { self->end(*ended, WallClock::now()); }));
  }
  end(*ended, until);
}

void SessionState::end(Loop& loop, WallClock::time_point until) {
  loop.end([this] {
    if (core_) core_->end();
    core_.reset();
  });
  if (auto* const copies = made_buddies()) copies->stop();
  // A running exchange fails, since it can reach no other member; only waits for the caller's events can delay it. In
  // that case it gives up its group itself.
  const TimedLock no_exchange(exchanges_, until);
  if (no_exchange.owns()) kept_group_ = {};
  if (metrics_) metrics_->left();
  metrics_file_.reset();
  metrics_server_.reset();
  if (trace_) trace_->end();
}

// Threads, locks and fabrics belong to the parent process and cannot be ended here.
void SessionState::abandon() {
  if (!loop_) return;
  static_cast<void>(core_.release());
  static_cast<void>(new auto(std::move(loop_)));
  static_cast<void>(new auto(std::move(fabrics)));
  static_cast<void>(new auto(std::move(memory)));
  static_cast<void>(new auto(std::move(kept_group_)));
  static_cast<void>(buddies_.release());
  static_cast<void>(metrics_file_.release());
  static_cast<void>(metrics_server_.release());
  static_cast<void>(new auto(std::move(metrics_)));
  static_cast<void>(new auto(std::move(trace_)));
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
  throw Error(ErrorCode::invalid_argument,
              "allocate(): the kind of an arena is MemoryKind::host or MemoryKind::cuda, not detect");
}

std::shared_ptr<RegistrationState> SessionState::register_memory(const View& view) {
  static_cast<void>(running());
  const Registrable asked = registrable(view);
  return memory->add(asked.memory, asked.place);
}

std::shared_ptr<Loop> SessionState::waiting_in(const char* call) const {
  auto loop = running();
  if (loop->waits_for_itself()) {
    throw Error(ErrorCode::unsupported,
                fmt::format("{}() waits for the session's thread, so a callback of the session cannot call it", call));
  }
  return loop;
}

std::function<bool()> SessionState::on_loop() const {
  return [weak = std::weak_ptr<Loop>(open_loop())] {
    const auto loop = weak.lock();
    return loop && loop->waits_for_itself();
  };
}

void SessionState::require_member(const char* call) const {
  if (!bootstrap.guest) return;
  throw Error(ErrorCode::unsupported,
              fmt::format("{}() is a call of the job's members, and this session is a guest's", call));
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

std::shared_ptr<RestoreState> SessionState::restore(const Catalog& asked, RestoreOptions options,
                                                    const Interruption& interruption,
                                                    std::optional<restore::InExchange> exchange,
                                                    std::optional<wire::PublicationRecord> only,
                                                    std::shared_ptr<BlockDigests> digests) {
  const auto loop = running();
  const auto began = loop->now();
  if (options.staging_bytes == 0) throw Error(ErrorCode::invalid_argument, "the staging budget is 0 bytes");
  if (options.notice <= Duration::zero()) throw Error(ErrorCode::invalid_argument, "notice is not positive");
  const Catalog wanted = asked.without_owners();  // caches keep it after the end
  TensorPlaces places = places_of(wanted);
  require_writable(wanted, places);
  static_cast<void>(done_events_of(options));
  if (!exchange) refuse_aliasing(wanted);
  const std::optional<Method> method = exchange ? exchange->method : requested_method(options.method);
  auto state =
      std::make_shared<RestoreState>(interruption, on_loop(), KeptOwners(asked.owners()), options.stop_at_values);
  // A function that calls `act` on the loop with the task, if it runs.
  const auto on_run = [session = weak_from_this(), weak = std::weak_ptr<RestoreState>(state)](auto act) {
    return [session, weak, act] {
      const auto owner = session.lock();
      const auto open = owner ? owner->open_loop() : nullptr;
      const auto one = weak.lock();
      if (!open || !one) return;
      const auto on_task = [weak, act] {
        const auto still = weak.lock();
        if (still && still->run != nullptr) act(*still->run);
      };
      // While a callback has the loop, another thread may have posted the task.
      if (open->is_current() && one->run == nullptr) return open->post(on_task);
      try {
        open->call(on_task);
      } catch (const LoopEnded&) {  // the restore ends with it
      }
    };
  };
  state->cancel = on_run([](restore::RestoreOperation& run) { run.fail(cancelled()); });
  state->proceed = on_run([](restore::RestoreOperation& run) { run.proceed(); });
  // Also while another thread ends the session, which is not open any more then.
  state->end_here = [session = weak_from_this(), on = std::weak_ptr<Loop>(loop),
                     weak = std::weak_ptr<RestoreState>(state)] {
    const auto here = on.lock();
    if (!here || !here->is_current()) return false;
    const auto owner = session.lock();
    const auto still = weak.lock();
    if (!owner || !owner->core_ || !still) return true;  // it has ended with the core
    if (still->run == nullptr) {
      still->finish({}, {}, cancelled());  // its task is posted, and finds it ended
      return true;
    }
    restore::RestoreOperation& run = *still->run;
    owner->core_->stop_writing(run);
    if (!still->completion().is_done()) run.abandon();
    return true;
  };
  if (has_keeper_ && !only) {
    state->restored = [session = weak_from_this(), from = options.name](std::int64_t step, std::uint64_t origin) {
      const auto owner = session.lock();
      if (!owner) return;
      const std::lock_guard lock(owner->mutex_);
      owner->last_restored_[from] = {step, origin};
    };
  }
  if (metrics_ && !exchange && !only) {
    const auto operation = options.bind_only ? telemetry::Operation::bind : telemetry::Operation::restore;
    state->ended = [metrics = metrics_, operation, counted = telemetry::Counted()](
                       const RestoreReport& report, const std::exception_ptr& error) mutable {
      metrics->ended(operation, report.seconds.wall, report, error, counted);
    };
  }
  const double join_seconds = only ? 0 : join_seconds_.exchange(0);
  if (!exchange) {
    state->resume = [session = weak_from_this(), weak = std::weak_ptr<RestoreState>(state), wanted, places, options,
                     method](Duration timeout) mutable {
      const auto owner = session.lock();
      const auto still = weak.lock();
      if (!owner || !still) throw Error(ErrorCode::invalid_argument, "the session of the restore is closed");
      options.timeout = timeout;
      owner->resume(still, {wanted, places, options, method});
    };
  }
  restore::Request request{wanted, std::move(places), std::move(options), method, std::move(exchange)};
  request.only = std::move(only);
  request.digests = std::move(digests);
  post(*loop, state, std::move(request), began, join_seconds);
  return state;
}

void SessionState::resume(const std::shared_ptr<RestoreState>& state, restore::Request request) {
  const auto loop = waiting_in("resume");
  const auto began = loop->now();
  refuse_aliasing(request.wanted);
  request.unfinished = state->reopen();
  post(*loop, state, std::move(request), began, 0);
}

void SessionState::post(Loop& loop, const std::shared_ptr<RestoreState>& state, restore::Request request,
                        WallClock::time_point began, double join_seconds) {
  if (state->ended) metrics_->started();
  // Owners of both: this call and the task.
  const auto posted = std::make_shared<PostedRestore>(state);
  const auto given = std::make_shared<restore::Request>(std::move(request));
  loop.post([this, given, began, join_seconds, posted] {
    const auto begun = posted->begin();
    if (!begun) return;
    auto made =
        std::make_unique<restore::RestoreOperation>(core_->context(), begun, std::move(*given), began, join_seconds);
    begun->run = made.get();
    core_->start(std::move(made));
  });
}

std::vector<Bytes> SessionState::gather(const std::string& name, Bytes value, Duration timeout) {
  require_member("gather");
  return await<std::vector<Bytes>>(*waiting_in("gather"), interruption_, [&](const auto& answer) {
    core_->membership().gather(name, value, Gathers::Kind::stays, timeout, answer);
  });
}

std::vector<Bytes> SessionState::gather_in(const char* call, const Bytes& value, Duration timeout) {
  require_member(call);
  const auto loop = waiting_in(call);
  std::uint64_t request = 0;
  Awaited<std::vector<Bytes>> all_came = begin_on<std::vector<Bytes>>(*loop, [&](const auto& answer) {
    request = core_->membership().gather(fmt::format("shardwire.{}", call), value, Gathers::Kind::while_waiting,
                                         timeout, answer);
  });
  return all_came.take(interruption_, [&] {
    loop->post([this, request] {
      if (core_) core_->membership().quit_gather(request);
    });
  });
}

void SessionState::barrier(Duration timeout) {
  static_cast<void>(gather_in("barrier", {}, timeout));
}

JobLayout SessionState::gather_layouts(const Catalog& catalog, Duration timeout) {
  return decode_layouts(gather_in("gather_layouts", encode_layouts(catalog), timeout));
}

std::vector<PeerPath> SessionState::paths(const std::string& from, Duration timeout) {
  return await<std::vector<PeerPath>>(*waiting_in("paths"), interruption_, [&](const auto& answer) {
    core_->start(std::make_unique<restore::PathSurvey>(core_->context(), from, timeout, answer));
  });
}

Inventory SessionState::inventory(restore::InventoryTask::Request request) {
  return await<Inventory>(*waiting_in("inventory"), interruption_, [&](const auto& answer) {
    core_->start(std::make_unique<restore::InventoryTask>(core_->context(), std::move(request), answer));
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

std::uint64_t SessionState::session_number() const {
  return running()->call([&] { return core_->session_number(); });
}

Kept SessionState::kept() const {
  return running()->call([&] { return core_->kept(); });
}

void SessionState::close(Duration timeout) {
  const auto open = open_loop();
  if (!open) return;
  static_cast<void>(waiting_in("close"));
  const auto deadline = WallClock::now() + timeout;
  std::exception_ptr interrupted;
  if (auto* const copies = made_buddies()) {
    try {
      copies->wait_for_all(deadline, interruption_);
    } catch (...) {
      interrupted = std::current_exception();
    }
  }
  for (const auto& publication : published()) {
    const Duration left =
        interrupted ? Duration::zero() : std::max(Duration::zero(), Duration(deadline - WallClock::now()));
    const Retirement retirement = retire(publication, left);
    try {
      if (retirement && left > Duration::zero()) wait(publication, *retirement);
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
  stop(interrupted ? WallClock::now() : deadline);
  if (interrupted) std::rethrow_exception(interrupted);
}

}  // namespace detail

}  // namespace shardwire

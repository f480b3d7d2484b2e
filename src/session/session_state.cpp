// SPDX-License-Identifier: Apache-2.0
#include "session/session_state.hpp"

#include <fmt/core.h>

#include <algorithm>
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
#include "restore/buddy_task.hpp"
#include "restore/path_survey.hpp"
#include "runtime/await.hpp"
#include "runtime/release_queue.hpp"
#include "serve/refusal.hpp"
#include "session/settings.hpp"
#include "support/environment.hpp"
#include "support/list_of.hpp"
#include "support/ranks_of.hpp"
#include "wire/limits.hpp"

namespace shardwire {

namespace {

using detail::PublicationState;

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

Error still_read(const std::string& name, const char* what, const std::vector<int>& readers) {
  const bool one = readers.size() == 1;
  return {ErrorCode::timed_out,
          fmt::format("'{}' was {} while member{} {} still read it; {} leases are revoked", name, what, one ? "" : "s",
                      support::list_of(readers), one ? "its" : "their"),
          support::ranks_of(readers)};
}

/// Publishes, and waits until member 0 lists it.
class RosterWatch {
 public:
  RosterWatch(Loop& loop, Core& core, const std::shared_ptr<PublicationState>& publication)
      : loop_(loop), core_(core), listed_(begin_on<void>(loop, [&](const Answer<void>& answer) {
          core.publish(publication);
          watch_ = core.membership().watch(publication->name);
          const auto look = [&core, name = publication->name, generation = publication->generation, answer,
                             given = std::make_shared<bool>(false)] {
            const auto listed = core.directory().publication(name, core.member());
            if (*given || !listed || listed->generation != generation) return;
            *given = true;
            answer.give();
          };
          core.on_directory_changed(look);
          look();
        })) {}
  ~RosterWatch() {
    try {
      loop_.call([this] {
        core_.on_directory_changed(nullptr);
        watch_.reset();
      });
    } catch (const LoopEnded&) {  // and the core with it
    }
  }
  RosterWatch(const RosterWatch&) = delete;
  RosterWatch& operator=(const RosterWatch&) = delete;
  [[nodiscard]] bool ready_within(Duration timeout) const { return listed_.ready_within(timeout); }

 private:
  Loop& loop_;
  Core& core_;               // on the loop
  Membership::Watch watch_;  // likewise
  Awaited<void> listed_;
};

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
  Awaited<void> joined = begin_on<void>(*loop_, [&](const Answer<void>& answer) {
    core_->membership().join(contact.addresses, left(),
                             [answer](const std::exception_ptr& error) { error ? answer.fail(error) : answer.give(); });
  });
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
  Awaited<void> met = begin_on<void>(*loop_, [&](const Answer<void>& answer) {
    core_->meet_keeper([answer](const std::exception_ptr& error) { error ? answer.fail(error) : answer.give(); });
  });
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
  loop.end([this] { core_.reset(); });
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
  const RosterWatch listed(*loop, *core_, publication);
  while (!listed.ready_within(Interruption::interval)) {
    interruption_.check();
    if (WallClock::now() > deadline) {
      throw Error(ErrorCode::timed_out, "member 0 does not answer", std::vector<Rank>{Rank{0}});
    }
  }
  return publication;
}

PublicationOwner::Retirement SessionState::retire(const std::shared_ptr<PublicationState>& publication,
                                                  Duration timeout) {
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

PublicationOwner::Retirement SessionState::replace(const std::shared_ptr<PublicationState>& old, const Update& update,
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

SessionState::StartedRetirement SessionState::retirement_of(const std::shared_ptr<PublicationState>& publication,
                                                            const char* what) const {
  auto retirement = std::make_shared<detail::Completion>(publication->interruption, on_loop());
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

void SessionState::wait(const std::shared_ptr<PublicationState>& publication, const detail::Completion& retirement) {
  const auto loop = open_loop();
  if (loop && loop->waits_for_itself() && !retirement.is_done()) {
    throw Error(ErrorCode::unsupported, "a callback of the session cannot wait for the readers of a publication");
  }
  retirement.wait([&] {
    if (loop) loop->post([this, publication] { core_->end_retirement(*publication); });
  });
}

void SessionState::wait_for_end(const detail::Completion& retirement) noexcept {
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
        .start = [this](std::unique_ptr<RunningRestore> task) { core_->start(std::move(task)); },
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
              core_->report_orphans();  // it may be lost already
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

void SessionState::require_member(const char* call) const {
  if (!bootstrap.guest) return;
  throw Error(ErrorCode::unsupported,
              fmt::format("{}() is a call of the job's members, and this session is a guest's", call));
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
      const auto asked = weak.lock();
      if (!open || !asked) return;
      const auto on_task = [weak, act] {
        const auto still = weak.lock();
        if (still && still->run != nullptr) act(*still->run);
      };
      // While a callback has the loop, another thread may have posted the task.
      if (open->is_current() && asked->run == nullptr) return open->post(on_task);
      try {
        open->call(on_task);
      } catch (const LoopEnded&) {  // the restore ends with it
      }
    };
  };
  state->cancel = on_run([](restore::RestoreOperation& run) { run.fail(cancelled()); });
  state->proceed = on_run([](restore::RestoreOperation& run) { run.proceed(); });
  state->end_here = [session = weak_from_this(), weak = std::weak_ptr<RestoreState>(state)] {
    const auto owner = session.lock();
    const auto open = owner ? owner->open_loop() : nullptr;
    const auto still = weak.lock();
    if (!open || !open->is_current() || !still) return;
    if (still->run == nullptr) return still->finish({}, {}, cancelled());  // its task is posted, and finds it ended
    restore::RestoreOperation& run = *still->run;
    owner->core_->stop_writing(run);
    if (!still->completion().is_done()) owner->core_->abandon(run);
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

std::vector<Bytes> SessionState::gather(const std::string& name, Bytes value, Duration timeout,
                                        const Interruption& interruption) {
  require_member("gather");
  return await<std::vector<Bytes>>(*waiting_in("gather"), interruption, [&](const auto& answer) {
    core_->membership().gather(name, value, Gathers::Kind::stays, timeout,
                               [answer](std::vector<Bytes> values, const std::exception_ptr& error) {
                                 error ? answer.fail(error) : answer.give(std::move(values));
                               });
  });
}

std::vector<Bytes> SessionState::gather_in(const char* call, const Bytes& value, Duration timeout) {
  require_member(call);
  const auto loop = waiting_in(call);
  std::uint64_t request = 0;
  Awaited<std::vector<Bytes>> all_came = begin_on<std::vector<Bytes>>(*loop, [&](const auto& answer) {
    request = core_->membership().gather(fmt::format("shardwire.{}", call), value, Gathers::Kind::while_waiting,
                                         timeout, [answer](std::vector<Bytes> values, const std::exception_ptr& error) {
                                           error ? answer.fail(error) : answer.give(std::move(values));
                                         });
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
    core_->start(std::make_unique<restore::PathSurvey>(
        core_->context(), from, timeout, [answer](std::vector<PeerPath> paths, const std::exception_ptr& error) {
          error ? answer.fail(error) : answer.give(std::move(paths));
        }));
  });
}

Inventory SessionState::inventory(restore::InventoryTask::Request request) {
  return await<Inventory>(*waiting_in("inventory"), interruption_, [&](const auto& answer) {
    core_->start(std::make_unique<restore::InventoryTask>(
        core_->context(), std::move(request), [answer](Inventory inventory, const std::exception_ptr& error) {
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

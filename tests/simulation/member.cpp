// SPDX-License-Identifier: Apache-2.0
// Outline: buffers; joining; publishing; restoring and checking; what members do together; calls; the end.
#include "member.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "handles/exchange_state.hpp"
#include "restore/state.hpp"
#include "serve/publication.hpp"
#include "surroundings.hpp"
#include "thread.hpp"
#include "values.hpp"

namespace shardwire::simulation {

namespace {

using namespace std::chrono_literals;

constexpr std::uint16_t rendezvous_port = 29501;
constexpr std::size_t guard_bytes = 64;
constexpr std::byte guard{0xa5};
constexpr std::byte untouched{0xee};
constexpr std::byte ours{0xcc};  // memory that the library must not touch any more
// Operations end by their deadline, and at most this much later: see stopping_grace in restore/operation.cpp.
constexpr Duration slack = 1500ms;
constexpr Duration join_limit = 20s;
constexpr Duration retire_limit = 1s;
const TensorKey step_key{"", "step"};

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& known) {
    return fmt::format("{}: {}", to_string(known.code()), known.what());
  } catch (const std::exception& other) {
    return fmt::format("no Error: {}", other.what());
  }
}

}  // namespace

std::size_t count_kept(const std::vector<std::weak_ptr<void>>& owners) {
  const auto kept = [&] { return std::ranges::count_if(owners, [](const auto& one) { return !one.expired(); }); };
  for (int left = 2000; kept() > 0 && left > 0; --left) std::this_thread::sleep_for(1ms);
  return static_cast<std::size_t>(kept());
}

void Job::fail(const std::string& what) {
  failures.push_back(what);
  events.trace().line(events.now_ns(), 0, "FAILURE {}", what);
}

// --- buffers ---

Buffer::Buffer(ByteCount bytes, std::shared_ptr<shardwire::detail::RegisteredMemory> arena)
    : bytes_(bytes), arena_(std::move(arena)) {
  if (!arena_) plain_.assign(static_cast<std::size_t>(bytes) + 2 * guard_bytes, guard);
}

std::span<std::byte> Buffer::bytes() {
  if (arena_) return arena_->memory().span().first(static_cast<std::size_t>(bytes_));
  return std::span(plain_).subspan(guard_bytes, static_cast<std::size_t>(bytes_));
}

void Buffer::fill(std::byte value) {
  std::ranges::fill(bytes(), value);
}

bool Buffer::is_all(std::byte value) {
  return std::ranges::all_of(bytes(), [&](std::byte one) { return one == value; });
}

bool Buffer::guards_intact() const {
  if (arena_) return true;
  const auto is_guard = [](std::byte one) { return one == guard; };
  return std::all_of(plain_.begin(), plain_.begin() + guard_bytes, is_guard) &&
         std::all_of(plain_.end() - guard_bytes, plain_.end(), is_guard);
}

struct Member::Published {
  int step = 0;
  std::vector<std::shared_ptr<Buffer>> buffers;
  std::weak_ptr<void> owner;
  std::shared_ptr<shardwire::detail::PublicationState> state{};  // owners: see Publication handle
};

struct Member::Destination {
  std::vector<std::shared_ptr<Buffer>> buffers;
  Catalog catalog;
  std::weak_ptr<void> owner;
  std::shared_ptr<shardwire::detail::RestoreState> running{};  // owners: see Restore
  bool has_holders = false;
  bool resumed = false;
};

/// The tensors that one member holds and wants in an exchange.
struct Member::Exchanged {
  std::vector<std::shared_ptr<Buffer>> buffers;    // all that is held or wanted lies in these
  std::vector<std::span<std::byte>> destinations;  // by tensor
  Catalog held;
  Catalog wanted;
  int step = 0;
  std::shared_ptr<shardwire::detail::ExchangeState> running{};  // owners: this and its thread
};

// --- joining ---

Member::Member(Job& job, Process& process, int member, std::uint64_t incarnation)
    : job_(job), process_(process), member_(member) {
  Bootstrap bootstrap;
  bootstrap.rank = member;
  bootstrap.world_size = job.schedule.members;
  bootstrap.address = Network::address_of(job.schedule.host_of.front());
  bootstrap.port = rendezvous_port;
  if (job.schedule.key) bootstrap.job_key.assign(16, std::byte{7});
  bootstrap.run_id = "simulated";
  SessionOptions options;
  options.staging_bytes = 256 << 10;  // four slots: a reader that hangs keeps one or two
  options.join_timeout = join_limit;
  options.progress = ProgressMode::wakeup();
  options.transport = "simulated";
  options.log = [this](LogLevel level, std::string_view text) {
    if (job_.logs && level >= LogLevel::info) say(fmt::format("log: {}", text));
  };
  const std::size_t at = static_cast<std::size_t>(member);
  std::vector<FabricKind> kinds;
  if (job.schedule.maps[at]) kinds.push_back(FabricKind::host);
  if (job.schedule.reads[at]) kinds.push_back(FabricKind::rdma);
  kinds.push_back(job.schedule.sockets ? FabricKind::streams : FabricKind::network);
  session_ = std::make_shared<shardwire::detail::SessionState>(
      surroundings_of(process, job.fabrics, job.schedule.seed ^ (incarnation * 0x9e3779b97f4a7c15ULL), kinds),
      std::move(bootstrap), options);
  job_.events.after({}, &process_, "join", [this] { join(); });
}

Member::~Member() {
  process_.end();
  if (session_) session_->stop(std::chrono::steady_clock::now());
  process_.end_threads();
}

void Member::join() {
  const auto call = begin("join", join_limit);
  session_->begin_join(join_limit, [this, call](const std::exception_ptr& error) {
    ended(*call);
    joined(error);
  });
}

void Member::joined(const std::exception_ptr& error) {
  if (error) {
    say("not joined: " + text_of(error));
    if (job_.schedule.must_complete) job_.fail(fmt::format("member {} did not join: {}", member_, text_of(error)));
    refused_ = true;
    waiting_.clear();
    return;
  }
  say("joined");
  // In events of their own: this may run inside of a call of the session.
  job_.events.after({}, &process_, "act", [this] {
    joined_ = true;
    for (const Action& action : std::exchange(waiting_, {})) act(action);
  });
}

void Member::act(const Action& action) {
  if (!alive() || left_ || refused_) return;
  if (!joined_) return waiting_.push_back(action);
  try {
    switch (action.kind) {
      case Action::Kind::publish: return publish(action.other);
      case Action::Kind::update: return update(action.other);
      case Action::Kind::restore: return restore();
      case Action::Kind::exchange: return exchange(action.other);
      case Action::Kind::gather: return gather(action.other);
      case Action::Kind::take_inventory: return take_inventory();
      case Action::Kind::cancel: return cancel();
      case Action::Kind::retire: return retire();
      case Action::Kind::leave: return leave();
      default: return;
    }
  } catch (const Error& error) {
    say(fmt::format("refused: {}", error.what()));
    if (job_.schedule.must_complete || error.code() == ErrorCode::internal) {
      job_.fail(fmt::format("member {} could not {}: {}", member_, to_text(action), error.what()));
    }
  }
}

// --- publishing ---

std::shared_ptr<Buffer> Member::buffer_for(const Layout& layout, const TensorSpec& spec, int rank,
                                           Schedule::Memory memory) {
  const auto elements = static_cast<ByteCount>(layout.local_elements(spec.shape, Rank{rank}));
  const ByteCount bytes = elements * item_size(spec.dtype);
  if (memory != Schedule::Memory::arena) return std::make_shared<Buffer>(bytes, nullptr);
  return std::make_shared<Buffer>(bytes, session_->allocate(bytes, MemoryKind::host, -1));
}

std::shared_ptr<void> Member::new_owner() {
  auto owner = std::make_shared<int>(member_);
  job_.owners.push_back(owner);
  return owner;
}

Catalog Member::catalog_of(bool held, std::vector<std::shared_ptr<Buffer>>& buffers, Schedule::Memory memory, int step,
                           std::shared_ptr<void> owner) {
  const Schedule& schedule = job_.schedule;
  const int rank = held ? schedule.source_rank(member_) : schedule.target_rank(member_);
  const auto ranks = static_cast<int>(held ? schedule.sources.size() : schedule.targets.size());
  Catalog catalog(Rank{rank}, ranks);
  for (std::size_t i = 0; i < schedule.tensors.size(); ++i) {
    const Schedule::Tensor& tensor = schedule.tensors[i];
    const Layout& layout = held ? tensor.held : tensor.wanted;
    buffers.push_back(buffer_for(layout, tensor.spec, rank, memory));
    const std::span<std::byte> bytes = buffers.back()->bytes();
    std::ranges::fill(bytes, untouched);
    if (held) {
      each_byte(layout, tensor.spec, Rank{rank}, [&](ElementCount element, ByteCount byte, std::size_t place) {
        bytes[place] = value_of(i, step, element, byte) ^ schedule.mark_of(member_);
      });
    }
    catalog.add(tensor.spec, layout, View{.data = bytes.data(), .owner = owner});
  }
  catalog.add_value(step_key, held ? Value(static_cast<std::int64_t>(step)) : Value());
  return catalog;
}

void Member::publish(int step) {
  if (published_ || job_.schedule.source_rank(member_) < 0) return;
  const Schedule::Memory memory = job_.schedule.memory[static_cast<std::size_t>(member_)];
  auto published = std::make_shared<Published>();
  published->step = step;
  auto owner = new_owner();
  published->owner = owner;
  const Catalog held = catalog_of(true, published->buffers, memory, step, std::move(owner));
  const bool copies = memory == Schedule::Memory::snapshot;
  published->state = session_->publish(
      held, {.step = step, .snapshot = copies ? Snapshot::copy : Snapshot::none, .digest = job_.schedule.digests});
  published_ = std::move(published);
  job_.published[static_cast<std::size_t>(member_)] = true;
  say(fmt::format("published step {}", step));
}

void Member::update(int step) {
  if (!published_) return publish(step);
  const Schedule::Memory memory = job_.schedule.memory[static_cast<std::size_t>(member_)];
  auto fresh = std::make_shared<Published>();
  fresh->step = step;
  auto owner = new_owner();
  fresh->owner = owner;
  const Catalog held = catalog_of(true, fresh->buffers, memory, step, std::move(owner));
  const bool copies = memory == Schedule::Memory::snapshot;
  const auto retirement = session_->replace(
      published_->state,
      {.held = held, .step = step, .snapshot = copies ? Snapshot::copy : Snapshot::none, .timeout = retire_limit},
      fresh->state);
  say(fmt::format("updated to step {}", step));
  watch_retirement(std::exchange(published_, std::move(fresh)), retirement);
}

void Member::retire() {
  if (!published_) return;
  const auto retirement = session_->retire(published_->state, retire_limit);
  watch_retirement(std::exchange(published_, nullptr), retirement);
}

// From the end on, the memory is the caller's.
void Member::watch_retirement(const std::shared_ptr<Published>& published,
                              const shardwire::detail::SessionState::Retirement& retirement) {
  retiring_.push_back(published);
  const auto call = begin("retire", retire_limit);
  if (!retirement) return ended(*call);
  retirement->on_done([this, published, call] {
    ended(*call);
    for (const auto& buffer : published->buffers) buffer->fill(ours);
    returned_.push_back(published->owner);
  });
}

void Member::leave() {
  left_ = true;
  if (published_) retire();
  // In an event after that of a process that was stopped until now, all of whose alarms are due.
  job_.events.after(retire_limit + 100ms, &process_, "leave",
                    [this] { job_.events.after(100ms, &process_, "close", [this] { close(); }); });
}

// --- restoring and checking ---

void Member::restore() {
  if (job_.schedule.target_rank(member_) < 0) return;
  std::shared_ptr<Destination> destination;
  if (job_.schedule.again && !destinations_.empty() && !destinations_.back()->running) {
    destination = destinations_.back();
    for (const auto& buffer : destination->buffers) buffer->fill(untouched);
  } else {
    std::vector<std::shared_ptr<Buffer>> buffers;
    const auto memory = job_.schedule.memory[static_cast<std::size_t>(member_)];
    auto owner = new_owner();
    const std::weak_ptr<void> weak = owner;
    Catalog wanted = catalog_of(false, buffers, memory, 0, std::move(owner));
    destination = std::make_shared<Destination>(Destination{std::move(buffers), std::move(wanted), weak});
    destinations_.push_back(destination);
  }
  RestoreOptions options;
  options.timeout = job_.schedule.deadline;
  options.staging_bytes = job_.schedule.staging_bytes;
  options.verify = job_.schedule.verified ? Verify::digest : Verify::generation;
  options.method = job_.schedule.method;
  options.discovery_grace = job_.schedule.grace;
  options.notice = job_.schedule.notice;
  options.step_rule = job_.schedule.step_rule;
  options.replicas = job_.schedule.replicas;
  options.ingress_bytes_per_second = job_.schedule.ingress_bytes_per_second;
  destination->has_holders = job_.schedule.has_steady_holders(member_, job_.published);
  destination->resumed = false;
  const auto call = begin("restore", options.timeout);
  destination->running = session_->restore(destination->catalog, options);
  say(fmt::format(
      "restores{}{}", options.replicas == Replicas::first ? " from the first replicas" : "",
      options.ingress_bytes_per_second > 0 ? fmt::format(" at {} bytes/s", options.ingress_bytes_per_second) : ""));
  destination->running->completion().on_done([this, destination, call] { restored(destination, call); });
}

// A restore that failed goes on, as far as its session does. In an event of its own: no callback of a session may do so.
bool Member::resumes(const std::shared_ptr<Destination>& destination) {
  if (!job_.schedule.resumes || std::exchange(destination->resumed, true)) return false;
  const auto resume = [this, destination] {
    const auto give_up = [&] { restored_for_good(destination); };
    if (left_) return give_up();
    try {
      destination->running->resume(job_.schedule.deadline);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::invalid_argument) throw;
      return give_up();  // the session has ended
    }
    say("resumes");
    destination->has_holders = false;  // sources may have gone on to the next step
    const auto call = begin("restore", job_.schedule.deadline);
    destination->running->completion().on_done([this, destination, call] { restored(destination, call); });
  };
  job_.events.after({}, &process_, "resume", resume);
  return true;
}

// Its memory is the caller's from now on.
void Member::restored_for_good(const std::shared_ptr<Destination>& destination) {
  for (const auto& buffer : destination->buffers) buffer->fill(ours);
  destination->running = nullptr;
  if (job_.schedule.again) return;  // the next restore has the same catalog
  destination->catalog = Catalog(Rank{0}, 1);
  returned_.push_back(destination->owner);
}

// The completion's own thread is this one: its state is read in an event of its own.
void Member::restored(const std::shared_ptr<Destination>& destination, const std::shared_ptr<Call>& call) {
  if (!alive()) return;
  ended(*call);
  ++job_.restores;
  std::exception_ptr failure;
  try {
    destination->running->completion().wait();
  } catch (...) {
    failure = std::current_exception();
  }
  note_ending(*destination, *call, !failure);
  if (!failure) {
    check(*destination);
  } else {
    say("not restored: " + text_of(failure));
    if (job_.schedule.must_complete) {
      job_.fail(fmt::format("a restore of member {} failed: {}", member_, text_of(failure)));
    }
    if (destination->has_holders) {
      ++job_.avoidable;
      if (job_.fails_over) {
        job_.fail(
            fmt::format("a restore of member {} failed although its holders are there: {}", member_, text_of(failure)));
      }
    }
    try {
      std::rethrow_exception(failure);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::internal) job_.fail(fmt::format("member {}: {}", member_, error.what()));
    } catch (const std::exception& other) {
      job_.fail(fmt::format("a restore of member {} ended with no Error: {}", member_, other.what()));
    }
    if (resumes(destination)) return;  // its end is another
  }
  restored_for_good(destination);
}

void Member::note_ending(const Destination& destination, const Call& call, bool completed) {
  const Schedule& schedule = job_.schedule;
  const RestoreReport& report = destination.running->report();
  const Duration began = call.begun - Events::start;
  std::string method = "none";
  ByteCount most = 0;
  report.methods.each([&](Method one, const MethodReport& figures) {
    if (one == Method::local || figures.bytes <= most) return;
    most = figures.bytes;
    method = to_string(one);
  });
  Ending ending{.method = std::move(method),
                .struck = struck_between(schedule, began, job_.events.now() - Events::start),
                .completed = completed,
                .needed = report.needed_bytes,
                .again = report.resent_bytes,
                .lasted = job_.events.now() - call.begun};
  // The times of a resumed restore count from its first call, and a spare may be the holder that was lost.
  for (const LostSource& lost : report.lost) {
    if (destination.resumed || std::ranges::count(schedule.spares, to_int(lost.rank), &Schedule::Spare::rank) > 0)
      continue;
    const auto decided =
        began + std::chrono::duration_cast<Duration>(std::chrono::duration<double>(lost.after_seconds));
    const int member = schedule.sources[static_cast<std::size_t>(to_int(lost.rank))];
    if (const auto blow = last_blow(schedule, member, decided)) {
      ending.notices.emplace_back(blow->kind, decided - std::max(blow->at, began));
    }
  }
  job_.endings.push_back(std::move(ending));
}

namespace {

Holders holders_of(const Schedule& schedule, const Schedule::Tensor& tensor) {
  const Extents& shape = tensor.spec.shape;
  std::vector<std::vector<int>> by_element(static_cast<std::size_t>(shape[0] * shape[1]));
  for (const int member : schedule.publishers()) {
    each_byte(tensor.held, tensor.spec, Rank{schedule.source_rank(member)},
              [&](ElementCount element, ByteCount byte, std::size_t) {
                if (byte == 0) by_element[static_cast<std::size_t>(element)].push_back(member);
              });
  }
  Holders holders;
  std::map<std::vector<int>, std::size_t> known;
  for (std::vector<int>& members : by_element) {
    const auto [set, is_new] = known.emplace(std::move(members), holders.sets.size());
    if (is_new) holders.sets.push_back(set->first);
    holders.set_of.push_back(set->second);
  }
  return holders;
}

}  // namespace

// Every byte is of the step that the restored value names, and that step was published. Elements of a tensor that the same members
// hold come from one of them, unless replicas are taken as equal.
void Member::check(Destination& destination) {
  const auto& values = destination.running->values();
  const auto found = values.find(step_key);
  const std::int64_t* const step = found == values.end() ? nullptr : std::get_if<std::int64_t>(&*found->second);
  if (step == nullptr || *step < 1) return job_.fail(fmt::format("member {} restored no step", member_));
  const Schedule& schedule = job_.schedule;
  const Rank rank{schedule.target_rank(member_)};
  if (job_.holders.empty()) {
    for (const Schedule::Tensor& tensor : schedule.tensors) job_.holders.push_back(holders_of(schedule, tensor));
  }
  std::size_t wrong = 0;
  std::size_t mixed = 0;
  for (std::size_t i = 0; i < schedule.tensors.size(); ++i) {
    const Schedule::Tensor& tensor = schedule.tensors[i];
    const std::span<const std::byte> bytes = destination.buffers[i]->bytes();
    const Holders& holders = job_.holders[i];
    std::vector<std::optional<std::byte>> taken(holders.sets.size());  // mark of the one that was read
    each_byte(tensor.wanted, tensor.spec, rank, [&](ElementCount element, ByteCount byte, std::size_t place) {
      const std::byte mark = bytes[place] ^ value_of(i, *step, element, byte);
      const std::size_t set = holders.set_of[static_cast<std::size_t>(element)];
      const auto is_marked = [&](int member) { return schedule.mark_of(member) == mark; };
      if (std::ranges::none_of(holders.sets[set], is_marked)) {
        ++wrong;
      } else if (taken[set].value_or(mark) != mark) {
        ++mixed;
      } else {
        taken[set] = mark;
      }
    });
  }
  std::string methods;
  destination.running->report().methods.each([&](Method method, const MethodReport& one) {
    if (one.bytes > 0) methods += fmt::format(", {} bytes {}", one.bytes, to_string(method));
  });
  say(fmt::format("restored step {}{}", *step, methods));
  if (wrong > 0) job_.fail(fmt::format("member {} restored {} wrong bytes at step {}", member_, wrong, *step));
  if (mixed > 0) job_.fail(fmt::format("member {} restored {} bytes from another replica than others", member_, mixed));
}

void Member::cancel() {
  for (const auto& destination : std::vector(destinations_)) {
    if (destination->running) destination->running->cancel();
  }
  for (const auto& one : exchanges_) {
    if (one->running) one->running->cancel();
  }
}

// --- what members do together ---

namespace {

constexpr std::string_view told_by_others = "the exchange failed on member";
// Members learn within a second that an exchange has ended. What they are in takes half a second to stop, and they wait
// half a second for each other.
constexpr Duration time_to_stop = 2500ms;
constexpr Duration gather_limit = 5s;
constexpr Duration inventory_limit = 4s;

Bytes value_of_member(int member, int number) {
  return Bytes(static_cast<std::size_t>(1 + member), static_cast<std::byte>(16 * number + member));
}

}  // namespace

// In place, all tensors lie in one buffer: those that are held in their order, those that are wanted in the opposite one.
std::shared_ptr<Member::Exchanged> Member::make_exchange(int step) {
  const Schedule::Exchange& plan = *job_.schedule.exchange;
  const Schedule::Memory memory = job_.schedule.memory[static_cast<std::size_t>(member_)];
  const Catalog empty(Rank{member_}, job_.schedule.members);
  auto exchange = std::make_shared<Exchanged>(Exchanged{{}, {}, empty, empty, step});
  const auto bytes_of = [&](const Layout& layout, const TensorSpec& spec) {
    return static_cast<ByteCount>(layout.local_elements(spec.shape, Rank{member_})) * item_size(spec.dtype);
  };
  ByteCount held = 0;
  ByteCount wanted = 0;
  for (const Schedule::Tensor& tensor : plan.tensors) {
    held += bytes_of(tensor.held, tensor.spec);
    wanted += bytes_of(tensor.wanted, tensor.spec);
  }
  const auto buffer = [&](ByteCount bytes) {
    const bool arena = memory == Schedule::Memory::arena;
    exchange->buffers.push_back(
        std::make_shared<Buffer>(bytes, arena ? session_->allocate(bytes, MemoryKind::host, -1) : nullptr));
    exchange->buffers.back()->fill(untouched);
    return exchange->buffers.back()->bytes();
  };
  std::span<std::byte> sources = buffer(plan.in_place ? std::max(held, wanted) : held);
  std::span<std::byte> targets = plan.in_place ? sources : buffer(wanted);
  targets = targets.first(static_cast<std::size_t>(wanted));
  for (std::size_t i = 0; i < plan.tensors.size(); ++i) {
    const Schedule::Tensor& tensor = plan.tensors[i];
    each_byte(tensor.held, tensor.spec, Rank{member_}, [&](ElementCount element, ByteCount byte, std::size_t place) {
      sources[place] = value_of(i, step, element, byte);
    });
    exchange->held.add(tensor.spec, tensor.held, View{.data = sources.data()});
    sources = sources.subspan(static_cast<std::size_t>(bytes_of(tensor.held, tensor.spec)));
    const auto size = static_cast<std::size_t>(bytes_of(tensor.wanted, tensor.spec));
    exchange->destinations.push_back(targets.last(size));
    targets = targets.first(targets.size() - size);
    exchange->wanted.add(tensor.spec, tensor.wanted, View{.data = exchange->destinations.back().data()});
  }
  exchange->held.add_value(step_key, static_cast<std::int64_t>(step));
  exchange->wanted.add_value(step_key);
  return exchange;
}

void Member::exchange(int number) {
  const auto exchange = make_exchange(100 + number);
  ExchangeOptions options;
  options.timeout = job_.schedule.deadline;
  options.staging_bytes = job_.schedule.exchange->staging_bytes;
  options.verify = job_.schedule.verified ? Verify::digest : Verify::generation;
  // One member that asks for rounds is enough.
  if (job_.schedule.exchange->rounds && member_ % 2 == 0) options.method = ExchangeMethod::collective;
  exchange->running = session_->start_exchange(exchange->held, exchange->wanted, options);
  const auto call = begin("exchange", options.timeout);
  exchanges_.push_back(exchange);
  say(fmt::format("exchanges number {}", number));
  exchange->running->completion().on_done([this, exchange, call, number] {
    job_.events.after({}, &process_, "exchanged",
                      [this, exchange, call, number] { exchanged(exchange, call, number); });
  });
}

void Member::exchanged(const std::shared_ptr<Exchanged>& exchange, const std::shared_ptr<Call>& call, int number) {
  ended(*call);
  const auto note = [&](bool completed) {
    job_.endings.push_back(
        {.method = job_.schedule.exchange->rounds ? "rounds" : "exchange",
         .struck = struck_between(job_.schedule, call->begun - Events::start, job_.events.now() - Events::start),
         .completed = completed});
  };
  try {
    exchange->running->completion().wait();
    note(true);
    check(*exchange);
    check_told(number, "");
  } catch (const Error& error) {
    note(false);
    check_told(number, error.what());
    // Too little staging is found by all alike, before anything moves.
    failed("exchange", std::current_exception(),
           job_.schedule.must_complete && error.code() != ErrorCode::out_of_resources);
  } catch (const std::exception&) {
    failed("exchange", std::current_exception(), true);
  }
  for (const auto& buffer : exchange->buffers) buffer->fill(ours);
  exchange->running = nullptr;
}

void Member::check(Exchanged& exchange) {
  const auto& values = exchange.running->result().values;
  const auto found = values.find(step_key);
  if (found == values.end() || found->second != Value(static_cast<std::int64_t>(exchange.step))) {
    job_.fail(fmt::format("member {} has another step after an exchange", member_));
  }
  std::size_t wrong = 0;
  const auto& tensors = job_.schedule.exchange->tensors;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    each_byte(tensors[i].wanted, tensors[i].spec, Rank{member_},
              [&](ElementCount element, ByteCount byte, std::size_t place) {
                if (exchange.destinations[i][place] != value_of(i, exchange.step, element, byte)) ++wrong;
              });
  }
  say("exchanged");
  if (wrong > 0) job_.fail(fmt::format("member {} has {} wrong bytes after an exchange", member_, wrong));
}

// Members that nothing happens to learn together that one has given an exchange up.
void Member::check_told(int number, const std::string& text) {
  if (!job_.schedule.is_steady(member_) || !job_.schedule.is_steady(0) || job_.schedule.has_hole(member_)) return;
  const Clock::Time now = job_.events.now();
  const auto found = job_.told.find(number);
  if (found == job_.told.end()) {
    if (text.starts_with(told_by_others)) job_.told.emplace(number, now);
  } else if (now > found->second + time_to_stop) {
    job_.fail(fmt::format("an exchange of member {} ended {:.3f} s after another member knew that it was given up",
                          member_, std::chrono::duration<double>(now - found->second).count()));
  }
}

void Member::in_thread(std::string what, Duration limit, bool fails, std::function<std::string()> body) {
  const auto call = begin(what, limit);
  const auto thread = std::make_shared<SimulatedThread>(job_.events, process_, job_.network.bug(),
                                                        [this, what, call, fails, body = std::move(body)] {
                                                          std::string result;
                                                          std::exception_ptr failure;
                                                          try {
                                                            result = body();
                                                          } catch (const std::exception&) {
                                                            failure = std::current_exception();
                                                          }
                                                          if (process_.ended()) return;
                                                          ended(*call);
                                                          failure ? failed(what, failure, fails) : say(result);
                                                        });
  SimulatedThread::start(thread);
}

void Member::failed(const std::string& what, const std::exception_ptr& error, bool fails) {
  const std::string text = text_of(error);
  say(fmt::format("no {}: {}", what, text));
  bool known = true;
  try {
    std::rethrow_exception(error);
  } catch (const Error& one) {
    known = one.code() != ErrorCode::internal;
  } catch (const std::exception&) {
    known = false;
  }
  if (fails || !known) job_.fail(fmt::format("a {} of member {} failed: {}", what, member_, text));
}

void Member::gather(int number) {
  in_thread("gather", gather_limit + 1s, job_.schedule.must_complete, [this, number, session = session_] {
    const auto values =
        session->gather(fmt::format("gathered {}", number), value_of_member(member_, number), gather_limit);
    bool right = values.size() == static_cast<std::size_t>(job_.schedule.members);
    for (std::size_t i = 0; right && i < values.size(); ++i) {
      right = values[i] == value_of_member(static_cast<int>(i), number);
    }
    if (!right) job_.fail(fmt::format("member {} gathered other values than the members gave", member_));
    return fmt::format("gathered {}", number);
  });
}

// Every second member waits for a step, and not all steps come.
void Member::take_inventory() {
  restore::InventoryTask::Request request{.from = PublishOptions().name, .timeout = inventory_limit};
  if (member_ % 2 == 1) {
    request.step = 1 + member_ / 2;
    request.until_final = true;
  }
  in_thread("inventory", inventory_limit, false, [this, request, session = session_] {
    const Inventory inventory = session->inventory(request);
    for (const Inventory::Publisher& one : inventory.publishers) {
      const bool known = one.member >= 0 && one.member < job_.schedule.members &&
                         job_.schedule.source_rank(one.member) == to_int(one.rank);
      if (!known) job_.fail(fmt::format("member {} sees a publication that there is not", member_));
    }
    return fmt::format("took inventory of {} publications", inventory.publishers.size());
  });
}

// --- calls ---

std::shared_ptr<Call> Member::begin(std::string what, Duration limit) {
  auto call = std::make_shared<Call>(Call{std::move(what), job_.events.now(), process_.stopped_for(), limit});
  calls_.push_back(call);
  return call;
}

// The clock of a stopped process goes on, but nothing of it runs.
void Member::ended(Call& call) {
  if (std::exchange(call.ended, true))
    return job_.fail(fmt::format("a {} of member {} ended twice", call.what, member_));
  const Duration took = job_.events.now() - call.begun - (process_.stopped_for() - call.stopped_before);
  if (took > call.limit + slack) {
    job_.fail(fmt::format("a {} of member {} took {:.3f} s, its deadline was {:.3f} s", call.what, member_,
                          std::chrono::duration<double>(took).count(),
                          std::chrono::duration<double>(call.limit).count()));
  }
}

void Member::say(const std::string& what) {
  job_.events.trace().line(job_.events.now_ns(), process_.number(), "member {} {}", member_, what);
}

// --- the end ---

void Member::end(bool silent) {
  if (!alive()) return;
  say(silent ? "vanishes" : "is killed");
  process_.end();
  if (silent) {
    job_.network.vanished(process_);
  } else {
    job_.network.killed(process_);
  }
  job_.fabrics.ended(process_, silent);
  job_.groups.ended(process_);
  calls_.clear();
  session_->stop(std::chrono::steady_clock::now());
  process_.end_threads();
  session_.reset();
  published_.reset();
  retiring_.clear();
  destinations_.clear();
  exchanges_.clear();
}

void Member::check_quiet() {
  if (!alive()) return;
  for (const auto& call : calls_) {
    if (!call->ended) job_.fail(fmt::format("a {} of member {} has never ended", call->what, member_));
  }
  const Kept kept = session_->kept();
  if (kept != Kept{}) {
    job_.fail(
        fmt::format("member {} keeps {} restores, {} leases, {} reads, {} requests, {} watchers, {} names, {} "
                    "gathers, {} slots",
                    member_, kept.restores, kept.leases, kept.reads, kept.requests, kept.watchers, kept.names,
                    kept.gathers, kept.slots));
  }
  if (const std::size_t owners = count_kept(returned_); owners > 0) {
    job_.fail(fmt::format("member {} keeps {} owners of memory that it has given back", member_, owners));
  }
  for (const auto& destination : destinations_) {
    for (const auto& buffer : destination->buffers) {
      if (!buffer->guards_intact()) job_.fail(fmt::format("member {} has bytes beside a destination", member_));
      if (!destination->running && !buffer->is_all(ours)) {
        job_.fail(fmt::format("the destination of member {} was written after the end of the restore", member_));
      }
    }
  }
  for (const auto& exchange : exchanges_) {
    for (const auto& buffer : exchange->buffers) {
      if (!buffer->guards_intact()) job_.fail(fmt::format("member {} has bytes beside an exchange", member_));
      if (!exchange->running && !buffer->is_all(ours)) {
        job_.fail(fmt::format("memory of member {} was written after the end of its exchange", member_));
      }
    }
  }
}

void Member::retire_all() {
  if (alive() && !left_) retire();
}

void Member::close() {
  if (!alive()) return;
  for (const auto& call : calls_) {
    if (!call->ended && call->what == "retire")
      job_.fail(fmt::format("a retirement of member {} never ended", member_));
  }
  left_ = true;
  const auto session = session_;
  session->close(Duration::zero());
  session_ = nullptr;
  calls_.clear();
  published_.reset();
  retiring_.clear();
  destinations_.clear();
  exchanges_.clear();  // one that is left runs on until it finds the session closed
}

}  // namespace shardwire::simulation

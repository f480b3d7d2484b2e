// SPDX-License-Identifier: Apache-2.0
#include "perf/measure/member.hpp"

#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "perf/measure/contiguous.hpp"
#include "perf/measure/copy.hpp"
#include "perf/measure/memory_use.hpp"
#include "perf/measure/nccl_loop.hpp"
#include "perf/measure/ports.hpp"
#include "perf/measure/read_libraries.hpp"
#include "perf/measure/read_lists.hpp"
#include "perf/measure/state_block.hpp"
#include "perf/measure/state_memory.hpp"
#include "perf/measure/tag_loop.hpp"
#include "support/host_name.hpp"
#include "transport/collective.hpp"

namespace shardwire::perf {

namespace {

using namespace std::chrono_literals;

constexpr ByteCount memory_allowance = 64u << 20;  // code, fabric, bookkeeping
constexpr auto retire_limit = 10s;

std::int64_t now_ns() {
  return std::chrono::steady_clock::now().time_since_epoch() / 1ns;
}

std::int64_t cpu_now_ns() {
  timespec used{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return std::int64_t{used.tv_sec} * 1'000'000'000 + used.tv_nsec;
}

Bytes bytes_of(std::string_view text) {
  const auto* first = reinterpret_cast<const std::byte*>(text.data());
  return {first, first + text.size()};
}
std::string_view text_of(const Bytes& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// The contiguous reference restore, in the memory of the state itself: contiguous_case().
struct Contiguous {
  Contiguous(const Setup& setup, const Case& original, int member)
      : job(contiguous_case(setup, original)),
        held(job.source, source_of(setup, job, member)),
        wanted(job.target, target_of(setup, job, member)) {}

  void lie_in(const StateBlock& held_block, const StateBlock& wanted_block) {
    held.lie_in(held_block.bytes());
    wanted.lie_in(wanted_block.bytes());
    if (wanted.takes_part()) catalog = wanted.catalog(wanted_block);
  }

  Case job;
  StateMemory held;
  StateMemory wanted;
  std::optional<Catalog> catalog{};
};

// One member in one measurement.
class Contest {
 public:
  Contest(const Setup& setup, std::size_t number, Session& session, Meeting& meeting, MemberRole role,
          const StatePlace& place, const TurnDone& done)
      : setup_(setup),
        measurement_(setup.measurements[number]),
        name_(fmt::format("perf {}", number)),
        session_(session),
        meeting_(meeting),
        role_(role),
        place_(place),
        done_(done),
        turns_(turns_of(measurement_)),
        held_(measurement_.job.source, source_of(setup, measurement_.job, role.member)),
        wanted_(measurement_.job.target, target_of(setup, measurement_.job, role.member)),
        contiguous_(contiguous_of(setup, measurement_, role.member)),
        held_block_(session, std::max(held_.size_bytes(), contiguous_ ? contiguous_->held.size_bytes() : 0), place),
        wanted_block_(session, std::max(wanted_.size_bytes(), contiguous_ ? contiguous_->wanted.size_bytes() : 0),
                      place) {
    held_.lie_in(held_block_.bytes());
    wanted_.lie_in(wanted_block_.bytes());
    if (contiguous_) contiguous_->lie_in(held_block_, wanted_block_);
    if (wanted_.takes_part()) catalog_ = wanted_.catalog(wanted_block_);
    if (setup_.exchange)
      held_catalog_ = held_.takes_part() ? held_.catalog(held_block_) : nothing(measurement_.job.source);
    facts_.wanted = wanted_.payload_bytes();
    facts_.turns.resize(turns_.size());
    for (TurnFacts& turn : facts_.turns) {
      turn.spans.resize(repeats());
      turn.stages.resize(repeats());
    }
  }

  MeasurementFacts run() {
    held_.fill(held_block_);
    // The first touch is not measured.
    if (!wanted_block_.on_device() && !wanted_block_.bytes().empty()) {
      std::memset(wanted_block_.bytes().data(), 1, wanted_block_.bytes().size());
    }
    make_spare();
    connect_tags();
    connect_reads();
    connect_nccl();
    Publication publication;
    Publication contiguous;
    if (held_.takes_part() && !setup_.exchange)
      publication = session_.publish(held_.catalog(held_block_), {.name = name_});
    if (contiguous_ && contiguous_->held.takes_part()) {
      contiguous = session_.publish(contiguous_->held.catalog(held_block_), {.name = contiguous_name()});
    }
    agree("published", "");
    for (std::size_t repeat = 0; repeat < repeats(); ++repeat) {
      for (std::size_t turn = 0; turn < turns_.size(); ++turn) timed(turn, repeat);
      if (repeat == 0) agree_on_methods();
    }
    meet();
    loop_.reset();
    nccl_.reset();
    spare_.reset();
    for (std::size_t turn = 0; turn < turns_.size(); ++turn) {
      // Restores come last, so all members have finished reading from it; its buffers do not count as the restore's
      // memory.
      if (turns_[turn].kind == Turn::Kind::restore) reads_.clear();
      verify(turn);
    }
    meet();
    for (Publication* one : {&publication, &contiguous}) {
      if (one->valid()) one->retire(retire_limit);
    }
    return std::move(facts_);
  }

 private:
  static std::optional<Contiguous> contiguous_of(const Setup& setup, const Measurement& measurement, int member) {
    if (std::count(measurement.against.begin(), measurement.against.end(), Against::contiguous) == 0) return {};
    return Contiguous(setup, measurement.job, member);
  }
  [[nodiscard]] std::string contiguous_name() const { return name_ + " contiguous"; }
  [[nodiscard]] std::size_t repeats() const { return static_cast<std::size_t>(setup_.repeats) + 1; }

  // Members without a turn of their own may have served others until then.
  void meet() {
    meeting_.meet();
    last_->cpu_ns += cpu_now_ns();
    last_ = &unused_;
  }

  // Exchanges a text of every member; returns them by member. Also a meeting.
  std::vector<Bytes> agree(std::string_view about, std::string_view mine) {
    return session_.gather(fmt::format("{} {}", name_, about), bytes_of(mine), setup_.timeout);
  }

  void timed(std::size_t turn, std::size_t repeat) {
    Span& span = facts_.turns[turn].spans[repeat];
    meet();
    last_ = &span;
    span.cpu_ns = -cpu_now_ns();
    span.begin_ns = now_ns();
    take(turn, repeat);
    span.end_ns = now_ns();
    if (role_.member == 0 && done_) {
      const auto before = cpu_now_ns();
      done_(measurement_.needed_bytes);
      span.cpu_ns -= cpu_now_ns() - before;
    }
    // The processor time of one process is counted once.
    if (!role_.alone && role_.member != 0) {
      last_ = &unused_;
      span.cpu_ns = 0;
    }
  }

  void take(std::size_t turn, std::size_t repeat) {
    const Turn& what = turns_[turn];
    switch (what.kind) {
      case Turn::Kind::copy:
        plain_copies()[what.index].copy(held_.payload().empty() ? spare_->bytes() : held_.payload(), wanted_.payload());
        return;
      case Turn::Kind::device_copy:
        (held_.payload().empty() ? *spare_ : held_block_).copy_on_device(wanted_block_, wanted_.payload_bytes());
        return;
      case Turn::Kind::tag: loop_->exchange(sends_, wanted_.payload(), tag_styles()[what.index]); return;
      case Turn::Kind::read: read(what); return;
      case Turn::Kind::nccl:
        nccl_->exchange(nccl_order_, held_block_.device_address(), wanted_block_.device_address());
        return;
      case Turn::Kind::mpi: return;  // other processes move now
      case Turn::Kind::reference: refer(turn, repeat); return;
      case Turn::Kind::restore:
        if (facts_.turns[turn].refused.empty()) restore(turn, repeat);
        return;
    }
  }

  void read(const Turn& turn) const {
    for (const ReadOrder::Copy& one : read_copies_) std::memcpy(one.to, one.from, one.bytes);
    reads_.at(turn.against)->read(read_lists_, read_styles()[turn.index].idle);
  }

  [[nodiscard]] RestoreOptions restore_options(std::optional<Method> method) const {
    RestoreOptions options;
    if (method) options.method = to_restore_method(*method);
    options.name = name_;
    options.timeout = setup_.timeout;
    options.staging_bytes = std::max<ByteCount>(1, setup_.staging_bytes / 2);  // the other half serves readers
    options.ingress_bytes_per_second = setup_.rate_bytes_per_second;
    options.verify = setup_.verify;
    options.replicas = setup_.replicas;
    options.discovery_grace = Duration::zero();  // all publishers have published, since the members met
    return options;
  }

  static Catalog nothing(const CaseSide& side) { return {Rank{0}, side.ranks}; }
  // Whether this member moves anything in a restore; in an exchange all do.
  [[nodiscard]] bool moves(const std::optional<Catalog>& catalog) const { return catalog || setup_.exchange; }

  // Moves what this member wants, if anything.
  RestoreReport move(const std::optional<Catalog>& catalog, const RestoreOptions& options) {
    if (setup_.exchange) {
      const ExchangeOptions exchange{.timeout = options.timeout,
                                     .staging_bytes = options.staging_bytes,
                                     .verify = options.verify,
                                     .ingress_bytes_per_second = options.ingress_bytes_per_second,
                                     .replicas = options.replicas,
                                     .method = ExchangeMethod::collective};
      return session_.exchange(*held_catalog_, catalog ? *catalog : nothing(measurement_.job.target), exchange).report;
    }
    Restore restore = session_.restore(*catalog, options);
    restore.wait();
    return restore.report();
  }

  // Like the measured restore, with one difference.
  void refer(std::size_t turn, std::size_t repeat) {
    const bool contiguous = turns_[turn].against == Against::contiguous;
    const std::optional<Catalog>& catalog = contiguous ? contiguous_->catalog : catalog_;
    if (!moves(catalog)) return;
    RestoreOptions options = restore_options(measurement_.methods.front());
    if (contiguous) options.name = contiguous_name();
    if (turns_[turn].against == Against::unverified) options.verify = Verify::generation;
    facts_.turns[turn].stages[repeat] = move(catalog, options).seconds;
  }

  void restore(std::size_t turn, std::size_t repeat) {
    if (!moves(catalog_)) return;
    TurnFacts& facts = facts_.turns[turn];
    const auto& method = measurement_.methods[turns_[turn].index];
    try {
      facts.report = move(catalog_, restore_options(method));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::unsupported || !method || repeat > 0) throw;
      facts.refused = error.what();
      return;
    }
    const RestoreReport& report = facts.report;
    if (repeat < repeats()) facts.stages[repeat] = report.seconds;  // the one after the last is not timed
    facts.paths = paths_of(report);
    if (method && report.moved_bytes > 0 && report.methods[*method].bytes == 0) {
      facts.refused = "the restore did not use that method";
    }
  }

  static std::vector<PathFacts> paths_of(const RestoreReport& report) {
    std::vector<PathFacts> paths;
    for (const PeerReport& peer : report.peers) {
      const std::string_view carrier = moving_carrier(peer);
      paths.push_back({to_int(peer.rank), peer.bytes, peer.path, port_of(carrier), line_rate_of(carrier)});
    }
    return paths;
  }

  // A method is excluded if one member cannot use it.
  void agree_on_methods() {
    nlohmann::json mine = nlohmann::json::array();
    for (const TurnFacts& turn : facts_.turns) mine.push_back(turn.refused);
    for (const Bytes& bytes : agree("methods", mine.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace))) {
      const auto theirs = nlohmann::json::parse(text_of(bytes));
      for (std::size_t turn = 0; turn < turns_.size(); ++turn) {
        if (facts_.turns[turn].refused.empty()) facts_.turns[turn].refused = theirs.at(turn).get<std::string>();
      }
    }
  }

  // Once more, untimed: checks the elements, and measures the memory used.
  void verify(std::size_t turn) {
    TurnFacts& facts = facts_.turns[turn];
    if (!is_checked(turns_[turn])) return;
    if (turns_[turn].kind != Turn::Kind::mpi) wanted_.spoil(wanted_block_);
    meet();
    if (turns_[turn].kind != Turn::Kind::restore) {
      if (turns_[turn].kind == Turn::Kind::read) read(turns_[turn]);
      meet();
      if (turns_[turn].kind == Turn::Kind::read) facts.elements = check();
      return;
    }
    {
      const MemoryWatch watch;
      if (facts.refused.empty()) restore(turn, repeats());
      meet();
      // A device driver's use of host memory is outside our control.
      if (role_.alone && setup_.memory == MemoryKind::host) facts.memory = memory_of(watch.peak());
    }
    if (facts.refused.empty()) facts.elements = check();
  }

  [[nodiscard]] std::uint64_t check() const { return static_cast<std::uint64_t>(wanted_.check(wanted_block_)); }

  [[nodiscard]] MemoryFacts memory_of(MemoryWatch::Peak peak) const {
    ByteCount shared_arenas = 0;
    for (const StateBlock* block : {&held_block_, &wanted_block_}) {
      const auto bytes = block->bytes();
      if (!bytes.empty() && lies_in_shared_mapping(bytes.data())) shared_arenas += bytes.size();
    }
    MemoryFacts facts;
    facts.own = peak.anonymous + shared_arenas;
    facts.allowed = held_block_.bytes().size() + wanted_block_.bytes().size() + setup_.staging_bytes + memory_allowance;
    facts.mapped = peak.shared - std::min(peak.shared, shared_arenas);
    return facts;
  }

  // Memory to copy or send from, for members that hold less than that requires.
  void make_spare() {
    std::size_t bytes = held_.payload().empty() ? wanted_.payload().size() : 0;
    const bool tags = setup_.has(Against::ucx);
    for (const auto& [target, size] : tag_targets()) {
      if (tags && held_.payload().size() < size) bytes = std::max(bytes, size);
    }
    if (bytes == 0) return;
    spare_.emplace(session_, bytes, place_);
    if (!spare_->on_device()) std::memset(spare_->bytes().data(), 1, bytes);
  }

  // Members to which this one sends in the loop of tagged messages, with the bytes that each wants.
  [[nodiscard]] std::vector<std::pair<int, std::size_t>> tag_targets() const {
    const Case& job = measurement_.job;
    std::vector<std::pair<int, std::size_t>> out;
    for (int target = 0; target < job.target.ranks; ++target) {
      if (tag_sender_of(setup_, measurement_, Rank{target}) != role_.member) continue;
      const StateMemory theirs(job.target, Rank{target});
      out.emplace_back(member_of_target(setup_, job, Rank{target}), theirs.payload_bytes());
    }
    return out;
  }

  void connect_tags() {
    if (std::none_of(turns_.begin(), turns_.end(), [](const Turn& turn) { return turn.kind == Turn::Kind::tag; }))
      return;
    loop_ = open_tag_loop(setup_.tcp);
    const auto mine = loop_->address();
    const auto addresses = agree("addresses", {reinterpret_cast<const char*>(mine.data()), mine.size()});
    for (const auto& [member, bytes] : tag_targets()) {
      if (bytes == 0) continue;
      const auto source =
          held_.payload().size() < bytes ? std::span<const std::byte>(spare_->bytes()) : held_.payload();
      sends_.push_back({loop_->connect(addresses.at(static_cast<std::size_t>(member))), source, bytes});
    }
  }

  void connect_reads() {
    for (const Turn& turn : turns_) {
      if (turn.kind == Turn::Kind::read) reads_.try_emplace(turn.against);
    }
    if (reads_.empty()) return;
    ReadOrder order = read_order_of(setup_, measurement_.job, role_.member, held_, wanted_);
    facts_.reads = order.reads();
    for (auto& [library, loop] : reads_) {
      loop = open_read_loop(library, setup_.tcp);
      const auto mine = loop->expose(held_.takes_part() ? held_block_.bytes() : std::span<std::byte>());
      const auto addresses = agree(fmt::format("memory by {}", to_string(library)),
                                   {reinterpret_cast<const char*>(mine.data()), mine.size()});
      for (const auto& [member, ranges] : order.from_member)
        loop->connect(addresses.at(static_cast<std::size_t>(member)));
    }
    for (auto& [member, ranges] : order.from_member) read_lists_.push_back({read_lists_.size(), std::move(ranges)});
    read_copies_ = std::move(order.copies);
  }

  void connect_nccl() {
    if (std::ranges::none_of(turns_, [](const Turn& turn) { return turn.kind == Turn::Kind::nccl; })) return;
    nccl_order_ = nccl_order_of(setup_, measurement_.job, role_.member, held_.payload_bytes());
    const Bytes id = role_.member == 0 ? make_nccl_loop_id() : Bytes();
    const auto ids = agree("group of nccl", text_of(id));
    nccl_ = open_nccl_loop(ids.front(), role_.member, setup_.members(), place_.device);
  }

  const Setup& setup_;
  const Measurement& measurement_;
  std::string name_;
  Session& session_;
  Meeting& meeting_;
  MemberRole role_;
  StatePlace place_;
  const TurnDone& done_;
  std::vector<Turn> turns_;
  StateMemory held_;
  StateMemory wanted_;
  std::optional<Contiguous> contiguous_;
  StateBlock held_block_;
  StateBlock wanted_block_;
  std::optional<Catalog> catalog_;       // of wanted_; created once, as in a trainer
  std::optional<Catalog> held_catalog_;  // for exchanges
  std::optional<StateBlock> spare_;
  std::unique_ptr<TagLoop> loop_;
  std::vector<TagLoop::Send> sends_;
  std::vector<ReadOrder::Copy> read_copies_;
  std::vector<ReadList> read_lists_;
  std::map<Against, std::unique_ptr<ReadLoop>> reads_;
  NcclOrder nccl_order_;
  std::unique_ptr<NcclLoop> nccl_;
  MeasurementFacts facts_;
  Span unused_;
  Span* last_ = &unused_;
};

DeviceFacts device_of(const Setup& setup, int device) {
  if (setup.memory == MemoryKind::host) return {};
  const memory::FoundRuntime found = memory::device_runtime();
  if (!found.runtime) return {};
  const memory::DeviceDetails details = found.runtime->details(device);
  return {details.name, fmt::format("{} {}", device, details.pci_address), found.runtime->version(),
          details.memory_bytes_per_second};
}

// Of the collective that moves device memory in rounds.
std::string collective_version() {
  for (const transport::CollectiveTransport& one : transport::registered_collectives()) {
    if (one.memory == MemoryKind::cuda) return fmt::format("{} {}", one.name, one.domain());
  }
  return "no collective";
}

}  // namespace

Session join(const Setup& setup, Bootstrap bootstrap) {
  SessionOptions options;
  options.transport = setup.transport;
  options.staging_bytes = std::max<ByteCount>(1, setup.staging_bytes / 2);
  options.encrypt_payload = setup.encrypted;
  options.costs = setup.costs;
  return Session::join(std::move(bootstrap), options);
}

std::vector<MemberFacts> take_turns(const Setup& setup, Session& session, Meeting& meeting, MemberRole role,
                                    const TurnDone& done) {
  MemberFacts mine;
  mine.host = support::host_name();
  mine.domain = domain_of_ports();
  const auto hosts = session.gather("perf hosts", host_identity(), setup.timeout);
  const StatePlace place = place_of(setup.memory, number_on_host(hosts, role.member), setup.ordinary);
  mine.device = device_of(setup, place.device);
  for (const std::string& one : session.transports()) mine.fabric += (mine.fabric.empty() ? "" : ", ") + one;
  if (setup.exchange) mine.fabric += ", " + collective_version();
  for (std::size_t number = 0; number < setup.measurements.size(); ++number) {
    mine.measurements.push_back(Contest(setup, number, session, meeting, role, place, done).run());
  }
  const std::string text = to_json(mine).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  std::vector<MemberFacts> all;
  for (const Bytes& bytes : session.gather("perf facts", bytes_of(text), setup.timeout)) {
    if (role.member == 0) all.push_back(member_facts_from(nlohmann::json::parse(text_of(bytes))));
  }
  return all;
}

}  // namespace shardwire::perf

// SPDX-License-Identifier: Apache-2.0
// Outline: texts; the job; what happens to it.
#include "schedule.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "shardwire/options.hpp"
#include "values.hpp"

namespace shardwire::simulation {

namespace {

using Kind = Action::Kind;
using namespace std::chrono_literals;

constexpr const char* kind_names[] = {
    "join", "publish", "update",  "restore", "exchange", "gather", "take inventory", "cancel", "retire", "leave",
    "kill", "vanish",  "restart", "stop",    "cut",      "slow",   "corrupt",        "reset",  "hole"};

// Short enough that nobody gives a peer up.
constexpr Duration mild = 1s;

bool is_mild(const Action& action) {
  switch (action.kind) {
    case Kind::join:
    case Kind::publish:
    case Kind::restore:
    case Kind::exchange:
    case Kind::gather:
    case Kind::take_inventory:
    case Kind::reset: return true;
    case Kind::stop:
    case Kind::cut:
    case Kind::hole:
    case Kind::slow: return action.lasts <= mild;
    default: return false;
  }
}

}  // namespace

std::string to_text(const Action& action) {
  std::string text = fmt::format("{:.6f} s: {} {}", std::chrono::duration<double>(action.at).count(),
                                 kind_names[static_cast<std::size_t>(action.kind)], action.member);
  if (action.kind == Kind::cut || action.kind == Kind::hole || action.kind == Kind::reset)
    text += fmt::format(" from {}", action.other);
  if (action.kind == Kind::publish || action.kind == Kind::update) text += fmt::format(" step {}", action.other);
  if (action.kind == Kind::exchange || action.kind == Kind::gather) text += fmt::format(" number {}", action.other);
  if (action.lasts > Duration::zero()) {
    text += fmt::format(" for {:.6f} s", std::chrono::duration<double>(action.lasts).count());
  }
  return text;
}

int Schedule::source_rank(int member) const {
  const auto found = std::ranges::find(sources, member);
  if (found != sources.end()) return static_cast<int>(found - sources.begin());
  const auto spare = std::ranges::find(spares, member, &Spare::member);
  return spare == spares.end() ? -1 : spare->rank;
}

std::vector<int> Schedule::publishers() const {
  std::vector<int> all = sources;
  for (const Spare& spare : spares) all.push_back(spare.member);
  return all;
}

int Schedule::target_rank(int member) const {
  const auto found = std::ranges::find(targets, member);
  return found == targets.end() ? -1 : static_cast<int>(found - targets.begin());
}

bool Schedule::is_steady(int member) const {
  if (member == crashes) return false;
  const int host = host_of[static_cast<std::size_t>(member)];
  return std::ranges::none_of(actions, [&](const Action& action) {
    if (is_mild(action)) return false;
    switch (action.kind) {
      case Kind::cut: return action.member == host || action.other == host;
      case Kind::slow:
      case Kind::corrupt: return action.member == host;
      case Kind::hole: return false;  // it answers
      default: return action.member == member;
    }
  });
}

bool Schedule::falls_silent(int member) const {
  if (member == crashes) return true;  // its host may lose its power
  const int host = host_of[static_cast<std::size_t>(member)];
  return std::ranges::any_of(actions, [&](const Action& action) {
    switch (action.kind) {
      case Kind::vanish: return action.member == member;
      case Kind::stop: return action.member == member && action.lasts > mild;
      case Kind::cut: return (action.member == host || action.other == host) && action.lasts > mild;
      default: return false;
    }
  });
}

bool Schedule::has_hole(int member) const {
  const int host = host_of[static_cast<std::size_t>(member)];
  return std::ranges::any_of(actions, [&](const Action& action) {
    return action.kind == Kind::hole && action.lasts > mild && (action.member == host || action.other == host);
  });
}

int Schedule::holes_between(int member, int other) const {
  const int one = host_of[static_cast<std::size_t>(member)];
  const int two = host_of[static_cast<std::size_t>(other)];
  return static_cast<int>(std::ranges::count_if(actions, [&](const Action& action) {
    const bool between = (action.member == one && action.other == two) || (action.member == two && action.other == one);
    return action.kind == Kind::hole && action.lasts > mild && between;
  }));
}

bool Schedule::has_steady_holders(int member, const std::vector<bool>& published) const {
  // Answers to readers behind a hole keep the staging of their source until the hole ends.
  const auto counts = [&](int source) {
    return published[static_cast<std::size_t>(source)] && is_steady(source) && !has_hole(source);
  };
  if (!is_steady(member) || !is_steady(0)) return false;
  // A source may have changed its memory: without digests of what it has published, one that differs ends a restore.
  const bool garbles = std::ranges::any_of(actions, [](const Action& one) { return one.kind == Kind::corrupt; });
  if (garbles && !digests) return false;
  const std::vector<int> holders = publishers();
  // Of holders to which a restore has no connection yet, each that is silent costs it `notice`, one after the other: one
  // that was asked for a description too costs it twice.
  const auto silent = std::ranges::count_if(holders, [&](int holder) { return falls_silent(holder); });
  // One whose bytes stand still costs it twice that.
  int holes = 0;
  for (const int holder : holders) holes += holes_between(member, holder);
  const bool resets = std::ranges::any_of(actions, [](const Action& one) { return one.kind == Kind::reset; });
  if (holes > 0 && resets) return false;
  if (silent + holes > 0 && deadline < 2 * (silent + holes) * notice + 1s) return false;
  // Also a target without elements wants the step.
  if (std::ranges::none_of(holders, counts)) return false;
  for (const Tensor& tensor : tensors) {
    std::set<ElementCount> held;
    for (const int holder : holders) {
      if (!counts(holder)) continue;
      each_byte(tensor.held, tensor.spec, Rank{source_rank(holder)},
                [&](ElementCount element, ByteCount, std::size_t) { held.insert(element); });
    }
    bool all = true;
    each_byte(tensor.wanted, tensor.spec, Rank{target_rank(member)},
              [&](ElementCount element, ByteCount, std::size_t) { all = all && held.contains(element); });
    if (!all) return false;
  }
  return true;
}

// --- the job ---

namespace {

std::vector<int> some_of(int members, Random& random) {
  std::vector<int> all(static_cast<std::size_t>(members));
  std::iota(all.begin(), all.end(), 0);
  for (std::size_t i = all.size(); i > 1; --i) std::swap(all[i - 1], all[random.below(i)]);
  all.resize(1 + random.below(all.size()));
  return all;
}

Layout uneven(const Extents& shape, int ranks, Random& random) {
  std::map<Rank, std::vector<Box>> boxes;
  std::vector<Extent> cuts{0, shape[0]};
  for (int i = 1; i < ranks; ++i)
    cuts.push_back(static_cast<Extent>(random.below(static_cast<std::uint64_t>(shape[0]) + 1)));
  std::ranges::sort(cuts);
  for (int i = 0; i < ranks; ++i) {
    const auto at = static_cast<std::size_t>(i);
    if (cuts[at] == cuts[at + 1]) continue;
    boxes[Rank{i}] = {Box{{cuts[at], 0}, {cuts[at + 1] - cuts[at], shape[1]}}};
  }
  return Layout::boxes(std::move(boxes));
}

Layout some_layout(const Extents& shape, int ranks, Random& random) {
  switch (random.below(6)) {
    case 0: return Layout::replicated();
    case 1: return Layout::chunk(1, ranks);
    case 2: return uneven(shape, ranks, random);
    case 3:
      if (ranks % 2 == 0) return Layout::mesh({2, ranks / 2}, {Replicate{}, Shard{0}});
      break;
    case 4:
      if (ranks % 2 == 0) return Layout::mesh({ranks / 2, 2}, {Shard{0}, Shard{1}});
      break;
    default: break;
  }
  return Layout::chunk(0, ranks);
}

void draw_job(Schedule& schedule, Random& random, int members) {
  const int drawn = random.between(2, 8);
  schedule.members = members > 0 ? members : drawn;
  schedule.hosts = random.between(1, 3);
  const bool any_maps = random.percent(50);
  const bool any_reads = random.percent(50);
  for (int i = 0; i < schedule.members; ++i) {
    schedule.host_of.push_back(random.between(0, schedule.hosts - 1));
    schedule.maps.push_back(any_maps && random.percent(90));
    schedule.reads.push_back(any_reads && random.percent(90));
    schedule.memory.push_back(static_cast<Schedule::Memory>(random.below(3)));
  }
  schedule.sources = some_of(schedule.members, random);
  schedule.targets = some_of(schedule.members, random);
  const int tensors = random.between(1, 3);
  for (int i = 0; i < tensors; ++i) {
    const Extents shape{random.between(1, 24), random.between(1, 24)};
    constexpr DType types[] = {DType::u8, DType::bf16, DType::f32};
    schedule.tensors.push_back({{{fmt::format("layers.{}.weight", i), "exp_avg"}, types[random.below(3)], shape},
                                some_layout(shape, static_cast<int>(schedule.sources.size()), random),
                                some_layout(shape, static_cast<int>(schedule.targets.size()), random)});
  }
  schedule.delay.lower = random.spread(2us, 100us);
  schedule.delay.upper = schedule.delay.lower + random.spread(2us, 10ms);
  schedule.verified = random.percent(40);
  if (random.percent(20)) schedule.method = RestoreMethod::zcopy;
  schedule.again = random.percent(50);
  schedule.deadline = random.between(8s, 12s);
  schedule.grace = random.percent(50) ? Duration(50ms) : Duration(2s);
  schedule.notice = Random(schedule.seed ^ 0x6e6f74696365).percent(50) ? Duration(1s) : RestoreOptions().notice;
}

// Of a seed of its own, so that the rest of a run is the same without.
void draw_spares_and_resumption(Schedule& schedule) {
  Random random(schedule.seed ^ 0x5bd1e995ULL);
  schedule.resumes = random.percent(50);
  if (!random.percent(30)) return;
  for (int member = 0; member < schedule.members; ++member) {
    if (schedule.source_rank(member) >= 0 || !random.percent(50)) continue;
    schedule.spares.push_back({member, static_cast<int>(random.below(schedule.sources.size()))});
  }
}

// Each of a seed of its own.
void draw_choices_of_restores(Schedule& schedule) {
  if (Random(schedule.seed ^ 0x6e6577657374).percent(40)) schedule.step_rule = StepRule::newest_complete;
  schedule.digests = Random(schedule.seed ^ 0x646967657374).percent(40);
  if (Random(schedule.seed ^ 0x7265706c696361).percent(40)) schedule.replicas = Replicas::first;
  Random boxes(schedule.seed ^ 0x626f786573);
  for (Schedule::Tensor& tensor : schedule.tensors) {  // several boxes for each target
    if (!boxes.percent(40)) continue;
    const Extent height = boxes.between(1, 4), width = boxes.between(1, 8);
    tensor.wanted = Layout::block_cyclic({height, width}, {static_cast<Extent>(schedule.targets.size()), 1});
  }
  // A restore takes up to about a tenth of a second: most of what happens meets it.
  Random rate(schedule.seed ^ 0x696e6772657373);
  if (!rate.percent(30)) return;
  schedule.ingress_bytes_per_second =
      static_cast<ByteCount>(rate.spread(Duration(64'000), Duration(4'000'000)).count());
}

// Drawn of other seeds, so that the rest of a schedule stays as it was.
void draw_connections(Schedule& schedule) {
  schedule.sockets = Random(schedule.seed ^ 0x736f636b657473).percent(40);
  schedule.key = Random(schedule.seed ^ 0x6b6579).percent(50);
}

// --- what happens to it ---

/// Draws the times of what goes wrong near those of what goes on: there is little to disturb elsewhere.
class Disturbances {
 public:
  Disturbances(Schedule& schedule, Random& random) : schedule_(schedule), random_(random), ordinary_(schedule.actions) {
    if (random.percent(90)) std::erase_if(ordinary_, [](const Action& one) { return one.kind != Kind::restore; });
  }

  void draw() {
    switch (random_.below(13)) {
      case 0: return update();
      case 1: return add({.kind = Kind::cancel, .at = time(), .member = any(schedule_.targets)});
      case 2: return add({.kind = Kind::retire, .at = time(), .member = any(schedule_.publishers())});
      case 3: return add({.kind = Kind::leave, .at = time(), .member = any_member()});
      case 4: return end(Kind::kill);
      case 5: return end(Kind::vanish);
      case 6: return add({.kind = Kind::stop, .at = time(), .member = any_member(), .lasts = random_.spread(1ms, 40s)});
      case 7:
        return add({.kind = Kind::cut,
                    .at = time(),
                    .member = random_.between(0, schedule_.hosts - 1),
                    .other = random_.between(0, schedule_.hosts - 1),
                    .lasts = random_.spread(1ms, 60s)});
      case 8:
        return add({.kind = Kind::slow,
                    .at = time(),
                    .member = random_.between(0, schedule_.hosts - 1),
                    .lasts = random_.spread(10ms, 4s),
                    .times = static_cast<unsigned>(random_.between(2, 50))});
      case 9:
        schedule_.verified = true;  // nothing else detects it
        return add({.kind = Kind::corrupt,
                    .at = time(),
                    .member = random_.between(0, schedule_.hosts - 1),
                    .lasts = random_.spread(1ms, 10s)});
      case 10: return revoke();
      case 11: return reset();
      default:
        return add({.kind = Kind::stop, .at = time(), .member = any_member(), .lasts = random_.spread(1ms, mild)});
    }
  }

 private:
  void add(const Action& action) { schedule_.actions.push_back(action); }
  int any(const std::vector<int>& members) { return members[random_.below(members.size())]; }
  int any_member() { return random_.between(0, schedule_.members - 1); }
  Duration time() { return ordinary_[random_.below(ordinary_.size())].at + random_.spread(1us, 100ms); }
  void end(Kind kind) {
    const int member = any_member();
    const Duration at = time();
    add({.kind = kind, .at = at, .member = member});
    if (random_.percent(40)) {
      const Duration back = at + random_.spread(1ms, 20s);
      add({.kind = Kind::restart, .at = back, .member = member});
      if (schedule_.target_rank(member) >= 0) add({.kind = Kind::restore, .at = back + 10ms, .member = member});
    }
  }
  // Again and again, since each ends what is connected at one moment only.
  void reset() {
    const int member = any(schedule_.targets);
    const int other = any(schedule_.sources);
    Duration at = time();
    for (int left = random_.between(1, 5); left > 0; --left) {
      add({.kind = Kind::reset, .at = at, .member = member, .other = other});
      at += random_.spread(100us, 50ms);
    }
  }
  // A reader stops while it reads. Its sources take their memory back meanwhile.
  void revoke() {
    const int member = any(schedule_.targets);
    const Duration at = time();
    add({.kind = Kind::stop, .at = at, .member = member, .lasts = random_.between(1200ms, 6s)});
    const Kind kind = random_.percent(50) ? Kind::update : Kind::retire;
    if (kind == Kind::update) ++step_;
    for (const int source : schedule_.publishers()) {
      add({.kind = kind, .at = at + random_.spread(1us, 100ms), .member = source, .other = step_});
    }
  }
  // All sources go on to the next step, as trainers do.
  void update() {
    const Duration at = time();
    ++step_;
    for (const int member : schedule_.publishers()) {
      add({.kind = Kind::update, .at = at + random_.spread(1us, 100ms), .member = member, .other = step_});
    }
  }

  Schedule& schedule_;
  Random& random_;
  std::vector<Action> ordinary_;
  int step_ = 1;
};

// Of a seed of its own, too.
void draw_holes(Schedule& schedule) {
  Random random(schedule.seed ^ 0x686f6c65);
  if (!random.percent(15)) return;
  for (int left = random.between(1, 2); left > 0; --left) {
    schedule.actions.push_back({.kind = Kind::hole,
                                .at = random.between(Duration::zero(), 400ms),
                                .member = random.between(0, schedule.hosts - 1),
                                .other = random.between(0, schedule.hosts - 1),
                                .lasts = random.spread(1ms, 60s)});
  }
}

constexpr Duration between_exchanges = 16s;  // one is over by then

/// Draws the exchanges, from numbers of their own, so that the other events of a seed do not depend on them.
void draw_exchanges(Schedule& schedule) {
  Random random(~schedule.seed);
  const auto all_of = [&](Kind kind, int number, Duration begin) {
    for (int member = 0; member < schedule.members; ++member) {
      const Duration at = begin + random.between(Duration::zero(), 300ms);
      schedule.actions.push_back({.kind = kind, .at = at, .member = member, .other = number});
    }
  };
  if (random.percent(40)) {
    Schedule::Exchange exchange;
    const int tensors = random.between(1, 4);
    for (int i = 0; i < tensors; ++i) {
      const Extents shape{random.between(1, 24), random.between(1, 24)};
      Layout held = some_layout(shape, schedule.members, random);
      Layout wanted = some_layout(shape, schedule.members, random);
      const TensorKey key{fmt::format("moved.{}.weight", i), "exp_avg"};
      exchange.tensors.push_back({{key, DType::bf16, shape}, std::move(held), std::move(wanted)});
    }
    exchange.in_place = random.percent(70);
    exchange.staging_bytes = static_cast<ByteCount>(random.spread(Duration(400), Duration(16 << 10)).count());
    exchange.rounds = Random(schedule.seed ^ 0x726f756e6473).percent(40);
    schedule.exchange = std::move(exchange);
    const int rounds = random.between(1, 2);
    for (int round = 0; round < rounds; ++round) all_of(Kind::exchange, round, round * between_exchanges);
  }
  if (random.percent(30)) all_of(Kind::gather, 0, {});
  if (random.percent(30)) all_of(Kind::take_inventory, 0, {});
}

}  // namespace

Schedule draw(std::uint64_t seed, int members) {
  Schedule schedule;
  schedule.seed = seed;
  Random random(seed);
  draw_job(schedule, random, members);
  draw_spares_and_resumption(schedule);
  draw_choices_of_restores(schedule);
  draw_connections(schedule);
  for (int member = 0; member < schedule.members; ++member) {
    schedule.actions.push_back({.kind = Kind::join, .at = random.between(Duration::zero(), 100ms), .member = member});
  }
  for (const int member : schedule.publishers()) {
    schedule.actions.push_back(
        {.kind = Kind::publish, .at = random.between(Duration::zero(), 200ms), .member = member, .other = 1});
  }
  const int rounds = random.between(1, 2);
  for (int round = 0; round < rounds; ++round) {
    for (const int member : schedule.targets) {
      const Duration at = random.between(Duration::zero(), 300ms) + round * 3s;
      schedule.actions.push_back({.kind = Kind::restore, .at = at, .member = member});
    }
  }
  if (random.percent(75)) {
    Disturbances disturbances(schedule, random);
    for (int left = random.between(1, 4); left > 0; --left) disturbances.draw();
  }
  draw_holes(schedule);
  draw_exchanges(schedule);
  std::ranges::stable_sort(schedule.actions, {}, &Action::at);
  schedule.must_complete = std::ranges::all_of(schedule.actions, is_mild);
  return schedule;
}

}  // namespace shardwire::simulation

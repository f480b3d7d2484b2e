// SPDX-License-Identifier: Apache-2.0
#include "exchange/exchange_plan.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <deque>
#include <queue>
#include <utility>

#include "support/checked.hpp"

namespace shardwire {

namespace {

using PartIndex = std::uint32_t;  // index into ExchangePlan::parts
constexpr std::uint32_t unread = 0xffffffff;

struct Write {
  PartIndex part = 0;
  ByteCount bytes = 0;
  bool harmless = false;  // destroys no bytes that any member needs
  std::vector<PartIndex>
      destroys;  // ascending; only parts that some member writes: all others are read in the first wave
};

// Simulates the exchange for all members at once.
class Simulation {
 public:
  Simulation(std::span<const wire::ExchangeNote> notes, ByteCount budget_bytes, int member);
  ExchangePlan run();

 private:
  struct Member {
    std::vector<Write> writes;           // by part
    std::vector<std::uint32_t> waiting;  // writes read into staging, in order
    ByteCount staged = 0;
  };
  struct Use {
    int member = 0;
    std::uint32_t write = 0;
  };

  std::optional<PartIndex> next();
  // Whether all bytes that the write destroys have been read when the running wave begins. A slice has no view of its
  // own, so it always goes through staging.
  [[nodiscard]] bool direct(const Write& write) const;
  [[nodiscard]] const Use* first_without_room(PartIndex part) const;
  void read(PartIndex part);
  void end_wave();
  [[nodiscard]] ExchangePlan::Shortage shortage(const Use& use) const;

  ByteCount budget_;
  std::size_t self_;
  ExchangePlan plan_;
  ExchangeWave wave_;
  std::vector<Member> members_;
  std::vector<std::vector<Use>> uses_;             // by part: its writers
  std::vector<std::vector<PartIndex>> destroyed_;  // by part: other parts that its writes destroy, on any member
  std::vector<std::vector<PartIndex>> waits_for_;  // by part: the parts whose writes destroy it
  std::vector<std::uint32_t> unread_count_;        // number of unread parts in destroyed_, by part
  std::vector<std::uint32_t> read_in_;             // wave, by part
  std::uint32_t wave_number_ = 0;
  PartIndex first_unread_ = 0;
  std::priority_queue<PartIndex, std::vector<PartIndex>, std::greater<>>
      free_;                       // destroy no unread part except themselves
  std::deque<PartIndex> pending_;  // already read, but they destroy unread parts: in reading order
  std::size_t front_seen_ = 0;  // number of parts destroyed by the first of them that have been read; never decreases
};

Simulation::Simulation(std::span<const wire::ExchangeNote> notes, ByteCount budget_bytes, int member)
    : budget_(budget_bytes), self_(static_cast<std::size_t>(member)) {
  auto& parts = plan_.parts;
  for (const wire::ExchangeNote& note : notes) {
    for (const wire::ExchangeWrite& write : note.writes) parts.push_back(note.parts[write.part]);
  }
  std::sort(parts.begin(), parts.end());
  parts.erase(std::unique(parts.begin(), parts.end()), parts.end());
  uses_.resize(parts.size());
  destroyed_.resize(parts.size());
  waits_for_.resize(parts.size());
  read_in_.resize(parts.size(), unread);
  members_.resize(notes.size());
  for (std::size_t m = 0; m < notes.size(); ++m) {
    std::vector<PartIndex> global(notes[m].parts.size(), unread);
    for (std::size_t i = 0; i < global.size(); ++i) {
      const auto found = std::lower_bound(parts.begin(), parts.end(), notes[m].parts[i]);
      if (found != parts.end() && *found == notes[m].parts[i])
        global[i] = static_cast<PartIndex>(found - parts.begin());
    }
    for (const wire::ExchangeWrite& from : notes[m].writes) {
      Write write{global[from.part], from.bytes, from.destroys.empty(), {}};
      for (const std::uint32_t part : from.destroys) {
        if (global[part] != unread) write.destroys.push_back(global[part]);
      }
      std::sort(write.destroys.begin(), write.destroys.end());
      write.destroys.erase(std::unique(write.destroys.begin(), write.destroys.end()), write.destroys.end());
      for (const PartIndex part : write.destroys) {
        if (part != write.part) destroyed_[write.part].push_back(part);
      }
      members_[m].writes.push_back(std::move(write));
    }
    std::sort(members_[m].writes.begin(), members_[m].writes.end(),
              [](const Write& a, const Write& b) { return a.part < b.part; });
    for (std::uint32_t i = 0; i < members_[m].writes.size(); ++i) {
      uses_[members_[m].writes[i].part].push_back({static_cast<int>(m), i});
    }
  }
  for (PartIndex part = 0; part < parts.size(); ++part) {
    auto& destroyed = destroyed_[part];
    std::sort(destroyed.begin(), destroyed.end());
    destroyed.erase(std::unique(destroyed.begin(), destroyed.end()), destroyed.end());
    for (const PartIndex other : destroyed) waits_for_[other].push_back(part);
    unread_count_.push_back(static_cast<std::uint32_t>(destroyed.size()));
    if (destroyed.empty()) free_.push(part);
  }
}

// Prefers parts that may be written as soon as they are read, then parts that block the longest waiting one, then any.
std::optional<PartIndex> Simulation::next() {
  while (!free_.empty() && read_in_[free_.top()] != unread) free_.pop();
  if (!free_.empty()) return free_.top();
  while (!pending_.empty()) {
    const std::vector<PartIndex>& destroyed = destroyed_[pending_.front()];
    while (front_seen_ < destroyed.size() && read_in_[destroyed[front_seen_]] != unread) ++front_seen_;
    if (front_seen_ < destroyed.size()) return destroyed[front_seen_];
    pending_.pop_front();
    front_seen_ = 0;
  }
  while (first_unread_ < read_in_.size() && read_in_[first_unread_] != unread) ++first_unread_;
  if (first_unread_ == read_in_.size()) return std::nullopt;
  return first_unread_;
}

bool Simulation::direct(const Write& write) const {
  if (plan_.parts[write.part].count != 1 || (wave_number_ == 0 && !write.harmless)) return false;
  return std::all_of(write.destroys.begin(), write.destroys.end(),
                     [&](PartIndex part) { return read_in_[part] < wave_number_; });
}

const Simulation::Use* Simulation::first_without_room(PartIndex part) const {
  for (const Use& use : uses_[part]) {
    const Member& member = members_[static_cast<std::size_t>(use.member)];
    const Write& write = member.writes[use.write];
    if (!direct(write) && write.bytes > budget_ - member.staged) return &use;
  }
  return nullptr;
}

void Simulation::read(PartIndex part) {
  for (const Use& use : uses_[part]) {
    Member& member = members_[static_cast<std::size_t>(use.member)];
    const Write& write = member.writes[use.write];
    const bool staged = !direct(write);
    if (staged) {
      member.staged += write.bytes;
      member.waiting.push_back(use.write);
    }
    if (static_cast<std::size_t>(use.member) != self_) continue;
    wave_.reads.push_back({part, staged});
    plan_.staging_bytes = std::max(plan_.staging_bytes, member.staged);
  }
  read_in_[part] = wave_number_;
  if (unread_count_[part] > 0) pending_.push_back(part);
  for (const PartIndex other : waits_for_[part]) {
    if (--unread_count_[other] == 0) free_.push(other);
  }
}

void Simulation::end_wave() {
  for (std::size_t m = 0; m < members_.size(); ++m) {
    Member& member = members_[m];
    std::erase_if(member.waiting, [&](std::uint32_t index) {
      const Write& write = member.writes[index];
      const bool ready = std::all_of(write.destroys.begin(), write.destroys.end(),
                                     [&](PartIndex part) { return read_in_[part] != unread; });
      if (!ready) return false;
      member.staged -= write.bytes;
      if (m == self_) wave_.writes.push_back(write.part);
      return true;
    });
  }
  plan_.waves.push_back(std::exchange(wave_, {}));
  ++wave_number_;
}

ExchangePlan::Shortage Simulation::shortage(const Use& use) const {
  const Member& member = members_[static_cast<std::size_t>(use.member)];
  const Write& last = member.writes[use.write];
  ExchangePlan::Shortage result{use.member, support::add(member.staged, last.bytes, "the staging of an exchange"), {}};
  for (const std::uint32_t write : member.waiting) result.waiting.push_back(plan_.parts[member.writes[write].part]);
  result.waiting.push_back(plan_.parts[last.part]);
  return result;
}

ExchangePlan Simulation::run() {
  bool any_in_wave = false;
  while (const auto part = next()) {
    if (const Use* full = first_without_room(*part)) {
      if (!any_in_wave && wave_number_ > 0) {
        plan_.shortage = shortage(*full);
        return std::move(plan_);
      }
      end_wave();  // frees staging, or allows the part to be written directly
      any_in_wave = false;
      continue;
    }
    read(*part);
    any_in_wave = true;
  }
  if (any_in_wave) end_wave();
  return std::move(plan_);
}

}  // namespace

OneName::OneName(std::span<const wire::ExchangeNote> notes) {
  std::map<std::string, std::string> toward;  // union-find parents: each name's next one on the way to the least
  const auto root = [&](std::string name) {
    std::vector<std::string*> passed;  // path compression: each chain is walked once
    for (auto next = toward.find(name); next != toward.end(); next = toward.find(name)) {
      passed.push_back(&next->second);
      name = next->second;
    }
    for (std::string* next : passed) *next = name;
    return name;
  };
  for (const wire::ExchangeNote& note : notes) {
    for (const Alias& alias : note.aliases) {
      const auto [least, other] = std::minmax({root(alias.alias), root(alias.fqn)});
      if (least != other) toward[other] = least;
    }
  }
  for (const auto& [name, next] : toward) names_[name] = root(name);
}

const std::string& OneName::of(const std::string& fqn) const {
  const auto found = names_.find(fqn);
  return found == names_.end() ? fqn : found->second;
}

namespace {

[[noreturn]] void refuse_wanted_twins(int member, const TensorKey& a, const TensorKey& b) {
  throw Error(ErrorCode::layout_mismatch,
              fmt::format("member {} wants {} and {} apart, but another member declares them one: declare the same "
                          "aliases on all members",
                          member, to_string(a), to_string(b)),
              std::vector<Rank>{Rank{member}});
}

}  // namespace

void require_disjoint(int member, std::span<const TensorKey> wanted, const OneName& names) {
  std::map<TensorKey, const TensorKey*> own;
  for (const TensorKey& key : wanted) {
    const auto [other, fresh] = own.emplace(names.of(key), &key);
    if (!fresh) refuse_wanted_twins(member, *other->second, key);
  }
}

void use_one_name(std::span<wire::ExchangeNote> notes, const OneName& names) {
  for (std::size_t member = 0; member < notes.size(); ++member) {
    wire::ExchangeNote& note = notes[member];
    std::map<wire::ExchangePart, TensorKey> written;
    for (const wire::ExchangeWrite& write : note.writes) {
      const wire::ExchangePart& part = note.parts[write.part];
      const auto [other, fresh] =
          written.emplace(wire::ExchangePart{names.of(part.key), part.index, part.count}, part.key);
      if (!fresh) refuse_wanted_twins(static_cast<int>(member), other->second, part.key);
    }
    for (wire::ExchangePart& part : note.parts) part.key = names.of(part.key);
  }
}

ExchangePlan plan_exchange(std::span<const wire::ExchangeNote> notes, ByteCount budget_bytes, int member) {
  return Simulation(notes, budget_bytes, member).run();
}

}  // namespace shardwire

// SPDX-License-Identifier: Apache-2.0
#include "transport/collective.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "support/wake_event.hpp"
#include "transport/bytes.hpp"
#include "transport/collective_check.hpp"

// The reference: members are threads of one process, and a round ends only after all its members have posted it.
// Schedules that need rounds to run ahead of one another therefore fail here.
namespace shardwire::transport::loopback {
namespace {

Fault group_is_gone() {
  return {ErrorCode::peer_lost, "another member has given the group up"};
}

/// State shared by the members of a group. Owners: the members, and the directory while the group fills up.
struct Group {
  struct Member {
    std::vector<GroupSend> sends;
    std::vector<GroupReceive> receives;
    std::uint64_t rounds = 0;                   // posted
    bool open = false;                          // the last round is under way
    std::optional<Outcome> outcome;             // of the last round, once it has ended
    const support::WakeEvent* event = nullptr;  // of each member present
    bool joined = false;
  };

  explicit Group(int size) : members(static_cast<std::size_t>(size)) {}

  std::mutex mutex;  // guards the following fields
  std::vector<Member> members;
  bool given_up = false;

  void end(Member& member, Outcome outcome) const {
    if (!member.open) return;
    member.open = false;
    member.sends.clear();
    member.receives.clear();
    member.outcome = std::move(outcome);
    if (member.event != nullptr) member.event->signal();
  }
  /// Requires: the lock is held.
  void give_up(const Fault& why) {
    given_up = true;
    for (Member& member : members) end(member, why);
  }

  /// Moves the bytes of a round once all members have posted it. Requires: the lock is held.
  void run_when_complete() {
    const auto posted = [&](const Member& member) { return member.open && member.rounds == members.front().rounds; };
    if (!std::all_of(members.begin(), members.end(), posted)) return;
    if (const auto fault = mismatch()) return give_up(*fault);
    for (std::size_t to = 0; to < members.size(); ++to) {
      for (const GroupReceive& receive : members[to].receives) {
        const GroupSend& send = *find(members[static_cast<std::size_t>(receive.from)], static_cast<int>(to));
        if (!send.memory.empty()) std::memcpy(receive.memory.address, send.memory.address, send.memory.bytes);
      }
    }
    for (Member& member : members) end(member, std::nullopt);
  }

 private:
  static const GroupSend* find(const Member& member, int to) {
    const auto found =
        std::find_if(member.sends.begin(), member.sends.end(), [&](const GroupSend& send) { return send.to == to; });
    return found == member.sends.end() ? nullptr : &*found;
  }
  [[nodiscard]] std::optional<Fault> mismatch() const {
    std::size_t sends = 0;
    std::size_t receives = 0;
    for (std::size_t to = 0; to < members.size(); ++to) {
      sends += members[to].sends.size();
      for (const GroupReceive& receive : members[to].receives) {
        ++receives;
        const GroupSend* const send = find(members[static_cast<std::size_t>(receive.from)], static_cast<int>(to));
        if (send == nullptr || send->memory.bytes != receive.memory.bytes) {
          return Fault{ErrorCode::transport_failed,
                       fmt::format("member {} receives {} bytes from member {}, which sends {}", to,
                                   receive.memory.bytes, receive.from, send == nullptr ? 0 : send->memory.bytes)};
        }
      }
    }
    if (sends == receives) return std::nullopt;
    return Fault{ErrorCode::transport_failed, "a round has sends without a receive"};
  }
};

struct Groups {
  std::mutex mutex;
  std::map<Bytes, std::weak_ptr<Group>> by_id;
};

// Never destroyed: members on detached threads may outlive static destruction.
Groups& groups() {
  static auto& instance = *new Groups;
  return instance;
}

std::shared_ptr<Group> find_group(const GroupSetup& setup) {
  const std::lock_guard lock(groups().mutex);
  std::erase_if(groups().by_id, [](const auto& entry) { return entry.second.expired(); });
  auto& entry = groups().by_id[setup.id];
  auto group = entry.lock();
  if (!group) entry = group = std::make_shared<Group>(setup.size);
  return group;
}

class LoopbackCollective final : public Collective {
 public:
  explicit LoopbackCollective(const GroupSetup& setup)
      : group_(find_group(setup)), rank_(setup.rank), size_(setup.size) {
    const std::lock_guard lock(group_->mutex);
    if (group_->members.size() != static_cast<std::size_t>(size_) || rank_ < 0 || rank_ >= size_) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("member {} of {} joins a group of {}", rank_, size_, group_->members.size()));
    }
    if (own().joined) throw Error(ErrorCode::invalid_argument, fmt::format("the group has a member {} already", rank_));
    own().joined = true;
    own().event = &event_;
  }
  ~LoopbackCollective() override {
    const std::lock_guard lock(group_->mutex);
    own().event = nullptr;
    own().open = false;
    own().sends.clear();
    own().receives.clear();
    group_->give_up(group_is_gone());
  }
  LoopbackCollective(const LoopbackCollective&) = delete;
  LoopbackCollective& operator=(const LoopbackCollective&) = delete;

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return size_; }

  void round(std::span<const GroupSend> sends, std::span<const GroupReceive> receives, Completion done) override {
    if (under_way_) throw Error(ErrorCode::invalid_argument, "a round is under way already");
    check_round(sends, receives, size_);
    const std::lock_guard lock(group_->mutex);
    if (aborted_) throw Error(ErrorCode::invalid_argument, "the group was aborted");
    done_ = std::move(done);
    under_way_ = true;
    Group::Member& member = own();
    member.sends.assign(sends.begin(), sends.end());
    member.receives.assign(receives.begin(), receives.end());
    member.open = true;
    member.outcome.reset();
    ++member.rounds;
    if (group_->given_up) return group_->end(member, group_is_gone());
    group_->run_when_complete();
  }

  bool progress() override {
    std::optional<Outcome> outcome;
    {
      const std::lock_guard lock(group_->mutex);
      outcome = std::exchange(own().outcome, std::nullopt);
    }
    if (!outcome) return false;
    under_way_ = false;
    if (const Completion done = std::exchange(done_, nullptr)) done(*outcome);
    return true;
  }

  [[nodiscard]] int event_descriptor() const override { return event_.descriptor(); }
  bool arm() override {
    event_.clear();
    const std::lock_guard lock(group_->mutex);
    return !own().outcome.has_value();
  }

  void abort() override {
    const std::lock_guard lock(group_->mutex);
    aborted_ = true;
    group_->end(own(), Fault{ErrorCode::cancelled, "the group was aborted by this member"});
    group_->give_up(group_is_gone());
  }

 private:
  [[nodiscard]] Group::Member& own() { return group_->members[static_cast<std::size_t>(rank_)]; }

  std::shared_ptr<Group> group_;
  int rank_;
  int size_;
  support::WakeEvent event_;
  bool under_way_ = false;  // a round, until its completion runs
  Completion done_;
  bool aborted_ = false;
};

}  // namespace

Viability probe_collective() {
  return {true, "built in; threads of one process only"};
}
Bytes make_group_id() {
  std::random_device random;
  Bytes id;
  for (int i = 0; i < 4; ++i) append(id, static_cast<std::uint32_t>(random()));
  return id;
}
// Each process has its own; a child of fork() has no session.
std::string collective_domain() {
  static const std::string domain = [] {
    std::random_device random;
    return fmt::format("process {} {:08x}{:08x}", ::getpid(), random(), random());
  }();
  return domain;
}
std::unique_ptr<Collective> open_collective(const GroupSetup& setup) {
  return std::make_unique<LoopbackCollective>(setup);
}

}  // namespace shardwire::transport::loopback

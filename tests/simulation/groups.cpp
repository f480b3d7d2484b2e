// SPDX-License-Identifier: Apache-2.0
// Outline: a group and its members; transfers; the rows.
#include "groups.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "shardwire/error.hpp"
#include "transport/collective_check.hpp"

namespace shardwire::simulation {

using transport::Completion;
using transport::Fault;
using transport::GroupReceive;
using transport::GroupSend;
using transport::Outcome;

namespace {

GroupNetwork* current = nullptr;  // of the run: rows of collectives have no state

}  // namespace

struct Group {
  std::vector<SimulatedCollective*> members;  // null: not there yet, or gone
};

// --- a group and its members ---

class SimulatedCollective final : public transport::Collective {
 public:
  SimulatedCollective(GroupNetwork& network, Process& process, std::shared_ptr<Group> group,
                      const transport::GroupSetup& setup)
      : network_(network), process_(process), group_(std::move(group)), id_(setup.id), rank_(setup.rank) {
    group_->members.at(static_cast<std::size_t>(rank_)) = this;
  }
  ~SimulatedCollective() override {
    leave();
    const bool empty = std::ranges::all_of(group_->members, [](const auto* one) { return one == nullptr; });
    if (empty) network_.groups_.erase(id_);
  }
  SimulatedCollective(const SimulatedCollective&) = delete;
  SimulatedCollective& operator=(const SimulatedCollective&) = delete;

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return static_cast<int>(group_->members.size()); }

  void round(std::span<const GroupSend> sends, std::span<const GroupReceive> receives, Completion done) override {
    if (done_) throw Error(ErrorCode::invalid_argument, "a round is under way already");
    if (aborted_) throw Error(ErrorCode::invalid_argument, "the group was aborted");
    transport::check_round(sends, receives, size());
    ++number_;
    open_ = true;
    done_ = std::move(done);
    sends_.assign(sends.begin(), sends.end());
    receives_.assign(receives.begin(), receives.end());
    left_ = sends_.size() + receives_.size();
    if (left_ == 0) return end(std::nullopt);
    for (const GroupSend& send : sends) begin_transfer(rank_, send.to);
    for (const GroupReceive& receive : receives) begin_transfer(receive.from, rank_);
  }

  bool progress() override {
    if (!outcome_) return false;
    const Outcome outcome = *std::exchange(outcome_, std::nullopt);
    if (const Completion done = std::exchange(done_, nullptr)) done(outcome);
    return true;
  }
  [[nodiscard]] int event_descriptor() const override { return 0; }  // events wake the process
  bool arm() override { return !outcome_; }

  void abort() override {
    aborted_ = true;
    end(Fault{ErrorCode::cancelled, "the group was aborted by this member"});
  }

  // --- for the network ---
  [[nodiscard]] const Process& process() const { return process_; }
  /// Takes part in no further transfer.
  void leave() { group_->members[static_cast<std::size_t>(rank_)] = nullptr; }

 private:
  void end(const Outcome& outcome) {
    if (!std::exchange(open_, false)) return;
    outcome_ = outcome;
    network_.events().after({}, &process_, "round", [] {});
  }
  void part_moved() {
    if (--left_ == 0) end(std::nullopt);
  }
  [[nodiscard]] const GroupSend* send_to(int to) const {
    const auto found = std::ranges::find(sends_, to, &GroupSend::to);
    return found == sends_.end() ? nullptr : &*found;
  }
  [[nodiscard]] const GroupReceive* receive_from(int from) const {
    const auto found = std::ranges::find(receives_, from, &GroupReceive::from);
    return found == receives_.end() ? nullptr : &*found;
  }

  void begin_transfer(int from, int to);
  static void move(GroupNetwork& network, Group& group, int from, int to, std::uint64_t round);

  GroupNetwork& network_;
  Process& process_;
  std::shared_ptr<Group> group_;  // owners: see GroupNetwork
  Bytes id_;
  int rank_;
  std::uint64_t number_ = 0;  // of the last round
  bool open_ = false;         // it is under way
  std::size_t left_ = 0;      // its sends and receives that have not ended
  std::vector<GroupSend> sends_;
  std::vector<GroupReceive> receives_;
  Completion done_;
  std::optional<Outcome> outcome_;  // of the last round, for progress()
  bool aborted_ = false;
};

// --- transfers ---

// The member that posts last begins the transfer. Network cards move the bytes, also those of stopped processes.
void SimulatedCollective::begin_transfer(int from, int to) {
  const SimulatedCollective* const source = group_->members.at(static_cast<std::size_t>(from));
  const SimulatedCollective* const target = group_->members.at(static_cast<std::size_t>(to));
  const auto posted = [this](const SimulatedCollective* one) {
    return one != nullptr && one->open_ && one->number_ == number_;
  };
  if (!posted(source) || !posted(target)) return;
  network_.events().at(
      network_.fabrics().arrival(source->process_.host(), target->process_.host()), nullptr, "part of a round",
      [&all = network_, group = group_, from, to, number = number_] { move(all, *group, from, to, number); });
}

void SimulatedCollective::move(GroupNetwork& network, Group& group, int from, int to, std::uint64_t round) {
  SimulatedCollective* const source = group.members[static_cast<std::size_t>(from)];
  SimulatedCollective* const target = group.members[static_cast<std::size_t>(to)];
  if (source == nullptr || target == nullptr) return;
  if (!source->open_ || !target->open_ || source->number_ != round || target->number_ != round) return;
  const GroupSend* const send = source->send_to(to);
  const GroupReceive* const receive = target->receive_from(from);
  if (send == nullptr || receive == nullptr || send->memory.bytes != receive->memory.bytes) {
    const Fault disagree{ErrorCode::transport_failed, "the sides of a round disagree"};
    source->end(disagree);
    return target->end(disagree);
  }
  if (!send->memory.empty()) {
    const bool shortened = network.fabrics().bug() == Bug::shortened && send->memory.bytes >= 4;
    std::memcpy(receive->memory.address, send->memory.address, send->memory.bytes - (shortened ? 4 : 0));
    network.fabrics().garble(source->process_.host(), receive->memory);
  }
  source->part_moved();
  target->part_moved();
}

// --- the rows ---

GroupNetwork::GroupNetwork(FabricNetwork& fabrics) : fabrics_(fabrics) {
  current = this;
}

GroupNetwork::~GroupNetwork() {
  current = nullptr;
}

std::unique_ptr<transport::Collective> GroupNetwork::open(const transport::GroupSetup& setup) {
  Process* const process = events().running();
  if (process == nullptr) throw Error(ErrorCode::unsupported, "no process opens the group");
  auto& group = groups_[setup.id];
  if (!group)
    group = std::make_shared<Group>(Group{std::vector<SimulatedCollective*>(static_cast<std::size_t>(setup.size))});
  return std::make_unique<SimulatedCollective>(*this, *process, group, setup);
}

Bytes GroupNetwork::make_id() {
  Bytes id(16);
  for (std::byte& one : id) one = static_cast<std::byte>(events().random().below(256));
  return id;
}

void GroupNetwork::ended(Process& process) {
  for (const auto& [id, group] : groups_) {
    for (SimulatedCollective* const one : std::vector(group->members)) {
      if (one != nullptr && &one->process() == &process) one->leave();
    }
  }
}

std::span<const transport::CollectiveTransport> GroupNetwork::rows() {
  static constexpr transport::CollectiveTransport all[] = {
      {.name = "simulated",
       .memory = MemoryKind::host,
       .watches = false,
       .probe =
           [] {
             return transport::Viability{current != nullptr, "simulations only"};
           },
       .domain = [] { return std::string("all"); },
       .make_id = [] { return current->make_id(); },
       .open = [](const transport::GroupSetup& setup) { return current->open(setup); }}};
  return all;
}

}  // namespace shardwire::simulation

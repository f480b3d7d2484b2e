// SPDX-License-Identifier: Apache-2.0
#include "cli/fault_control.hpp"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "support/system_error.hpp"

namespace shardwire::cli {
namespace {

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void make_pipe(support::Descriptor& reading, support::Descriptor& writing) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) support::throw_errno("pipe2");
  reading.reset(ends[0]);
  writing.reset(ends[1]);
}

}  // namespace

FaultControl::FaultControl(std::vector<Fault> faults, ByteCount remote_bytes) : remote_bytes_(remote_bytes) {
  for (Fault& fault : faults) outcomes_.push_back({std::move(fault)});
}

// --- processes ---

void FaultControl::open(int member, MemberEnds& ends) {
  if (outcomes_.empty()) return;
  Member& opened = members_[member];
  make_pipe(opened.commands_of_child, opened.commands);
  make_pipe(opened.replies_of_child, opened.replies);
  ends.commands = opened.commands_of_child.get();
  ends.replies = opened.replies_of_child.get();
}

void FaultControl::started(int member, pid_t pid) {
  const auto found = members_.find(member);
  if (found == members_.end()) return;
  found->second.pid = pid;
  found->second.alive = true;
  found->second.commands_of_child.reset();
  found->second.replies_of_child.reset();
}

void FaultControl::close_all_but(int member) {
  for (auto& [number, one] : members_) {
    one.commands.reset();
    one.replies.reset();
    if (number == member) continue;
    one.commands_of_child.reset();
    one.replies_of_child.reset();
  }
}

void FaultControl::ended(int member) {
  const auto found = members_.find(member);
  if (found == members_.end()) return;
  found->second.alive = false;
  found->second.waits_for_reply = found->second.waits_for_others = false;
  found->second.unconfirmed = 0;
  go_on();
  end_round();
}

// --- events ---

template <typename Is>
bool FaultControl::all_living(Is is) const {
  return std::ranges::all_of(members_, [&](const auto& entry) {
    const Member& one = entry.second;
    return !one.alive || one.stopped || is(one);
  });
}

bool FaultControl::take(int member, const nlohmann::json& line) {
  const auto found = members_.find(member);
  if (found == members_.end()) return false;
  Member& from = found->second;
  if (line.contains("struck")) {
    from.unconfirmed = std::max(0, from.unconfirmed - 1);
  } else if (line.contains("begun")) {
    from.begun = line.at("repeat").get<int>();
  } else if (line.contains("restored")) {
    from.restored = line.at("repeat").get<int>();
    from.waits_for_others = true;
  } else if (line.contains("delivered_by")) {
    const bool spoil = spoil_now(Rank{line.at("delivered_by").get<std::int32_t>()});
    reply(from, spoil ? FaultByte::spoil : FaultByte::keep);
  } else if (line.contains("entered") || line.contains("arrived")) {
    if (line.contains("entered")) entered_.insert(line.at("entered").get<std::string>());
    arrived_bytes_ += line.value("arrived", ByteCount{0});
    repeat_ = line.at("repeat").get<int>();
    from.waits_for_reply = true;
  } else {
    return false;
  }
  go_on();
  end_round();  // also when the last one that restores was stopped just now
  return true;
}

bool FaultControl::is_due(const Fault& fault) const {
  if (!fault.stage.empty()) return entered_.contains(fault.stage);
  return static_cast<double>(arrived_bytes_) * 100 >= fault.percent * static_cast<double>(remote_bytes_);
}

void FaultControl::strike_due() {
  for (FaultOutcome& one : outcomes_) {
    // A bit is flipped by the reader, which asks first.
    if (!one.struck_ns && one.fault.kind != FaultKind::corrupt && is_due(one.fault)) strike(one);
  }
}

bool FaultControl::spoil_now(Rank source) {
  for (FaultOutcome& one : outcomes_) {
    if (one.struck_ns || one.fault.kind != FaultKind::corrupt || one.fault.rank != source || !is_due(one.fault))
      continue;
    one.struck_ns = now_ns();
    return true;
  }
  return false;
}

void FaultControl::strike(FaultOutcome& outcome) {
  Member& victim = members_.at(to_int(outcome.fault.rank));
  if (!victim.alive || victim.stopped) return;
  outcome.struck_ns = now_ns();
  switch (outcome.fault.kind) {
    case FaultKind::kill: ::kill(victim.pid, SIGKILL); break;
    case FaultKind::stop:
      victim.stopped = true;
      victim.waits_for_reply = false;
      ::kill(victim.pid, SIGSTOP);
      break;
    case FaultKind::cut: return command(victim, FaultByte::cut);
    case FaultKind::slow: return command(victim, FaultByte::slow);
    case FaultKind::restep: return command(victim, FaultByte::restep);
    case FaultKind::corrupt: break;
  }
}

void FaultControl::command(Member& member, FaultByte byte) {
  const char text = static_cast<char>(byte);
  if (::write(member.commands.get(), &text, 1) == 1) ++member.unconfirmed;
}

void FaultControl::reply(Member& member, FaultByte byte) {
  const char text = static_cast<char>(byte);
  [[maybe_unused]] const ssize_t written = ::write(member.replies.get(), &text, 1);  // it may have died
}

void FaultControl::go_on() {
  const bool any_waits = std::ranges::any_of(members_, [](const auto& entry) { return entry.second.waits_for_reply; });
  // A member that has not begun may depend on one that would be struck.
  if (!any_waits || !all_living([&](const Member& one) { return one.begun >= repeat_; })) return;
  strike_due();
  if (!all_living([](const Member& one) { return one.unconfirmed == 0; })) return;
  for (auto& [number, one] : members_) {
    if (std::exchange(one.waits_for_reply, false)) reply(one, FaultByte::go_on);
  }
}

void FaultControl::end_round() {
  if (!all_living([&](const Member& one) { return one.restored >= repeat_; })) return;
  for (auto& [number, one] : members_) {
    if (one.alive && one.stopped) ::kill(one.pid, SIGKILL);
    if (std::exchange(one.waits_for_others, false)) reply(one, FaultByte::go_on);
  }
}

const Fault* FaultControl::fatal_of(int member) const {
  const auto found = std::ranges::find_if(outcomes_, [&](const FaultOutcome& one) {
    return one.struck_ns && to_int(one.fault.rank) == member && is_fatal(one.fault.kind);
  });
  return found == outcomes_.end() ? nullptr : &found->fault;
}

}  // namespace shardwire::cli

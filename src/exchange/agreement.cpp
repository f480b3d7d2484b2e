// SPDX-License-Identifier: Apache-2.0
#include "exchange/agreement.hpp"

#include <fmt/ranges.h>

#include <algorithm>

#include "restore/rounds_step.hpp"
#include "shardwire/error.hpp"
#include "support/list_of.hpp"

namespace shardwire {

namespace {

using transport::CollectiveTransport;
using wire::ExchangeNote;

constexpr std::size_t max_listed = 8;

const ExchangeNote& note_of(std::span<const ExchangeNote> notes, int member) {
  return notes[static_cast<std::size_t>(member)];
}

// The collectives that every member of the group offers, with one domain.
bool all_offer(std::span<const ExchangeNote> notes, const std::vector<int>& group, const CollectiveTransport& one) {
  const std::string begin = fmt::format("{} (", one.name);
  for (const std::string& offer : note_of(notes, group.front()).collectives) {
    if (!offer.starts_with(begin)) continue;
    if (std::ranges::all_of(group, [&](int member) {
          const auto& theirs = note_of(notes, member).collectives;
          return std::ranges::find(theirs, offer) != theirs.end();
        })) {
      return true;
    }
  }
  return false;
}

[[noreturn]] void refuse_without_collective(std::span<const ExchangeNote> notes, const std::vector<int>& group,
                                            MemoryKind kind) {
  std::vector<std::string> all;
  for (const int member : group) {
    if (all.size() == max_listed) break;
    const auto& offered = note_of(notes, member).collectives;
    all.push_back(offered.empty() ? fmt::format("member {} offers none", member)
                                  : fmt::format("member {} offers {}", member, fmt::join(offered, " and ")));
  }
  throw Error(ErrorCode::unsupported,
              fmt::format("the method 'collective' needs a collective for {} memory that all members have: {}{}",
                          kind == MemoryKind::cuda ? "device" : "host", fmt::join(all, ", "),
                          group.size() > all.size() ? ", .." : ""));
}

bool adopted_by_all(std::span<const ExchangeNote> notes, const std::vector<int>& group) {
  std::vector<int> without;
  std::ranges::copy_if(group, std::back_inserter(without), [&](int member) { return !note_of(notes, member).adopts; });
  if (without.empty()) return true;
  if (without.size() == group.size()) return false;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("a communicator is given by some members of the exchange, and not by {}: give it on all of "
                          "them, or on none",
                          support::list_of(without)));
}

}  // namespace

std::vector<std::string> offered_collectives(MemoryKind kind, Collectives all) {
  std::vector<std::string> offered;
  for (const CollectiveTransport& one : all) {
    if (one.memory == kind && one.probe().viable) offered.push_back(fmt::format("{} ({})", one.name, one.domain()));
  }
  return offered;
}

int GroupChoice::rank_of(int member) const {
  const auto found = std::ranges::find(members, member);
  return found == members.end() ? -1 : static_cast<int>(found - members.begin());
}

GroupChoice agree_on_group(std::span<const ExchangeNote> notes, Collectives all) {
  GroupChoice choice;
  choice.forced = std::ranges::any_of(notes, &ExchangeNote::forced);
  if (!choice.forced && !std::ranges::all_of(notes, &ExchangeNote::unasked)) return choice;
  const bool on_devices = std::ranges::any_of(notes, [](const ExchangeNote& note) { return note.device >= 0; });
  const MemoryKind kind = on_devices ? MemoryKind::cuda : MemoryKind::host;
  if (!choice.forced && !on_devices) return choice;
  for (std::size_t member = 0; member < notes.size(); ++member) {
    const bool inside = !on_devices || notes[member].device >= 0;
    choice.devices.push_back(inside ? notes[member].device : RoundsGroup::nowhere);
    if (inside) choice.members.push_back(static_cast<int>(member));
  }
  if (on_devices && choice.members.size() < 2)
    return choice;  // no rounds possible; a member that forced them fails at its first remote piece
  for (const CollectiveTransport& one : all) {
    if (one.memory == kind && all_offer(notes, choice.members, one)) {
      choice.collective = &one;
      break;
    }
  }
  if (choice.collective == nullptr) {
    if (choice.forced) refuse_without_collective(notes, choice.members, kind);
    return choice;
  }
  choice.adopted = adopted_by_all(notes, choice.members);
  // An equal id and size imply a group of the same members.
  const Bytes& kept = note_of(notes, choice.members.front()).kept_group;
  const bool all_kept = std::ranges::all_of(choice.members, [&](int member) {
    const ExchangeNote& note = note_of(notes, member);
    return note.kept_group == kept && note.kept_size == choice.members.size();
  });
  if (all_kept && !choice.adopted) choice.kept = kept;
  return choice;
}

bool needs_rounds(std::span<const ExchangeNote> notes) {
  return std::ranges::any_of(notes, &ExchangeNote::indirect);
}

}  // namespace shardwire

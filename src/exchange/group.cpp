// SPDX-License-Identifier: Apache-2.0
#include "exchange/group.hpp"

#include <algorithm>
#include <utility>

#include "memory/device.hpp"
#include "shardwire/error.hpp"

namespace shardwire {

namespace {

// The collectives that can adopt a caller's communicator. Errors: throws Error{unsupported} if there is none in this
// process.
const transport::CollectiveTransport& adopting_collective(Collectives all) {
  for (const transport::CollectiveTransport& one : all) {
    if (one.device_of == nullptr) continue;
    const transport::Viability viability = one.probe();
    if (viability.viable) return one;
    throw Error(ErrorCode::unsupported,
                "a communicator is given, and " + std::string(one.name) + " is off here: " + viability.detail);
  }
  throw Error(ErrorCode::unsupported, "a communicator is given, and no collective takes one");
}

}  // namespace

ExchangeGroup::~ExchangeGroup() {
  if (!well_) kept_ = {};
}

void ExchangeGroup::offer(wire::ExchangeNote& note, int device) const {
  if (communicator_ != nullptr) {
    note.adopts = true;
    device = adopting_collective(setup_.collectives).device_of(communicator_);
  }
  note.forced = setup_.method == Method::collective;
  note.unasked = setup_.rounds_unasked && !setup_.method;
  note.device = static_cast<std::int16_t>(device);
  note.collectives =
      offered_collectives(device == memory::on_host ? MemoryKind::host : MemoryKind::cuda, setup_.collectives);
  if (!kept_.rounds || kept_.device != device) return;
  note.kept_group = kept_.id;
  note.kept_size = static_cast<std::uint32_t>(kept_.rounds->size());
}

void ExchangeGroup::choose(std::span<const wire::ExchangeNote> notes) {
  choice_ = agree_on_group(notes, setup_.collectives);
}

RoundsGroup ExchangeGroup::facts() const {
  return {.collective = choice_.collective->name,
          .member = setup_.member,
          .devices = choice_.devices,
          .undecided = !takes_rounds()};
}

void ExchangeGroup::open(const Agree& agree) {
  if (std::exchange(opened_, true)) return;
  const int rank = choice_.rank_of(setup_.member);
  if (!choice_.kept.empty()) {
    id_ = choice_.kept;
    rounds_ = std::move(kept_.rounds);
    return;
  }
  kept_ = {};
  wire::ExchangeNote note;
  if (rank == 0 && !choice_.adopted) note.group_id = choice_.collective->make_id();
  const std::vector<wire::ExchangeNote> notes = agree(note);
  if (rank < 0) return;
  id_ = notes[static_cast<std::size_t>(choice_.members.front())].group_id;
  rounds_.reset(new ExchangeRounds(
      *choice_.collective, transport::GroupSetup{.id = id_,
                                                 .rank = rank,
                                                 .size = static_cast<int>(choice_.members.size()),
                                                 .device = choice_.devices[static_cast<std::size_t>(setup_.member)],
                                                 .communicator = choice_.adopted ? communicator_ : nullptr}));
}

void ExchangeGroup::keep() {
  well_ = true;
  if (rounds_ && !choice_.adopted) {
    kept_ = {id_, choice_.devices[static_cast<std::size_t>(setup_.member)], std::move(rounds_)};
  }
}

}  // namespace shardwire

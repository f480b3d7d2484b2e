// SPDX-License-Identifier: Apache-2.0
#include "session/exchange/steps.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <string>
#include <utility>

#include "geometry/by_value.hpp"
#include "memory/strided_copy.hpp"
#include "session/source/publication.hpp"

namespace shardwire {

namespace {

using wire::ExchangeNote;

constexpr auto look_interval = std::chrono::milliseconds(100);

// Where most of what is held and wanted lies.
class MainDevice {
 public:
  void add(const Catalog& catalog, const TensorPlaces& places, BoxCache& boxes) {
    for (std::size_t i = 0; i < catalog.entries().size(); ++i) {
      const Catalog::Entry& entry = catalog.entries()[i];
      const int device = device_of(places, i);
      if (device == memory::on_host || travels_by_value(entry.spec)) continue;
      const auto elements = static_cast<ByteCount>(boxes_of(entry, catalog.layout_rank(), boxes).elements());
      bytes_[device] += elements * item_size(entry.spec.dtype);
    }
  }
  [[nodiscard]] int device() const {
    const auto most = std::ranges::max_element(bytes_, {}, [](const auto& one) { return one.second; });
    return most == bytes_.end() ? memory::on_host : most->first;
  }

 private:
  std::map<int, ByteCount> bytes_;
};

}  // namespace

ExchangeSteps::ExchangeSteps(const Catalog& held, const ExchangeOptions& options, const ExchangeCalls& calls,
                             ExchangeBarriers& barriers, ExchangeSums& sums, BoxCache& boxes)
    : held_(held),
      options_(options),
      calls_(calls),
      barriers_(barriers),
      sums_(sums),
      boxes_(boxes),
      group_({.member = calls.member,
              .way = calls.way,
              .unasked = calls.rounds_unasked,
              .communicator = options.communicator},
             *calls.kept) {
}

void ExchangeSteps::offer(ExchangeNote& note, const Catalog& wanted, const TensorPlaces& wanted_places) {
  if (!std::exchange(placed_, true)) held_places_ = places_of(held_);  // offers come again where tensors are cut
  MainDevice most;
  most.add(held_, held_places_, boxes_);
  most.add(wanted, wanted_places, boxes_);
  group_.offer(note, most.device());
}

void ExchangeSteps::choose_way(std::span<const ExchangeNote> notes) {
  min_staging_bytes_ = std::ranges::min_element(notes, {}, &ExchangeNote::staging_bytes)->staging_bytes;
  barriers_.find_alike([&] { group_.choose(notes); });
}

void ExchangeSteps::restore_all(const std::vector<Catalog>& catalogs, ByteCount staged_bytes) {
  if (!group_.is_there()) {
    for (const Catalog& catalog : catalogs) {
      Restore running = calls_.restore(catalog, restore_options(), nullptr);
      running.wait();
      sums_.add(running, catalog, staged_bytes);
    }
    return;
  }
  // Members may need another number of restores for this wave; who has no more takes part for the others.
  ExchangeNote note;
  note.steps = static_cast<std::uint32_t>(catalogs.size());
  const std::vector<ExchangeNote> notes = barriers_.agree(note);
  const std::uint32_t steps = std::ranges::max_element(notes, {}, &ExchangeNote::steps)->steps;
  for (std::size_t i = 0; i < steps; ++i) take_step(i < catalogs.size() ? &catalogs[i] : nullptr, staged_bytes);
}

void ExchangeSteps::take_step(const Catalog* catalog, ByteCount staged_bytes) {
  Step step{catalog, group_.handover()};
  if (catalog != nullptr) step.running = calls_.restore(*catalog, restore_options(), step.handover);
  if (agree_on_rounds(step)) {
    group_.open([this](const ExchangeNote& note) { return barriers_.agree(note); });
    staged_bytes += move_in_rounds(step);
  }
  if (catalog == nullptr) return sums_.add_staging(staged_bytes);
  step.running.wait();
  sums_.add(step.running, *catalog, staged_bytes);
}

// Whether bytes of this step go in rounds. Unless that is known, all members say whether they have direct paths.
bool ExchangeSteps::agree_on_rounds(Step& step) {
  if (group_.takes_rounds()) return true;
  ExchangeNote note;
  if (step.catalog != nullptr) note.indirect = answer_of(step, step.handover->wait_for_paths(barriers_.deadline()));
  if (needs_rounds(barriers_.agree(note))) group_.take_rounds();
  step.handover->decide(group_.takes_rounds());
  calls_.post([handover = step.handover] { handover->run_decided(); });
  return group_.takes_rounds();
}

// What a restore has said: else it has failed before, and says why.
template <typename Answer>
Answer ExchangeSteps::answer_of(Step& step, std::optional<Answer> answer) {
  if (!answer) step.running.wait();
  if (!answer) throw Error(ErrorCode::internal, "a restore has ended before anything came");
  return std::move(*answer);
}

// Returns the staging that it took.
ByteCount ExchangeSteps::move_in_rounds(Step& step) {
  std::vector<GroupedHandover::Item> items;
  if (step.catalog != nullptr) items = answer_of(step, step.handover->wait(barriers_.deadline()));
  ExchangeNote note;
  std::vector<move::GroupedPiece> incoming;
  for (GroupedHandover::Item& item : items) {
    note.requests.push_back({static_cast<std::uint32_t>(item.member), item.held_tensor, item.piece.box,
                             static_cast<ByteCount>(item.piece.box.volume()) * item.piece.item_bytes, item.run_bytes,
                             static_cast<std::uint32_t>(item.piece.item_bytes)});
    incoming.push_back(std::move(item.piece));
  }
  const std::vector<ExchangeNote> notes = barriers_.agree(note);
  if (!group_.is_inside()) {
    barriers_.agree({});
    return 0;
  }
  move::GroupedJob job = grouped_job(notes, group_.choice(), calls_.member, min_staging_bytes_ / 4, incoming,
                                     [this](const wire::ExchangeRequest& request) { return held_piece(request); });
  job.ingress_bytes_per_second = options_.ingress_bytes_per_second;
  barriers_.agree({});  // every member holds what it is asked for
  const ExchangeRounds::Totals totals = run_rounds(std::move(job), step, !incoming.empty());
  sums_.add(totals);
  if (step.catalog != nullptr) post_closed(step.handover);
  return totals.staging_bytes;
}

void ExchangeSteps::post_closed(const std::shared_ptr<GroupedHandover>& handover) {
  calls_.post([handover] { handover->run_closed(); });
}

ExchangeRounds::Totals ExchangeSteps::run_rounds(move::GroupedJob job, Step& step, bool writes) {
  GroupedHandover& handover = *step.handover;
  if (writes && !handover.begin()) {
    group_.rounds().give_up();  // the others are in them already
    step.running.wait();        // has failed meanwhile, and says why
  }
  try {
    const ExchangeRounds::Totals totals = group_.rounds().run(
        std::move(job), [&] { return why_stopped(handover, writes); }, barriers_.deadline());
    handover.close(true);
    return totals;
  } catch (...) {
    handover.close(false);
    if (writes && handover.stopped()) {
      post_closed(step.handover);
      step.running.wait();
    }
    ask_who_gave_up();
    throw;
  }
}

// NCCL tells nobody that a member is gone, or goes no further.
std::optional<Error> ExchangeSteps::why_stopped(const GroupedHandover& handover, bool writes) {
  if (writes && handover.stopped()) return Error(ErrorCode::cancelled, "the restore of this member has ended");
  const auto now = ExchangeBarriers::Clock::now();
  if (now < look_again_) return std::nullopt;
  look_again_ = now + look_interval;
  const ExchangeNews news = calls_.news();
  for (const int member : news.departed) {
    if (group_.choice().rank_of(member) < 0) continue;
    return Error(ErrorCode::peer_lost,
                 fmt::format("member {} is gone in the middle of the rounds of the exchange", member),
                 std::vector<Rank>{Rank{member}});
  }
  given_up_elsewhere_ = news.given_up;
  if (news.given_up) return Error(ErrorCode::cancelled, "another member has given the exchange up");
  return std::nullopt;
}

// Called in a handler. A group that has ended by itself has been given up by a member that knows more.
void ExchangeSteps::ask_who_gave_up() {
  if (!given_up_elsewhere_) {
    try {
      throw;
    } catch (const GroupFailed&) {
    } catch (const std::exception&) {
      return;
    }
  }
  barriers_.agree({});
}

// What this member is asked for.
move::GroupedPiece ExchangeSteps::held_piece(const wire::ExchangeRequest& request) {
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorCode::transport_failed,
                fmt::format("a member asks for {} of tensor {}, {}", to_string(request.box), request.tensor, what));
  };
  if (request.tensor >= held_.entries().size()) refuse("which is not held here");
  const Catalog::Entry& entry = held_.entries()[request.tensor];
  const ByteCount item_bytes = item_size(entry.spec.dtype);
  const PlacedBox* placed = boxes_of(entry, held_.layout_rank(), boxes_).around(request.box);
  if (placed == nullptr || travels_by_value(entry.spec)) refuse("which is not held here");
  const memory::StridedCopy own(request.box, *placed, memory::packed(request.box), item_bytes);
  const int device = device_of(held_places_, request.tensor);
  const int moved = group_.choice().devices[static_cast<std::size_t>(calls_.member)];
  const auto name = [](int one) {
    return one == memory::on_host ? std::string("host memory") : fmt::format("memory of device {}", one);
  };
  if (device != moved) refuse(fmt::format("which is {}: rounds move {} here", name(device), name(moved)));
  if (device != memory::on_host) {
    const auto* const data = static_cast<const std::byte*>(entry.view.data);
    if (!is_still_there(*held_places_[request.tensor], data)) refuse("whose memory was freed");
  }
  if (own.bytes() != request.bytes || item_bytes != request.item_bytes || own.run_bytes() % request.run_bytes != 0) {
    refuse("in bytes or runs that it does not have");
  }
  // Sent from, not written to.
  return {request.box, *placed, item_bytes, static_cast<std::byte*>(entry.view.data)};
}

RestoreOptions ExchangeSteps::restore_options() const {
  RestoreOptions options;
  options.from = publication_name;
  options.step = step();
  options.way = group_.is_forced() ? Way::grouped : calls_.way;
  options.deadline = barriers_.left();
  options.staging_bytes = sums_.message_budget();
  options.verify = options_.verify;
  options.ingress_bytes_per_second = options_.ingress_bytes_per_second;
  options.discovery_grace = Duration::zero();  // whoever publishes has done so before the first barrier
  return options;
}

}  // namespace shardwire

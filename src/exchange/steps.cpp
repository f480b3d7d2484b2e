// SPDX-License-Identifier: Apache-2.0
#include "exchange/steps.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "geometry/by_value.hpp"
#include "memory/strided_copy.hpp"
#include "restore/operation.hpp"
#include "runtime/await.hpp"
#include "serve/publication.hpp"
#include "support/ranks_of.hpp"

namespace shardwire {

namespace {

using wire::ExchangeNote;

// Finds the device with most of the held and wanted memory.
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

ExchangeSteps::ExchangeSteps(const Catalog& held, const ExchangeOptions& options, const ExchangeSetup& setup,
                             const ExchangeContext& context, ExchangeBarriers& barriers, ExchangeSums& sums,
                             BoxCache& boxes)
    : held_(held),
      options_(options),
      setup_(setup),
      context_(context),
      barriers_(barriers),
      sums_(sums),
      boxes_(boxes),
      group_(setup, options.communicator) {
}

void ExchangeSteps::offer(ExchangeNote& note, const Catalog& wanted, const TensorPlaces& wanted_places) {
  if (!std::exchange(placed_, true)) held_places_ = places_of(held_);  // offered again if tensors are split
  MainDevice most;
  most.add(held_, held_places_, boxes_);
  most.add(wanted, wanted_places, boxes_);
  group_.offer(note, most.device());
}

void ExchangeSteps::choose_method(std::span<const ExchangeNote> notes) {
  min_staging_bytes_ = std::ranges::min_element(notes, {}, &ExchangeNote::staging_bytes)->staging_bytes;
  for (std::size_t member = 0; member < notes.size(); ++member) {
    if (notes[member].held_rank >= 0) holders_.emplace(Rank{notes[member].held_rank}, static_cast<int>(member));
  }
  barriers_.find_alike([&] { group_.choose(notes); });
}

void ExchangeSteps::restore_all(const std::vector<Catalog>& catalogs, ByteCount staged_bytes) {
  try {
    run_restores(catalogs, staged_bytes);
  } catch (const Error& error) {
    barriers_.throw_reason_of(error);  // a restore fails because another member has stopped publishing
    throw in_terms_of_members(error);
  }
}

void ExchangeSteps::finish_wave() {
  barriers_.agree({}, group_.is_there() ? Gathers::Kind::stays : Gathers::Kind::survivors);
}

// Restores name layout ranks. A tensor that nobody holds any more was held by a lost member, which may be alive and have
// withdrawn it.
Error ExchangeSteps::in_terms_of_members(const Error& error) const {
  const std::vector<int> lost = barriers_.lost();
  const bool by_loss = error.code() == ErrorCode::layout_mismatch || error.code() == ErrorCode::withdrawn;
  const bool of_loss = error.code() == ErrorCode::peer_lost || (by_loss && !lost.empty());
  if (!of_loss && error.code() != ErrorCode::timed_out) return error;
  std::set<int> members(lost.begin(), lost.end());
  if (!by_loss) {
    for (const Rank rank : error.ranks()) {
      const auto found = holders_.find(rank);
      members.insert(found == holders_.end() ? to_int(rank) : found->second);
    }
  }
  std::vector<Rank> ranks = support::ranks_of(members);
  if (!of_loss) return {error.code(), error.what(), error.gaps(), std::move(ranks)};
  return {ErrorCode::peer_lost,
          fmt::format("member {} {} lost in the exchange: {}", fmt::join(members, ", "),
                      members.size() == 1 ? "was" : "were", error.what()),
          error.gaps(), std::move(ranks)};
}

void ExchangeSteps::run_restores(const std::vector<Catalog>& catalogs, ByteCount staged_bytes) {
  if (!group_.is_there()) {
    for (const Catalog& catalog : catalogs) {
      Restore running = restore(catalog, nullptr);
      running.wait();
      sums_.add(running, catalog, staged_bytes);
    }
    return;
  }
  // Members may need different numbers of restores in this wave; a member without further restores takes part for the
  // others.
  ExchangeNote note;
  note.steps = static_cast<std::uint32_t>(catalogs.size());
  const std::vector<ExchangeNote> notes = barriers_.agree(note);
  const std::uint32_t steps = std::ranges::max_element(notes, {}, &ExchangeNote::steps)->steps;
  for (std::size_t i = 0; i < steps; ++i) take_step(i < catalogs.size() ? &catalogs[i] : nullptr, staged_bytes);
}

Restore ExchangeSteps::restore(const Catalog& catalog, std::shared_ptr<RoundsStep> rounds) {
  return context_.begin_restore(catalog, restore_options(), {std::move(rounds), barriers_.losses(), method()},
                                [this](std::function<void()> cancel) { barriers_.guard_restore(std::move(cancel)); });
}

void ExchangeSteps::take_step(const Catalog* catalog, ByteCount staged_bytes) {
  Step step{catalog, std::make_shared<RoundsStep>(group_.facts())};
  if (catalog != nullptr) step.running = restore(*catalog, step.rounds);
  if (agree_on_rounds(step)) {
    group_.open([this](const ExchangeNote& note) { return barriers_.agree(note); });
    staged_bytes += move_in_rounds(step);
  }
  if (catalog == nullptr) return sums_.add_staging(staged_bytes);
  step.running.wait();
  sums_.add(step.running, *catalog, staged_bytes);
}

// Whether bytes of this step go in rounds. If undecided, all members exchange whether they have direct paths.
bool ExchangeSteps::agree_on_rounds(Step& step) {
  if (group_.takes_rounds()) return true;
  ExchangeNote note;
  if (step.catalog != nullptr) {
    note.indirect =
        answer_of(step, await<std::optional<bool>>(*context_.loop, [&](const auto& answer) {
                    step.rounds->on_paths([answer](std::optional<bool> indirect) { answer.give(indirect); });
                  }));
  }
  if (needs_rounds(barriers_.agree(note))) group_.take_rounds();
  context_.loop->post([rounds = step.rounds, taken = group_.takes_rounds()] { rounds->decide(taken); });
  return group_.takes_rounds();
}

// The answer of a restore; without one the restore has failed, and wait() throws its error.
template <typename Reply>
Reply ExchangeSteps::answer_of(Step& step, std::optional<Reply> answer) {
  if (!answer) step.running.wait();
  if (!answer) throw Error(ErrorCode::internal, "a restore has ended before anything came");
  return std::move(*answer);
}

// Returns the staging used.
ByteCount ExchangeSteps::move_in_rounds(Step& step) {
  using Items = std::vector<RoundsStep::Item>;
  Items items;
  if (step.catalog != nullptr) {
    items =
        answer_of(step, await<std::optional<Items>>(*context_.loop, [&](const auto& answer) {
                    step.rounds->on_offer([answer](std::optional<Items> offered) { answer.give(std::move(offered)); });
                  }));
  }
  ExchangeNote note;
  std::vector<move::CollectivePiece> incoming;
  for (RoundsStep::Item& item : items) {
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
  move::CollectiveJob job =
      collective_job(notes, group_.choice(), setup_.member, min_staging_bytes_ / 4, incoming,
                     [this](const wire::ExchangeRequest& request) { return held_piece(request); });
  job.ingress_bytes_per_second = options_.ingress_bytes_per_second;
  barriers_.agree({});  // every member holds the pieces requested from it
  const ExchangeRounds::Totals totals = run_rounds(std::move(job), step, !incoming.empty());
  sums_.add(totals);
  return totals.staging_bytes;
}

ExchangeRounds::Totals ExchangeSteps::run_rounds(move::CollectiveJob job, Step& step, bool writes) {
  try {
    return group_.rounds().run(std::move(job),
                               {.restore = step.catalog == nullptr ? nullptr : step.rounds,
                                .writes = writes,
                                .members = group_.choice().members,
                                .deadline = barriers_.deadline(),
                                .failure_notices = [this] { return barriers_.notices(); },
                                .give_up = [this](const Error& why) { barriers_.give_up(why); }},
                               context_);
  } catch (const RoundsFailed& failed) {
    if (failed.cause == RoundsFailed::Cause::restore) step.running.wait();  // throws its error
    if (failed.cause == RoundsFailed::Cause::others) barriers_.await_reason();
    throw;
  }
}

// The piece that another member requests.
move::CollectivePiece ExchangeSteps::held_piece(const wire::ExchangeRequest& request) {
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
  const int moved = group_.choice().devices[static_cast<std::size_t>(setup_.member)];
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
  // Only read, never written.
  return {request.box, *placed, item_bytes, static_cast<std::byte*>(entry.view.data)};
}

std::optional<Method> ExchangeSteps::method() const {
  return group_.is_forced() ? Method::collective : setup_.method;
}

RestoreOptions ExchangeSteps::restore_options() const {
  RestoreOptions options;
  options.name = publication_name;
  options.step = step();
  options.timeout = barriers_.left();
  options.staging_bytes = sums_.message_budget();
  options.verify = options_.verify;
  options.replicas = options_.replicas;
  options.ingress_bytes_per_second = options_.ingress_bytes_per_second;
  options.discovery_grace = Duration::zero();  // all publishers have published before the first barrier
  return options;
}

}  // namespace shardwire

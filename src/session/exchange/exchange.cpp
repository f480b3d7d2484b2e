// SPDX-License-Identifier: Apache-2.0
#include "session/exchange/exchange.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "geometry/by_value.hpp"
#include "geometry/footprint.hpp"
#include "geometry/intervals.hpp"
#include "memory/strided_copy.hpp"
#include "session/exchange/exchange_plan.hpp"
#include "session/exchange/rounds.hpp"
#include "session/source/publication.hpp"
#include "support/checked.hpp"

namespace shardwire {

namespace {

using Clock = std::chrono::steady_clock;
using wire::ExchangeNote;
using wire::ExchangePart;

constexpr const char* publication_name = ".exchange";
constexpr std::uint32_t slices_per_round = 4;
constexpr std::uint32_t max_slices = 64;
constexpr auto look_interval = std::chrono::milliseconds(100);

// Slice `part.index` of a tensor: along dim 0 where it is long enough, since that is what most layouts cut.
Box slice_of(const Extents& shape, const ExchangePart& part) {
  Box slice = Box::whole(shape);
  if (part.count == 1 || shape.empty()) return slice;
  const auto largest = static_cast<std::size_t>(std::max_element(shape.begin(), shape.end()) - shape.begin());
  const std::size_t dim = shape[0] >= static_cast<Extent>(part.count) ? 0 : largest;
  const Interval interval = chunk_of(shape[dim], part.count, part.index);
  slice.offset[dim] = interval.lower;
  slice.size[dim] = interval.size();
  return slice;
}

// What of `boxes` lies in `slice`, each part where it was.
PlacedBoxes clipped(const PlacedBoxes& boxes, const Box& slice) {
  std::vector<PlacedBox> inside;
  for (const PlacedBox& placed : boxes.all()) {
    const auto common = intersect(placed.box, slice);
    if (!common) continue;
    PlacedBox part{*common, placed.local_offset, placed.local_strides};
    for (std::size_t dim = 0; dim < common->dims(); ++dim) {
      part.local_offset += (common->offset[dim] - placed.box.offset[dim]) * placed.local_strides[dim];
    }
    inside.push_back(part);
  }
  return PlacedBoxes(std::move(inside));
}

// A part of a wanted tensor that waits for its place: the boxes one behind the other.
struct Staged {
  const Catalog::Entry* entry = nullptr;
  PlacedBoxes places;  // where the boxes belong
  std::unique_ptr<std::byte[]> bytes;
};

std::vector<PlacedBox> back_to_back(const PlacedBoxes& places) {
  std::vector<PlacedBox> packed;
  ElementCount offset = 0;
  for (const PlacedBox& place : places.all()) {
    packed.push_back({place.box, offset, row_major_strides(place.box.size)});
    offset += place.box.volume();
  }
  return packed;
}

void write_out(const Staged& staged, int device, const CopyAndWait& copy_and_wait) {
  const std::vector<PlacedBox> packed = back_to_back(staged.places);
  const auto& places = staged.places.all();
  auto* const to = static_cast<std::byte*>(staged.entry->view.data);
  std::vector<memory::QueuedCopy> on_device;
  for (std::size_t i = 0; i < places.size(); ++i) {
    const memory::StridedCopy copy(places[i].box, packed[i], places[i], item_size(staged.entry->spec.dtype));
    if (device == memory::on_host) {
      copy.run_all(staged.bytes.get(), to);
    } else {
      on_device.push_back({copy, staged.bytes.get(), to, memory::on_host, device});
    }
  }
  if (!on_device.empty()) copy_and_wait(std::move(on_device));
}

std::string to_text(const ExchangePart& part) {
  if (part.count == 1) return to_string(part.key);
  return fmt::format("{} (slice {} of {})", to_string(part.key), part.index, part.count);
}

class Exchange {
 public:
  Exchange(const Catalog& held, const Catalog& wanted, const ExchangeOptions& options, const ExchangeCalls& calls)
      : held_(held),
        wanted_(wanted),
        options_(options),
        calls_(calls),
        group_({.member = calls.member,
                .way = calls.way,
                .unasked = calls.rounds_unasked,
                .communicator = options.communicator},
               *calls.kept) {}

  ExchangeResult run() {
    try {
      prepare();
      const ExchangePlan plan = agree_on_plan();
      move(plan);
      finish();
      group_.keep();
      return std::move(result_);
    } catch (...) {
      notify_others();
      throw;
    }
  }

 private:
  // --- what all members do together ---

  [[nodiscard]] Duration left() const {
    return std::max(Duration::zero(), options_.deadline - (Clock::now() - began_));
  }
  static double seconds_since(Clock::time_point then) {
    return std::chrono::duration<double>(Clock::now() - then).count();
  }

  std::vector<ExchangeNote> agree(const ExchangeNote& note) {
    const std::string name = fmt::format("exchange.{}.{}", calls_.number, round_);
    Bytes own = wire::encode_exchange_note(note);
    std::vector<Bytes> encoded;
    try {
      encoded = calls_.gather(name, std::move(own), left());
    } catch (...) {
      notified_ = true;  // the others have it from the same barrier
      throw;
    }
    ++round_;
    std::vector<ExchangeNote> notes;
    for (const Bytes& bytes : encoded) notes.push_back(wire::decode_exchange_note(bytes));
    for (std::size_t member = 0; member < notes.size(); ++member) {
      if (!notes[member].failure) continue;
      notified_ = true;
      throw Error(notes[member].failure->code,
                  fmt::format("the exchange failed on member {}: {}", member, notes[member].failure->message),
                  std::vector<Rank>{Rank{static_cast<std::int32_t>(member)}});
    }
    return notes;
  }

  // The others find the reason at their next barrier.
  void notify_others() {
    if (notified_) return;
    notified_ = true;
    ExchangeNote note;
    try {
      throw;
    } catch (const Error& error) {
      note.failure = {error.code(), error.what()};
    } catch (const std::exception& error) {
      note.failure = {ErrorCode::internal, error.what()};
    }
    try {
      // Until they are there: they may be reading from this member, and nothing here may end before they know.
      calls_.gather(fmt::format("exchange.{}.{}", calls_.number, round_), wire::encode_exchange_note(note), left());
    } catch (const std::exception&) {
      // What went wrong first is what the caller hears.
    }
  }

  // --- before anything moves ---

  void prepare() {
    if (options_.staging_bytes < 4) throw Error(ErrorCode::invalid_argument, "the staging budget is under 4 bytes");
    places_ = calls_.check_destination(wanted_);
    held_places_ = places_of(held_);
    if (!held_.entries().empty() || !held_.values().empty()) {
      publication_ = calls_.publish(held_, {.name = publication_name, .step = step(), .snapshot = Snapshot::none});
    }
  }

  [[nodiscard]] std::int64_t step() const { return static_cast<std::int64_t>(calls_.number); }
  [[nodiscard]] ByteCount message_budget() const { return std::max<ByteCount>(1, options_.staging_bytes / 4); }
  // What every member has for parts: members that planned with different budgets would read and write in different waves.
  [[nodiscard]] ByteCount part_budget() const { return min_staging_bytes_ - min_staging_bytes_ / 4; }

  [[nodiscard]] std::uint32_t slices_of(const TensorKey& key) const {
    const auto found = slices_.find(names_.of(key));
    return found == slices_.end() ? 1 : found->second;
  }

  // Which parts of what is wanted lie on which parts of what is held, here.
  ExchangeNote make_note() {
    ExchangeNote note;
    note.staging_bytes = options_.staging_bytes;
    group_.offer(note, main_device());
    std::vector<Claim> claims;
    std::vector<std::uint32_t> part_of;  // by claim
    std::map<ExchangePart, std::uint32_t> known;
    struct Wanted {
      ByteCount bytes = 0;
      const Catalog::Entry* entry = nullptr;
    };
    std::map<std::uint32_t, Wanted> wanted_parts;
    for (const Catalog* catalog : {&held_, &wanted_}) {
      note.aliases.insert(note.aliases.end(), catalog->aliases().begin(), catalog->aliases().end());
    }
    const auto claim_all = [&](const Catalog& catalog, bool written) {
      for (const Catalog::Entry& entry : catalog.entries()) {
        if (travels_by_value(entry.spec)) continue;  // read by publish(), written at the end
        const PlacedBoxes& boxes = boxes_of(entry, catalog.layout_rank(), boxes_);
        const ByteCount item_bytes = item_size(entry.spec.dtype);
        ExchangePart part{entry.spec.key, 0, slices_of(entry.spec.key)};
        for (; part.index < part.count; ++part.index) {
          const PlacedBoxes inside = part.count == 1 ? boxes : clipped(boxes, slice_of(entry.spec.shape, part));
          if (inside.all().empty()) continue;
          const auto next = static_cast<std::uint32_t>(known.size());
          const auto [found, fresh] = known.emplace(part, next);
          if (fresh) note.parts.push_back(part);
          if (written) wanted_parts[found->second] = {static_cast<ByteCount>(inside.elements()) * item_bytes, &entry};
          claims.push_back({Footprint(entry.view.data, inside, item_bytes), written});
          part_of.push_back(found->second);
        }
      }
    };
    claim_all(wanted_, true);
    claim_all(held_, false);
    std::map<std::uint32_t, std::vector<std::uint32_t>> destroys;  // by wanted part
    find_conflicts(claims, [&](const Conflict& conflict) {
      if (!claims[conflict.other].written) destroys[part_of[conflict.written]].push_back(part_of[conflict.other]);
      return true;
    });
    // A tensor with any part in the way of something is ordered whole; the others are read at once.
    aliased_.clear();
    for (const auto& [part, others] : destroys) aliased_.insert(wanted_parts.at(part).entry);
    for (const auto& [part, what] : wanted_parts) {
      if (aliased_.contains(what.entry)) note.writes.push_back({part, what.bytes, std::move(destroys[part])});
    }
    return compact(std::move(note));
  }

  // Without the parts that nothing here speaks of.
  static ExchangeNote compact(ExchangeNote note) {
    std::vector<std::uint32_t> kept(note.parts.size(), 0);
    for (const auto& write : note.writes) {
      kept[write.part] = 1;
      for (const std::uint32_t part : write.destroys) kept[part] = 1;
    }
    std::vector<ExchangePart> parts;
    for (std::size_t i = 0; i < kept.size(); ++i) {
      if (kept[i] == 0) continue;
      kept[i] = static_cast<std::uint32_t>(parts.size());
      parts.push_back(std::move(note.parts[i]));
    }
    note.parts = std::move(parts);
    for (auto& write : note.writes) {
      write.part = kept[write.part];
      for (std::uint32_t& part : write.destroys) part = kept[part];
    }
    return note;
  }

  // Notes list only what lies on held memory: whether a member wants one tensor twice, it alone can say.
  void agree_on_names() {
    std::vector<TensorKey> keys;
    for (const Catalog::Entry& entry : wanted_.entries()) keys.push_back(entry.spec.key);
    for (const Catalog::ValueEntry& entry : wanted_.values()) keys.push_back(entry.key);
    require_apart(calls_.member, keys, names_);
    agree({});
  }

  ExchangePlan agree_on_plan() {
    std::optional<ExchangePlan::Shortage> whole;  // what to tell when slices do not help either
    while (true) {
      std::vector<ExchangeNote> notes = agree(make_note());
      const auto least = std::ranges::min_element(notes, {}, &ExchangeNote::staging_bytes);
      min_staging_bytes_ = least->staging_bytes;
      choose_way(notes);
      names_ = OneName(notes);
      if (!whole && !names_.empty()) agree_on_names();
      use_one_name(notes, names_);
      entries_.clear();
      for (const Catalog::Entry& entry : wanted_.entries()) entries_.emplace(names_.of(entry.spec.key), &entry);
      ExchangePlan plan = plan_exchange(notes, part_budget(), calls_.member);
      if (!plan.shortage) return plan;
      if (!whole) whole = plan.shortage;
      // Every member finds the same shortage, so all cut the same tensors.
      bool finer = false;
      std::set<TensorKey> keys;
      for (const ExchangePart& part : plan.shortage->waiting) keys.insert(part.key);
      for (const TensorKey& key : keys) {
        std::uint32_t& count = slices_.try_emplace(key, 1).first->second;
        if (count >= max_slices) continue;
        count *= slices_per_round;
        finer = true;
      }
      if (!finer) refuse(*whole, static_cast<int>(least - notes.begin()));
    }
  }

  [[noreturn]] void refuse(const ExchangePlan::Shortage& shortage, int min_member) {
    notified_ = true;  // all members come here
    std::vector<std::string> names;
    for (const ExchangePart& part : shortage.waiting) {
      if (names.size() < 8) names.push_back(to_text(part));
    }
    const std::size_t more = shortage.waiting.size() - names.size();
    throw Error(
        ErrorCode::out_of_resources,
        fmt::format("member {} would have to keep {}{} aside, {} bytes, until their places are read; {} bytes of "
                    "the smallest staging budget, {} on member {}, are for that. Nothing was written: raise "
                    "staging_bytes there, or place these tensors so that they are less in each other's way",
                    shortage.member, fmt::join(names, ", "), more == 0 ? "" : fmt::format(" and {} more", more),
                    shortage.bytes, part_budget(), min_staging_bytes_, min_member),
        std::vector<Rank>{Rank{shortage.member}});
  }

  // --- moving ---

  void move(const ExchangePlan& plan) {
    std::map<std::uint32_t, Staged> staged;  // by part
    ByteCount staged_bytes = 0;
    for (std::size_t wave = 0; wave < std::max<std::size_t>(1, plan.waves.size()); ++wave) {
      // Slices of one tensor go one after the other: a catalog names a tensor once.
      std::vector<Catalog> catalogs;
      std::vector<std::set<TensorKey>> named;
      const auto catalog_for = [&](const TensorKey& key) -> Catalog& {
        std::size_t i = 0;
        while (i < named.size() && named[i].contains(key)) ++i;
        if (i == named.size()) {
          named.emplace_back();
          Catalog& catalog = catalogs.emplace_back(wanted_.layout_rank(), wanted_.ranks());
          for (const Alias& alias : wanted_.aliases()) catalog.alias(alias.alias, alias.fqn);
        }
        named[i].insert(key);
        return catalogs[i];
      };
      if (wave == 0) add_direct(catalog_for);
      const ExchangeWave none;
      const ExchangeWave& now = plan.waves.empty() ? none : plan.waves[wave];
      for (const ExchangeWave::Read& read : now.reads) {
        const ExchangePart& part = plan.parts[read.part];
        const Catalog::Entry& entry = *entries_.at(part.key);
        if (!read.staged) {
          catalog_for(part.key).add(entry.spec, entry.layout, entry.view, entry.absent);
          continue;
        }
        Staged& place = staged[read.part];
        place.entry = &entry;
        const PlacedBoxes& boxes = boxes_of(entry, wanted_.layout_rank(), boxes_);
        place.places = part.count == 1 ? boxes : clipped(boxes, slice_of(entry.spec.shape, part));
        const ByteCount bytes = bytes_of(place);
        place.bytes = std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(bytes));
        staged_bytes += bytes;
        std::vector<Box> plain;
        for (const PlacedBox& box : place.places.all()) plain.push_back(box.box);
        catalog_for(part.key).add(entry.spec, Layout::boxes({{wanted_.layout_rank(), std::move(plain)}}),
                                  View{.data = place.bytes.get()}, entry.absent);
      }
      restore_all(catalogs, staged_bytes);
      agree({});  // nobody reads any more what may be overwritten now
      const auto began = Clock::now();
      for (const std::uint32_t part : now.writes) {
        const auto found = staged.find(part);
        if (!skipped_.contains(found->second.entry->spec.key)) {
          write_out(found->second, device_of_wanted(*found->second.entry), calls_.copy);
        }
        staged_bytes -= bytes_of(found->second);
        staged.erase(found);
      }
      write_seconds_ += seconds_since(began);
    }
  }

  [[nodiscard]] int device_of_wanted(const Catalog::Entry& entry) const {
    return device_of(places_, static_cast<std::size_t>(&entry - wanted_.entries().data()));
  }

  static ByteCount bytes_of(const Staged& staged) {
    return static_cast<ByteCount>(staged.places.elements()) * item_size(staged.entry->spec.dtype);
  }

  // Everything that is in nobody's way on this member, and the values.
  template <typename CatalogFor>
  void add_direct(CatalogFor catalog_for) {
    for (const Catalog::Entry& entry : wanted_.entries()) {
      if (aliased_.contains(&entry)) continue;
      if (travels_by_value(entry.spec)) {
        add_aside(entry, catalog_for);
        continue;
      }
      catalog_for(names_.of(entry.spec.key)).add(entry.spec, entry.layout, entry.view, entry.absent);
    }
    for (const Catalog::ValueEntry& entry : wanted_.values()) {
      catalog_for(entry.key).add_value(entry.key, {}, entry.absent);
    }
  }

  // One-element tensors may belong where something is still being read: they wait in memory of their own.
  template <typename CatalogFor>
  void add_aside(const Catalog::Entry& entry, CatalogFor catalog_for) {
    const TensorSpec& spec = entry.spec;
    const Rank rank = wanted_.layout_rank();
    if (element_of(entry, rank, boxes_) == nullptr) return;
    Bytes& bytes = one_element_.emplace_back(&entry, Bytes(static_cast<std::size_t>(item_size(spec.dtype)))).second;
    catalog_for(names_.of(spec.key))
        .add(spec, Layout::boxes({{rank, {Box::whole(spec.shape)}}}), View{.data = bytes.data()}, entry.absent);
  }

  // Where one member takes the way grouped all do: rounds are of all.
  void choose_way(std::span<const ExchangeNote> notes) {
    notified_ = true;  // all find the same
    group_.choose(notes);
    notified_ = false;
  }

  // Where most of what is held and wanted here lies.
  [[nodiscard]] int main_device() {
    std::map<int, ByteCount> bytes;
    const auto add = [&](const Catalog& catalog, const TensorPlaces& places) {
      for (std::size_t i = 0; i < catalog.entries().size(); ++i) {
        const Catalog::Entry& entry = catalog.entries()[i];
        const int device = device_of(places, i);
        if (device == memory::on_host || travels_by_value(entry.spec)) continue;
        const auto elements = static_cast<ByteCount>(boxes_of(entry, catalog.layout_rank(), boxes_).elements());
        bytes[device] += elements * item_size(entry.spec.dtype);
      }
    };
    add(held_, held_places_);
    add(wanted_, places_);
    const auto most = std::ranges::max_element(bytes, {}, [](const auto& one) { return one.second; });
    return most == bytes.end() ? memory::on_host : most->first;
  }

  void restore_all(const std::vector<Catalog>& catalogs, ByteCount staged_bytes) {
    if (!group_.is_there()) {
      for (const Catalog& catalog : catalogs) restore(catalog, staged_bytes);
      return;
    }
    // Members may need another number of restores for this wave; who has no more takes part for the others.
    ExchangeNote note;
    note.steps = static_cast<std::uint32_t>(catalogs.size());
    const std::vector<ExchangeNote> notes = agree(note);
    const std::uint32_t steps = std::ranges::max_element(notes, {}, &ExchangeNote::steps)->steps;
    for (std::size_t i = 0; i < steps; ++i) take_step(i < catalogs.size() ? &catalogs[i] : nullptr, staged_bytes);
  }

  // One restore of each member, or none, whose remote bytes may come in rounds.
  struct Step {
    const Catalog* catalog = nullptr;           // null: this member only takes part for the others
    std::shared_ptr<GroupedHandover> handover;  // owners: see RestoreRun
    Restore running{};
  };

  void take_step(const Catalog* catalog, ByteCount staged_bytes) {
    Step step{catalog, group_.handover()};
    if (catalog != nullptr) step.running = calls_.restore(*catalog, restore_options(), step.handover);
    if (agree_on_rounds(step)) {
      group_.open([this](const ExchangeNote& note) { return agree(note); });
      staged_bytes += move_in_rounds(step);
    }
    ByteCount& peak = result_.report.staging_peak;
    if (catalog == nullptr) return void(peak = std::max(peak, staged_bytes));
    step.running.wait();
    take_result(step.running, *catalog, staged_bytes);
  }

  // Whether bytes of this step go in rounds. Unless that is known, all members say whether they have direct paths.
  bool agree_on_rounds(Step& step) {
    if (group_.takes_rounds()) return true;
    ExchangeNote note;
    const auto until = began_ + options_.deadline;
    if (step.catalog != nullptr) note.indirect = answer_of(step, step.handover->wait_for_paths(until));
    if (needs_rounds(agree(note))) group_.take_rounds();
    step.handover->decide(group_.takes_rounds());
    calls_.post([handover = step.handover] { handover->run_decided(); });
    return group_.takes_rounds();
  }

  // What a restore has said: else it has failed before, and says why.
  template <typename Answer>
  Answer answer_of(Step& step, std::optional<Answer> answer) {
    if (!answer) step.running.wait();
    if (!answer) throw Error(ErrorCode::internal, "a restore has ended before anything came");
    return std::move(*answer);
  }

  // Returns the staging that it took.
  ByteCount move_in_rounds(Step& step) {
    std::vector<GroupedHandover::Item> items;
    if (step.catalog != nullptr) items = answer_of(step, step.handover->wait(began_ + options_.deadline));
    ExchangeNote note;
    std::vector<move::GroupedPiece> incoming;
    for (GroupedHandover::Item& item : items) {
      note.requests.push_back({static_cast<std::uint32_t>(item.member), item.held_tensor, item.piece.box,
                               static_cast<ByteCount>(item.piece.box.volume()) * item.piece.item_bytes, item.run_bytes,
                               static_cast<std::uint32_t>(item.piece.item_bytes)});
      incoming.push_back(std::move(item.piece));
    }
    const std::vector<ExchangeNote> notes = agree(note);
    if (!group_.is_inside()) {
      agree({});
      return 0;
    }
    move::GroupedJob job = grouped_job(notes, group_.choice(), calls_.member, min_staging_bytes_ / 4, incoming,
                                       [this](const wire::ExchangeRequest& request) { return held_piece(request); });
    job.ingress_bytes_per_second = options_.ingress_bytes_per_second;
    agree({});  // every member holds what it is asked for
    const ExchangeRounds::Totals totals = run_rounds(std::move(job), step.handover, !incoming.empty(), step.running);
    result_.report.rounds += totals.rounds;
    result_.report.rounds_bytes += totals.bytes;
    result_.report.rounds_seconds += totals.seconds;
    if (step.catalog != nullptr) post_closed(step.handover);
    return totals.staging_bytes;
  }

  void post_closed(const std::shared_ptr<GroupedHandover>& handover) {
    calls_.post([handover] { handover->run_closed(); });
  }

  ExchangeRounds::Totals run_rounds(move::GroupedJob job, const std::shared_ptr<GroupedHandover>& handover, bool writes,
                                    Restore& running) {
    if (writes && !handover->begin()) {
      group_.rounds().give_up();  // the others are in them already
      running.wait();             // has failed meanwhile, and says why
    }
    try {
      const ExchangeRounds::Totals totals = group_.rounds().run(
          std::move(job), [&] { return why_stopped(*handover, writes); }, began_ + options_.deadline);
      handover->close(true);
      return totals;
    } catch (...) {
      handover->close(false);
      if (writes && handover->stopped()) {
        post_closed(handover);
        running.wait();
      }
      ask_who_gave_up();
      throw;
    }
  }

  // NCCL tells nobody that a member is gone.
  std::optional<Error> why_stopped(const GroupedHandover& handover, bool writes) {
    if (writes && handover.stopped()) return Error(ErrorCode::cancelled, "the restore of this member has ended");
    const auto now = Clock::now();
    if (now < look_again_) return std::nullopt;
    look_again_ = now + look_interval;
    for (const int member : calls_.departed()) {
      if (group_.choice().rank_of(member) < 0) continue;
      return Error(ErrorCode::peer_lost,
                   fmt::format("member {} is gone in the middle of the rounds of the exchange", member),
                   std::vector<Rank>{Rank{member}});
    }
    return std::nullopt;
  }

  // Called in a handler. A group that has ended by itself has been given up by a member that knows more.
  void ask_who_gave_up() {
    try {
      throw;
    } catch (const GroupFailed&) {
      agree({});
    } catch (const std::exception&) {
    }
  }

  // What this member is asked for.
  move::GroupedPiece held_piece(const wire::ExchangeRequest& request) {
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

  [[nodiscard]] RestoreOptions restore_options() const {
    RestoreOptions options;
    options.from = publication_name;
    options.step = step();
    options.way = group_.is_forced() ? Way::grouped : calls_.way;
    options.deadline = left();
    options.staging_bytes = message_budget();
    options.verify = options_.verify;
    options.ingress_bytes_per_second = options_.ingress_bytes_per_second;
    options.discovery_grace = Duration::zero();  // whoever publishes has done so before the first barrier
    return options;
  }

  void restore(const Catalog& catalog, ByteCount staged_bytes) {
    Restore running = calls_.restore(catalog, restore_options(), nullptr);
    running.wait();
    take_result(running, catalog, staged_bytes);
  }

  void take_result(const Restore& running, const Catalog& catalog, ByteCount staged_bytes) {
    add_report(running.report(), staged_bytes);
    const auto take = [&](const TensorKey& key) {
      if (running.has_value(key)) result_.values[key] = running.value(key);
    };
    for (const Catalog::ValueEntry& entry : catalog.values()) take(entry.key);
    for (const Catalog::Entry& entry : catalog.entries()) {
      if (travels_by_value(entry.spec)) take(entry.spec.key);
    }
  }

  // --- the end ---

  void finish() {
    for (const auto& [entry, bytes] : one_element_) {
      if (skipped_.contains(entry->spec.key)) continue;
      std::byte* const element = element_of(*entry, wanted_.layout_rank(), boxes_);
      if (const int device = device_of_wanted(*entry); device != memory::on_host) {
        calls_.copy({copy_of_bytes(bytes.data(), memory::on_host, element, device, bytes.size())});
      } else {
        std::memcpy(element, bytes.data(), bytes.size());
      }
    }
    result_.report.skipped.assign(skipped_.begin(), skipped_.end());
    result_.report.zeroed.assign(zeroed_.begin(), zeroed_.end());
    if (publication_.valid()) publication_.retire(std::max<Duration>(left(), std::chrono::seconds(1)));
    RestoreReport& report = result_.report;
    report.staging_budget += options_.staging_bytes;
    StageSeconds& seconds = report.seconds;
    seconds.wall = seconds_since(began_) + seconds.join;
    // Barriers and what came before the first restore are planning; writing out of staging is part of the commit.
    seconds.commit += write_seconds_;
    seconds.plan = seconds.wall - seconds.join - seconds.bind - seconds.move - seconds.verify - seconds.commit;
  }

  void add_report(const RestoreReport& one, ByteCount staged_bytes) {
    RestoreReport& sum = result_.report;
    skipped_.insert(one.skipped.begin(), one.skipped.end());
    zeroed_.insert(one.zeroed.begin(), one.zeroed.end());
    const ByteCount peak = std::max(sum.staging_peak, one.staging_peak + staged_bytes);
    sum += one;
    sum.staging_budget -= message_budget();  // the publisher's is left
    sum.staging_peak = peak;
  }

  const Catalog& held_;
  const Catalog& wanted_;
  const ExchangeOptions& options_;
  const ExchangeCalls& calls_;
  const Clock::time_point began_ = Clock::now();
  TensorPlaces places_;       // of wanted_
  TensorPlaces held_places_;  // where it may be asked for in rounds
  OneName names_;
  std::map<TensorKey, const Catalog::Entry*> entries_;  // wanted, by their one name
  BoxCache boxes_;
  Publication publication_;
  int round_ = 0;
  bool notified_ = false;  // the others know, or will find out by themselves, that this member goes no further
  ByteCount min_staging_bytes_ = 0;  // of all members
  std::map<TensorKey, std::uint32_t> slices_;
  std::set<const Catalog::Entry*> aliased_;  // wanted tensors that lie on held ones here
  std::set<TensorKey> skipped_;
  std::set<TensorKey> zeroed_;
  std::vector<std::pair<const Catalog::Entry*, Bytes>> one_element_;  // wanted here, and where they wait
  double write_seconds_ = 0;
  ExchangeGroup group_;
  Clock::time_point look_again_{};  // for members that are gone
  ExchangeResult result_;
};

}  // namespace

ExchangeResult exchange(const Catalog& held, const Catalog& wanted, const ExchangeOptions& options,
                        const ExchangeCalls& calls) {
  return Exchange(held, wanted, options, calls).run();
}

}  // namespace shardwire

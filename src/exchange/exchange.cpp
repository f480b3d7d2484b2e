// SPDX-License-Identifier: Apache-2.0
#include "exchange/exchange.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "exchange/barriers.hpp"
#include "exchange/exchange_plan.hpp"
#include "exchange/memory_note.hpp"
#include "exchange/parts.hpp"
#include "exchange/steps.hpp"
#include "exchange/sums.hpp"
#include "geometry/by_value.hpp"
#include "serve/publication.hpp"

namespace shardwire {

namespace {

using wire::ExchangeNote;
using wire::ExchangePart;

constexpr std::uint32_t slices_per_round = 4;
constexpr std::uint32_t max_slices = 64;

class ExchangeRun {
 public:
  ExchangeRun(const Catalog& held, const Catalog& wanted, const ExchangeOptions& options, const ExchangeSetup& setup,
              const ExchangeContext& context)
      : held_(held),
        wanted_(wanted),
        options_(options),
        setup_(setup),
        context_(context),
        barriers_(context, began_ + options.timeout),
        sums_(std::max<ByteCount>(1, options.staging_bytes / 4)),
        steps_(held, options, setup, context, barriers_, sums_, boxes_) {}

  ExchangeResult run() {
    try {
      barriers_.meet();
      prepare();
      const ExchangePlan plan = agree_on_plan();
      move(plan);
      ExchangeResult result = finish();
      steps_.keep_group();
      return result;
    } catch (...) {
      barriers_.send_failure();
      throw;
    }
  }

 private:
  [[nodiscard]] double seconds_since(Clock::Time then) const { return seconds_of(context_.loop->now() - then); }

  // --- before anything moves ---

  void prepare() {
    if (options_.staging_bytes < 4) throw Error(ErrorCode::invalid_argument, "the staging budget is under 4 bytes");
    if (options_.replicas == Replicas::compare) {
      throw Error(ErrorCode::unsupported,
                  "an exchange does not compare replicas: its members overwrite some while "
                  "others are still read; use restore()");
    }
    places_ = context_.check_destination(wanted_);
    if (!held_.entries().empty() || !held_.values().empty()) {
      publication_ = context_.publish(
          held_, {.name = ExchangeSteps::publication_name, .step = steps_.step(), .snapshot = Snapshot::none});
    }
  }

  // Part budget common to all members: with different budgets members would read and write in different waves.
  [[nodiscard]] ByteCount part_budget() const { return steps_.min_staging_bytes() - steps_.min_staging_bytes() / 4; }

  [[nodiscard]] std::uint32_t slices_of(const TensorKey& key) const {
    const auto found = slices_.find(names_.of(key));
    return found == slices_.end() ? 1 : found->second;
  }

  ExchangeNote make_note() {
    MemoryNote own = note_of_memory(
        held_, wanted_, [this](const TensorKey& key) { return slices_of(key); }, boxes_);
    aliased_ = std::move(own.aliased);
    own.note.staging_bytes = options_.staging_bytes;
    if (publication_.valid()) own.note.held_rank = to_int(held_.layout_rank());
    steps_.offer(own.note, wanted_, places_);
    return std::move(own.note);
  }

  // Notes list only parts that lie on held memory. A member therefore checks by itself whether it wants a tensor twice.
  void agree_on_names() {
    std::vector<TensorKey> keys;
    for (const Catalog::Entry& entry : wanted_.entries()) keys.push_back(entry.spec.key);
    for (const Catalog::ValueEntry& entry : wanted_.values()) keys.push_back(entry.key);
    require_disjoint(setup_.member, keys, names_);
    barriers_.agree({});
  }

  ExchangePlan agree_on_plan() {
    std::optional<ExchangePlan::Shortage> whole;  // reported if slices do not help either
    while (true) {
      std::vector<ExchangeNote> notes = barriers_.agree(make_note());
      steps_.choose_method(notes);
      names_ = OneName(notes);
      if (!whole && !names_.empty()) agree_on_names();
      use_one_name(notes, names_);
      entries_.clear();
      for (const Catalog::Entry& entry : wanted_.entries()) entries_.emplace(names_.of(entry.spec.key), &entry);
      ExchangePlan plan = plan_exchange(notes, part_budget(), setup_.member);
      if (!plan.shortage) return plan;
      if (!whole) whole = plan.shortage;
      // Every member computes the same shortage, so all split the same tensors.
      if (split_finer(*plan.shortage)) continue;
      barriers_.find_alike([&] {
        const auto least = std::ranges::min_element(notes, {}, &ExchangeNote::staging_bytes);
        refuse(*whole, static_cast<int>(least - notes.begin()));
      });
    }
  }

  bool split_finer(const ExchangePlan::Shortage& shortage) {
    bool finer = false;
    std::set<TensorKey> keys;
    for (const ExchangePart& part : shortage.waiting) keys.insert(part.key);
    for (const TensorKey& key : keys) {
      std::uint32_t& count = slices_.try_emplace(key, 1).first->second;
      if (count >= max_slices) continue;
      count *= slices_per_round;
      finer = true;
    }
    return finer;
  }

  [[noreturn]] void refuse(const ExchangePlan::Shortage& shortage, int min_member) const {
    std::vector<std::string> names;
    for (const ExchangePart& part : shortage.waiting) {
      if (names.size() < 8) names.push_back(describe_part(part));
    }
    const std::size_t more = shortage.waiting.size() - names.size();
    throw Error(
        ErrorCode::out_of_resources,
        fmt::format("member {} would have to keep {}{} aside, {} bytes, until their places are read; {} bytes of "
                    "the smallest staging budget, {} on member {}, are for that. Nothing was written: raise "
                    "staging_bytes there, or place these tensors so that they are less in each other's way",
                    shortage.member, fmt::join(names, ", "), more == 0 ? "" : fmt::format(" and {} more", more),
                    shortage.bytes, part_budget(), steps_.min_staging_bytes(), min_member),
        std::vector<Rank>{Rank{shortage.member}});
  }

  // --- moving ---

  /// The tensors of each restore. Slices of one tensor go one after the other, since a catalog names a tensor once.
  class Catalogs {
   public:
    explicit Catalogs(const Catalog& wanted) : wanted_(wanted) {}
    Catalog& for_key(const TensorKey& key) {
      std::size_t i = 0;
      while (i < named_.size() && named_[i].contains(key)) ++i;
      if (i == named_.size()) {
        named_.emplace_back();
        Catalog& catalog = all_.emplace_back(wanted_.layout_rank(), wanted_.ranks());
        for (const Alias& alias : wanted_.aliases()) catalog.alias(alias.alias, alias.fqn);
      }
      named_[i].insert(key);
      return all_[i];
    }
    [[nodiscard]] const std::vector<Catalog>& all() const { return all_; }

   private:
    const Catalog& wanted_;
    std::vector<Catalog> all_;
    std::vector<std::set<TensorKey>> named_;
  };

  void move(const ExchangePlan& plan) {
    std::map<std::uint32_t, StagedPart> staged;  // by part
    ByteCount staged_bytes = 0;
    for (std::size_t wave = 0; wave < std::max<std::size_t>(1, plan.waves.size()); ++wave) {
      Catalogs catalogs(wanted_);
      if (wave == 0) add_direct(catalogs);
      const ExchangeWave none;
      const ExchangeWave& now = plan.waves.empty() ? none : plan.waves[wave];
      for (const ExchangeWave::Read& read : now.reads) {
        const ExchangePart& part = plan.parts[read.part];
        const Catalog::Entry& entry = *entries_.at(part.key);
        Catalog& catalog = catalogs.for_key(part.key);
        if (!read.staged) {
          catalog.add(entry.spec, entry.layout, entry.view, entry.absent);
          continue;
        }
        StagedPart& place = staged[read.part];
        place = {&entry, boxes_in(part, entry.spec.shape, boxes_of(entry, wanted_.layout_rank(), boxes_))};
        place.bytes = std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(place.size_bytes()));
        staged_bytes += place.size_bytes();
        std::vector<Box> plain;
        for (const PlacedBox& box : place.places.all()) plain.push_back(box.box);
        catalog.add(entry.spec, Layout::boxes({{wanted_.layout_rank(), std::move(plain)}}),
                    View{.data = place.bytes.get()}, entry.absent);
      }
      steps_.restore_all(catalogs.all(), staged_bytes);
      steps_.finish_wave();
      const auto began = context_.loop->now();
      for (const std::uint32_t part : now.writes) {
        const auto found = staged.find(part);
        const Catalog::Entry& entry = *found->second.entry;
        if (!sums_.skipped(entry.spec.key)) found->second.write_out(device_of_wanted(entry), context_.copy);
        staged_bytes -= found->second.size_bytes();
        staged.erase(found);
      }
      write_seconds_ += seconds_since(began);
    }
  }

  [[nodiscard]] int device_of_wanted(const Catalog::Entry& entry) const {
    return device_of(places_, static_cast<std::size_t>(&entry - wanted_.entries().data()));
  }

  // Adds the values, and all tensors that block no other on this member.
  void add_direct(Catalogs& catalogs) {
    for (const Catalog::Entry& entry : wanted_.entries()) {
      if (aliased_.contains(&entry)) continue;
      if (travels_by_value(entry.spec)) {
        add_aside(entry, catalogs);
        continue;
      }
      catalogs.for_key(names_.of(entry.spec.key)).add(entry.spec, entry.layout, entry.view, entry.absent);
    }
    for (const Catalog::ValueEntry& entry : wanted_.values()) {
      catalogs.for_key(entry.key).add_value(entry.key, {}, entry.absent, entry.agree);
    }
  }

  // The destination of a one-element tensor may still be read by others, so its value waits in memory of its own.
  void add_aside(const Catalog::Entry& entry, Catalogs& catalogs) {
    const TensorSpec& spec = entry.spec;
    const Rank rank = wanted_.layout_rank();
    if (element_of(entry, rank, boxes_) == nullptr) return;
    Bytes& bytes = one_element_.emplace_back(&entry, Bytes(static_cast<std::size_t>(item_size(spec.dtype)))).second;
    catalogs.for_key(names_.of(spec.key))
        .add(spec, Layout::boxes({{rank, {Box::whole(spec.shape)}}}), View{.data = bytes.data()}, entry.absent);
  }

  // --- the end ---

  ExchangeResult finish() {
    for (const auto& [entry, bytes] : one_element_) {
      if (sums_.skipped(entry->spec.key)) continue;
      std::byte* const element = element_of(*entry, wanted_.layout_rank(), boxes_);
      if (const int device = device_of_wanted(*entry); device != memory::on_host) {
        context_.copy({copy_of_bytes(bytes.data(), memory::on_host, element, device, bytes.size())});
      } else {
        std::memcpy(element, bytes.data(), bytes.size());
      }
    }
    if (publication_.valid()) publication_.retire(std::max<Duration>(barriers_.left(), std::chrono::seconds(1)));
    if (const std::vector<int> lost = barriers_.lost(); !lost.empty()) {
      const std::string text =
          fmt::format("member {} {} lost in the exchange, which is complete here without {}", fmt::join(lost, ", "),
                      lost.size() == 1 ? "was" : "were", lost.size() == 1 ? "it" : "them");
      context_.on_loop([&] { context_.log(LogLevel::warning, text); });
    }
    ExchangeResult result = sums_.take();
    RestoreReport& report = result.report;
    report.staging_budget_bytes += options_.staging_bytes;
    StageSeconds& seconds = report.seconds;
    seconds.wall = seconds_since(began_) + seconds.join;
    // Barriers and the time before the first restore count as planning; copies out of staging count as commit.
    seconds.commit += write_seconds_;
    seconds.plan = seconds.wall - seconds.join - seconds.bind - seconds.move - seconds.verify - seconds.commit;
    return result;
  }

  const Catalog& held_;
  const Catalog& wanted_;
  const ExchangeOptions& options_;
  const ExchangeSetup& setup_;
  const ExchangeContext& context_;
  const Clock::Time began_ = context_.loop->now();
  ExchangeBarriers barriers_;
  ExchangeSums sums_;
  BoxCache boxes_;
  TensorPlaces places_;  // of wanted_
  OneName names_;
  std::map<TensorKey, const Catalog::Entry*> entries_;  // wanted, by canonical name
  Publication publication_;
  ExchangeSteps steps_;
  std::map<TensorKey, std::uint32_t> slices_;
  std::set<const Catalog::Entry*> aliased_;  // wanted tensors that overlap held ones on this member
  std::vector<std::pair<const Catalog::Entry*, Bytes>> one_element_;  // wanted here, with their pending values
  double write_seconds_ = 0;
};

}  // namespace

ExchangeResult exchange(const Catalog& held, const Catalog& wanted, const ExchangeOptions& options,
                        const ExchangeSetup& setup, const ExchangeContext& context) {
  return ExchangeRun(held, wanted, options, setup, context).run();
}

}  // namespace shardwire

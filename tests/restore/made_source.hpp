// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "restore/made_link.hpp"
#include "restore/source.hpp"

// A source without a session. The test decides when and how each of its requests is answered.
namespace shardwire::test {

struct MadeContext : restore::SourceContext {
  static constexpr int own_member = 0;
  static constexpr std::uint64_t own_lease = 9;

  MadeContext()
      : SourceContext{
            .clock = made_clock,
            .first_request = [] { return 1000; },
            .fabrics = table,
            .log = [this](LogLevel level,
                          const auto& text) { (level == LogLevel::debug ? changes : logged).push_back(text); },
            .member = own_member,
            .link = [this](const auto&) { return no_link ? throw Error(*no_link) : made_link; },
            .own_publication = [this](const auto&) { return published; },
            .lease_own = [](auto&) { return own_lease; },
            .release_own =
                [this](std::uint64_t lease) {
                  released_own.push_back(lease);
                  return untouched;
                },
            .trace = no_trace} {}
  MadeContext(const MadeContext&) = delete;
  MadeContext& operator=(const MadeContext&) = delete;

  MadeClock made_clock;
  FabricTable table = made_table();
  std::shared_ptr<MadeLink> made_link = std::make_shared<MadeLink>();  // owners: this and bindings
  std::optional<Error> no_link{};
  std::shared_ptr<detail::PublicationState> published{};  // owners: this and bindings
  bool untouched = true;
  std::vector<std::uint64_t> released_own;
  std::vector<std::string> logged;
  std::vector<std::string> changes;  ///< lines of level debug: one for each change of state
  telemetry::Trace* no_trace = nullptr;
};

/// Records a source's reports, and calls the test's function for each.
class RecordingListener final : public restore::Source::Listener {
 public:
  void on_bound(restore::Source& source) override {
    ++bound;
    if (do_when_bound) do_when_bound(source);
  }
  void on_lost(restore::Source& source, const std::exception_ptr& why) override {
    ++lost;
    try {
      std::rethrow_exception(why);
    } catch (const Error& reason) {
      error = reason;
    }
    if (do_when_lost) do_when_lost(source);
  }
  void on_confirmed(restore::Source& source) override {
    ++confirmed;
    if (do_when_confirmed) do_when_confirmed(source);
  }
  [[nodiscard]] int calls() const { return bound + lost + confirmed; }

  int bound = 0;
  int lost = 0;
  int confirmed = 0;
  std::optional<Error> error{};
  std::function<void(restore::Source&)> do_when_bound{};
  std::function<void(restore::Source&)> do_when_lost{};
  std::function<void(restore::Source&)> do_when_confirmed{};
};

inline Bytes key(std::string_view name) {
  const auto bytes = std::as_bytes(std::span(name));
  return {bytes.begin(), bytes.end()};
}

/// A source and all that it depends on. It publishes tensors 0 and 2, in one region of host memory. shm maps, ucx reads
/// and tcp sends messages, unless the test changes that before start().
struct MadeSource {
  using Source = restore::Source;
  static constexpr std::uint64_t generation = 42;
  static constexpr std::uint64_t lease = 77;
  static constexpr std::int64_t step = 7;
  static constexpr ByteCount word_offset = 8;

  MadeSource() {
    binding.layout_rank = Rank{3};
    binding.record.member = 1;
    binding.record.layout_rank = 3;
    binding.record.step = step;
    binding.record.generation = generation;
    binding.tensors = {0, 2};
    options.from = "model";
    options.fabrics.deadline = clock.now() + std::chrono::hours(1);
    link->hello.rank = 1;
    fabric(shm).path = {.carrier = "memory", .map = true};
    fabric(ucx).path = {.carrier = "nic", .read = true, .why_not = {FallbackReason::by_design, "a NIC maps nothing"}};
    fabric(tcp).path = {
        .carrier = "tcp/eth0", .message = true, .why_not = {FallbackReason::by_design, "streams only carry messages"}};
    const std::vector<std::uint64_t> words{0, generation, 0, 0, 0, 0, 0, 0};
    fabric(shm).regions = {{key("region"), std::make_shared<MadeRegion>(words)},
                           {key("word"), std::make_shared<MadeRegion>(words)}};
    fabric(ucx).regions = {{key("region"), std::make_shared<MadeRegion>()},
                           {key("word"), std::make_shared<MadeRegion>()}};
  }

  MadeLink::MadeFabric& fabric(std::size_t index) { return link->fabrics[index]; }
  MadeRegion& word_over(std::size_t index) { return dynamic_cast<MadeRegion&>(*fabric(index).regions.at(key("word"))); }
  /// Sets the generation word in mapped memory.
  void set_word(std::size_t index, std::uint64_t value) { word_over(index).words[1] = value; }

  void start(Source::Leasing leasing = Source::Leasing::first, std::size_t index = 0) {
    source = std::make_unique<Source>(context, listener, restore::PathInputs{context.table, reach, rounds}, options,
                                      index, std::move(binding));
    source->start(leasing);
  }
  /// Like start(), up to the first request after the lease, which is usually a Bind.
  void start_with_lease() {
    start();
    link->answer(wire::Leased{0, lease, MadeSource::step});
  }
  /// The answer to a Bind over this fabric.
  [[nodiscard]] static wire::Bound reply_over(std::size_t fabric) {
    const auto region = [&](std::string_view name) {
      wire::RegionHandle handle{64, {}};
      if (fabric != tcp) handle.keys.push_back({0, key(name)});
      return handle;
    };
    wire::Bound reply{0, {Bytes(1)}, 1 << 20, {region("region")}, {{0, 0, 0}, {2, 0, 32}}};
    if (fabric != tcp) reply.word = wire::Bound::Word{region("word"), word_offset};
    return reply;
  }
  void bind_over(std::size_t fabric) { link->answer(reply_over(fabric)); }
  /// The fabric in the Bind request at this index.
  [[nodiscard]] std::string asked_over(std::size_t index = 0) const {
    return std::get<wire::Bind>(link->requests.at(index).message).fabrics.at(0).name;
  }

  /// Runs a whole read over this fabric, and caches the binding for the next one. Requires: the generation word is
  /// live.
  void keep(std::size_t over) {
    link->offer({over});
    start_with_lease();
    bind_over(over);
    if (over == ucx) fabric(ucx).endpoint().complete(generation);
    source->begin_moving();
    source->confirm(false);
    if (over == ucx) fabric(ucx).endpoint().complete(generation);
    if (over == tcp) link->answer(wire::Released{0, true});
    binding = source->take_binding();
    source.reset();
    listener = {};
    link->unwatched = 0;
    link->leases_granted = 0;
    link->posted.clear();
    link->asked_to_release.clear();
  }

  [[nodiscard]] std::string_view state() const { return to_string(source->state()); }
  /// Delivers every outstanding answer, read and alarm after the source has ended.
  void happen_late() {
    for (std::size_t one = 0; one < link->fabrics.size(); ++one) link->end_preparing(one);
    while (!link->requests.empty()) link->answer(fitting_answer(link->requests.front().message));
    for (const MadeLink::MadeFabric& one : link->fabrics) {
      while (one.channel && one.endpoint().reading() > 0) one.endpoint().complete(generation);
    }
    context.made_clock.advance(std::chrono::hours(1));
  }
  /// Number of times the lease was returned.
  [[nodiscard]] std::size_t releases() const {
    return link->posted_releases(lease) + static_cast<std::size_t>(std::ranges::count(link->asked_to_release, lease));
  }

  MadeContext context;
  MadeClock& clock = context.made_clock;
  std::shared_ptr<MadeLink>& link = context.made_link;
  RecordingListener listener;
  Catalog wanted{Rank{0}, 1};
  TensorPlaces places;
  restore::DeviceReach reach{wanted, places};
  const RoundsGroup* rounds = nullptr;
  restore::Binding binding;
  Source::Options options;
  std::unique_ptr<Source> source;

 private:
  [[nodiscard]] wire::Message fitting_answer(const wire::Message& request) const {
    if (std::holds_alternative<wire::Lease>(request)) return wire::Leased{0, lease, MadeSource::step};
    if (std::holds_alternative<wire::DigestRequest>(request)) return wire::Digests{};
    if (const auto* bind = std::get_if<wire::Bind>(&request)) {
      const auto row = std::ranges::find(context.table.rows, bind->fabrics.at(0).name, &FabricTable::Row::name);
      return reply_over(row->open.value());
    }
    if (std::holds_alternative<wire::PackRequest>(request)) return wire::Failure{0, ErrorCode::withdrawn, "late"};
    return wire::Released{0, true};
  }
};

}  // namespace shardwire::test

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "peers/source_link.hpp"
#include "restore/binding.hpp"
#include "support/made_clock.hpp"

// A connection to a source and its fabrics, which a test drives step by step. It records each call.
namespace shardwire::test {

/// Memory of the source; mapped unless `words` is empty.
struct MadeRegion final : transport::RemoteRegion {
  explicit MadeRegion(std::vector<std::uint64_t> mapped_words = {}, const transport::MemoryPlace& at = {})
      : words(std::move(mapped_words)), place(at) {}
  [[nodiscard]] transport::ConstMemory mapped() const override {
    if (words.empty()) return {};
    return {reinterpret_cast<const std::byte*>(words.data()), words.size() * sizeof words.front(), place};
  }
  [[nodiscard]] std::string why_not_mapped() const override { return why_not; }

  std::vector<std::uint64_t> words;
  transport::MemoryPlace place;
  std::string why_not{};
};

/// A read ends when the test calls complete() or fail().
class MadeEndpoint final : public transport::Endpoint {
 public:
  MadeEndpoint(transport::Path host, transport::Path device) : host_(std::move(host)), device_(std::move(device)) {}

  void send(transport::ByteView, std::span<const transport::ConstMemory>, transport::Completion) override {
    throw std::logic_error("a made endpoint sends nothing");
  }
  std::unique_ptr<transport::RemoteRegion> import_region(transport::RegionKey, ByteCount) override {
    throw std::logic_error("a made link imports the regions");
  }
  void read(const transport::RemoteRegion&, std::span<const transport::ReadRange> ranges,
            transport::Completion done) override {
    ++reads_begun;
    reads_.push_back({ranges.front(), std::move(done)});
  }
  [[nodiscard]] bool failed() const override { return is_failed; }
  [[nodiscard]] transport::Path path(const transport::MemoryPlace& place) const override {
    return place.kind == MemoryKind::cuda ? device_ : host_;
  }
  void abort() override { is_failed = true; }

  [[nodiscard]] std::size_t reading() const { return reads_.size(); }
  /// Completes the oldest read.
  void complete(std::uint64_t word) {
    const Read read = take();
    std::memcpy(read.range.into.address, &word, sizeof word);
    read.done({});
  }
  void fail(ErrorCode code, const std::string& message) { take().done(transport::Fault{code, message}); }

  bool is_failed = false;
  int reads_begun = 0;

 private:
  struct Read {
    transport::ReadRange range;
    transport::Completion done;
  };
  Read take() {
    Read read = std::move(reads_.at(0));
    reads_.pop_front();
    return read;
  }

  transport::Path host_;
  transport::Path device_;
  std::deque<Read> reads_;
};

/// The fabrics of this session, by index.
inline constexpr std::size_t shm = 0;
inline constexpr std::size_t ucx = 1;
inline constexpr std::size_t tcp = 2;

inline FabricTable made_table() {
  FabricTable table;
  table.open = {{{"shm", "host a"}, Reach::host, {.map = 1, .read = 4}},
                {{"ucx", "one"}, Reach::network, {.read = 2, .message = 6}},
                {{"tcp", "one"}, Reach::network, {.message = 5}}};
  table.rows = {{"shm", Reach::host, table.preference(shm), shm},
                {"ucx", Reach::network, table.preference(ucx), ucx},
                {"libfabric",
                 Reach::network,
                 {.read = 3, .message = 7},
                 {},
                 {FallbackReason::library_missing, "its library was not found"}},
                {"tcp", Reach::network, table.preference(tcp), tcp}};
  return table;
}

/// A connection on which the test answers instead of a source.
class MadeLink final : public SourceLink {
 public:
  struct Request {
    std::uint64_t number = 0;
    wire::Message message;
    OnReply answer;
  };
  struct MadeFabric {
    // Behaviour.
    transport::Path path{};
    transport::Path device_path{};
    bool prepares_later = false;
    std::optional<Error> unprepared{};  ///< prepare() reports this error
    std::uint64_t sockets = 0;          ///< token of the sockets
    int channels_gone = 0;              ///< number of further calls of channel() that return null
    std::optional<Error> no_channel{};  ///< channel() throws this error
    std::optional<Error> no_region{};   ///< region() throws this error
    std::map<Bytes, std::shared_ptr<transport::RemoteRegion>> regions{};  ///< by key
    // Recorded calls.
    int prepared = 0;
    std::vector<Prepared> preparing{};
    std::vector<std::uint64_t> replaced{};   ///< tokens of sockets
    std::vector<std::string> ruled_out{};    ///< reasons
    std::vector<std::size_t> descriptors{};  ///< number received with each region
    std::shared_ptr<FabricChannel> channel{};

    [[nodiscard]] MadeEndpoint& endpoint() const { return dynamic_cast<MadeEndpoint&>(*channel->endpoint); }
  };
  struct BoundCall {
    std::string publication;
    std::uint64_t generation = 0;
    std::set<Bytes> keys;
    bool operator==(const BoundCall&) const = default;
  };

  std::optional<Clock::Time> heard(Duration /*quiet*/) override { return last_heard; }
  std::optional<Clock::Time> last_heard{};

  // --- actions of the test ---

  void offer(std::initializer_list<std::size_t> offered) {
    hello.fabrics.clear();
    for (const std::size_t one : offered) hello.fabrics.push_back(table.open[one].offer);
  }
  /// A new connection to the same source.
  [[nodiscard]] std::shared_ptr<MadeLink> another() const {
    auto link = std::make_shared<MadeLink>();
    link->hello = hello;
    link->fabrics = fabrics;
    return link;
  }
  /// Answers the oldest request, or the one at this index.
  void answer(wire::Message message, std::size_t index = 0) {
    Request request = std::move(requests.at(index));
    if (std::holds_alternative<wire::Leased>(message)) ++leases_granted;
    requests.erase(requests.begin() + static_cast<std::ptrdiff_t>(index));
    std::visit(
        [&](auto& value) {
          if constexpr (requires { value.request; }) value.request = request.number;
        },
        message);
    request.answer(message);
  }
  void refuse(ErrorCode code, const std::string& message = "so it is", std::size_t index = 0) {
    answer(wire::Failure{0, code, message}, index);
  }
  void end_preparing(std::size_t fabric, const Error* why_not = nullptr) {
    for (const Prepared& one : std::exchange(fabrics[fabric].preparing, {})) one(why_not);
  }
  /// Ends the connection; no request is answered any more.
  void end(const Error& reason) {
    is_broken = true;
    requests.clear();
    const auto all = watching;
    for (const auto& [number, watcher] : all) watcher(reason);
  }
  [[nodiscard]] std::size_t posted_releases(std::uint64_t lease) const {
    return static_cast<std::size_t>(std::ranges::count_if(posted, [&](const wire::Message& one) {
      const auto* release = std::get_if<wire::Release>(&one);
      return release != nullptr && release->lease == lease;
    }));
  }

  // --- calls of the source ---

  [[nodiscard]] bool broken() const override { return is_broken; }
  void request(std::uint64_t number, const wire::Message& message, OnReply answer) override {
    ++requests_made;
    if (const auto* release = std::get_if<wire::Release>(&message)) asked_to_release.push_back(release->lease);
    if (!is_broken) requests.push_back({number, message, std::move(answer)});
  }
  void request(const wire::Digest&, const wire::Message&, OnReply) override {
    throw std::logic_error("a source asks for no manifest");
  }
  std::vector<support::Descriptor> take_descriptors(std::uint64_t) override { return std::exchange(descriptors, {}); }
  void forget(std::uint64_t) override { throw std::logic_error("a source forgets nothing"); }
  void post(const wire::Message& message) override { posted.push_back(message); }
  void abort(const Error&) override { throw std::logic_error("a source aborts no connection"); }
  [[nodiscard]] const wire::Hello& peer() const override { return hello; }
  [[nodiscard]] bool is_local() const override { return local; }
  [[nodiscard]] const support::Fallback& why_not_local() const override { return not_local; }
  std::uint64_t watch(Broken watcher) override {
    const std::uint64_t number = ++last_watcher;
    watching.emplace(number, watcher);
    if (ends_when_watched) end(*ends_when_watched);
    return number;
  }
  void unwatch(std::uint64_t watcher) override {
    ++unwatched;
    watching.erase(watcher);
  }
  [[nodiscard]] std::size_t watchers() const override { return watching.size(); }

  void prepare(std::size_t fabric, Prepared prepared) override {
    MadeFabric& made = fabrics[fabric];
    ++made.prepared;
    if (made.prepares_later) {
      made.preparing.push_back(std::move(prepared));
    } else {
      prepared(made.unprepared ? &*made.unprepared : nullptr);
    }
  }
  void prepare_ahead() override { ++prepared_ahead; }
  void replace_sockets(std::size_t fabric, std::uint64_t sockets) override {
    fabrics[fabric].replaced.push_back(sockets);
  }
  void rule_out(std::size_t fabric, FabricChannel& channel, const Error& why) override {
    if (&channel == fabrics[fabric].channel.get()) fabrics[fabric].ruled_out.push_back(why.what());
    channel.abort();
  }
  void abort_channels() override { throw std::logic_error("a source aborts no channel"); }
  [[nodiscard]] wire::FabricHandle handle(std::size_t fabric) const override {
    return {table.name(fabric), table.open[fabric].offer.domain, Bytes(1), fabrics[fabric].sockets};
  }
  std::shared_ptr<FabricChannel> channel(std::size_t fabric, const Bytes&) override {
    MadeFabric& made = fabrics[fabric];
    if (made.no_channel) throw Error(*made.no_channel);
    if (made.channels_gone > 0) return --made.channels_gone, nullptr;
    if (!made.channel || made.channel->endpoint->failed()) {
      made.channel = std::make_shared<FabricChannel>(std::make_unique<MadeEndpoint>(made.path, made.device_path));
    }
    return made.channel;
  }
  std::shared_ptr<transport::RemoteRegion> region(std::size_t fabric, const Bytes& key, ByteCount,
                                                  std::vector<support::Descriptor> of_region) override {
    MadeFabric& made = fabrics[fabric];
    if (made.no_region) throw Error(*made.no_region);
    made.descriptors.push_back(of_region.size());
    return made.regions.at(key);
  }
  void bound(const std::string& publication, std::uint64_t generation, std::set<Bytes> keys) override {
    bound_calls.push_back({publication, generation, std::move(keys)});
  }
  [[nodiscard]] bool is_bound(const std::string&, std::uint64_t) const override {
    throw std::logic_error("a source asks no link what is bound");
  }

  FabricTable table = made_table();
  wire::Hello hello;
  bool local = true;
  support::Fallback not_local{FallbackReason::other_host, "it is on another host"};
  bool is_broken = false;
  std::optional<Error> ends_when_watched{};
  std::array<MadeFabric, 3> fabrics;
  std::vector<support::Descriptor> descriptors;  ///< sent with the next answer

  std::deque<Request> requests;  ///< not answered yet
  std::size_t requests_made = 0;
  int prepared_ahead = 0;
  std::size_t leases_granted = 0;
  std::vector<std::uint64_t> asked_to_release;  ///< numbers of leases
  std::vector<wire::Message> posted;
  std::map<std::uint64_t, Broken> watching;
  std::uint64_t last_watcher = 0;
  int unwatched = 0;
  std::vector<BoundCall> bound_calls;
};

}  // namespace shardwire::test

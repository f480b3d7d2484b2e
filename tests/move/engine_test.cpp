// SPDX-License-Identifier: Apache-2.0
// Repeated deliveries, and peers that are dropped. Peers are simulated: they deliver when a test tells them to.
#include "move/engine.hpp"

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <cstring>
#include <deque>
#include <semaphore>
#include <set>
#include <thread>

#include "support/partial_devices.hpp"

BOOST_AUTO_TEST_SUITE(engine)

using namespace shardwire;
using namespace shardwire::move;
using namespace std::chrono_literals;

namespace {

constexpr Extent row_bytes = 1024;
constexpr Extent rows_of_piece = 32;
constexpr std::uint32_t peer_count = 3;

using Pending = std::deque<std::function<void(const transport::Outcome&)>>;

struct Region final : transport::RemoteRegion {
  [[nodiscard]] transport::ConstMemory mapped() const override { return {}; }
};

/// A fabric's incoming payload; calling the function that receive() stores in `pending` completes it.
class Payload final : public transport::Incoming {
 public:
  Payload(Bytes bytes, const wire::PayloadHeader& header, bool is_copied, Pending& pending)
      : bytes_(std::move(bytes)), header_(header), is_copied_(is_copied), pending_(pending) {}

  [[nodiscard]] transport::ByteView header() const override { return header_.bytes(); }
  [[nodiscard]] ByteCount payload_bytes() const override { return bytes_.size(); }
  using Incoming::receive;
  void receive(std::span<const transport::Memory> into, transport::Completion done) override {
    std::vector<transport::Memory> places(into.begin(), into.end());
    BOOST_REQUIRE(transport::total_bytes(into) == bytes_.size());
    pending_.push_back([bytes = bytes_, places = std::move(places), done = std::move(done)](const auto& outcome) {
      const std::byte* from = bytes.data();
      for (const transport::Memory& place : places) {
        if (!outcome) std::memcpy(place.address, from, place.bytes);
        from += place.bytes;
      }
      done(outcome);
    });
  }
  void discard() override { discarded = true; }
  [[nodiscard]] bool is_copied() const override { return is_copied_; }

  bool discarded = false;

 private:
  Bytes bytes_;
  wire::EncodedHeader header_;
  bool is_copied_;
  Pending& pending_;
};

/// Of several engines, as a session has them.
struct Payloads {
  PayloadTable table;
  std::uint64_t next_range = 1000;
};

/// Peers that all hold the same rows, and a restore that wants them, each at its own position.
class Bench final : public Requests, public Events, transport::Endpoint {
 public:
  explicit Bench(std::uint32_t pieces, std::shared_ptr<Payloads> payloads = std::make_shared<Payloads>())
      : payloads_(std::move(payloads)),
        rows_(static_cast<Extent>(pieces) * rows_of_piece),
        source_(static_cast<std::size_t>(rows_ * row_bytes)),
        target_(static_cast<std::size_t>(2 * rows_ * row_bytes)) {
    for (std::size_t i = 0; i < source_.size(); ++i) source_[i] = static_cast<std::byte>((i * 7 + i / 251) % 253 + 1);
    limit(1);
  }
  /// Requires: nothing was added yet.
  void limit(std::size_t max_message_ranges) {
    for (std::uint32_t peer = 0; peer < peer_count; ++peer) {
      engine.limit(peer, {.max_pack_bytes = 4 * row_bytes,
                          .first_request = payloads_->next_range += 1000,
                          .max_ranges = 4,
                          .max_read_bytes = 1u << 20,
                          .max_reads = 2,
                          .max_message_ranges = max_message_ranges});
    }
  }

  void add(const std::vector<Transfer>& transfers) {
    engine.add(std::make_shared<const std::vector<Transfer>>(transfers));
  }
  void add(std::uint32_t peer, const std::string& method, std::uint32_t piece, int target_device = memory::on_host) {
    const bool gathered = method == "gathered";  // zcopy, if messages accept lists
    if (gathered && !std::exchange(added_, true)) limit(16);
    const PlacedBox held{Box::whole({rows_, row_bytes}), 0, {row_bytes, 1}};
    PlacedBox wanted = held;
    wanted.local_strides[0] = 2 * row_bytes;
    Transfer transfer;
    transfer.piece = piece;
    transfer.peer = peer;
    transfer.method = *method_from(gathered ? "zcopy" : method);
    transfer.box = Box{{static_cast<Extent>(piece) * rows_of_piece, 0}, {rows_of_piece, row_bytes}};
    transfer.held = held;
    transfer.wanted = wanted;
    transfer.item_bytes = 1;
    transfer.source = source_.data();
    transfer.target = target_.data();
    transfer.target_device = target_device;
    transfer.region = &region_;
    add({transfer});
  }
  /// Moves one peer's remaining parts to another peer.
  void hand_over(const std::vector<TransferPart>& parts, std::uint32_t peer) {
    std::vector<Transfer> transfers;
    for (const TransferPart& part : parts) {
      Transfer& next = transfers.emplace_back(*part.transfer);
      next.peer = peer;
      next.box = part.box;
    }
    add(transfers);
  }

  struct Asked {
    std::uint32_t peer = 0;
    std::uint64_t number = 0;
    std::vector<PackPart> parts;
    bool each = false;
  };
  /// Starts one payload of a request; false if it is not expected.
  bool deliver(const Asked& request, std::size_t first, std::size_t end) {
    Bytes bytes;
    for (std::size_t i = first; i < end; ++i) {
      const Box& box = request.parts[i].box;
      for (Extent row = 0; row < box.size[0]; ++row) {
        const auto from = source_.begin() + (box.offset[0] + row) * row_bytes + box.offset[1];
        bytes.insert(bytes.end(), from, from + box.size[1]);
      }
    }
    Payload payload(std::move(bytes), {.request = request.number, .part = static_cast<std::uint32_t>(first)}, copied,
                    arriving);
    payloads_->table.arrived(payload);
    return !payload.discarded;
  }
  /// Starts all payloads of a request.
  bool deliver(const Asked& request) {
    if (!request.each) return deliver(request, 0, request.parts.size());
    bool waited = true;
    for (std::size_t i = 0; i < request.parts.size(); ++i) waited = deliver(request, i, i + 1) && waited;
    return waited;
  }
  /// Completes the incoming payload, or fails it.
  void finish(const transport::Outcome& outcome = std::nullopt) {
    for (const auto& done : std::exchange(arriving, {})) done(outcome);
  }
  void copy() {
    const auto deadline = std::chrono::steady_clock::now() + 20s;
    while (copier_.pending() > 0) {
      BOOST_REQUIRE(woken_.try_acquire_until(deadline));
      copier_.poll();
    }
  }
  /// Peers deliver all requested bytes until no request is left.
  void run() {
    do {
      changed_ = false;
      engine.pump(RateLimiter::WallClock::now());
      for (; !asked.empty(); asked.pop_front()) BOOST_TEST(deliver(asked.front()));
      finish();
      copy();
    } while (changed_);
  }
  /// Rows that are complete; checks that each is right and arrived once, and that the others are unchanged.
  [[nodiscard]] std::set<Extent> rows() const {
    std::set<Extent> rows;
    for (Extent row = 0; row < rows_; ++row) {
      const auto at = target_.begin() + 2 * row * row_bytes;
      if (std::equal(at, at + row_bytes, source_.begin() + row * row_bytes)) rows.insert(row);
      BOOST_TEST(std::all_of(at + row_bytes, at + 2 * row_bytes, [](std::byte byte) { return byte == std::byte{0}; }));
    }
    return rows;
  }
  [[nodiscard]] bool all_in_place() const { return rows().size() == static_cast<std::size_t>(rows_); }

  transport::Endpoint& endpoint(std::uint32_t) override { return *this; }
  void ask(std::uint32_t peer, std::uint64_t request, std::vector<PackPart> parts, MessageForm form) override {
    asked.push_back({peer, request, std::move(parts), form == MessageForm::each});
    awaited.insert(request);
  }
  void forget(std::uint32_t, std::uint64_t request) override { BOOST_TEST(awaited.erase(request) == 1U); }
  void changed() override { changed_ = true; }
  void failed(const std::exception_ptr&) override { ++failures; }
  void peer_failed(std::uint32_t, const transport::Fault&) override { ++failures; }
  void digested(const TransferPart&, const Digest128&) override {}
  void differs(const TransferPart&) override { ++failures; }

  std::deque<Asked> asked;
  std::set<std::uint64_t> awaited;  // requests whose refusal would be reported
  Pending arriving;
  int failures = 0;
  bool copied = false;  // messages from now on
  std::vector<transport::MemoryPlace> read_into{};

 private:
  using Endpoint::send;
  void send(transport::ByteView, std::span<const transport::ConstMemory>, transport::Completion) override {}
  std::unique_ptr<transport::RemoteRegion> import_region(transport::RegionKey, ByteCount) override { return {}; }
  void read(const transport::RemoteRegion&, std::span<const transport::ReadRange> ranges,
            transport::Completion done) override {
    std::vector<transport::ReadRange> list(ranges.begin(), ranges.end());
    for (const transport::ReadRange& range : ranges) read_into.push_back(range.into.place);
    arriving.push_back([this, list = std::move(list), done = std::move(done)](const transport::Outcome& outcome) {
      for (const transport::ReadRange& range : list) {
        if (!outcome) std::memcpy(range.into.address, source_.data() + range.offset_bytes, range.into.bytes);
      }
      done(outcome);
    });
  }
  [[nodiscard]] bool failed() const override { return false; }
  [[nodiscard]] transport::Path path(const transport::MemoryPlace&) const override { return {}; }
  void abort() override {}

  std::shared_ptr<Payloads> payloads_;
  Extent rows_;
  Bytes source_;
  Bytes target_;
  Region region_;
  CostModel costs_;
  bool changed_ = false;
  bool added_ = false;
  std::counting_semaphore<> woken_{0};
  memory::Copier copier_{1, [this] { woken_.release(); }};
  memory::HostCopies copies_{copier_};

 public:
  Engine engine{copies_,
                std::make_shared<StagingPool>(32 * row_bytes, 4 * row_bytes),
                {.ingress_bytes_per_second = 0, .digests = false, .costs = costs_, .payloads = payloads_->table},
                static_cast<Requests&>(*this),
                static_cast<Events&>(*this)};
};

/// Devices that only record flushes.
class FlushedDevices final : public test::PartialDevices {
 public:
  [[nodiscard]] int device_count() const override { return 2; }
  void flush_remote_writes(int device) override { flushed.push_back(device); }

  std::vector<int> flushed;
};

ByteCount bytes_of_parts(const std::vector<TransferPart>& parts) {
  ByteCount bytes = 0;
  for (const TransferPart& part : parts) bytes += part.bytes();
  return bytes;
}

constexpr ByteCount piece_bytes = rows_of_piece * row_bytes;
const transport::Outcome lost = transport::Fault{ErrorCode::peer_lost, "the peer is gone"};
const std::vector<std::string> remote_methods{"mapped", "read", "sieved_read", "zcopy", "gathered", "packed"};
const std::vector<std::string> fabric_methods{"read", "sieved_read", "zcopy", "gathered", "packed"};
const std::vector<std::string> message_methods{"zcopy", "gathered", "packed"};

}  // namespace

BOOST_DATA_TEST_CASE(work_may_come_again_while_some_is_under_way_and_after_all_is_done, remote_methods, method) {
  Bench bench(3);
  bench.add(0, method, 0);
  bench.engine.pump(RateLimiter::WallClock::now());
  bench.add(1, method, 1);
  bench.run();
  BOOST_TEST(bench.engine.complete());
  BOOST_TEST(bench.rows().size() == std::size_t{2 * rows_of_piece});
  bench.add(0, method, 2);
  BOOST_TEST(!bench.engine.complete());
  bench.run();
  BOOST_TEST(bench.engine.complete());
  BOOST_TEST(bench.all_in_place());
  BOOST_TEST(bench.awaited.empty());
  BOOST_TEST(bench.failures == 0);
}

BOOST_AUTO_TEST_CASE(the_seconds_of_a_peer_last_from_its_first_request_to_its_last_bytes) {
  Tally::WallClock::time_point now{};
  Tally tally([&now] { return now; });
  const auto at = [&now](int second) { now = Tally::WallClock::time_point(std::chrono::seconds(second)); };
  const auto transfer_of = [](std::uint32_t peer, Method method) {
    Transfer transfer;
    transfer.piece = peer;
    transfer.peer = peer;
    transfer.method = method;
    transfer.box = Box::whole({8});
    transfer.item_bytes = 1;
    return transfer;
  };
  const Transfer slow = transfer_of(0, Method::packed);
  const Transfer quick = transfer_of(1, Method::packed);
  const Transfer other = transfer_of(2, Method::zcopy);
  for (const Transfer* one : {&slow, &quick, &other}) tally.expect(*one);
  at(10);
  tally.began(Method::packed, 0);
  at(11);
  tally.began(Method::packed, 1);
  at(14);
  tally.ended(Method::packed, 0);
  tally.arrived(slow, 4);
  BOOST_TEST(tally.peer_seconds(0, Method::packed) == 4);
  at(16);
  tally.ended(Method::packed, 1);
  tally.arrived(quick, 8);
  at(18);
  tally.began(Method::packed, 0);
  at(20);
  tally.ended(Method::packed, 0);
  tally.arrived(slow, 4);
  at(21);
  tally.began(Method::packed, 1);  // brings nothing
  at(30);
  tally.ended(Method::packed, 1);
  BOOST_TEST(tally.peer_seconds(0, Method::packed) == 10);
  BOOST_TEST(tally.peer_seconds(1, Method::packed) == 5);
  BOOST_TEST(tally.peer_seconds(0, Method::zcopy) == 0);
  BOOST_TEST(tally.peer_seconds(2, Method::zcopy) == 0);
  BOOST_TEST(tally.peer_seconds(3, Method::packed) == 0);
  BOOST_TEST(tally.method_seconds(Method::packed) == 6 + 2 + 9);
}

BOOST_DATA_TEST_CASE(each_peer_has_seconds_of_its_own, remote_methods, method) {
  Bench bench(2);
  const Tally& tally = bench.engine.tally();
  const Method by = *method_from(method == "gathered" ? "zcopy" : method);
  bench.add(0, method, 0);
  bench.run();
  const double first = tally.peer_seconds(0, by);
  BOOST_TEST(first > 0);
  BOOST_TEST(tally.peer_seconds(1, by) == 0);
  bench.add(1, method, 1);
  bench.run();
  BOOST_TEST(bench.all_in_place());
  BOOST_TEST(tally.peer_seconds(1, by) > 0);
  BOOST_TEST(tally.peer_seconds(0, by) == first);
}

BOOST_DATA_TEST_CASE(what_waits_for_a_dropped_peer_is_given_back_and_another_one_brings_it, remote_methods, method) {
  Bench bench(2);
  bench.add(0, method, 0);
  bench.add(1, method, 1);
  const auto left = bench.engine.drop(0);
  BOOST_TEST(bytes_of_parts(left) == piece_bytes);
  BOOST_TEST(bench.engine.tally().owed_bytes(0) == 0U);
  bench.run();
  BOOST_TEST(!bench.engine.complete());
  BOOST_TEST(!bench.engine.tally().complete(0));
  BOOST_TEST(bench.engine.tally().complete(1));
  bench.hand_over(left, 2);
  bench.run();
  BOOST_TEST(bench.engine.complete());
  BOOST_TEST(bench.engine.tally().expected_bytes() == 2 * piece_bytes);
  BOOST_TEST(bench.all_in_place());
}

BOOST_DATA_TEST_CASE(what_is_in_flight_from_a_dropped_peer_is_given_back_when_it_has_ended, fabric_methods, method) {
  for (const transport::Outcome& outcome : {lost, transport::Outcome()}) {
    Bench bench(3);
    for (std::uint32_t piece = 0; piece < 3; ++piece) bench.add(0, method, piece);
    bench.engine.pump(RateLimiter::WallClock::now());
    const auto asked = bench.asked;
    if (!asked.empty()) {
      BOOST_TEST(bench.deliver(asked[0], 0, asked[0].each ? 1 : asked[0].parts.size()));
      bench.asked.clear();
    }
    BOOST_REQUIRE(!bench.arriving.empty());
    auto left = bench.engine.drop(0);
    const ByteCount in_flight = bench.engine.tally().owed_bytes(0);
    BOOST_TEST(in_flight > 0U);
    BOOST_TEST(bytes_of_parts(left) + in_flight == 3 * piece_bytes);
    BOOST_TEST(bench.awaited.empty());
    for (const auto& request : asked) BOOST_TEST(!bench.deliver(request));  // too late

    bench.finish(outcome);
    bench.copy();
    const auto rest = bench.engine.drop(0);
    BOOST_TEST(bytes_of_parts(rest) == in_flight);
    BOOST_TEST(bench.engine.tally().owed_bytes(0) == 0U);
    BOOST_TEST(bench.engine.drop(0).empty());
    BOOST_TEST(bench.engine.idle());
    BOOST_TEST(!bench.engine.writes_from(0));
    BOOST_TEST(bench.failures == 0);

    left.insert(left.end(), rest.begin(), rest.end());
    bench.hand_over(left, 1);
    bench.run();
    BOOST_TEST(bench.engine.complete());
    BOOST_TEST(bench.all_in_place());
    BOOST_TEST(bench.failures == 0);
  }
}

BOOST_DATA_TEST_CASE(what_waits_for_a_slow_peer_is_taken_and_the_rest_still_arrives, fabric_methods, method) {
  constexpr std::uint32_t pieces = 256;  // more than are asked for at once
  Bench bench(pieces);
  for (std::uint32_t piece = 0; piece < pieces; ++piece) bench.add(0, method, piece);
  bench.engine.pump(RateLimiter::WallClock::now());
  const auto waiting = bench.engine.take_waiting(0);
  BOOST_TEST(!waiting.empty());
  const ByteCount under_way = bench.engine.tally().owed_bytes(0);
  BOOST_TEST(under_way > 0U);
  BOOST_TEST(bytes_of_parts(waiting) + under_way == pieces * piece_bytes);
  BOOST_TEST(!bench.engine.settled());
  bench.run();
  BOOST_TEST(bench.engine.settled());
  BOOST_TEST(bench.engine.tally().peer_bytes(0) >= under_way);
  BOOST_TEST(bench.engine.take_waiting(0).empty());
  bench.hand_over(waiting, 1);
  bench.run();
  BOOST_TEST(bench.engine.complete());
  BOOST_TEST(bench.all_in_place());
  BOOST_TEST(bench.failures == 0);
}

BOOST_AUTO_TEST_CASE(fabrics_are_told_where_bytes_that_they_read_are_wanted) {
  for (const int device : {memory::on_host, 3}) {
    Bench bench(1);
    bench.add(0, "read", 0, device);
    bench.run();
    BOOST_TEST(bench.all_in_place());
    BOOST_TEST(!bench.read_into.empty());
    const transport::MemoryPlace wanted{device < 0 ? MemoryKind::host : MemoryKind::cuda, device};
    BOOST_TEST(std::ranges::all_of(bench.read_into, [&](const auto& place) { return place == wanted; }));
  }
}

// When a read ends, a NIC's writes may still be in transit to the device.
BOOST_AUTO_TEST_CASE(what_nics_have_written_is_flushed_once_the_last_of_it_is_there) {
  const auto devices = std::make_shared<FlushedDevices>();
  memory::use_device_runtime(devices);
  Bench bench(4);
  bench.add(0, "read", 0, 1);
  bench.add(1, "read", 1, 1);
  bench.add(1, "read", 2);
  bench.engine.pump(RateLimiter::WallClock::now());
  BOOST_REQUIRE(bench.arriving.size() > 1U);
  while (bench.arriving.size() > 1) {
    const auto one = std::move(bench.arriving.front());
    bench.arriving.pop_front();
    one(std::nullopt);
    BOOST_TEST(devices->flushed.empty());
  }
  bench.run();
  BOOST_TEST(bench.engine.complete());
  BOOST_TEST(!devices->flushed.empty());
  BOOST_TEST(std::ranges::all_of(devices->flushed, [](int device) { return device == 1; }));
  const std::size_t before = devices->flushed.size();
  bench.add(0, "read", 3);  // into host memory
  bench.run();
  BOOST_TEST(devices->flushed.size() == before);
  BOOST_TEST(bench.all_in_place());
  BOOST_TEST(bench.failures == 0);
  memory::use_device_runtime(nullptr);
}

BOOST_AUTO_TEST_CASE(what_nics_have_written_is_flushed_although_the_last_read_fails) {
  const auto devices = std::make_shared<FlushedDevices>();
  memory::use_device_runtime(devices);
  Bench bench(2);
  bench.add(0, "read", 0, 1);
  bench.add(1, "read", 1, 1);
  bench.engine.pump(RateLimiter::WallClock::now());
  BOOST_REQUIRE(bench.arriving.size() > 1U);
  auto reads = std::exchange(bench.arriving, {});
  for (std::size_t i = 0; i + 1 < reads.size(); ++i) reads[i](std::nullopt);
  BOOST_TEST(devices->flushed.empty());
  reads.back()(lost);
  BOOST_TEST(devices->flushed == std::vector<int>{1}, boost::test_tools::per_element());
  memory::use_device_runtime(nullptr);
}

BOOST_AUTO_TEST_CASE(copies_from_the_memory_of_a_dropped_peer_are_made_again) {
  constexpr std::uint32_t pieces = 64;  // more than are copied at once
  Bench bench(pieces);
  for (std::uint32_t piece = 0; piece < pieces; ++piece) bench.add(0, "mapped", piece);
  bench.engine.pump(RateLimiter::WallClock::now());
  auto left = bench.engine.drop(0);
  BOOST_TEST(bench.engine.tally().owed_bytes(0) > 0U);
  bench.copy();
  const auto rest = bench.engine.drop(0);
  left.insert(left.end(), rest.begin(), rest.end());
  BOOST_TEST(bytes_of_parts(left) == pieces * piece_bytes);
  bench.hand_over(left, 1);
  bench.run();
  BOOST_TEST(bench.engine.complete());
  BOOST_TEST(bench.all_in_place());
}

BOOST_AUTO_TEST_CASE(mapped_memory_of_a_dropped_peer_may_be_read_on) {
  constexpr std::uint32_t pieces = 64;  // more than are copied at once
  Bench bench(pieces + 1);
  for (std::uint32_t piece = 0; piece < pieces; ++piece) bench.add(0, "mapped", piece);
  bench.add(0, "packed", pieces);
  bench.engine.pump(RateLimiter::WallClock::now());
  auto left = bench.engine.drop(0, Engine::Mapped::kept);
  BOOST_TEST(bytes_of_parts(left) == piece_bytes);
  bench.asked.clear();
  bench.run();
  BOOST_TEST(bench.engine.drop(0, Engine::Mapped::kept).empty());
  BOOST_TEST(bench.engine.settled());
  BOOST_TEST(!bench.engine.complete());
  BOOST_TEST(bench.engine.tally().dropped_bytes() == piece_bytes);
  bench.hand_over(left, 1);
  BOOST_TEST(bench.engine.tally().dropped_bytes() == 0U);
  bench.run();
  BOOST_TEST(bench.engine.complete());
  BOOST_TEST(bench.all_in_place());
}

BOOST_DATA_TEST_CASE(what_a_failed_operation_leaves_is_given_back, fabric_methods, method) {
  Bench bench(2);
  bench.add(0, method, 0);
  bench.add(0, method, 1);
  bench.engine.pump(RateLimiter::WallClock::now());
  for (const auto& request : std::exchange(bench.asked, {})) BOOST_TEST(bench.deliver(request));
  bench.finish(lost);
  BOOST_TEST(bench.failures > 0);
  ByteCount left = bytes_of_parts(bench.engine.drop(0));
  bench.finish(lost);
  left += bytes_of_parts(bench.engine.drop(0));
  BOOST_TEST(left == 2 * piece_bytes);
  BOOST_TEST(bench.engine.settled());
  BOOST_TEST(bench.engine.tally().dropped_bytes() == left);
  BOOST_TEST(bench.engine.idle());
}

BOOST_DATA_TEST_CASE(what_a_dropped_peer_has_brought_stays, fabric_methods, method) {
  Bench bench(2);
  bench.add(0, method, 0);
  bench.run();
  bench.add(0, method, 1);
  const auto left = bench.engine.drop(0);
  BOOST_TEST(bytes_of_parts(left) == piece_bytes);
  BOOST_TEST(bench.engine.tally().complete(0));
  BOOST_TEST(bench.engine.tally().done_bytes() == piece_bytes);
}

BOOST_DATA_TEST_CASE(a_fault_of_a_peer_that_is_not_dropped_fails_the_restore, fabric_methods, method) {
  Bench bench(1);
  bench.add(0, method, 0);
  bench.engine.pump(RateLimiter::WallClock::now());
  for (const auto& request : bench.asked) BOOST_TEST(bench.deliver(request));
  bench.finish(lost);
  BOOST_TEST(bench.failures > 0);
  BOOST_TEST(!bench.engine.complete());
}

BOOST_DATA_TEST_CASE(a_refusal_is_heard_until_all_of_a_request_is_in_place, message_methods, method) {
  Bench bench(1);
  bench.add(0, method, 0);
  bench.engine.pump(RateLimiter::WallClock::now());
  const auto requests = bench.asked;
  for (const auto& request : requests) BOOST_TEST(bench.deliver(request));
  BOOST_TEST(bench.awaited.size() == requests.size());
  for (const auto& request : requests) BOOST_TEST(!bench.deliver(request));  // a second time
  bench.finish();
  BOOST_TEST(bench.awaited.empty());
}

BOOST_DATA_TEST_CASE(a_payload_reaches_the_engine_that_has_asked_for_it, message_methods, method) {
  const auto payloads = std::make_shared<Payloads>();
  Bench first(1, payloads);
  Bench second(1, payloads);
  for (Bench* one : {&first, &second}) {
    one->add(1, method, 0);
    one->engine.pump(RateLimiter::WallClock::now());
  }
  first.copied = true;
  first.run();
  BOOST_TEST(first.engine.complete());
  BOOST_TEST(first.all_in_place());
  BOOST_TEST(second.engine.tally().done_bytes() == 0U);
  second.run();
  BOOST_TEST(second.engine.complete());
  BOOST_TEST(second.all_in_place());
  BOOST_TEST(first.engine.messages_are_copied());
  BOOST_TEST(!second.engine.messages_are_copied());
}

BOOST_DATA_TEST_CASE(a_payload_that_nobody_has_asked_for_is_discarded, message_methods, method) {
  const auto payloads = std::make_shared<Payloads>();
  Bench bench(1, payloads);
  Bench::Asked request;
  {
    Bench ended(1, payloads);
    ended.add(0, method, 0);
    ended.engine.pump(RateLimiter::WallClock::now());
    BOOST_REQUIRE(!ended.asked.empty());
    request = ended.asked.front();
    ended.engine.stop();
  }
  BOOST_TEST(!bench.deliver(request));
  request.number = 0;  // before all ranges: a header of another form
  BOOST_TEST(!bench.deliver(request));
  BOOST_TEST(bench.arriving.empty());
  bench.add(0, method, 0);  // its numbers are still its own
  bench.run();
  BOOST_TEST(bench.all_in_place());
  BOOST_TEST(bench.failures == 0);
}

BOOST_DATA_TEST_CASE(nothing_is_awaited_or_taken_after_stop, message_methods, method) {
  Bench bench(2);
  bench.add(0, method, 0);
  bench.add(1, method, 1);
  bench.engine.pump(RateLimiter::WallClock::now());
  BOOST_REQUIRE(bench.asked.size() >= 2U);
  BOOST_TEST(bench.deliver(bench.asked[0]));
  bench.engine.stop();
  BOOST_TEST(bench.awaited.empty());
  BOOST_TEST(!bench.deliver(bench.asked[1]));
  bench.finish(lost);
  BOOST_TEST(bench.engine.idle());
  BOOST_TEST(bench.failures == 0);
}

BOOST_AUTO_TEST_SUITE_END()

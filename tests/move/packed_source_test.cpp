// SPDX-License-Identifier: Apache-2.0
// The order in which a source packs requests, with copies and an endpoint that act only on command.
#include "move/packed_source.hpp"

#include <boost/test/unit_test.hpp>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "memory/strided_copy.hpp"
#include "support/fake_device.hpp"

BOOST_AUTO_TEST_SUITE(packed_source)

using namespace shardwire;
using namespace shardwire::move;

namespace {

constexpr ByteCount slot_bytes = 64u << 10;

/// Copies nothing; reports completion on command.
class Copies final : public memory::CopyQueue {
 public:
  void submit(memory::CopyBatch batch, Done done) override {
    submitted.emplace_back(std::move(batch), std::move(done));
  }
  void make_pinned(ByteCount bytes, memory::MadePinned done) override { wanted.emplace_back(bytes, std::move(done)); }
  unsigned poll() override {
    const auto batches = std::exchange(submitted, {});
    for (const auto& [batch, done] : batches) {
      memory::CopyResult result;
      done(result);
    }
    return static_cast<unsigned>(batches.size());
  }
  void make_one() {
    const auto [bytes, done] = std::move(wanted.front());
    wanted.pop_front();
    std::unique_ptr<memory::DeviceMemory> made;
    std::exception_ptr error;
    try {
      made = memory::device_runtime().runtime->allocate_host(bytes);
    } catch (const Error&) {
      error = std::current_exception();
    }
    done(std::move(made), error);
  }

  std::vector<std::pair<memory::CopyBatch, Done>> submitted;
  std::deque<std::pair<ByteCount, memory::MadePinned>> wanted;
};

class Wire final : public transport::Endpoint {
 public:
  using Endpoint::send;
  void send(transport::ByteView, std::span<const transport::ConstMemory>, transport::Completion done) override {
    sent.push_back(std::move(done));
  }
  std::unique_ptr<transport::RemoteRegion> import_region(transport::RegionKey, ByteCount) override { return {}; }
  void read(const transport::RemoteRegion&, std::span<const transport::ReadRange>, transport::Completion) override {}
  [[nodiscard]] bool failed() const override { return false; }
  [[nodiscard]] transport::Path path(const transport::MemoryPlace&) const override { return {}; }
  void abort() override {}

  std::deque<transport::Completion> sent;
};

struct Bench {
  struct Request final : ServedRequest {
    Request(Bench& its_bench, std::uint64_t its_number) : bench(its_bench), own_number(its_number) {}
    [[nodiscard]] std::uint64_t reader() const override { return 1; }
    [[nodiscard]] std::uint64_t number() const override { return own_number; }
    [[nodiscard]] transport::Endpoint* endpoint() const override { return &bench.wire; }
    [[nodiscard]] const void* publication() const override { return nullptr; }
    void check_readable() const override {
      if (!bench.readable) throw Error(ErrorCode::withdrawn, "it is gone");
    }
    void begin_reading() override {}
    void end_reading() override {}
    void fail(const Error&) override { bench.failed.insert(own_number); }
    Bench& bench;
    std::uint64_t own_number;
  };

  void ask(std::uint64_t number, int device = memory::on_host) {
    const Box box = Box::whole({static_cast<Extent>(slot_bytes)});
    source.send(std::make_shared<Request>(*this, number), {{box, memory::packed(box), memory.data(), 1, device}},
                false);
  }

  test::UsedDevices devices;
  std::vector<std::byte> memory = std::vector<std::byte>(slot_bytes);
  bool readable = true;
  std::set<std::uint64_t> failed;
  Copies copies;
  Wire wire;
  PackedSource source{copies, 2 * slot_bytes, slot_bytes};
};

}  // namespace

// A reader may use only part of the slots, so its second request waits for the first.
BOOST_FIXTURE_TEST_CASE(a_request_that_waits_is_packed_once_another_was_sent, Bench) {
  ask(1);
  ask(2);
  BOOST_TEST(copies.poll() == 1U);
  BOOST_REQUIRE(wire.sent.size() == 1U);
  BOOST_TEST(copies.submitted.empty());
  wire.sent.front()(std::nullopt);
  BOOST_TEST(copies.submitted.size() == 1U);
}

BOOST_FIXTURE_TEST_CASE(a_source_that_was_stopped_copies_nothing_more_when_something_was_sent, Bench) {
  ask(1);
  ask(2);
  BOOST_TEST(copies.poll() == 1U);
  BOOST_REQUIRE(wire.sent.size() == 1U);
  source.stop();
  wire.sent.front()(std::nullopt);
  BOOST_TEST(copies.submitted.empty());
}

// Readers take what comes for what was published.
BOOST_FIXTURE_TEST_CASE(memory_that_is_taken_back_while_a_request_waits_is_not_packed, Bench) {
  ask(1);
  ask(2);
  BOOST_TEST(copies.poll() == 1U);
  BOOST_REQUIRE(wire.sent.size() == 1U);
  readable = false;
  wire.sent.front()(std::nullopt);
  BOOST_TEST(copies.submitted.empty());
  BOOST_TEST(failed == std::set<std::uint64_t>{2}, boost::test_tools::per_element());
}

BOOST_FIXTURE_TEST_CASE(host_memory_does_not_wait_for_what_is_pinned, Bench) {
  ask(1, 0);
  ask(2);
  BOOST_TEST(copies.submitted.size() == 1U);
  BOOST_TEST(copies.poll() == 1U);
  wire.sent.front()(std::nullopt);
  copies.make_one();
  BOOST_TEST(copies.submitted.size() == 1U);
  BOOST_TEST(copies.submitted.front().first.on_devices);
}

BOOST_FIXTURE_TEST_CASE(a_slot_that_cannot_be_pinned_fails_those_that_wait_for_one, Bench) {
  devices->refuse_host_memory(true);
  ask(1, 0);
  ask(2, 0);
  copies.make_one();
  BOOST_TEST(failed == std::set<std::uint64_t>{1}, boost::test_tools::per_element());
  copies.make_one();
  BOOST_TEST((failed == std::set<std::uint64_t>{1, 2}));
  BOOST_TEST(copies.wanted.empty());
  ask(3);
  BOOST_TEST(copies.submitted.size() == 1U);
}

BOOST_AUTO_TEST_SUITE_END()

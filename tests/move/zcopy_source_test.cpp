// SPDX-License-Identifier: Apache-2.0
// Messages of a source from its publication's memory, over an endpoint that acts only on command: readers take their bytes for
// those that were published.
#include "move/zcopy_source.hpp"

#include <boost/test/unit_test.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "memory/copy_queue.hpp"
#include "shardwire/error.hpp"

BOOST_AUTO_TEST_SUITE(zcopy_source)

using namespace shardwire;
using namespace shardwire::move;

namespace {

class NoCopies final : public memory::CopyQueue {
 public:
  void submit(memory::CopyBatch, Done) override {}
  void make_pinned(ByteCount, memory::MadePinned) override {}
  unsigned poll() override { return 0; }
};

using Sent = std::vector<transport::Completion>;

class Wire final : public transport::Endpoint {
 public:
  explicit Wire(Sent& sent) : sent_(sent) {}
  using Endpoint::send;
  void send(transport::ByteView, std::span<const transport::ConstMemory>, transport::Completion done) override {
    sent_.push_back(std::move(done));
  }
  std::unique_ptr<transport::RemoteRegion> import_region(transport::RegionKey, ByteCount) override { return {}; }
  void read(const transport::RemoteRegion&, std::span<const transport::ReadRange>, transport::Completion) override {}
  [[nodiscard]] bool failed() const override { return false; }
  [[nodiscard]] transport::Path path(const transport::MemoryPlace&) const override {
    return {.message = true, .max_message_ranges = 16};
  }
  void abort() override {}

 private:
  Sent& sent_;
};

struct Bench {
  struct Request final : ServedRequest {
    explicit Request(Bench& its_bench) : bench(its_bench) {}
    [[nodiscard]] std::uint64_t reader() const override { return 1; }
    [[nodiscard]] std::uint64_t number() const override { return 7; }
    [[nodiscard]] transport::Endpoint* endpoint() const override { return bench.wire.get(); }
    [[nodiscard]] const void* publication() const override { return &bench; }
    void check_readable() const override {
      if (!bench.readable) throw Error(ErrorCode::withdrawn, "it is gone");
    }
    void begin_reading() override { ++bench.reads; }
    void end_reading() override { --bench.reads; }
    void fail(const Error& error) override { bench.failed.push_back(error.code()); }
    Bench& bench;
  };

  /// Two boxes in one message, or each in a message of its own.
  void ask(bool gathered) {
    std::vector<SourceBox> boxes;
    for (const Extent at : {0, 8}) {
      const Box box{{at}, {4}};
      boxes.push_back({box, memory::packed(box), memory.data(), 1});
    }
    auto request = std::make_shared<Request>(*this);  // owners: the code that serves it
    gathered ? source.send_gathered(std::move(request), std::move(boxes), false)
             : source.send(std::move(request), std::move(boxes), false);
  }

  std::vector<std::byte> memory = std::vector<std::byte>(16);
  bool readable = true;
  int reads = 0;
  std::vector<ErrorCode> failed;
  Sent sent;
  std::unique_ptr<transport::Endpoint> wire = std::make_unique<Wire>(sent);
  NoCopies copies;
  SourceDigests digests{copies};
  ZcopySource source{digests};
};

}  // namespace

BOOST_FIXTURE_TEST_CASE(memory_is_in_use_until_the_last_of_it_is_sent, Bench) {
  for (const bool gathered : {true, false}) {
    sent.clear();
    ask(gathered);
    BOOST_REQUIRE(sent.size() == (gathered ? 1U : 2U));
    for (std::size_t left = sent.size(); left > 0; --left) {
      BOOST_TEST(reads == static_cast<int>(left));
      BOOST_TEST(source.readers_of(this).size() == 1U);
      sent[left - 1](std::nullopt);
    }
    BOOST_TEST(reads == 0);
    BOOST_TEST(source.readers_of(this).empty());
  }
  BOOST_TEST(failed.empty());
}

BOOST_FIXTURE_TEST_CASE(memory_that_was_taken_back_is_not_sent, Bench) {
  readable = false;
  for (const bool gathered : {true, false}) ask(gathered);
  BOOST_TEST(sent.empty());
  BOOST_TEST(reads == 0);
  BOOST_TEST((failed == std::vector{ErrorCode::withdrawn, ErrorCode::withdrawn}));
}

BOOST_FIXTURE_TEST_CASE(memory_is_free_once_the_endpoint_is_gone, Bench) {
  ask(false);
  BOOST_TEST(reads == 2);
  const Error why(ErrorCode::withdrawn, "its time is up");
  source.abort_connection(std::move(wire), &why);
  BOOST_TEST(reads == 0);
  BOOST_TEST(source.readers_of(this).empty());
  BOOST_TEST((failed == std::vector{ErrorCode::withdrawn}));
  ask(false);
  BOOST_TEST(reads == 0);
}

BOOST_AUTO_TEST_SUITE_END()

// SPDX-License-Identifier: Apache-2.0
// Readers of this member: their load, and the endpoints to them over fabrics of this process.
#include "serve/readers.hpp"

#include <boost/test/unit_test.hpp>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "support/made_clock.hpp"
#include "support/refused.hpp"
#include "support/sockets.hpp"

BOOST_AUTO_TEST_SUITE(readers)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;

namespace {

constexpr std::uint64_t reader = 7;
constexpr auto socket_limit = 15s;
constexpr std::size_t max_requests = 4096;

class NoCopies final : public memory::CopyQueue {
 public:
  void submit(memory::CopyBatch, Done) override { throw std::logic_error("nothing is copied here"); }
  unsigned poll() override { return 0; }
};

/// A request whose bytes are in flight to the reader.
class MadeRequest final : public move::ServedRequest {
 public:
  explicit MadeRequest(Readers& of) : readers_(of) {}
  [[nodiscard]] std::uint64_t reader() const override { return readers::reader; }
  [[nodiscard]] std::uint64_t number() const override { return 1; }
  [[nodiscard]] transport::Endpoint* endpoint() const override { return readers_.messages(readers::reader); }
  [[nodiscard]] const void* publication() const override { return this; }
  void check_readable() const override {}
  void begin_reading() override { ++reads; }
  void end_reading() override { --reads; }
  void fail(const Error& error) override { failures.push_back(error); }

  int reads = 0;
  std::vector<Error> failures;

 private:
  Readers& readers_;
};

struct Bench {
  Bench() { hello.host = "host a"; }

  [[nodiscard]] std::size_t index(const std::string& name) const {
    for (std::size_t i = 0; i < fabrics.size(); ++i) {
      if (fabrics[i].name() == name) return i;
    }
    throw std::logic_error("there is no fabric " + name);
  }
  /// The handle of this process's own fabric.
  [[nodiscard]] wire::FabricHandle handle(const std::string& name, std::uint64_t token = 0) const {
    const transport::Fabric& fabric = fabrics[index(name)];
    return {name, fabric.domain(), fabric.address(), token};
  }
  void attach(std::uint64_t token) {
    SocketEnds ends = tcp_sockets().value();
    sockets.check(hello, {token, 0});
    sockets.add(hello, {token, 0}, std::move(ends[0]));
    kept.push_back(std::move(ends[1]));
  }
  std::vector<std::size_t> connect(const std::vector<wire::FabricHandle>& wanted) {
    return readers.connect(reader, hello, wanted);
  }
  [[nodiscard]] transport::Endpoint* messages() const { return readers.messages(reader); }
  /// Begins to send bytes to the reader.
  std::shared_ptr<MadeRequest> send() {
    auto request = std::make_shared<MadeRequest>(readers);  // owners: this test and the sends
    const Box box{{0}, {static_cast<std::int64_t>(bytes.size())}};
    sends.send(request, {{box, {box, 0, {1}}, bytes.data(), 1}}, false);
    return request;
  }

  MadeClock clock;
  Fabrics fabrics{"loopback,tcp", 1, [](const std::string&) {}};
  AttachedSockets sockets{clock, socket_limit};
  NoCopies copies;
  move::SourceDigests digests{copies};
  move::ZcopySource sends{digests};
  Readers readers{fabrics, sockets, sends, Readers::Own{.host = "host a"}};
  wire::Hello hello;
  std::vector<support::Descriptor> kept;
  std::vector<std::byte> bytes = std::vector<std::byte>(64);
};

std::vector<Charge> all_requests(Readers& readers, std::uint64_t of) {
  std::vector<Charge> charges;
  for (std::size_t i = 0; i < max_requests; ++i) charges.push_back(readers.charge(of, {.requests = 1, .parts = 1}));
  return charges;
}

}  // namespace

// --- load ---

BOOST_AUTO_TEST_CASE(a_reader_with_too_many_requests_is_refused_until_one_is_answered) {
  Bench bench;
  auto charges = all_requests(bench.readers, reader);
  const ReaderLoad::Amount one{.requests = 1, .parts = 1};
  refused(ErrorCode::out_of_resources, "too much at once", [&] { (void)bench.readers.charge(reader, one); });
  refused(ErrorCode::out_of_resources, "too much at once", [&] { bench.readers.check(reader, one); });
  bench.readers.check(reader + 1, one);  // other readers are served
  charges.pop_back();
  bench.readers.check(reader, one);
  charges.push_back(bench.readers.charge(reader, one));
  refused(ErrorCode::out_of_resources, "too much at once", [&] { bench.readers.check(reader, one); });
}

BOOST_AUTO_TEST_CASE(a_refused_charge_leaves_the_load_as_it_was) {
  Bench bench;
  const ReaderLoad::Amount most{.requests = 1, .parts = 1u << 18};
  refused(ErrorCode::out_of_resources, "too much at once",
          [&] { (void)bench.readers.charge(reader, {.requests = 1, .parts = (1u << 18) + 1}); });
  const Charge charge = bench.readers.charge(reader, most);
}

BOOST_AUTO_TEST_CASE(leases_and_requests_have_bounds_of_their_own) {
  Bench bench;
  const Charge leases = bench.readers.charge(reader, {.leases = 4096, .tensors = 1u << 20, .boxes = 1u << 17});
  bench.readers.check(reader, {.requests = 1, .parts = 1});
  for (const ReaderLoad::Amount more :
       {ReaderLoad::Amount{.leases = 1}, ReaderLoad::Amount{.tensors = 1}, ReaderLoad::Amount{.boxes = 1}}) {
    refused(ErrorCode::out_of_resources, "holds 4096 leases", [&] { bench.readers.check(reader, more); });
  }
}

BOOST_AUTO_TEST_CASE(charges_of_a_reader_that_has_gone_end_later) {
  Bench bench;
  auto charges = all_requests(bench.readers, reader);
  bench.readers.remove(reader);
  const auto again = all_requests(bench.readers, reader);  // the load of a new reader
  charges.clear();
  refused(ErrorCode::out_of_resources, "too much at once", [&] { bench.readers.check(reader, {.requests = 1}); });
}

// --- endpoints ---

BOOST_AUTO_TEST_CASE(a_fabric_is_connected_once) {
  Bench bench;
  BOOST_TEST(bench.messages() == nullptr);
  BOOST_TEST(bench.connect({bench.handle("loopback")}) == std::vector{bench.index("loopback")},
             boost::test_tools::per_element());
  const auto request = bench.send();
  transport::Endpoint* const endpoint = bench.messages();
  BOOST_REQUIRE(endpoint != nullptr);
  bench.connect({bench.handle("loopback")});
  BOOST_TEST(bench.messages() == endpoint);
  BOOST_TEST(request->reads == 1);  // it continues
  BOOST_TEST(bench.readers.messages(reader + 1) == nullptr);
}

BOOST_AUTO_TEST_CASE(indexes_of_fabrics_come_in_the_order_of_the_request) {
  Bench bench;
  bench.attach(5);
  const std::vector expected{bench.index("tcp"), bench.index("loopback")};
  BOOST_TEST(bench.connect({bench.handle("tcp", 5), bench.handle("loopback")}) == expected,
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(messages_go_over_the_best_fabric_in_whatever_order_they_are_connected) {
  for (const bool best_first : {true, false}) {
    Bench bench;
    bench.attach(5);
    const std::vector<wire::FabricHandle> handles{bench.handle("loopback"), bench.handle("tcp", 5)};
    bench.connect({handles[best_first ? 0 : 1]});
    const transport::Endpoint* const first = bench.messages();
    bench.connect({handles[best_first ? 1 : 0]});
    BOOST_TEST((bench.messages() == first) == best_first);
    BOOST_TEST(bench.messages()->path({}).carrier == "threads of one process");
  }
}

BOOST_AUTO_TEST_CASE(a_fabric_that_is_not_open_here_is_refused) {
  Bench bench;
  wire::FabricHandle elsewhere = bench.handle("loopback");
  elsewhere.domain = "another";
  refused(ErrorCode::unsupported, "loopback (another), which is not open here", [&] { bench.connect({elsewhere}); });
  BOOST_TEST(bench.messages() == nullptr);
}

BOOST_AUTO_TEST_CASE(a_fabric_whose_sockets_are_missing_is_refused) {
  Bench bench;
  refused(ErrorCode::peer_lost, "sockets for fabric tcp", [&] { bench.connect({bench.handle("tcp", 5)}); });
  bench.attach(5);
  bench.clock.advance(socket_limit + 1s);  // their time is over
  refused(ErrorCode::peer_lost, "sockets for fabric tcp", [&] { bench.connect({bench.handle("tcp", 5)}); });
  bench.attach(6);
  bench.clock.advance(socket_limit - 1s);
  bench.connect({bench.handle("tcp", 6)});
  BOOST_TEST(bench.messages() != nullptr);
}

BOOST_AUTO_TEST_CASE(an_endpoint_that_has_failed_is_connected_anew_if_the_fabric_needs_no_sockets) {
  Bench bench;
  auto peer = std::make_unique<Fabrics>("loopback", 1, [](const std::string&) {});
  wire::FabricHandle handle = bench.handle("loopback");
  handle.address = (*peer)[0].address();
  bench.connect({handle});
  BOOST_TEST(!bench.messages()->failed());
  peer.reset();
  BOOST_REQUIRE(bench.messages()->failed());
  bench.connect({bench.handle("loopback")});
  BOOST_REQUIRE(bench.messages() != nullptr);
  BOOST_TEST(!bench.messages()->failed());
}

BOOST_AUTO_TEST_CASE(sockets_that_have_failed_are_replaced_by_those_of_another_token_only) {
  Bench bench;
  bench.attach(5);
  bench.connect({bench.handle("tcp", 5)});
  bench.messages()->abort();
  BOOST_REQUIRE(bench.messages()->failed());
  refused(ErrorCode::peer_lost, "connection for payloads has ended", [&] { bench.connect({bench.handle("tcp", 5)}); });
  bench.attach(6);
  bench.connect({bench.handle("tcp", 6)});
  BOOST_TEST(!bench.messages()->failed());
}

BOOST_AUTO_TEST_CASE(sockets_of_another_token_end_what_is_sent_over_the_earlier_ones) {
  Bench bench;
  bench.attach(5);
  bench.connect({bench.handle("tcp", 5)});
  const auto request = bench.send();
  BOOST_REQUIRE(request->reads == 1);
  bench.attach(6);
  bench.connect({bench.handle("tcp", 6)});
  BOOST_TEST(request->reads == 0);
  BOOST_TEST(request->failures.empty());
}

BOOST_AUTO_TEST_CASE(requests_of_a_reader_that_is_disconnected_are_answered_with_the_reason) {
  Bench bench;
  bench.connect({bench.handle("loopback")});
  const auto request = bench.send();
  BOOST_REQUIRE(request->reads == 1);
  const Error why(ErrorCode::withdrawn, "it is gone");
  bench.readers.disconnect(reader, &why);
  BOOST_TEST(request->reads == 0);
  BOOST_REQUIRE(request->failures.size() == 1U);
  BOOST_TEST((request->failures.front().code() == ErrorCode::withdrawn));
  BOOST_TEST(bench.messages() == nullptr);
  bench.connect({bench.handle("loopback")});  // it may bind again
  BOOST_TEST(bench.messages() != nullptr);
}

BOOST_AUTO_TEST_CASE(a_reader_that_has_gone_is_disconnected_without_an_answer) {
  Bench bench;
  bench.connect({bench.handle("loopback")});
  const auto request = bench.send();
  bench.readers.remove(reader);
  BOOST_TEST(request->reads == 0);
  BOOST_TEST(request->failures.empty());
  BOOST_TEST(bench.messages() == nullptr);
}

BOOST_AUTO_TEST_SUITE_END()

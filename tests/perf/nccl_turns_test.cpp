// SPDX-License-Identifier: Apache-2.0
// Exchanges in NCCL rounds compared with bare sends and receives. Members are threads, over fakes of NCCL and of its
// devices.
#include <boost/test/unit_test.hpp>

#include <chrono>
#include <stdexcept>
#include <utility>
#include <vector>

#include "perf/measure/member.hpp"
#include "perf/measure/nccl_loop.hpp"
#include "perf/measure/rows.hpp"
#include "perf/measure/synthetic.hpp"
#include "support/deadline.hpp"
#include "support/fake_nccl_devices.hpp"
#include "support/job.hpp"

BOOST_AUTO_TEST_SUITE(nccl_turns)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;

namespace {

// The last target is not a source; all sources hold a part of the first column.
const char* const cross = R"j({
  "name": "cross", "states": ["m"], "tensors": [{"fqn": "w", "shape": [60, 80]}],
  "source": {"ranks": 3, "rules": {"*": {"chunk": 0, "over": 3}}},
  "target": {"ranks": 4, "rules": {"*": {"mesh": [4], "placements": ["S(1)"]}}}
})j";

perf::Setup exchanges(const char* case_text) {
  perf::Setup setup;
  setup.transport = "tcp";
  setup.memory = MemoryKind::cuda;
  setup.exchange = true;
  setup.repeats = 2;
  setup.staging_bytes = 64 << 10;
  setup.timeout = 60s;
  setup.measurements.push_back(perf::measurement_of(case_text));
  setup.measurements.front().methods = {Method::collective};
  setup.measurements.front().against = {perf::Against::nccl};
  return setup;
}

perf::Outcome outcome_of(const perf::Setup& setup) {
  const auto port = free_port();
  perf::Outcome outcome;
  outcome.one_clock = false;
  on_members(setup.members(), [&](int number) {
    Session session = perf::join(setup, member(number, setup.members(), port));
    perf::SessionMeeting meeting(session, setup.timeout);
    auto facts = perf::take_turns(setup, session, meeting, {number, false});
    if (number == 0) outcome.members = std::move(facts);
    session.gather("over", {}, 60s);
  });
  return outcome;
}

}  // namespace

BOOST_AUTO_TEST_CASE(an_exchange_has_a_row_beside_bare_sends_and_receives) {
  const Deadline deadline(120s);
  const UsedNccl devices;
  const perf::Setup setup = exchanges(cross);
  const auto rows = perf::rows_of(setup, outcome_of(setup), {"gpu", {}});
  BOOST_REQUIRE(rows.size() == 1U);
  const auto& row = rows.front();
  BOOST_TEST(row["method"] == "collective");
  BOOST_TEST(row["bytes"]["needed"] == 60 * 80 * 4);
  BOOST_TEST(row["methods"]["collective"] == row["bytes"]["moved"]);
  BOOST_TEST(row["bytes"]["moved"].get<int>() + row["bytes"]["local"].get<int>() == 60 * 80 * 4);
  BOOST_TEST(row["rounds"]["bytes"] == row["bytes"]["moved"]);
  BOOST_TEST(row["rounds"]["most"].get<int>() > 0);
  BOOST_TEST(row["bound"] == "ncclSend, ncclRecv");
  BOOST_TEST(row["ratio"].get<double>() == row["bound_seconds"].get<double>() / row["seconds"].get<double>());
  BOOST_TEST(row["elements"] == 60 * 80);
  BOOST_TEST(row["versions"]["fabric"].get<std::string>().ends_with(", nccl 2.29.7"));
  // One group for the exchanges and one for the loop.
  BOOST_TEST(FakeNccl::instance().made() == 2 * setup.members());
  BOOST_TEST(FakeNccl::instance().early() == 0);
}

// Each target receives the bytes that it wants, from each source as many as a restore reads, within the bounds of its
// memory.
BOOST_AUTO_TEST_CASE(the_loop_moves_the_bytes_of_the_case) {
  perf::Setup setup = exchanges(cross);
  for (const bool disjoint : {false, true}) {
    setup.disjoint = disjoint;
    const Case& job = setup.measurements.front().job;
    ByteCount moved = 0;
    ByteCount own = 0;
    for (int member = 0; member < setup.members(); ++member) {
      const ByteCount held = member < 3 ? 20 * 80 * 4 : 0;
      const perf::NcclOrder order = perf::nccl_order_of(setup, job, member, held);
      for (const auto& one : order.sends) {
        BOOST_TEST(one.at + one.bytes <= held);
        const perf::NcclOrder other = perf::nccl_order_of(setup, job, one.member, 20 * 80 * 4);
        const bool received = std::ranges::any_of(
            other.receives, [&](const auto& part) { return part.member == member && part.bytes == one.bytes; });
        BOOST_TEST(received);
        moved += one.bytes;
      }
      ByteCount wanted = 0;
      for (const auto* parts : {&order.receives, &order.own}) {
        for (const auto& one : *parts) wanted += one.bytes;
      }
      for (const auto& one : order.own) own += one.bytes;
      BOOST_TEST(wanted == (perf::target_of(setup, job, member) ? 60 * 20 * 4 : 0));
    }
    BOOST_TEST(own == (disjoint ? 0 : 3 * 20 * 20 * 4));
    BOOST_TEST(moved + own == 60 * 80 * 4);
  }
}

BOOST_AUTO_TEST_CASE(a_source_that_sends_more_than_it_holds_begins_again) {
  const perf::Setup setup = exchanges(R"j({"name": "all", "states": ["m"], "tensors": [{"fqn": "w", "shape": [60]}],
    "source": {"ranks": 1, "rules": {"*": {"replicated": true}}},
    "target": {"ranks": 3, "rules": {"*": {"replicated": true}}}})j");
  const auto order = perf::nccl_order_of(setup, setup.measurements.front().job, 0, 240);
  BOOST_REQUIRE(order.sends.size() == 2U);
  for (const auto& one : order.sends) BOOST_TEST((one.at == 0 && one.bytes == 240));
}

BOOST_AUTO_TEST_CASE(the_loop_reads_replicas_as_the_exchange_does) {
  perf::Setup setup = exchanges(R"j({"name": "all", "states": ["m"], "tensors": [{"fqn": "w", "shape": [60]}],
    "source": {"ranks": 2, "rules": {"*": {"replicated": true}}},
    "target": {"ranks": 2, "rules": {"*": {"replicated": true}}}})j");
  for (const Replicas rule : {Replicas::spread, Replicas::first}) {
    setup.replicas = rule;
    const auto order = perf::nccl_order_of(setup, setup.measurements.front().job, 1, 240);
    BOOST_TEST(order.own.empty() == (rule == Replicas::first));
    BOOST_TEST(order.receives.empty() == (rule == Replicas::spread));
  }
}

BOOST_AUTO_TEST_CASE(a_loop_that_is_refused_says_by_whom) {
  const Deadline deadline(120s);
  FakeNcclFaults faults;
  faults.init_result = transport::nccl::system_error;
  const UsedNccl devices(faults);
  BOOST_CHECK_EXCEPTION(perf::open_nccl_loop(perf::make_nccl_loop_id(), 0, 1, 0), Error, [](const Error& error) {
    return error.code() == ErrorCode::transport_failed && std::string(error.what()).starts_with("ncclCommInitRank: ");
  });
}

BOOST_AUTO_TEST_SUITE_END()

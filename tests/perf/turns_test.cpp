// SPDX-License-Identifier: Apache-2.0
// The progress of a measurement, and its size. Members are threads.
#include <fmt/format.h>

#include <boost/test/unit_test.hpp>

#include <chrono>
#include <cstddef>
#include <vector>

#include "perf/measure/copy.hpp"
#include "perf/measure/member.hpp"
#include "perf/measure/synthetic.hpp"
#include "support/deadline.hpp"
#include "support/job.hpp"
#include "support/refused.hpp"

BOOST_AUTO_TEST_SUITE(turns_of_members)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;

BOOST_AUTO_TEST_CASE(member_0_counts_the_bytes_of_every_turn) {
  const Deadline deadline(120s);
  perf::Setup setup;
  setup.transport = "tcp";
  setup.repeats = 2;
  setup.timeout = 60s;
  for (const bool local : {false, true}) {
    setup.measurements.push_back(perf::measurement_of(perf::synthetic_case(2, 4096, 1 << 16, local)));
  }
  setup.measurements.back().against = {perf::Against::memcpy};
  const auto port = free_port();
  std::vector<ByteCount> counted;
  on_members(2, [&](int number) {
    Session session = perf::join(setup, member(number, 2, port));
    perf::SessionMeeting meeting(session, setup.timeout);
    perf::take_turns(setup, session, meeting, {number, false}, [&](ByteCount bytes) { counted.push_back(bytes); });
    session.gather("over", {}, 60s);
  });
  const std::size_t turns = 2 + perf::plain_copies().size();
  BOOST_TEST((counted == std::vector<ByteCount>(3 * turns, 2 << 16)));
  BOOST_TEST(perf::bytes_of_turns(setup) == 3 * turns * (2 << 16));
}

BOOST_AUTO_TEST_CASE(bytes_that_overflow_are_refused) {
  const auto of_target_ranks = [](int ranks) {
    return perf::measurement_of(
        fmt::format(R"j({{"dtype": "f32", "states": ["master"], "tensors": [{{"fqn": "w", "shape": [{}]}}],
      "source": {{"ranks": 1, "rules": {{"*": {{"replicated": true}}}}}},
      "target": {{"ranks": {}, "rules": {{"*": {{"replicated": true}}}}}}}})j",
                    1LL << 60, ranks));
  };
  refused(ErrorCode::invalid_argument, "the size of all target ranks overflows", [&] { of_target_ranks(4); });
  perf::Setup setup;
  setup.measurements.push_back(of_target_ranks(3));
  refused(ErrorCode::invalid_argument, "the size of all turns overflows", [&] { perf::bytes_of_turns(setup); });
}

BOOST_AUTO_TEST_SUITE_END()

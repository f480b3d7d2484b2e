// SPDX-License-Identifier: Apache-2.0
#include "perf/measure/device_turns.hpp"

#include <boost/test/unit_test.hpp>
#include <chrono>

#include "support/deadline.hpp"
#include "support/fake_device.hpp"

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;

BOOST_AUTO_TEST_SUITE(device_turns)

BOOST_AUTO_TEST_CASE(each_way_and_run_length_has_a_row_beside_plain_copies) {
  const Deadline deadline(60s);
  const UsedDevices devices(2);
  perf::DeviceTurns turns;
  turns.device = 1;
  turns.bytes = 64 << 10;
  turns.host_bytes = 32 << 10;
  turns.runs = {512, 3000};
  turns.repeats = 2;
  turns.in_a_row = 2;
  const auto rows = perf::device_rows(*memory::device_runtime().runtime, turns);
  BOOST_REQUIRE(rows.size() == 9);
  const std::string names[] = {"pack", "unpack", "to host", "from host"};
  for (std::size_t i = 0; i < 8; ++i) {
    const ByteCount run = turns.runs[i / 4];
    const ByteCount room = i % 4 < 2 ? turns.bytes : turns.host_bytes;
    BOOST_TEST(rows[i]["name"] == "perf_device_copy " + names[i % 4]);
    BOOST_TEST(rows[i]["run_bytes"] == run);
    BOOST_TEST(rows[i]["bytes"] == room / run * run);
    BOOST_TEST(rows[i]["ratio"].get<double>() ==
               rows[i]["bound_seconds"].get<double>() / rows[i]["seconds"].get<double>());
    BOOST_TEST(!rows[i]["device"].contains("share_of_peak"));  // the fake says nothing of its peak
  }
  BOOST_TEST(rows[8]["name"] == "perf_device_copy digest");
  BOOST_TEST(devices->copied_bytes() > 0u);
}

BOOST_AUTO_TEST_CASE(wrong_bytes_end_it_without_a_row) {
  const Deadline deadline(60s);
  const UsedDevices devices(1);
  devices->drop_strided_copies(true);
  perf::DeviceTurns turns;
  turns.bytes = 64 << 10;
  turns.runs = {512};
  turns.repeats = 1;
  BOOST_CHECK_THROW(perf::device_rows(*memory::device_runtime().runtime, turns), std::runtime_error);
}

BOOST_AUTO_TEST_SUITE_END()

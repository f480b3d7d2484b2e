// SPDX-License-Identifier: Apache-2.0
#include "perf/measure/device_turns.hpp"

#include <boost/test/unit_test.hpp>
#include <chrono>

#include "perf/measure/facts.hpp"
#include "perf/measure/row.hpp"
#include "perf/measure/rows.hpp"
#include "perf/measure/synthetic.hpp"
#include "support/deadline.hpp"
#include "support/fake_device.hpp"

BOOST_AUTO_TEST_SUITE(device_turns)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;

BOOST_AUTO_TEST_CASE(each_method_and_run_length_has_a_row_beside_plain_copies) {
  const Deadline deadline(120s);
  const UsedDevices devices(2);
  perf::DeviceTurns turns;
  turns.device = 1;
  turns.bytes = 64 << 10;
  turns.host_bytes = 32 << 10;
  turns.runs = {512, 3000};
  turns.repeats = 2;
  turns.in_a_row = 2;
  devices->set_peak(5e12);
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
    const auto& device = rows[i]["device"];
    const double touched = rows[i]["bytes_per_second"].get<double>() * (i % 4 < 2 ? 2 : 1);
    BOOST_CHECK_CLOSE(device["memory_bytes_per_second"].get<double>(), touched, 1e-6);
    BOOST_CHECK_CLOSE(device["share_of_peak"].get<double>(), touched / 5e12, 1e-6);
  }
  BOOST_TEST(rows[8]["name"] == "perf_device_copy digest");
  BOOST_TEST(devices->copied_bytes() > 0u);
}

BOOST_AUTO_TEST_CASE(without_a_peak_there_is_no_share) {
  BOOST_TEST(perf::device_json("some", 1e9, 0).dump() == R"({"name":"some","memory_bytes_per_second":1000000000.0})");
}

// Two members with a device each, whose restore takes twice as long as the plain copy.
BOOST_AUTO_TEST_CASE(rows_of_restores_say_what_share_of_each_device_they_took) {
  perf::Setup setup;
  setup.memory = MemoryKind::cuda;
  setup.repeats = 1;
  setup.measurements.push_back(perf::measurement_of(perf::synthetic_case(2, 4096, 1 << 20, false)));
  setup.measurements.front().against = {perf::Against::device_memcpy};
  perf::Outcome outcome;
  for (const char* id : {"0", "1"}) {
    perf::MemberFacts member;
    member.device = {"some", id, "CUDA 13.0", 4e9};
    perf::MeasurementFacts& facts = member.measurements.emplace_back();
    facts.wanted = 1 << 20;
    for (const std::int64_t took_ns : {500'000, 1'000'000}) {
      perf::TurnFacts& turn = facts.turns.emplace_back();
      turn.spans.assign(2, {0, took_ns, 0});
      turn.stages.resize(2);
      turn.report.needed_bytes = 1 << 20;
    }
    // As from another process.
    outcome.members.push_back(perf::member_facts_from(perf::to_json(member)));
  }
  const auto rows = perf::rows_of(setup, outcome, {});
  BOOST_REQUIRE(rows.size() == 1);
  BOOST_TEST(rows[0]["versions"]["device"] == "CUDA 13.0");
  const auto& device = rows[0]["device"];
  BOOST_TEST(device["count"] == 2);
  const double touched = 2 * (1 << 20) / 1e-3;  // per device: a MiB read and one written
  BOOST_CHECK_CLOSE(device["memory_bytes_per_second"].get<double>(), touched, 1e-6);
  BOOST_CHECK_CLOSE(device["share_of_peak"].get<double>(), touched / 4e9, 1e-6);
  BOOST_CHECK_CLOSE(device["bound_share_of_peak"].get<double>(), 2 * touched / 4e9, 1e-6);
}

BOOST_AUTO_TEST_CASE(wrong_bytes_end_it_without_a_row) {
  const Deadline deadline(120s);
  const UsedDevices devices(1);
  devices->drop_strided_copies(true);
  perf::DeviceTurns turns;
  turns.bytes = 64 << 10;
  turns.runs = {512};
  turns.repeats = 1;
  BOOST_CHECK_THROW(perf::device_rows(*memory::device_runtime().runtime, turns), std::runtime_error);
}

BOOST_AUTO_TEST_SUITE_END()

// SPDX-License-Identifier: Apache-2.0
// State of `run` that is filled and checked on a device, or in its mirror in host memory.
#include "cli/run_buffers.hpp"

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <optional>

#include "cli/run_memory.hpp"
#include "shardwire/error.hpp"
#include "support/deadline.hpp"
#include "support/fake_device.hpp"
#include "support/job.hpp"
#include "support/refused.hpp"

BOOST_AUTO_TEST_SUITE(run_buffers)

namespace {

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;
using cli::SideBuffers;

// Rank 1 holds the last 18 elements of `a`, 3 of padding, and `b`.
constexpr std::size_t held_elements = 24;
constexpr std::size_t padding = 36;  // the first byte
constexpr std::size_t padding_bytes = 6;
constexpr std::size_t last = 53;

struct Bench {
  /// `by_device`: the device fills and checks values.
  explicit Bench(bool by_device = true) : devices(by_device) {}

  struct Devices : UsedDevices {
    explicit Devices(bool by_device) : UsedDevices(2) { (*this)->make_values(by_device); }
  };
  Deadline deadline{60s};
  Devices devices;
  Session session = Session::join(member(0, 1, free_port()), [] {
    SessionOptions options;
    options.transport = "loopback";
    return options;
  }());
  Case job = parse_case(R"j({"states": ["m"], "dtype": "bf16",
    "tensors": [{"fqn": "a", "shape": [9, 5]}, {"fqn": "b", "shape": [6]}, {"fqn": "s", "shape": [1], "rule": "rep"}],
    "source": {"ranks": 2, "rules": {"*": {"flat": [["a", "b"]], "world": 2, "align": 4}, "rep": {"replicated": true}}},
    "target": {"ranks": 2, "rules": {"*": {"replicated": true}}}})j");
  SideBuffers held{session, job, job.source, Rank{1}, {.device = 1}, [] {}};
  std::byte* buffer = static_cast<std::byte*>(held.catalog(0).entries().front().view.data);

  ValueCheck check(std::uint64_t generation, ValueCheck& values) const {
    ValueCheck elements;
    held.check(generation, elements, values);
    return elements;
  }
  void require_padding_refused() const {
    ValueCheck values;
    refused(ErrorCode::internal, "padding of the buffer of", [&] { check(0, values); });
  }
  void spoil(std::size_t at) {
    const std::byte spoiled = devices->read(buffer + at, 1).front() ^ std::byte{4};
    devices->write(buffer + at, {&spoiled, 1});
  }
};

}  // namespace

BOOST_DATA_TEST_CASE(state_on_a_device_is_checked_whole, boost::unit_test::data::make({true, false}), by_device) {
  Bench bench(by_device);
  bench.held.fill(3, false);
  ValueCheck values;
  const ValueCheck all = bench.check(3, values);
  BOOST_TEST(all.elements == held_elements);
  BOOST_TEST(values.elements == 1);
  BOOST_TEST(all.wrong + values.wrong == 0);
  BOOST_TEST(bench.check(4, values).wrong == held_elements);  // another generation
  BOOST_TEST(values.wrong == 1);

  bench.spoil(last);
  const ValueCheck one = bench.check(3, values);
  BOOST_TEST(one.wrong == 1);
  BOOST_REQUIRE(one.first.has_value());
  BOOST_TEST(to_string(*one.first).starts_with("b:m (5,) is "));

  bench.held.fill(3, true);
  BOOST_TEST(bench.check(3, values).wrong == held_elements);
}

BOOST_DATA_TEST_CASE(padding_on_a_device_is_to_stay, boost::unit_test::data::make({true, false}), by_device) {
  Bench bench(by_device);
  bench.held.fill(0, false);
  for (const std::byte byte : bench.devices->read(bench.buffer + padding, padding_bytes)) {
    BOOST_TEST(std::to_integer<int>(byte) == 0xff);
  }
  bench.spoil(padding + 3);
  bench.require_padding_refused();
}

// 12 PB.
BOOST_AUTO_TEST_CASE(state_on_a_device_takes_no_memory_of_the_host) {
  const Case job = parse_case(R"j({"tensors": [{"fqn": "a", "shape": [1000000000, 1000000]}],
    "source": {"ranks": 1, "rules": {"*": {"replicated": true}}}, "target": {"ranks": 1, "rules": {"*": {"replicated": true}}}})j");
  cli::RunOptions options;
  refused(ErrorCode::out_of_resources, "of memory on this host", [&] { cli::require_memory(job, options); });
  options.memory = MemoryKind::cuda;
  cli::require_memory(job, options);
}

BOOST_AUTO_TEST_SUITE_END()

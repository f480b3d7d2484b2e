// SPDX-License-Identifier: Apache-2.0
#include "perf/measure/state_block.hpp"

#include <algorithm>
#include <boost/test/unit_test.hpp>

#include "perf/measure/state_memory.hpp"
#include "support/deadline.hpp"
#include "support/fake_device.hpp"
#include "support/job.hpp"

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;
using perf::StateBlock;

namespace {

constexpr ByteCount large = (20u << 20) + 12;  // in more than one part on its way

SessionOptions over_loopback() {
  SessionOptions options;
  options.transport = "loopback";
  return options;
}

struct Alone {
  Deadline deadline{60s};
  UsedDevices devices{3};
  Session session = Session::join(member(0, 1, free_port()), over_loopback());
};

std::byte value_at(std::size_t i) {
  return static_cast<std::byte>((i * 2654435761U) >> 13);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(state_block)

BOOST_AUTO_TEST_CASE(members_take_devices_in_turn) {
  const UsedDevices devices(3);
  BOOST_TEST(perf::place_of(MemoryKind::host, 4).device == memory::on_host);
  BOOST_TEST(perf::place_of(MemoryKind::cuda, 2).device == 2);
  BOOST_TEST(perf::place_of(MemoryKind::cuda, 4).device == 1);
}

BOOST_FIXTURE_TEST_CASE(what_is_stored_on_a_device_is_loaded_from_there, Alone) {
  const StateBlock block(session, large, {.device = 1});
  for (std::size_t i = 0; i < large; ++i) block.bytes()[i] = value_at(i);
  block.store();
  const View view = block.view_of(block.bytes().data() + 8);
  BOOST_TEST((view.kind == MemoryKind::cuda && view.device == 1));
  BOOST_TEST(block.view_of(nullptr).data == nullptr);
  const auto* const there = static_cast<const std::byte*>(view.data) - 8;
  BOOST_TEST(std::ranges::equal(devices->read(there, large), block.bytes()));
  std::ranges::fill(block.bytes(), std::byte{0});
  block.load();
  bool right = true;
  for (std::size_t i = 0; i < large; ++i) right = right && block.bytes()[i] == value_at(i);
  BOOST_TEST(right);
}

BOOST_FIXTURE_TEST_CASE(a_plain_copy_begins_the_source_again, Alone) {
  const StateBlock source(session, 1000, {.device = 0});
  const StateBlock target(session, 2500, {.device = 0});
  for (std::size_t i = 0; i < 1000; ++i) source.bytes()[i] = value_at(i);
  source.store();
  target.store();
  source.copy_on_device(target, 2400);
  target.load();
  bool right = true;
  for (std::size_t i = 0; i < 2500; ++i) {
    right = right && target.bytes()[i] == (i < 2400 ? value_at(i % 1000) : std::byte{0});
  }
  BOOST_TEST(right);
}

BOOST_FIXTURE_TEST_CASE(state_of_a_case_is_restored_between_devices, Alone) {
  const Case job = parse_case(R"j({"states": ["m"], "tensors": [{"fqn": "w", "shape": [40, 60]}],
    "source": {"ranks": 1, "rules": {"*": {"replicated": true}}},
    "target": {"ranks": 1, "rules": {"*": {"replicated": true}}}})j");
  perf::StateMemory held(job.source, Rank{0});
  perf::StateMemory wanted(job.target, Rank{0});
  const StateBlock from(session, held.size_bytes(), {.device = 0});
  const StateBlock into(session, wanted.size_bytes(), {.device = 2});
  held.lie_in(from.bytes());
  wanted.lie_in(into.bytes());
  held.fill();
  from.store();
  wanted.spoil();
  into.store();
  const Publication publication = session.publish(held.catalog(from));
  session.restore(wanted.catalog(into), {}).wait();
  BOOST_CHECK_THROW(static_cast<void>(wanted.check()), std::runtime_error);  // the mirror is as it was
  into.load();
  BOOST_TEST(wanted.check() == 2400);
}

BOOST_AUTO_TEST_SUITE_END()

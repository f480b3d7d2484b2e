// SPDX-License-Identifier: Apache-2.0
#include "perf/measure/state_block.hpp"

#include <algorithm>
#include <boost/test/unit_test.hpp>

#include "perf/measure/state_memory.hpp"
#include "support/deadline.hpp"
#include "support/fake_device.hpp"
#include "support/job.hpp"

BOOST_AUTO_TEST_SUITE(state_block)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;
using perf::StateBlock;

namespace {

constexpr ByteCount large = (20u << 20) + 12;  // more than one part in flight

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

BOOST_AUTO_TEST_CASE(members_take_devices_in_turn) {
  const UsedDevices devices(3);
  BOOST_TEST(perf::place_of(MemoryKind::host, 4).device == memory::on_host);
  BOOST_TEST(perf::place_of(MemoryKind::cuda, 2).device == 2);
  BOOST_TEST(perf::place_of(MemoryKind::cuda, 4).device == 1);
}

// A launcher may assign ranks to hosts in turn: then ranks are not device numbers.
BOOST_AUTO_TEST_CASE(members_are_counted_on_their_own_host) {
  const Bytes here = perf::host_identity();
  Bytes other = here;
  other.push_back(std::byte{'2'});
  const std::vector<Bytes> hosts{here, other, here, other, other, here};
  const int expected[] = {0, 0, 1, 1, 2, 2};
  for (int member = 0; member < 6; ++member) BOOST_TEST(perf::number_on_host(hosts, member) == expected[member]);
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
  BOOST_CHECK_THROW(static_cast<void>(wanted.check()), std::runtime_error);  // the mirror is unchanged
  into.load();
  BOOST_TEST(wanted.check() == 2400);
}

// The lists of copies are then the same, whatever slots they use.
BOOST_FIXTURE_TEST_CASE(a_restore_that_is_repeated_brings_devices_no_other_tables, Alone) {
  const Case job = parse_case(R"j({"states": ["m"], "tensors": [{"fqn": "w", "shape": [1000, 6000]}],
    "source": {"ranks": 1, "rules": {"*": {"replicated": true}}},
    "target": {"ranks": 2, "rules": {"*": {"mesh": [2], "placements": ["S(1)"]}}}})j");
  perf::StateMemory held(job.source, Rank{0});
  const StateBlock from(session, held.size_bytes(), {.device = 0});
  held.lie_in(from.bytes());
  held.fill(from);
  const Publication publication = session.publish(held.catalog(from));
  for (const int device : {2, memory::on_host}) {
    perf::StateMemory wanted(job.target, Rank{1});
    const StateBlock into(session, wanted.size_bytes(), {.device = device});
    wanted.lie_in(into.bytes());
    const Catalog catalog = wanted.catalog(into);
    session.restore(catalog, {}).wait();
    const std::size_t tables = devices->tables();
    for (int again = 0; again < 3; ++again) {
      wanted.spoil(into);
      session.restore(catalog, {}).wait();
      BOOST_TEST(wanted.check(into) == 3'000'000);
    }
    BOOST_TEST(devices->tables() == tables);
  }
  BOOST_TEST(devices->max_pinned_bytes() > (2u << 20));  // several slots
}

/// Values filled and checked by the device equal the host's, and without such a device the mirror is right.
struct TwoTensors : Alone {
  /// `by_device`: the device fills and checks values.
  explicit TwoTensors(bool by_device = true)
      : block((devices->make_values(by_device), session), part.size_bytes(), {.device = 1}) {
    part.lie_in(block.bytes());
  }

  static constexpr std::size_t second = 64;  // begins there, after 60 bytes
  Case job = parse_case(R"j({"states": ["m"], "dtype": "bf16",
    "tensors": [{"fqn": "v", "shape": [10, 6]}, {"fqn": "w", "shape": [40, 60]}],
    "source": {"ranks": 1, "rules": {"*": {"replicated": true}}},
    "target": {"ranks": 2, "rules": {"*": {"mesh": [2], "placements": ["S(1)"]}}}})j");
  perf::StateMemory part{job.target, Rank{1}};
  StateBlock block;

  [[nodiscard]] std::byte* on_device(std::size_t at) const {
    return static_cast<std::byte*>(block.view_of(block.bytes().data() + at).data);
  }
  [[nodiscard]] bool mirror_is_empty() const {
    return std::ranges::all_of(block.bytes(), [](std::byte byte) { return byte == std::byte{0}; });
  }
  void check_all() {
    part.fill(block);
    std::vector<std::byte> filled = devices->read(on_device(second), 2400);
    BOOST_TEST(part.check(block) == 1230);
    const std::byte wrong = ~filled[2399];
    devices->write(on_device(second + 2399), {&wrong, 1});
    BOOST_CHECK_EXCEPTION(
        static_cast<void>(part.check(block)), std::runtime_error, [](const std::runtime_error& error) {
          return std::string(error.what()).starts_with("wrong element after a restore: w:m (39, 59) is ");
        });
    part.spoil(block);
    const std::vector<std::byte> spoiled = devices->read(on_device(second), 2400);
    bool complement = true;
    for (std::size_t i = 0; i < filled.size(); ++i) complement = complement && spoiled[i] == ~filled[i];
    BOOST_TEST(complement);
    part.fill();  // filled by the host, in the mirror
    BOOST_TEST(std::ranges::equal(filled, block.bytes().subspan(second, 2400)));
  }
};

BOOST_FIXTURE_TEST_CASE(values_are_made_and_checked_on_the_device, TwoTensors) {
  part.fill(block);
  BOOST_TEST(part.check(block) == 1230);
  part.spoil(block);
  BOOST_TEST(mirror_is_empty());
  check_all();
}

struct WithoutValues : TwoTensors {
  WithoutValues() : TwoTensors(false) {}
};

BOOST_FIXTURE_TEST_CASE(values_are_made_in_the_mirror_where_the_device_does_not, WithoutValues) {
  check_all();
}

BOOST_AUTO_TEST_SUITE_END()

// SPDX-License-Identifier: Apache-2.0
// A path's reported capabilities for memory of a real device.
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <functional>
#include <span>

#include "conformance/pair.hpp"
#include "support/gpu.hpp"

BOOST_AUTO_TEST_SUITE(conformance_gpu)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t size = 1 << 20;
constexpr transport::MemoryPlace device_0{MemoryKind::cuda, 0};

boost::test_tools::assertion_result paths_can(boost::unit_test::test_unit_id id,
                                              const std::function<bool(const transport::Path&)>& can) {
  boost::test_tools::assertion_result result = has_gpu(id);
  if (!result) return result;
  try {
    const transport::Path path = Pair().to_right->path(device_0);
    boost::test_tools::assertion_result able(can(path));
    able.message() << "this path does not do that with memory of a device"
                   << (path.why_not.empty() ? "" : ": " + path.why_not.detail);
    return able;
  } catch (const Error& error) {  // no memory left
    boost::test_tools::assertion_result none(false);
    none.message() << error.what();
    return none;
  }
}
boost::test_tools::assertion_result paths_map(boost::unit_test::test_unit_id id) {
  return paths_can(id, [](const transport::Path& path) { return path.map; });
}
boost::test_tools::assertion_result paths_read_devices(boost::unit_test::test_unit_id id) {
  return paths_can(id, [](const transport::Path& path) { return path.read; });
}
boost::test_tools::assertion_result paths_send_devices(boost::unit_test::test_unit_id id) {
  return paths_can(id, [](const transport::Path& path) { return path.message; });
}

/// Device memory that the left fabric exports, and memory that the right one fills.
struct Shown {
  Deadline deadline{60s};
  Bytes content = pattern(size, 5);
  GpuBytes source{size};
  GpuBytes target{size};
  Pair pair;

  Shown() {
    source.write(content);
    target.write(Bytes(size));
  }
  [[nodiscard]] std::unique_ptr<transport::Region> adopt() const {
    return pair.left->adopt({source.address(), size, device_0});
  }
};

}  // namespace

BOOST_FIXTURE_TEST_CASE(memory_of_a_device_is_mapped, Shown,
                        *boost::unit_test::label("maps") * boost::unit_test::precondition(paths_map)) {
  const auto region = adopt();
  const auto remote = import_region(*pair.to_left, *region, size);
  BOOST_REQUIRE_MESSAGE(remote->mapped().bytes == size, remote->why_not_mapped());
  BOOST_TEST((remote->mapped().place == device_0));
  const auto stream = gpu_runtime().open_stream(0);
  const auto copy = dense_copy(remote->mapped().address + 3, target.address(), size - 3);
  stream->copy({&copy, 1});
  finish(*stream);
  const Bytes arrived = target.read();
  BOOST_TEST(std::equal(content.begin() + 3, content.end(), arrived.begin()));
}

BOOST_FIXTURE_TEST_CASE(memory_of_a_device_is_read_into_its_kind_and_into_the_hosts, Shown,
                        *boost::unit_test::label("reads-devices") *
                            boost::unit_test::precondition(paths_read_devices)) {
  const auto region = adopt();
  const auto remote = import_region(*pair.to_left, *region, size);
  Bytes host(size - 5);
  const transport::ReadRange ranges[] = {{5, {target.address(), size - 5, device_0}},
                                         {5, transport::host_memory(host)}};
  for (const transport::ReadRange& range : ranges) {
    Result result;
    pair.to_left->read(*remote, std::span(&range, 1), result.completion());
    BOOST_REQUIRE(pair.until([&] { return result.done; }));
    BOOST_TEST(result.succeeded());
  }
  gpu_runtime().flush_remote_writes(0);
  const Bytes arrived = target.read();
  BOOST_TEST(std::equal(content.begin() + 5, content.end(), arrived.begin()));
  BOOST_TEST(std::equal(content.begin() + 5, content.end(), host.begin()));
}

BOOST_FIXTURE_TEST_CASE(messages_come_out_of_a_device_and_into_it, Shown,
                        *boost::unit_test::label("sends-devices") *
                            boost::unit_test::precondition(paths_send_devices)) {
  Result received;
  pair.right->on_message([&](transport::Incoming& incoming) {
    incoming.receive(transport::Memory{target.address(), size, device_0}, received.completion());
  });
  Result sent;
  pair.to_right->send({}, transport::ConstMemory{source.address(), size, device_0}, sent.completion());
  BOOST_REQUIRE(pair.until([&] { return sent.done && received.done; }));
  BOOST_TEST(sent.succeeded());
  BOOST_TEST(received.succeeded());
  BOOST_TEST((target.read() == content));
}

BOOST_AUTO_TEST_SUITE_END()

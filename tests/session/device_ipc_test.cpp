// SPDX-License-Identifier: Apache-2.0
// Device memory that another process maps or cannot map: CUDA IPC over the shm transport, with fake devices
// (support/fake_device.hpp).
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <atomic>
#include <string>
#include <string_view>
#include <vector>

#include "session/device_ipc.hpp"
#include "session/hang.hpp"
#include "support/deadline.hpp"
#include "support/open_descriptors.hpp"

BOOST_AUTO_TEST_SUITE(device_ipc)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;

namespace {

/// The other process publishes from its device 0, which is device 1 here.
struct TwoProcesses {
  explicit TwoProcesses(const std::string& sharing, const SessionOptions& options = quick())
      : child(peer_process("device source " + sharing, port)), reader(join_with(child, port, options)) {}

  Restore restored(const Catalog& wanted, Verify verify = Verify::generation) {
    RestoreOptions options = within(patience);
    options.verify = verify;
    Restore restore = reader.restore(wanted, options);
    restore.wait();
    return restore;
  }
  void send_order(std::string_view order) {
    write_frame(child.socket(), std::as_bytes(std::span(order)));
    read_frame(child.socket());
  }

  UsedDevices devices;
  std::uint16_t port = free_port();
  Child child;
  Session reader;
};

/// The report on the restore's only source.
PeerReport only_peer(const Restore& restore) {
  BOOST_REQUIRE(restore.report().peers.size() == 1U);
  return restore.report().peers.front();
}

void require_staged(const Restore& restore, const std::string& why) {
  const PeerReport peer = only_peer(restore);
  BOOST_TEST(peer.path == "tcp/packed");
  BOOST_TEST(peer.fallback_detail.find("device memory is staged through host memory: ") != std::string::npos,
             peer.fallback_detail);
  BOOST_TEST(peer.fallback_detail.find(why) != std::string::npos, peer.fallback_detail);
}

}  // namespace

BOOST_DATA_TEST_CASE(memory_of_another_process_is_mapped_once_and_read_without_it,
                     boost::unit_test::data::make({"handle", "chunks"}), sharing) {
  const Deadline deadline(120s);
  std::atomic<bool> freeze = false;
  const Child* child = nullptr;
  TwoProcesses two(sharing, when_all_is_bound([&] {
                     if (freeze.exchange(false)) freeze_and_await(*child);
                   }));
  child = &two.child;
  for (const int device : {1, 0}) {
    SharedAllocation wanted(two.devices, device, false);
    const Restore restore = two.restored(wanted.catalog(), Verify::digest);
    BOOST_TEST(wanted.wrong(1) == 0U);
    const PeerReport peer = only_peer(restore);
    BOOST_TEST(peer.path == "shm/mapped");
    BOOST_TEST(peer.device == "CUDA IPC");
    BOOST_TEST(two.devices->imports() == 1);
  }
  std::vector<float> host(64 * 96);
  Catalog on_host(Rank{0}, 1);
  on_host.add(SharedAllocation::spec("v"), Layout::replicated(), view(host));
  BOOST_TEST(only_peer(two.restored(on_host)).path == "shm/mapped");
  const auto paths = two.reader.paths("state", 10s);
  BOOST_REQUIRE(paths.size() == 1U);
  const TransportPath& best = paths.front().memory.back().transports.front();
  BOOST_TEST((best.map && best.gpu_direct));
  BOOST_TEST(best.device == "CUDA IPC");

  two.send_order("republish");
  SharedAllocation wanted(two.devices, 1, false);
  freeze = true;
  two.restored(wanted.catalog());
  BOOST_TEST(!freeze.load());
  BOOST_TEST(wanted.wrong(1) == 0U);
  BOOST_TEST(two.devices->imports_made() == 1);
  two.reader.close(1s);
  BOOST_TEST(two.devices->imports() == 0);
}

BOOST_AUTO_TEST_CASE(what_cannot_be_handed_over_is_staged_and_says_why) {
  const Deadline deadline(120s);
  for (const auto& [sharing, why] : {std::pair{"none", "in a way that no other process can map"},
                                     std::pair{"chunks large", "is 66 chunks side by side, and at most 64"}}) {
    TwoProcesses two(sharing);
    SharedAllocation wanted(two.devices, 0, std::string_view(sharing).find("large") != std::string_view::npos);
    require_staged(two.restored(wanted.catalog()), why);
    BOOST_TEST(wanted.wrong(1) == 0U);
  }
}

// Like an expandable segment of PyTorch: one descriptor per chunk, and few keys, which together list each chunk once.
BOOST_AUTO_TEST_CASE(tensors_that_share_chunks_are_shown_together) {
  const Deadline deadline(120s);
  UsedDevices devices;
  devices->share(FakeDevices::Sharing::chunks);
  constexpr ByteCount tensor_bytes = 3 * FakeDevices::chunk_bytes / 2;
  constexpr std::size_t tensors = 90;  // in 135 chunks
  const auto catalog_at = [&](std::byte* first) {
    Catalog catalog(Rank{0}, 1);
    for (std::size_t i = 0; i < tensors; ++i) {
      catalog.add({{"w" + std::to_string(i), "exp_avg"}, DType::u8, {Extent{tensor_bytes}}}, Layout::replicated(),
                  View{.data = first + i * tensor_bytes, .device = 0});
    }
    return catalog;
  };
  const std::vector<std::byte> content(tensors * tensor_bytes, std::byte{7});
  std::byte* const held = devices->take(0, content.size());
  std::byte* const wanted = devices->take(0, content.size());
  devices->write(held, content);
  const auto port = free_port();
  Session source = Session::join(member(0, 2, port), quick());
  Session reader = Session::join(member(1, 2, port), quick());
  const std::size_t before = open_descriptors();
  const Publication publication = source.publish(catalog_at(held));
  BOOST_TEST(open_descriptors() <= before + 135 + 8);  // the session itself opens a few
  Restore restore = reader.restore(catalog_at(wanted), within(patience));
  restore.wait();
  BOOST_TEST((devices->read(wanted, content.size()) == content));
  BOOST_TEST(only_peer(restore).path == "shm/mapped");
}

BOOST_AUTO_TEST_CASE(what_is_refused_here_is_staged_and_says_why) {
  const Deadline deadline(120s);
  TwoProcesses two("handle");
  SharedAllocation wanted(two.devices, 0, false);
  two.devices->refuse_imports(true);
  require_staged(two.restored(wanted.catalog()), "nothing is mapped (as told)");
  BOOST_TEST(wanted.wrong(1) == 0U);
}

BOOST_AUTO_TEST_CASE(a_device_that_reaches_no_other_maps_its_own_memory_alone) {
  const Deadline deadline(120s);
  TwoProcesses two("handle");
  two.devices->refuse_peers(true);
  SharedAllocation other(two.devices, 0, false);
  const std::string why = "device 0 cannot access memory of device 1";
  require_staged(two.restored(other.catalog()), why);
  BOOST_TEST(other.wrong(1) == 0U);
  SharedAllocation same(two.devices, 1, false);
  BOOST_TEST(only_peer(two.restored(same.catalog())).path == "shm/mapped");
  BOOST_TEST(same.wrong(1) == 0U);
  const auto paths = two.reader.paths("state", 10s);
  BOOST_REQUIRE(paths.size() == 1U);
  const TransportPath& ipc = paths.front().memory.back().transports.front();
  BOOST_TEST(ipc.device == "CUDA IPC");
  BOOST_TEST(ipc.fallback_detail.starts_with("between some devices staged through host memory: "), ipc.fallback_detail);
  BOOST_TEST(ipc.fallback_detail.find(why) != std::string::npos, ipc.fallback_detail);
}

// Mapped memory stays readable after its owner frees it. Another allocation may then have its address.
BOOST_AUTO_TEST_CASE(memory_that_was_freed_while_published_is_not_handed_out_again) {
  const Deadline deadline(120s);
  TwoProcesses two("handle");
  SharedAllocation wanted(two.devices, 1, false);
  const Catalog catalog = wanted.catalog();
  two.restored(catalog);
  two.send_order("retake");
  const Error error = failure_by(
      3s, [&](Duration limit) { two.reader.restore(catalog, within(limit)).wait(); }, with_code(ErrorCode::withdrawn));
  BOOST_TEST((error.code() == ErrorCode::withdrawn), error.what());
  two.send_order("republish");
  BOOST_TEST(only_peer(two.restored(catalog)).path == "shm/mapped");
  BOOST_TEST(wanted.wrong(3) == 0U);
  BOOST_TEST(two.devices->imports_made() == 2);
}

BOOST_AUTO_TEST_CASE(what_nothing_carries_is_refused_and_says_what_to_open) {
  const Deadline deadline(120s);
  UsedDevices devices;  // their memory cannot be exported
  SessionOptions options = quick();
  options.transport = "shm";
  const auto port = free_port();
  Session source = Session::join(member(0, 2, port), options);
  Session reader = Session::join(member(1, 2, port), options);
  SharedAllocation held(devices, 0, false);
  const Publication publication = source.publish(held.catalog());
  SharedAllocation wanted(devices, 1, false);
  Restore restore = reader.restore(wanted.catalog(), within(patience));
  const Error error = failure_of([&] { restore.wait(); });
  BOOST_TEST((error.code() == ErrorCode::unsupported), error.what());
  BOOST_TEST(says(error, "in a way that no other process can map"), error.what());
  BOOST_TEST(says(error, "open tcp too"), error.what());
}

// Both sessions are threads here: a process cannot open memory that it exported itself.
BOOST_DATA_TEST_CASE(within_a_process_the_pointer_itself_is_used, boost::unit_test::data::make({0, 1}), device) {
  const Deadline deadline(120s);
  UsedDevices devices;
  devices->share(FakeDevices::Sharing::handle);
  const auto port = free_port();
  Session source = Session::join(member(0, 2, port), quick());
  Session reader = Session::join(member(1, 2, port), quick());
  SharedAllocation held(devices, 0, false);
  held.fill(1);
  const Publication publication = source.publish(held.catalog());
  SharedAllocation wanted(devices, device, false);
  Restore restore = reader.restore(wanted.catalog(), within(patience));
  restore.wait();
  BOOST_TEST(wanted.wrong(1) == 0U);
  BOOST_TEST(only_peer(restore).path == "shm/mapped");
  BOOST_TEST(devices->imports_made() == 0);
}

BOOST_AUTO_TEST_SUITE_END()

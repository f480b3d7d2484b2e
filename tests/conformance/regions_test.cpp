// SPDX-License-Identifier: Apache-2.0
#include <sys/mman.h>

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <cstdlib>
#include <string>
#include <thread>

#include "conformance/pair.hpp"
#include "support/fake_device.hpp"

BOOST_AUTO_TEST_SUITE(regions)

using namespace shardwire;
using namespace shardwire::test;

namespace {

/// For a fabric that neither maps nor reads: peers cannot access its regions, and these have no keys.
bool has_no_keys(Pair& pair, const transport::Region& region) {
  if (!region.key().empty()) return false;
  const transport::Path path = pair.to_left->path({});
  BOOST_TEST_MESSAGE(path.carrier << " has no region keys: " << path.why_not.detail);
  BOOST_TEST((!path.map && !path.read));
  BOOST_TEST(!path.why_not.empty());
  BOOST_CHECK_EXCEPTION(pair.to_left->import_region({}, region.memory().bytes), Error,
                        [](const Error& e) { return e.code() == ErrorCode::transport_failed; });
  return true;
}

/// While it lives, new fabrics use the machine's second RDMA port, if the environment names one.
struct OtherPort {
  OtherPort() {
    const char* const other = std::getenv("SHARDWIRE_TEST_OTHER_PORT");
    const char* const now = std::getenv("UCX_NET_DEVICES");
    if (other == nullptr || now == nullptr) return;
    before = now;
    ::setenv("UCX_NET_DEVICES", other, 1);
  }
  ~OtherPort() {
    if (!before.empty()) ::setenv("UCX_NET_DEVICES", before.c_str(), 1);
  }
  OtherPort(const OtherPort&) = delete;
  OtherPort& operator=(const OtherPort&) = delete;
  std::string before{};
};

/// A placeholder for fabrics without regions.
struct NoRegion final : transport::RemoteRegion {
  [[nodiscard]] transport::ConstMemory mapped() const override { return {}; }
};

}  // namespace

BOOST_DATA_TEST_CASE(a_region_is_exported_and_imported, boost::unit_test::data::make({0UL, 1UL, 4097UL, 8UL << 20}),
                     size) {
  const Deadline deadline(120s);
  Pair pair;
  const auto region = pair.left->allocate(size);
  BOOST_REQUIRE(region->memory().span().size() == size);
  const Bytes content = pattern(size);
  std::copy(content.begin(), content.end(), region->memory().span().begin());
  BOOST_TEST(region->key().size() <= transport::max_key_bytes);
  if (has_no_keys(pair, *region)) return;

  const auto remote = import_region(*pair.to_left, *region, size);
  const auto mapped = remote->mapped().span();
  BOOST_TEST(mapped.size() == (pair.to_left->path({}).map ? size : 0));
  BOOST_TEST(same_bytes(mapped, std::span(content).first(mapped.size())));
  if (!mapped.empty()) {
    region->memory().span().front() = ~region->memory().span().front();
    BOOST_TEST((mapped.front() == region->memory().span().front()));  // the memory itself, not a copy
  }
}

BOOST_AUTO_TEST_CASE(a_part_of_a_region_may_be_announced_but_not_more_than_all) {
  const Deadline deadline(120s);
  Pair pair;
  const auto region = pair.left->allocate(10'000);
  if (has_no_keys(pair, *region)) return;
  const auto remote = import_region(*pair.to_left, *region, 100);
  if (pair.to_left->path({}).map) BOOST_TEST(remote->mapped().bytes == 100);
  BOOST_CHECK_EXCEPTION(import_region(*pair.to_left, *region, 10'001), Error,
                        [](const Error& e) { return e.code() == ErrorCode::transport_failed; });
}

BOOST_AUTO_TEST_CASE(a_mapping_outlives_its_region) {
  const Deadline deadline(120s);
  Pair pair;
  auto region = pair.left->allocate(100'000);
  const Bytes content = pattern(100'000);
  std::copy(content.begin(), content.end(), region->memory().span().begin());
  if (has_no_keys(pair, *region)) return;
  const auto remote = import_region(*pair.to_left, *region, content.size());
  region.reset();
  if (pair.to_left->path({}).map) BOOST_TEST(same_bytes(remote->mapped().span(), content));
}

BOOST_AUTO_TEST_CASE(one_sided_reads_complete_in_progress) {
  const Deadline deadline(120s);
  Pair pair;
  const auto region = pair.left->allocate(1 << 20);
  const Bytes content = pattern(1 << 20);
  std::copy(content.begin(), content.end(), region->memory().span().begin());
  Bytes into(5000);
  Result result;
  const std::unique_ptr<transport::RemoteRegion> remote =
      has_no_keys(pair, *region) ? std::make_unique<NoRegion>() : import_region(*pair.to_left, *region, content.size());
  if (!pair.to_left->path({}).read) {
    BOOST_CHECK_EXCEPTION(read(*pair.to_left, *remote, 0, into, result.completion()), Error,
                          [](const Error& e) { return e.code() == ErrorCode::unsupported; });
    return;
  }
  read(*pair.to_left, *remote, 777, into, result.completion());
  BOOST_TEST(!result.done);
  BOOST_REQUIRE(pair.until([&] { return result.done; }));
  BOOST_TEST(same_bytes(into, std::span(content).subspan(777, 5000)));
  BOOST_CHECK_THROW(read(*pair.to_left, *remote, content.size() - 1, into, {}), Error);
  BOOST_CHECK_THROW(read(*pair.to_left, *remote, ~0ULL, into, {}), Error);
}

// Over memory that can be mapped, and over the caller's memory: a path may read them by different mechanisms.
BOOST_DATA_TEST_CASE(a_list_of_reads_completes_once_when_all_is_there, boost::unit_test::data::make({false, true}),
                     adopted) {
  const Deadline deadline(120s);
  Pair pair;
  const transport::Path path = pair.to_left->path({});
  if (!path.read) return;  // see one_sided_reads_complete_in_progress
  constexpr std::size_t size = 1 << 20;
  const Bytes content = pattern(size);
  Bytes memory = content;
  const auto region = adopted ? pair.left->adopt(transport::host_memory(memory)) : pair.left->allocate(size);
  if (!adopted) std::ranges::copy(content, region->memory().span().begin());
  BOOST_REQUIRE(!region->key().empty());
  const auto remote = import_region(*pair.to_left, *region, size);
  BOOST_TEST(remote->mapped().empty() == (adopted || !path.map));
  // Odd lengths at odd addresses, the last bytes first.
  const std::size_t count = std::min<std::size_t>(path.max_read_ranges, 500);
  Bytes into(size);
  std::vector<transport::ReadRange> ranges;
  Bytes expected(size);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t bytes = i % 7 == 0 ? 0 : i % 611 + 1;
    const std::size_t from = size - (i + 1) * 1500;
    const std::size_t to = i * 1300 + i % 3;
    ranges.push_back({from, transport::host_memory(into).part(to, bytes)});
    std::copy_n(content.begin() + static_cast<long>(from), bytes, expected.begin() + static_cast<long>(to));
  }
  int completions = 0;
  pair.to_left->read(*remote, ranges, [&](const transport::Outcome& outcome) {
    BOOST_TEST(!outcome);
    ++completions;
  });
  ranges.clear();  // the call has copied the list
  BOOST_REQUIRE(pair.until([&] { return completions > 0; }));
  BOOST_TEST(same_bytes(into, expected));
  run_until([&] { pair.step(); }, [] { return false; }, 50ms);
  BOOST_TEST(completions == 1);
  Bytes byte(1);
  const std::vector<transport::ReadRange> too_many(path.max_read_ranges + 1, {0, transport::host_memory(byte)});
  BOOST_CHECK_THROW(pair.to_left->read(*remote, too_many, {}), Error);
}

BOOST_AUTO_TEST_CASE(memory_that_the_caller_has_is_reached_until_it_is_withdrawn) {
  const Deadline deadline(120s);
  Pair pair;
  Bytes memory = pattern(300'001);
  auto region = pair.left->adopt(transport::host_memory(memory));
  BOOST_TEST((region->memory().address == memory.data()));
  BOOST_TEST(region->memory().bytes == memory.size());
  if (region->key().empty()) {  // its bytes can only be sent
    BOOST_TEST(pair.to_left->path({}).message);
    return;
  }
  const auto remote = import_region(*pair.to_left, *region, memory.size());
  BOOST_TEST(remote->mapped().empty());  // its owner may unmap it
  BOOST_REQUIRE(pair.to_left->path({}).read);
  Bytes into(10'000);
  Result first;
  read(*pair.to_left, *remote, 290'001, into, first.completion());
  BOOST_REQUIRE(pair.until([&] { return first.done; }));
  BOOST_TEST(first.succeeded());
  BOOST_TEST(same_bytes(into, std::span(memory).last(10'000)));
  region.reset();
  std::ranges::fill(into, std::byte{0});
  Result late;
  read(*pair.to_left, *remote, 0, into, late.completion());
  BOOST_REQUIRE(pair.until([&] { return late.done; }));
  BOOST_TEST(late.outcome.has_value());
  BOOST_TEST(std::ranges::all_of(into, [](std::byte one) { return one == std::byte{0}; }));
}

BOOST_AUTO_TEST_CASE(memory_of_a_place_that_a_fabric_does_not_know_is_refused) {
  const Deadline deadline(120s);
  Pair pair;
  const transport::MemoryPlace elsewhere{MemoryKind::cuda, 0};
  if (pair.to_left->path(elsewhere).message || pair.to_left->path(elsewhere).map) return;
  BOOST_TEST(!pair.to_left->path(elsewhere).why_not.empty());
  const auto unsupported = [](const Error& e) { return e.code() == ErrorCode::unsupported; };
  BOOST_CHECK_EXCEPTION(pair.left->allocate(4096, elsewhere), Error, unsupported);
  BOOST_CHECK_EXCEPTION(pair.left->adopt({nullptr, 4096, elsewhere}), Error, unsupported);
}

BOOST_AUTO_TEST_CASE(memory_of_a_device_is_mapped_where_the_path_says_so) {
  const Deadline deadline(120s);
  UsedDevices devices;
  devices->share(FakeDevices::Sharing::handle);
  Pair pair;
  const transport::MemoryPlace place{MemoryKind::cuda, 1};
  if (!pair.to_left->path(place).map) return;
  constexpr std::size_t size = 8192;
  const Bytes content = pattern(size);
  const transport::Memory memory{devices->take(1, size), size, place};
  devices->write(memory.address, content);
  const auto region = pair.left->adopt(memory);
  const auto remote = import_region(*pair.to_left, *region, size);
  BOOST_TEST((remote->mapped().place == place));
  BOOST_TEST(remote->mapped().bytes == size);
  BOOST_TEST((devices->read(remote->mapped().address, size) == content));
  // Another allocation at the same address must not be accepted.
  devices->give_back(memory.address);
  BOOST_REQUIRE(devices->take(1, size) == memory.address);
  const auto stale = import_region(*pair.to_left, *region, size);
  BOOST_TEST(stale->mapped().empty());
  BOOST_TEST(stale->why_not_mapped() == "it was freed");
  Bytes into(size);
  const transport::ReadRange range{0, transport::host_memory(into)};
  if (pair.to_left->path(place).read) return;
  BOOST_CHECK_EXCEPTION(pair.to_left->read(*remote, std::span(&range, 1), [](const auto&) {}), Error,
                        [](const Error& e) { return e.code() == ErrorCode::unsupported; });
}

BOOST_AUTO_TEST_CASE(garbled_keys_are_refused) {
  const Deadline deadline(120s);
  Pair pair;
  const auto region = pair.left->allocate(4096);
  const Bytes good = region->key();
  const auto refused = [&](const Bytes& key) {
    BOOST_CHECK_EXCEPTION(pair.to_left->import_region(export_key(*region, key), 4096), Error,
                          [](const Error& e) { return e.code() == ErrorCode::transport_failed; });
  };
  refused({});
  refused(pattern(300));
  for (std::size_t size = 0; size < good.size(); ++size)
    refused({good.begin(), good.begin() + static_cast<long>(size)});
  Bytes longer = good;
  longer.push_back(std::byte{0});
  refused(longer);
}

BOOST_AUTO_TEST_CASE(more_memory_than_there_is_gives_a_typed_error) {
  const Deadline deadline(120s);
  const auto fabric = open_fabric();
  for (const ByteCount size : {ByteCount{1} << 50, ~ByteCount{0}}) {
    BOOST_CHECK_EXCEPTION(fabric->allocate(size), Error,
                          [](const Error& e) { return e.code() == ErrorCode::out_of_resources; });
  }
  BOOST_TEST(fabric->allocate(100)->memory().bytes == 100);
}

// A NIC rejects a key of another NIC, and may end the connection.
BOOST_AUTO_TEST_CASE(a_key_of_another_fabric_opens_none_of_its_memory) {
  const Deadline deadline(120s);
  Pair pair;
  const transport::Path path = pair.to_left->path({});
  if (!path.read || path.map) return;  // exported mappings have no such key
  const OtherPort port;
  const auto other = open_fabric();
  const auto region = other->allocate(4096);
  std::ranges::fill(region->memory().span(), std::byte{7});
  std::unique_ptr<transport::RemoteRegion> remote;
  try {
    remote = import_region(*pair.to_left, *region, 4096);
  } catch (const Error& error) {
    BOOST_TEST((error.code() == ErrorCode::transport_failed), error.what());
    return;
  }
  Bytes into(4096);
  Result result;
  read(*pair.to_left, *remote, 0, into, result.completion());
  BOOST_REQUIRE(pair.until([&] { return result.done; }));
  BOOST_TEST(result.outcome.has_value());
  BOOST_TEST(std::ranges::all_of(into, [](std::byte one) { return one == std::byte{0}; }));
}

// More memory than exists, and none of it can be pinned; software transports do not pin.
BOOST_AUTO_TEST_CASE(memory_that_a_device_does_not_take_is_a_typed_error_and_the_next_is_taken) {
  const Deadline deadline(120s);
  Pair pair;
  constexpr std::size_t size = std::size_t{64} << 30;
  void* const reserved = ::mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  BOOST_REQUIRE(reserved != MAP_FAILED);
  const transport::Path path = pair.to_left->path({});
  const bool pins = path.read && !path.reads_need_peer && path.reach == Reach::network;
  try {
    const auto region = pair.left->adopt({static_cast<std::byte*>(reserved), size, {}});
    BOOST_TEST(region->memory().bytes == size);
    BOOST_TEST(!pins);
  } catch (const Error& error) {
    BOOST_TEST((error.code() == ErrorCode::out_of_resources), error.what());
    BOOST_TEST(pins);
  }
  ::munmap(reserved, size);
  const auto region = pair.left->allocate(100);
  if (!path.read) return;
  std::ranges::fill(region->memory().span(), std::byte{5});
  const auto remote = import_region(*pair.to_left, *region, 100);
  Bytes into(100);
  Result result;
  read(*pair.to_left, *remote, 0, into, result.completion());
  BOOST_REQUIRE(pair.until([&] { return result.done; }));
  BOOST_TEST(result.succeeded());
  BOOST_TEST((into == Bytes(100, std::byte{5})));
}

BOOST_AUTO_TEST_CASE(regions_come_and_go_on_other_threads) {
  const Deadline deadline(120s);
  Pair pair;
  std::atomic<bool> stop = false;
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round < 50; ++round) {
        const auto region = pair.left->allocate(static_cast<std::size_t>(1000 * i + round));
        static_cast<void>(region->key());
        std::ranges::fill(region->memory().span(), std::byte{7});
      }
      stop = true;
    });
  }
  const Bytes payload = pattern(300'000);
  while (!stop) {
    pair.step();
    if (!pair.to_right->path({}).message) continue;
    Result sent;
    send(*pair.to_right, {}, payload, sent.completion());
    BOOST_REQUIRE(pair.until([&] { return sent.done; }));
  }
  for (auto& thread : threads) thread.join();
}

BOOST_AUTO_TEST_SUITE_END()

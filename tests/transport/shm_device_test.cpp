// SPDX-License-Identifier: Apache-2.0
// Keys of device memory over shm: export, mapping, and keys that are refused.
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "support/fake_device.hpp"
#include "support/open_descriptors.hpp"
#include "support/refused.hpp"
#include "transport/bytes.hpp"
#include "transport/shm/registration.hpp"

BOOST_AUTO_TEST_SUITE(shm_device)

using namespace shardwire;
using namespace shardwire::test;
using namespace shardwire::transport;

namespace {

constexpr ByteCount tensor_bytes = 3 * FakeDevices::chunk_bytes;
constexpr pid_t other_process = 1;

/// Exported memory of a device, and an import as by another process.
struct Shown {
  explicit Shown(FakeDevices::Sharing sharing) { devices->share(sharing); }
  std::unique_ptr<Region> adopt(ByteCount offset = 0, ByteCount bytes = tensor_bytes) {
    return shm::adopt_region({memory + offset, bytes, {MemoryKind::cuda, 1}});
  }
  UsedDevices devices;
  std::byte* memory = nullptr;
};

std::unique_ptr<shm::ShmRemote> import_from(pid_t peer, const Region& region, const Bytes& key, ByteCount bytes) {
  RegionKey told{key};
  for (const int one : region.descriptors()) told.descriptors.emplace_back(::fcntl(one, F_DUPFD_CLOEXEC, 0));
  return shm::import_region(std::move(told), bytes, peer);
}

// The words of a key: magic, serial, allocation, address, size, offset, bytes and offset of the exported memory.
Bytes with_word(const Bytes& key, std::size_t index, std::uint64_t value) {
  Bytes out(key.begin(), key.end() - sizeof(std::uint64_t));
  std::memcpy(out.data() + index * sizeof value, &value, sizeof value);
  seal(out);
  return out;
}

}  // namespace

BOOST_AUTO_TEST_CASE(an_allocation_is_mapped_once_for_all_regions_that_lie_in_it) {
  Shown shown(FakeDevices::Sharing::chunks);
  shown.memory = shown.devices->take(1, tensor_bytes);
  const std::vector<std::byte> content(tensor_bytes, std::byte{7});
  shown.devices->write(shown.memory, content);
  const auto all = shown.adopt();
  const auto part = shown.adopt(100, tensor_bytes - 200);
  BOOST_TEST(all->descriptors().size() == 3U);
  BOOST_TEST((shown.adopt()->key() == all->key()));  // the same at each publication
  {
    const auto first = import_from(other_process, *all, all->key(), tensor_bytes);
    const auto second = import_from(other_process, *part, part->key(), tensor_bytes - 200);
    BOOST_TEST(shown.devices->imports() == 1);
    BOOST_TEST((first->mapped().place == MemoryPlace{MemoryKind::cuda, 1}));
    BOOST_TEST((first->mapped().address != shown.memory));
    BOOST_TEST((second->mapped().address == first->mapped().address + 100));
    BOOST_TEST(second->mapped().bytes == tensor_bytes - 200);
    BOOST_TEST((shown.devices->read(first->mapped().address, tensor_bytes) == content));
  }
  BOOST_TEST(shown.devices->imports() == 0);
}

// Like tensors in an expandable segment of PyTorch.
BOOST_AUTO_TEST_CASE(a_chunk_has_one_descriptor_however_many_regions_lie_in_it) {
  Shown shown(FakeDevices::Sharing::chunks);
  shown.memory = shown.devices->take(1, tensor_bytes);
  const std::size_t before = open_descriptors();
  const auto adopt_many = [&] {
    std::vector<std::unique_ptr<Region>> regions;
    for (ByteCount offset = 0; offset + 2000 <= tensor_bytes; offset += 200) {
      regions.push_back(shown.adopt(offset, 2000));
      BOOST_TEST(regions.back()->descriptors().size() ==
                 (offset / FakeDevices::chunk_bytes == (offset + 1999) / FakeDevices::chunk_bytes ? 1U : 2U));
    }
    return regions;
  };
  auto regions = adopt_many();
  BOOST_TEST(open_descriptors() == before + 3);
  const Region& middle = *regions[regions.size() / 2];
  BOOST_TEST(import_from(other_process, middle, middle.key(), 2000)->mapped().bytes == 2000U);

  // Allocations that replace them are exported again.
  shown.devices->give_back(shown.memory);
  BOOST_REQUIRE(shown.devices->take(1, tensor_bytes) == shown.memory);
  const auto others = adopt_many();
  BOOST_TEST(open_descriptors() == before + 6);
  BOOST_TEST(others.front()->descriptors() != regions.front()->descriptors());
  regions.clear();
  BOOST_TEST(open_descriptors() == before + 3);
}

BOOST_AUTO_TEST_CASE(where_no_descriptors_are_left_memory_is_not_handed_over_and_says_why) {
  Shown shown(FakeDevices::Sharing::chunks);
  shown.memory = shown.devices->take(1, tensor_bytes);
  rlimit usual{};
  BOOST_REQUIRE(::getrlimit(RLIMIT_NOFILE, &usual) == 0);
  const rlimit few{open_descriptors() + max_key_descriptors, usual.rlim_max};
  BOOST_REQUIRE(::setrlimit(RLIMIT_NOFILE, &few) == 0);
  auto region = shown.adopt();
  BOOST_REQUIRE(::setrlimit(RLIMIT_NOFILE, &usual) == 0);
  BOOST_TEST(region->descriptors().empty());
  const std::string why = import_from(other_process, *region, region->key(), tensor_bytes)->why_not_mapped();
  BOOST_TEST(why.find("ulimit -n") != std::string::npos, why);
  region.reset();
  BOOST_TEST(shown.adopt()->descriptors().size() == 3U);
}

BOOST_AUTO_TEST_CASE(memory_that_was_freed_is_neither_adopted_nor_mapped) {
  Shown shown(FakeDevices::Sharing::handle);
  shown.memory = shown.devices->take(1, tensor_bytes);
  const auto before = shown.adopt();
  const Bytes key = before->key();
  BOOST_TEST((import_from(::getpid(), *before, key, tensor_bytes)->mapped().address == shown.memory));
  shown.devices->give_back(shown.memory);
  refused(ErrorCode::invalid_argument, "(any more)", [&] { shown.adopt(); });
  BOOST_REQUIRE(shown.devices->take(1, tensor_bytes) == shown.memory);
  BOOST_TEST((shown.adopt()->key() != key));
  const auto stale = import_from(::getpid(), *before, key, tensor_bytes);
  BOOST_TEST(stale->mapped().empty());
  BOOST_TEST(stale->why_not_mapped() == "it was freed");
}

BOOST_AUTO_TEST_CASE(keys_that_do_not_hold_together_are_refused) {
  Shown shown(FakeDevices::Sharing::chunks);
  shown.memory = shown.devices->take(1, tensor_bytes);
  const auto region = shown.adopt();
  const Bytes key = region->key();
  const auto refuse = [&](const std::string& why, const Bytes& changed, ByteCount bytes = tensor_bytes) {
    refused(ErrorCode::transport_failed, why, [&] { import_from(other_process, *region, changed, bytes); });
  };
  refuse("were announced", key, tensor_bytes + 1);
  refuse("reaches outside of the memory that it opens", with_word(key, 5, 1));
  refuse("reaches outside of the memory that it opens", with_word(key, 4, tensor_bytes + 1));
  refuse("shorter than their content", with_word(key, 6, 4 * tensor_bytes));
  refuse("shorter than their content", with_word(key, 7, 1));
  Bytes shorter(key.begin(), key.end() - 2 * sizeof(std::uint64_t));
  seal(shorter);
  refuse("has the wrong length", shorter);
  refused(ErrorCode::transport_failed, "0 descriptors came with it",
          [&] { shm::import_region({key}, tensor_bytes, other_process); });
  BOOST_TEST(shown.devices->imports_made() == 0);
}

BOOST_AUTO_TEST_SUITE_END()

// SPDX-License-Identifier: Apache-2.0
// Arenas, their memory, and the checks of readers that import an arena.
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <boost/test/unit_test.hpp>
#include <cstring>

#include "conformance/pair.hpp"
#include "support/fake_root.hpp"
#include "support/open_descriptors.hpp"
#include "transport/bytes.hpp"
#include "transport/shm/memory_left.hpp"
#include "transport/shm/registration.hpp"

BOOST_AUTO_TEST_SUITE(shm_memory)

using namespace shardwire;
using namespace shardwire::test;
using namespace shardwire::transport;

namespace {

constexpr ByteCount mebibyte = ByteCount{1} << 20;

support::Descriptor memory_file(ByteCount bytes, int seals, unsigned flags = 0) {
  support::Descriptor memory(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING | flags));
  BOOST_REQUIRE(memory.get() >= 0);
  BOOST_REQUIRE(::ftruncate(memory.get(), static_cast<off_t>(bytes)) == 0);
  if (seals != 0) BOOST_REQUIRE(::fcntl(memory.get(), F_ADD_SEALS, seals) == 0);
  return memory;
}

// The words of a key: magic, serial, size, size of a chunk; or magic, address, size, generation word.
Bytes with_word(const Bytes& key, std::size_t index, std::uint64_t value) {
  Bytes out(key.begin(), key.end() - sizeof(std::uint64_t));
  std::memcpy(out.data() + index * sizeof value, &value, sizeof value);
  transport::seal(out);
  return out;
}

constexpr ByteCount huge_bytes = 2 * mebibyte;

// nullopt if the kernel has no huge pages.
support::Descriptor huge_memory() {
  support::Descriptor memory(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB));
  if (memory && ::ftruncate(memory.get(), huge_bytes) != 0) memory.reset();
  return memory;
}
boost::test_tools::assertion_result with_huge_pages(boost::unit_test::test_unit_id /*case*/) {
  boost::test_tools::assertion_result result(static_cast<bool>(huge_memory()));
  if (!result) result.message() << "this kernel has no huge pages for memory without a name";
  return result;
}

std::vector<support::Descriptor> copies_of(const Region& region) {
  return export_key(region, {}).descriptors;
}

/// Checks that importing `key` fails with this reason.
void refused(const Bytes& key, std::vector<support::Descriptor> descriptors, std::string_view why,
             ByteCount announced = 0) {
  BOOST_CHECK_EXCEPTION(shm::import_region({key, std::move(descriptors)}, announced, ::getpid()), Error,
                        [&](const Error& error) {
                          BOOST_TEST_MESSAGE(error.what());
                          return error.code() == ErrorCode::transport_failed &&
                                 std::string_view(error.what()).find(why) != std::string_view::npos;
                        });
}

}  // namespace

BOOST_AUTO_TEST_CASE(an_arena_lies_in_chunks_side_by_side_on_both_sides) {
  const Deadline deadline(120s);
  const ByteCount chunk = memory::smallest_chunk_bytes;
  const ByteCount size = 2 * chunk + 5000;
  auto region = shm::allocate_region(size);
  BOOST_TEST(region->memory().bytes == size);
  const auto descriptors = region->descriptors();
  BOOST_REQUIRE(descriptors.size() == 3U);
  ByteCount present = 0;
  for (const int descriptor : descriptors) {
    struct stat info {};
    BOOST_REQUIRE(::fstat(descriptor, &info) == 0);
    present += static_cast<ByteCount>(info.st_blocks);
  }
  BOOST_TEST(present == 0U);  // no page exists before it is accessed
  const auto bytes = region->memory().span();
  const std::array<ByteCount, 7> places{0, 1, chunk - 1, chunk, 2 * chunk - 1, 2 * chunk, size - 1};
  for (std::size_t i = 0; i < places.size(); ++i) bytes[places[i]] = static_cast<std::byte>(i + 1);
  const Bytes key = region->key();
  const auto remote = shm::import_region(export_key(*region, key), size, ::getpid());
  region.reset();
  const auto mapped = remote->mapped().span();
  BOOST_REQUIRE(mapped.size() == size);
  for (std::size_t i = 0; i < places.size(); ++i) BOOST_TEST((mapped[places[i]] == static_cast<std::byte>(i + 1)));
}

BOOST_AUTO_TEST_CASE(whole_chunks_are_given_back_and_the_others_stay_readable) {
  const Deadline deadline(120s);
  const ByteCount chunk = memory::smallest_chunk_bytes;
  const auto region = shm::allocate_region(3 * chunk + 100);
  std::byte* const bytes = region->memory().address;
  bytes[0] = std::byte{1};
  bytes[3 * chunk + 99] = std::byte{4};
  BOOST_TEST(region->discard(chunk - 1, chunk) == 0U);
  BOOST_TEST(region->holds(0, 3 * chunk + 100));
  BOOST_TEST(region->discard(chunk - 1, 2 * chunk + 1) == 2 * chunk);
  BOOST_TEST(region->discard(chunk, chunk) == 0U);  // discards only once
  BOOST_TEST(region->holds(0, chunk));
  BOOST_TEST(!region->holds(chunk - 1, 2));
  BOOST_TEST(!region->holds(2 * chunk, chunk));
  BOOST_TEST(region->holds(3 * chunk, 100));
  BOOST_TEST(region->descriptors().size() == 2U);
  const Bytes key = region->key();
  const auto remote = shm::import_region(export_key(*region, key), 3 * chunk + 100, ::getpid());
  BOOST_REQUIRE(!remote->mapped().empty());
  BOOST_TEST((remote->mapped().address[0] == std::byte{1}));
  BOOST_TEST((remote->mapped().address[3 * chunk + 99] == std::byte{4}));
  refused(key, {}, "0 descriptors came with a region key that goes with 2");
  BOOST_TEST(region->discard(3 * chunk, 100) > 0U);  // the last chunk is shorter
}

BOOST_AUTO_TEST_CASE(no_arena_has_more_chunks_than_descriptors_travel_with_a_key) {
  for (int bits = 0; bits < 62; ++bits) {
    for (const ByteCount bytes : {ByteCount{1} << bits, (ByteCount{1} << bits) + 1}) {
      const ByteCount chunk = memory::chunk_bytes_for(bytes);
      BOOST_TEST(chunk >= memory::smallest_chunk_bytes);
      BOOST_TEST((bytes - 1) / chunk < max_key_descriptors);
      BOOST_TEST(chunk % memory::page_bytes() == 0U);
    }
  }
}

BOOST_AUTO_TEST_CASE(two_regions_never_have_the_same_key) {
  const Bytes first = shm::allocate_region(4096)->key();
  const Bytes second = shm::allocate_region(4096)->key();
  BOOST_TEST((first != second));
  Bytes memory(100);
  const Bytes third = shm::adopt_region(host_memory(memory))->key();
  const Bytes fourth = shm::adopt_region(host_memory(memory))->key();
  BOOST_TEST((third != fourth));
}

BOOST_AUTO_TEST_CASE(readers_can_neither_write_nor_cut_short) {
  const auto region = shm::allocate_region(8192);
  region->memory().span()[0] = std::byte{7};
  const Bytes key = region->key();
  const auto remote = shm::import_region(export_key(*region, key), 8192, ::getpid());
  const int memory = region->descriptors().front();
  BOOST_TEST(::ftruncate(memory, 0) != 0);
  BOOST_TEST(::ftruncate(memory, 1 << 20) != 0);
  BOOST_TEST(::fallocate(memory, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) != 0);
  BOOST_TEST(::pwrite(memory, "x", 1, 0) < 0);
  BOOST_TEST((::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0) == MAP_FAILED));
  auto* const mapped = const_cast<std::byte*>(remote->mapped().address);
  BOOST_TEST(::mprotect(mapped, 4096, PROT_READ | PROT_WRITE) != 0);
  BOOST_TEST(::fcntl(memory, F_ADD_SEALS, F_SEAL_WRITE) != 0);
  region->memory().span()[0] = std::byte{8};  // the owner can still write
  BOOST_TEST((remote->mapped().span()[0] == std::byte{8}));
}

BOOST_AUTO_TEST_CASE(descriptors_that_are_not_what_the_key_says_are_refused_and_closed) {
  const Deadline deadline(120s);
  constexpr int size_seals = F_SEAL_SHRINK | F_SEAL_GROW;
  constexpr ByteCount size = 8192;
  const auto region = shm::allocate_region(size - 100);
  const Bytes key = region->key();
  const std::size_t before = open_descriptors();
  const auto one = [](support::Descriptor descriptor) {
    std::vector<support::Descriptor> list;
    list.push_back(std::move(descriptor));
    return list;
  };
  refused(key, one(memory_file(4096, size_seals | F_SEAL_FUTURE_WRITE)), "4096 bytes where the key says 8192");
  refused(key, one(memory_file(2 * size, size_seals | F_SEAL_FUTURE_WRITE)), "16384 bytes");
  refused(key, one(memory_file(size, 0)), "cut short");
  refused(key, one(memory_file(size, F_SEAL_SHRINK | F_SEAL_FUTURE_WRITE)), "cut short");
  refused(key, one(memory_file(size, F_SEAL_GROW | F_SEAL_FUTURE_WRITE)), "cut short");
  refused(key, one(memory_file(size, size_seals)), "readers can write");
  const FakeRoot folder;
  folder.write("/file", std::string(size, 'x'));
  refused(key, one(support::Descriptor(::open((folder.path / "file").c_str(), O_RDWR | O_CLOEXEC))), "is ");
  refused(key, one(support::Descriptor(::open("/dev/zero", O_RDWR | O_CLOEXEC))), "is no memory");
  refused(key, one(support::Descriptor(::open("/", O_RDONLY | O_CLOEXEC))), "is no memory");
  refused(key, one(support::Descriptor()), "cannot be used");
  std::array<int, 2> pipe{};
  BOOST_REQUIRE(::pipe2(pipe.data(), O_CLOEXEC) == 0);
  const support::Descriptor writer(pipe[1]);
  refused(key, one(support::Descriptor(pipe[0])), "is no memory");
  refused(key, {}, "0 descriptors came with a region key that goes with 1");
  auto two = copies_of(*region);
  two.push_back(memory_file(size, size_seals | F_SEAL_FUTURE_WRITE));
  refused(key, std::move(two), "2 descriptors");
  std::vector<support::Descriptor> hundred;
  for (int i = 0; i < 100; ++i) hundred.emplace_back(::dup(region->descriptors().front()));
  refused(key, std::move(hundred), "100 descriptors");
  BOOST_TEST(open_descriptors() == before + 1);  // the writer
  // Memory from another source that matches the key is accepted.
  const auto other = memory_file(size, size_seals | F_SEAL_WRITE);
  BOOST_TEST(
      shm::import_region({key, one(support::Descriptor(::dup(other.get())))}, size - 100, ::getpid())->mapped().bytes ==
      size - 100);
}

BOOST_AUTO_TEST_CASE(memory_in_huge_pages_that_may_be_wanting_is_refused,
                     *boost::unit_test::precondition(with_huge_pages)) {
  const auto region = shm::allocate_region(huge_bytes);
  std::vector<support::Descriptor> list;
  list.push_back(huge_memory());
  BOOST_REQUIRE(::fcntl(list.front().get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE) == 0);
  refused(region->key(), std::move(list), "is a file");
}

BOOST_AUTO_TEST_CASE(keys_with_impossible_sizes_are_refused) {
  const auto region = shm::allocate_region(8192);
  const Bytes key = region->key();
  for (const std::uint64_t chunk : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{4095}, ~std::uint64_t{0}}) {
    refused(with_word(key, 3, chunk), copies_of(*region), "impossible sizes");
  }
  refused(with_word(key, 3, 4096), copies_of(*region), "where the key says 4096");
  refused(with_word(key, 2, ~std::uint64_t{0}), copies_of(*region), "impossible sizes");
  refused(with_word(key, 2, std::uint64_t{1} << 62), copies_of(*region), "pieces");
  refused(with_word(key, 2, 0), copies_of(*region), "speaks of 0 pieces");
  refused(with_word(key, 4, 0), copies_of(*region), "goes with 0");
  refused(with_word(key, 4, 2), copies_of(*region), "speaks of 1 pieces");
  refused(key, copies_of(*region), "8193 were announced", 8193);
  Bytes memory(1000);
  const auto adopted = shm::adopt_region(host_memory(memory));
  refused(adopted->key(), copies_of(*region), "descriptors came with");
  refused(with_word(adopted->key(), 1, ~std::uint64_t{0} - 10), {}, "no process can have");
  refused(with_word(adopted->key(), 2, ~std::uint64_t{0}), {}, "no process can have");
  refused(adopted->key(), {}, "1001 were announced", 1001);
  Bytes longer(key.begin(), key.end() - sizeof(std::uint64_t));
  longer.push_back(std::byte{0});
  transport::seal(longer);
  refused(longer, copies_of(*region), "wrong length");
}

BOOST_AUTO_TEST_CASE(what_memory_cannot_hold_is_refused_with_both_numbers) {
  const Deadline deadline(120s);
  const auto refuses = [](ByteCount size) {
    BOOST_CHECK_EXCEPTION(shm::allocate_region(size), Error, [&](const Error& error) {
      const std::string_view what = error.what();
      BOOST_TEST_MESSAGE(what);
      return error.code() == ErrorCode::out_of_resources && what.find(std::to_string(size)) != std::string_view::npos &&
             what.find("left") != std::string_view::npos;
    });
  };
  refuses(ByteCount{1} << 50);
  const ByteCount left = shm::memory_left().bytes;
  // The arena's pages are not allocated yet, but no other arena may claim them.
  const ByteCount most = left / 8 * 5;
  auto region = shm::allocate_region(most);
  refuses(most);
  region.reset();
  BOOST_TEST(shm::allocate_region(most)->memory().bytes == most);
}

BOOST_AUTO_TEST_CASE(limits_of_the_process_give_typed_errors) {
  const auto refuses_under = [](int resource, rlim_t soft, ByteCount size) {
    rlimit limit{};
    BOOST_REQUIRE(::getrlimit(static_cast<__rlimit_resource>(resource), &limit) == 0);
    const rlimit tight{soft, limit.rlim_max};
    BOOST_REQUIRE(::setrlimit(static_cast<__rlimit_resource>(resource), &tight) == 0);
    std::string what;
    try {
      (void)shm::allocate_region(size);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::out_of_resources) what = error.what();
    }
    BOOST_REQUIRE(::setrlimit(static_cast<__rlimit_resource>(resource), &limit) == 0);
    return what;
  };
  BOOST_TEST(refuses_under(RLIMIT_FSIZE, mebibyte, 8 * mebibyte).find("ulimit -f") != std::string::npos);
  const std::size_t before = open_descriptors();
  const int next = ::dup(0);  // the kernel gives out the lowest free number
  ::close(next);
  BOOST_TEST(refuses_under(RLIMIT_NOFILE, static_cast<rlim_t>(next) + 1, 3 * memory::smallest_chunk_bytes)
                 .find("memfd_create") != std::string::npos);
  BOOST_TEST(open_descriptors() == before);
}

BOOST_AUTO_TEST_CASE(the_least_of_all_limits_counts) {
  const FakeRoot root;
  const auto left = [&] { return shm::memory_left(root.path.string()); };
  BOOST_TEST(left().bytes == std::numeric_limits<ByteCount>::max());
  root.write("/proc/meminfo", "MemTotal:  9000 kB\nMemAvailable:    8000 kB\n");
  BOOST_TEST(left().bytes == 8000U * 1024);
  // Version 2: the parent's limit is lower than the group's own.
  const std::string v2 = "/sys/fs/cgroup";
  root.write("/proc/self/cgroup", "0::/job/step\n");
  root.write(v2 + "/job/step/memory.max", "7000000\n");
  root.write(v2 + "/job/step/memory.current", "1000000\n");
  BOOST_TEST(left().bytes == 6'000'000U);
  root.write(v2 + "/job/memory.max", "5000000\n");
  root.write(v2 + "/job/memory.current", "4500000\n");
  root.write(v2 + "/job/memory.stat", "anon 5\ninactive_file 500000\nactive_file 9\n");
  BOOST_TEST(left().bytes == 1'000'000U);
  BOOST_TEST(left().limit.find("/job") != std::string::npos);
  root.write(v2 + "/job/memory.max", "max\n");
  BOOST_TEST(left().bytes == 6'000'000U);
  root.write(v2 + "/job/step/memory.current", "9000000\n");  // over its limit
  BOOST_TEST(left().bytes == 0U);
  // A container whose /proc names a path of the host.
  root.write("/proc/self/cgroup", "0::/kubepods/pod7/container\n");
  root.write(v2 + "/memory.max", "3000000\n");
  root.write(v2 + "/memory.current", "1000000\n");
  BOOST_TEST(left().bytes == 2'000'000U);
  // Version 1 in addition.
  const std::string v1 = "/sys/fs/cgroup/memory";
  root.write("/proc/self/cgroup", "5:cpu,cpuacct:/a\n4:memory:/b\n0::/\n");
  root.write(v1 + "/b/memory.limit_in_bytes", "1500000\n");
  root.write(v1 + "/b/memory.usage_in_bytes", "1400000\n");
  root.write(v1 + "/b/memory.stat", "total_inactive_file 200000\n");
  BOOST_TEST(left().bytes == 300'000U);
  BOOST_TEST(left().limit.find("/memory/b") != std::string::npos);
  root.write(v1 + "/b/memory.limit_in_bytes", "9223372036854771712\n");  // no limit
  BOOST_TEST(left().bytes == 2'000'000U);
}

BOOST_AUTO_TEST_SUITE_END()

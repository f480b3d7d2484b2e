// SPDX-License-Identifier: Apache-2.0
// Cross-memory attach within this process, and the socket of an endpoint.
#include <arpa/inet.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <random>

#include "conformance/pair.hpp"
#include "support/child.hpp"
#include "support/descriptor_messages.hpp"
#include "support/forked.hpp"
#include "support/local_socket.hpp"
#include "support/open_descriptors.hpp"
#include "support/seed.hpp"
#include "transport/shm/attach.hpp"

BOOST_AUTO_TEST_SUITE(shm_attach)

using namespace shardwire;
using namespace shardwire::test;
using namespace shardwire::transport;

namespace {

std::unique_ptr<Fabric> open_shm() {
  return choose("shm").open();
}

std::vector<OpenSocket> list_of_one(support::Descriptor descriptor) {
  std::vector<OpenSocket> list;
  list.push_back(std::move(descriptor));
  return list;
}

/// Memory that this process publishes to itself.
struct Published {
  shm::Mark mark;
  std::atomic<bool> cancelled = false;

  Outcome read(const std::byte* from, std::span<const ReadRange> ranges) const {
    const shm::PublishedMemory memory{
        ::getpid(), reinterpret_cast<std::uintptr_t>(from), {mark.number(), mark.address()}};
    return shm::read_published(memory, ranges, cancelled);
  }
};

/// Pages of which some can be unmapped.
struct Pages {
  std::size_t size;
  std::byte* address;
  explicit Pages(std::size_t bytes)
      : size(bytes),
        address(static_cast<std::byte*>(
            ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {}
  ~Pages() { ::munmap(address, size); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
};

}  // namespace

// Compares reads of random lists, strided on both sides, with plain copies into a second buffer; bytes between the
// ranges must stay unchanged.
BOOST_DATA_TEST_CASE(lists_read_what_copies_do_and_nothing_else, boost::unit_test::data::xrange(30), round) {
  const Deadline deadline(120s);
  std::mt19937_64 random(test_seed() + static_cast<std::uint64_t>(round));
  const auto number = [&](std::size_t least, std::size_t most) {
    return std::uniform_int_distribution<std::size_t>(least, most)(random);
  };
  const std::size_t count = number(0, round < 25 ? 3000 : 16'384);
  const std::size_t longest = round % 3 == 0 ? 40 : round % 3 == 1 ? 3000 : 12'000;
  const bool dense_source = number(0, 2) == 0;
  const bool dense_target = number(0, 2) == 0;
  std::vector<ReadRange> ranges;
  std::size_t from = number(0, 5000);
  std::size_t to = number(0, 5000);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t bytes = number(0, 9) == 0 ? 0 : number(1, longest);
    ranges.push_back({from, {nullptr, bytes, {}}});
    from += bytes + (dense_source ? 0 : number(0, 200));
    to += bytes;
  }
  const Bytes source = pattern(from + 100, 11);
  Bytes target(to + 200 * count + 100, std::byte{0xa5});
  Bytes expected = target;
  std::size_t at = number(0, 50);
  for (ReadRange& range : ranges) {
    range.into.address = target.data() + at;
    std::copy_n(source.data() + range.offset_bytes, range.into.bytes, expected.data() + at);
    at += range.into.bytes + (dense_target ? 0 : number(0, 200));
  }
  if (number(0, 1) == 0) std::shuffle(ranges.begin(), ranges.end(), random);
  const Published published;
  const Outcome outcome = published.read(source.data(), ranges);
  BOOST_TEST(!outcome);
  BOOST_TEST(same_bytes(target, expected));
}

BOOST_AUTO_TEST_CASE(one_long_range_is_read_in_slices) {
  const Deadline deadline(120s);
  const Bytes source = pattern(3 * shm::slice_bytes + 12'345, 2);
  Bytes target(source.size() + 2, std::byte{0xa5});
  const Published published;
  const ReadRange range{0, host_memory(target).part(1, source.size())};
  BOOST_TEST(!published.read(source.data(), {&range, 1}));
  BOOST_TEST(same_bytes(std::span(target).subspan(1, source.size()), source));
  BOOST_TEST((target.front() == std::byte{0xa5} && target.back() == std::byte{0xa5}));
}

BOOST_AUTO_TEST_CASE(withdrawn_memory_is_not_read) {
  Bytes source = pattern(100'000);
  Bytes target(source.size());
  const ReadRange range{0, host_memory(target)};
  Published published;
  published.mark.clear();
  const Outcome outcome = published.read(source.data(), {&range, 1});
  BOOST_REQUIRE(outcome.has_value());
  BOOST_TEST((outcome->code == ErrorCode::withdrawn), outcome->message);
  BOOST_TEST((target == Bytes(source.size())));
}

// The kernel copies in order, so the bytes overwrite the mark before it is read in the same call.
BOOST_AUTO_TEST_CASE(memory_that_is_withdrawn_while_it_is_read_is_found_out) {
  const Bytes source(sizeof(std::uint64_t));
  Published published;
  auto* const mark = reinterpret_cast<std::byte*>(published.mark.address());
  const ReadRange range{0, host_memory(std::span(mark, source.size()))};
  const Outcome outcome = published.read(source.data(), {&range, 1});
  BOOST_REQUIRE(outcome.has_value());
  BOOST_TEST((outcome->code == ErrorCode::withdrawn), outcome->message);
}

BOOST_AUTO_TEST_CASE(a_read_that_is_given_up_ends_between_slices) {
  Bytes source = pattern(100'000);
  Bytes target(source.size());
  const ReadRange range{0, host_memory(target)};
  Published published;
  published.cancelled = true;
  const Outcome outcome = published.read(source.data(), {&range, 1});
  BOOST_REQUIRE(outcome.has_value());
  BOOST_TEST((outcome->code == ErrorCode::cancelled), outcome->message);
}

BOOST_DATA_TEST_CASE(memory_that_is_not_mapped_any_more_fails_the_read,
                     boost::unit_test::data::make({0UL, 1UL, 100UL, 2000UL}), first_gone) {
  constexpr std::size_t pages = 3000;
  const std::size_t page = 4096;
  Pages source(pages * page);
  std::memset(source.address, 1, source.size);
  Bytes target(source.size);
  const Published published;
  const std::vector<ReadRange> one_range{{0, host_memory(target)}};
  std::vector<ReadRange> one_for_each_page;
  for (std::size_t i = 0; i < pages; i += 2) {
    one_for_each_page.push_back({i * page, host_memory(target).part(i * page, page)});
  }
  one_for_each_page.push_back({first_gone * page, host_memory(target).part(0, page)});
  // PROT_NONE, not unmapped: the kernel might place another mapping there.
  BOOST_REQUIRE(::mmap(source.address + first_gone * page, page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
                       0) != MAP_FAILED);
  for (const auto& ranges : {one_range, one_for_each_page}) {
    const Outcome outcome = published.read(source.address, ranges);
    BOOST_REQUIRE(outcome.has_value());
    BOOST_TEST((outcome->code == ErrorCode::transport_failed), outcome->message);
    BOOST_TEST(outcome->message.find("not mapped") != std::string::npos);
  }
  // Ranges outside the gap are read.
  const ReadRange behind{(first_gone + 1) * page, host_memory(target).part(0, 5000)};
  BOOST_TEST(!published.read(source.address, {&behind, 1}));
}

BOOST_AUTO_TEST_CASE(memory_to_read_into_that_is_gone_fails_the_read_and_not_the_process) {
  const Bytes source = pattern(8192);
  Pages target(8192);
  ::munmap(target.address, target.size);
  const Published published;
  const ReadRange range{0, {target.address, 8192, {}}};
  const Outcome outcome = published.read(source.data(), {&range, 1});
  BOOST_REQUIRE(outcome.has_value());
  BOOST_TEST((outcome->code == ErrorCode::transport_failed), outcome->message);
}

BOOST_AUTO_TEST_CASE(whatever_comes_over_the_socket_fails_the_endpoint) {
  const Deadline deadline(120s);
  for (const int with_descriptors : {0, 1, 5}) {
    const auto fabric = open_shm();
    const auto peer = open_shm();
    auto ends = local_sockets();
    const auto endpoint = fabric->connect({.address = peer->address(), .sockets = list_of_one(std::move(ends[0]))});
    while (fabric->progress()) continue;
    BOOST_TEST(!endpoint->failed());
    const std::size_t before = open_descriptors();
    const Bytes words = pattern(1000);
    support::send_with_descriptors(ends[1].get(), words,
                                   std::vector<int>(static_cast<std::size_t>(with_descriptors), 0));
    BOOST_TEST(!fabric->arm());
    BOOST_TEST(run_until([&] { fabric->progress(); }, [&] { return endpoint->failed(); }, promptly));
    BOOST_TEST(open_descriptors() == before - 1);  // the closed socket
    BOOST_TEST(!fabric->progress());
    BOOST_TEST(fabric->arm());  // the fabric no longer wakes a sleeper
  }
}

BOOST_AUTO_TEST_CASE(a_peer_that_shuts_its_side_down_has_gone) {
  const auto fabric = open_shm();
  auto ends = local_sockets();
  const auto endpoint = fabric->connect({.address = fabric->address(), .sockets = list_of_one(std::move(ends[0]))});
  ::shutdown(ends[1].get(), SHUT_WR);
  BOOST_TEST(run_until([&] { fabric->progress(); }, [&] { return endpoint->failed(); }, promptly));
}

BOOST_AUTO_TEST_CASE(sockets_of_other_kinds_are_refused) {
  const auto fabric = open_shm();
  const auto refused_socket = [&](std::vector<transport::OpenSocket> sockets) {
    BOOST_CHECK_EXCEPTION(fabric->connect({.address = fabric->address(), .sockets = std::move(sockets)}), Error,
                          [](const Error& error) { return error.code() == ErrorCode::unsupported; });
  };
  const std::size_t before = open_descriptors();
  refused_socket({});
  auto pair = local_sockets();
  std::vector<transport::OpenSocket> two;
  two.push_back(std::move(pair[0]));
  two.push_back(std::move(pair[1]));
  refused_socket(std::move(two));
  refused_socket(list_of_one(support::Descriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0))));
  refused_socket(list_of_one(support::Descriptor(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0))));
  refused_socket(list_of_one(support::Descriptor(::memfd_create("test", MFD_CLOEXEC))));
  int ends[2] = {-1, -1};
  BOOST_REQUIRE(::socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, ends) == 0);
  const support::Descriptor other(ends[1]);
  refused_socket(list_of_one(support::Descriptor(ends[0])));
  BOOST_TEST(open_descriptors() == before + 1);
}

BOOST_AUTO_TEST_CASE(a_peer_that_is_not_the_process_behind_the_socket_is_mapped_but_not_attached_to) {
  const Deadline deadline(120s);
  const LocalListener listener;
  Forked other([&](int socket) {
    const support::Descriptor connected = connect_to_listener(listener.name());
    read_frame(socket);
  });
  const auto fabric = open_shm();
  const auto peer = open_shm();
  const auto endpoint = fabric->connect({.address = peer->address(), .sockets = list_of_one(listener.accept())});
  const Path path = endpoint->path({});
  BOOST_TEST(path.map);
  BOOST_TEST(!path.read);
  BOOST_TEST(path.why_not.detail.find("another process uses it") != std::string::npos, path.why_not.detail);
  const auto region = peer->allocate(10'000);
  const auto remote = import_region(*endpoint, *region, 10'000);
  BOOST_TEST(remote->mapped().bytes == 10'000U);
  Bytes into(10);
  BOOST_CHECK_EXCEPTION(test::read(*endpoint, *remote, 0, into, {}), Error,
                        [](const Error& error) { return error.code() == ErrorCode::unsupported; });
  // After the other process has ended.
  other.kill();
  other.reap();
  BOOST_REQUIRE(run_until([&] { fabric->progress(); }, [&] { return endpoint->failed(); }, promptly));
}

BOOST_AUTO_TEST_CASE(why_attach_does_not_work_is_said) {
  const shm::Mark mark;
  const shm::MarkAddress address{mark.number(), mark.address()};
  BOOST_TEST(shm::why_no_attach({::getpid(), ::getuid()}, address).empty());
  const auto contains = [](const std::string& text, std::string_view word) {
    BOOST_TEST_MESSAGE(text);
    return text.find(word) != std::string::npos;
  };
  BOOST_TEST(contains(shm::why_no_attach({0, 0}, address).detail, "PID namespace"));
  BOOST_TEST((shm::why_no_attach({0, 0}, address).reason == FallbackReason::other_namespace));
  BOOST_TEST(contains(shm::why_no_attach({::getpid(), 0}, {1, mark.address()}).detail, "another process uses it"));
  BOOST_TEST(contains(shm::why_no_attach({::getpid(), 0}, {1, 8}).detail, "another process uses it"));
  Forked gone([](int) {});
  const pid_t pid = gone.pid();
  gone.reap();
  BOOST_TEST(contains(shm::why_no_attach({pid, 0}, address).detail, "has ended"));
}

BOOST_AUTO_TEST_SUITE_END()

// SPDX-License-Identifier: Apache-2.0
// Memory that is unmapped while it is published: its reader gets a typed error, and its owner survives.
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <sys/mman.h>

#include <algorithm>

#include "support/deadline.hpp"
#include "support/job.hpp"

BOOST_AUTO_TEST_SUITE(unmapped)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t elements = 4 << 20;

TensorSpec spec() {
  return {{"w", "exp_avg"}, DType::f32, {static_cast<Extent>(elements)}};
}

/// A tensor's memory that can be made inaccessible: reading it then fails as if it were unmapped, and no other mapping
/// takes its address.
class Fleeting {
 public:
  Fleeting() : memory_(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    BOOST_REQUIRE(memory_ != MAP_FAILED);
  }
  ~Fleeting() { ::munmap(memory_, bytes); }
  Fleeting(const Fleeting&) = delete;
  Fleeting& operator=(const Fleeting&) = delete;
  [[nodiscard]] std::byte* data() const { return static_cast<std::byte*>(memory_); }
  /// Makes the memory from this byte on inaccessible.
  void go(std::size_t from) const {
    BOOST_REQUIRE(::mmap(data() + from, bytes - from, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) !=
                  MAP_FAILED);
  }
  static constexpr std::size_t bytes = elements * sizeof(float);

 private:
  void* memory_;
};

/// The method that reads ordinary memory without a copy by the library: through the kernel, or as a message sent
/// directly from the memory.
RestoreMethod method_without_a_copy() {
  return reads_ordinary_memory() ? RestoreMethod::read : RestoreMethod::zcopy;
}

}  // namespace

BOOST_DATA_TEST_CASE(memory_that_goes_while_it_is_published_ends_the_restore_and_not_its_owner,
                     boost::unit_test::data::make({std::size_t{0}, Fleeting::bytes / 2}), from) {
  const Deadline deadline(120s);
  const auto port = free_port();
  Session source = Session::join(member(0, 2, port), quick());
  Session reader = Session::join(member(1, 2, port), quick());
  const Fleeting memory;
  TestShard held(spec(), Layout::replicated(), Rank{0});
  held.use(memory.data());
  held.fill(1);
  Catalog catalog(Rank{0}, 1);
  held.add_to(catalog);
  Publication publication = source.publish(catalog);
  memory.go(from);

  constexpr std::size_t guard = 1 << 16;
  std::vector<std::byte> around(Fleeting::bytes + 2 * guard, std::byte{0x77});
  TestShard wanted(spec(), Layout::replicated(), Rank{0});
  wanted.use(around.data() + guard);
  Catalog target(Rank{0}, 1);
  wanted.add_to(target);
  RestoreOptions options = within(patience);
  options.method = method_without_a_copy();
  Restore restore = reader.restore(target, options);
  const Error error = failure_of([&] { restore.wait(); });
  BOOST_TEST((error.code() == ErrorCode::transport_failed || error.code() == ErrorCode::peer_lost), error.what());
  BOOST_TEST(!error.gaps().empty());
  const auto untouched = [](std::byte one) { return one == std::byte{0x77}; };
  BOOST_TEST(std::all_of(around.begin(), around.begin() + guard, untouched));
  BOOST_TEST(std::all_of(around.end() - guard, around.end(), untouched));

  // The owner serves the rest.
  publication.retire(5s);
  TestShard whole(spec(), Layout::replicated(), Rank{0});
  whole.fill(2);
  Catalog again(Rank{0}, 1);
  whole.add_to(again);
  const Publication next = source.publish(again);
  reader.restore(target, options).wait();
  BOOST_TEST(wanted.wrong(2) == 0U);
}

BOOST_AUTO_TEST_SUITE_END()

// SPDX-License-Identifier: Apache-2.0
#include "memory/address_space.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>

#include <cstddef>
#include <vector>

BOOST_AUTO_TEST_SUITE(address_space)

namespace {

using shardwire::memory::AddressSpace;

// Pages of a private mapping, unmapped at the end. Adjacent pages are mapped without access.
class Pages {
 public:
  explicit Pages(std::size_t count)
      : count_(count + 2),
        first_(
            static_cast<std::byte*>(::mmap(nullptr, count_ * bytes(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
    BOOST_REQUIRE(first_ != MAP_FAILED);
  }
  ~Pages() { ::munmap(first_, count_ * bytes()); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  static std::size_t bytes() { return static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)); }
  [[nodiscard]] std::byte* at(std::size_t page) const { return first_ + (page + 1) * bytes(); }
  void protect(std::size_t page, int protection) const {
    BOOST_REQUIRE(::mprotect(at(page), bytes(), protection) == 0);
  }

 private:
  std::size_t count_;
  std::byte* first_;
};

}  // namespace

BOOST_AUTO_TEST_CASE(what_is_mapped_readable_or_writable_is_told_apart) {
  const Pages pages(4);
  pages.protect(0, PROT_READ);
  pages.protect(1, PROT_READ | PROT_WRITE);
  pages.protect(2, PROT_READ | PROT_WRITE);
  const std::size_t page = Pages::bytes();
  AddressSpace space;
  BOOST_TEST(space.readable(pages.at(0), 3 * page));
  BOOST_TEST(!space.readable(pages.at(0), 3 * page + 1));
  BOOST_TEST(!space.writable(pages.at(0), page));
  BOOST_TEST(!space.writable(pages.at(0) + page - 1, 2));
  BOOST_TEST(space.writable(pages.at(1), 2 * page));
  BOOST_TEST(space.writable(pages.at(1) + 17, 2 * page - 17));
  BOOST_TEST(!space.writable(pages.at(1) + 17, 2 * page));
  BOOST_TEST(!space.readable(pages.at(3), 1));
  BOOST_TEST(!space.readable(pages.at(0) - 1, 2));
}

BOOST_AUTO_TEST_CASE(nothing_is_covered_anywhere) {
  AddressSpace space;
  BOOST_TEST(space.readable(nullptr, 0));
  BOOST_TEST(!space.readable(nullptr, 1));
  BOOST_TEST(!space.writable(reinterpret_cast<const void*>(UINTPTR_MAX - 4), 8));
}

// Every other page is writable: so many mappings that the code finally reads them all at once.
BOOST_AUTO_TEST_CASE(many_mappings_are_told_apart) {
  constexpr std::size_t count = 400;
  const Pages pages(count);
  for (std::size_t i = 0; i < count; ++i) pages.protect(i, i % 2 == 0 ? PROT_READ : PROT_READ | PROT_WRITE);
  AddressSpace space;
  for (std::size_t i = 0; i < count; ++i) {
    BOOST_TEST_REQUIRE(space.writable(pages.at(i), Pages::bytes()) == (i % 2 == 1));
    BOOST_TEST_REQUIRE(space.readable(pages.at(i), Pages::bytes()));
  }
  BOOST_TEST(space.readable(pages.at(0), count * Pages::bytes()));
  BOOST_TEST(!space.writable(pages.at(0), count * Pages::bytes()));
}

BOOST_AUTO_TEST_SUITE_END()

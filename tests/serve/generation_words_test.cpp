// SPDX-License-Identifier: Apache-2.0
// Generation words mark live publications; here the reader checks them.
#include <boost/test/unit_test.hpp>

#include <set>

#include "serve/generation_words.hpp"

BOOST_AUTO_TEST_SUITE(generation_words)

using namespace shardwire;

namespace {

struct Sides {
  std::shared_ptr<Fabrics> source = std::make_shared<Fabrics>("loopback", 0, [](const std::string&) {});
  MemoryTable memory{source};
  std::unique_ptr<transport::Fabric> reader = transport::choose("loopback").open();
  std::unique_ptr<transport::Endpoint> endpoint = reader->connect({.address = (*source)[0].address()});
  std::optional<GenerationWords> marks{std::in_place, [this](ByteCount bytes) { return memory.allocate(bytes); }};

  GenerationWord seen(ByteCount offset_bytes) {
    const auto region = marks->memory().region(0);
    return {endpoint->import_region({region->key()}, region->memory().bytes), offset_bytes};
  }
};

}  // namespace

BOOST_AUTO_TEST_CASE(a_word_says_live_for_its_own_generation_until_it_is_cleared) {
  Sides sides;
  const auto at = sides.marks->set(7);
  BOOST_REQUIRE(at.has_value());
  const GenerationWord word = sides.seen(*at);
  BOOST_TEST(word.says_live(7));
  BOOST_TEST(!word.says_live(6));
  sides.marks->clear(*at);
  BOOST_TEST(!word.says_live(7));
}

BOOST_AUTO_TEST_CASE(a_word_that_is_used_again_says_nothing_about_the_publication_before) {
  Sides sides;
  const auto first = sides.marks->set(7);
  const GenerationWord word = sides.seen(first.value());
  sides.marks->clear(*first);
  const auto second = sides.marks->set(8);
  BOOST_TEST(*second == *first);
  BOOST_TEST(!word.says_live(7));
  BOOST_TEST(word.says_live(8));
}

BOOST_AUTO_TEST_CASE(publications_have_words_of_their_own_until_all_are_taken) {
  Sides sides;
  std::set<ByteCount> places;
  std::uint64_t generation = 0;
  while (const auto at = sides.marks->set(++generation)) {
    BOOST_REQUIRE(places.insert(*at).second);
    BOOST_REQUIRE(is_generation_word(*at, sides.marks->memory().memory().bytes));
    BOOST_REQUIRE_LT(places.size(), 10'000U);
  }
  BOOST_TEST(places.size() >= 16U);
  BOOST_TEST(sides.seen(*places.begin()).says_live(0) == false);
  sides.marks->clear(*places.begin());
  BOOST_TEST(sides.marks->set(generation).has_value());
}

BOOST_AUTO_TEST_CASE(nothing_is_live_when_the_source_is_closed) {
  Sides sides;
  const auto at = sides.marks->set(7);
  const GenerationWord word = sides.seen(at.value());
  sides.marks.reset();
  BOOST_TEST(!word.says_live(7));
}

BOOST_AUTO_TEST_CASE(no_word_says_nothing) {
  BOOST_TEST(!GenerationWord().says_live(0));
  BOOST_TEST(!GenerationWord().says_live(1));
}

BOOST_AUTO_TEST_CASE(a_mark_lies_inside_of_its_region_and_aligned) {
  BOOST_TEST(is_generation_word(0, 8));
  BOOST_TEST(is_generation_word(4088, 4096));
  BOOST_TEST(!is_generation_word(4, 4096));
  BOOST_TEST(!is_generation_word(4096, 4096));
  BOOST_TEST(!is_generation_word(0, 7));
  BOOST_TEST(!is_generation_word(0, 0));
  BOOST_TEST(!is_generation_word(~ByteCount{7}, 4096));
}

BOOST_AUTO_TEST_SUITE_END()

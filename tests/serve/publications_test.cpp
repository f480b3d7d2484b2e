// SPDX-License-Identifier: Apache-2.0
// Which publications of this member are live.
#include "serve/publications.hpp"

#include <boost/test/unit_test.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "shardwire/error.hpp"

BOOST_AUTO_TEST_SUITE(publications)

using namespace shardwire;

namespace {

using Published = std::shared_ptr<detail::PublicationState>;

Published published(std::uint64_t generation, const std::string& name = "model") {
  auto publication = std::make_shared<detail::PublicationState>();
  publication->name = name;
  publication->generation = generation;
  return publication;
}

bool is_refused(const Error& error) {
  return error.code() == ErrorCode::invalid_argument;
}

struct Bench {
  std::shared_ptr<Fabrics> fabrics = std::make_shared<Fabrics>("loopback", 0, [](const std::string&) {});
  MemoryTable memory{fabrics};
  Publications all{*fabrics, memory};
};

}  // namespace

BOOST_AUTO_TEST_CASE(a_name_is_live_in_one_generation_only) {
  Bench bench;
  const Published seventh = published(7);
  bench.all.add(seventh);
  BOOST_TEST((bench.all.live("model") == seventh));
  BOOST_TEST((bench.all.live("model", 7) == seventh));
  BOOST_TEST(!bench.all.live("model", 6));
  BOOST_TEST(!bench.all.live("model", 8));
  BOOST_TEST(!bench.all.live("other"));
  BOOST_CHECK_EXCEPTION(bench.all.add(published(8)), Error, is_refused);
}

BOOST_AUTO_TEST_CASE(an_update_ends_the_old_generation_and_its_word) {
  Bench bench;
  const Published old = published(7), fresh = published(8);
  bench.all.add(old);
  bench.all.replace(*old, fresh);
  BOOST_TEST(!bench.all.live("model", 7));
  BOOST_TEST((bench.all.live("model", 8) == fresh));
  BOOST_TEST(old->withdrawn);
  BOOST_TEST(!old->word.has_value());
  BOOST_TEST(fresh->word.has_value());
  BOOST_CHECK_EXCEPTION(bench.all.replace(*old, published(9)), Error, is_refused);
}

BOOST_AUTO_TEST_CASE(digests_that_were_taken_elsewhere_are_those_of_the_blocks_or_refused) {
  const Published kept = published(7);
  Manifest manifest;
  manifest.ranks = 1;
  for (const char* const fqn : {"a", "b"}) {
    manifest.tensors.push_back({{{fqn, "m"}, DType::f32, {3 << 18}}, Layout::replicated()});  // three blocks
  }
  kept->described.manifest = std::make_shared<const Manifest>(std::move(manifest));
  kept->tensors.resize(2);
  std::vector<Digest128> taken;
  for (std::uint64_t i = 0; i < 7; ++i) taken.push_back({i, 10 * i});
  for (const std::size_t count : {0U, 5U, 7U}) {
    BOOST_CHECK_EXCEPTION(kept->use_digests(std::span(taken).first(count)), Error, is_refused);
    BOOST_TEST(!kept->digests.has_value());
  }
  kept->use_digests(std::span(taken).first(6));
  BOOST_REQUIRE(kept->digests.has_value());
  BOOST_REQUIRE(kept->digests->tensors.size() == 2U);
  for (std::size_t i = 0; i < 6; ++i) {
    const PublishedDigests::Tensor& tensor = kept->digests->tensors[i / 3];
    BOOST_REQUIRE(tensor.digests.size() == 3U);
    BOOST_TEST((tensor.digests[i % 3] == Digest128{i, 10 * i}));
  }
}

BOOST_AUTO_TEST_CASE(what_is_withdrawn_leaves_its_successor_alone) {
  Bench bench;
  const Published old = published(7), fresh = published(8);
  bench.all.add(old);
  bench.all.withdraw(*old);
  BOOST_TEST(!bench.all.live("model"));
  bench.all.add(fresh);
  bench.all.withdraw(*old);
  BOOST_TEST((bench.all.live("model") == fresh));
}

BOOST_AUTO_TEST_SUITE_END()

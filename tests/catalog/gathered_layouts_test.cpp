// SPDX-License-Identifier: Apache-2.0
#include "catalog/gathered_layouts.hpp"

#include <boost/test/unit_test.hpp>

#include <string>
#include <vector>

#include "shardwire/error.hpp"
#include "wire/messages.hpp"

BOOST_AUTO_TEST_SUITE(gathered_layouts)

namespace {

using namespace shardwire;

// Whole on the ranks of the layout. Layouts are read, not memory.
Bytes layouts_of(Rank rank, int ranks, const std::vector<Rank>& holders) {
  static std::vector<float> memory(8);
  Catalog catalog(rank, ranks);
  catalog.add({{"w", "exp_avg"}, DType::f32, {8}}, Layout::on_ranks(Layout::replicated(), holders),
              View{.data = memory.data()});
  catalog.alias("tied", "w");
  return encode_layouts(catalog);
}

void refused(ErrorCode code, const std::string& part, const std::vector<Bytes>& members) {
  BOOST_CHECK_EXCEPTION(decode_layouts(members), Error, [&](const Error& error) {
    BOOST_TEST_INFO(error.what());
    return error.code() == code && std::string(error.what()).find(part) != std::string::npos;
  });
}

}  // namespace

BOOST_AUTO_TEST_CASE(members_with_the_same_layouts_share_a_section) {
  const std::vector<Rank> even{Rank{0}, Rank{2}};
  const std::vector<Rank> odd{Rank{1}, Rank{3}};
  const JobLayout side = decode_layouts(
      std::vector{layouts_of(Rank{2}, 4, even), layouts_of(Rank{1}, 4, odd), layouts_of(Rank{0}, 4, even)});
  BOOST_TEST(side.ranks == 4);
  BOOST_TEST(side.copies.empty());
  BOOST_TEST_REQUIRE(side.sections.size() == 2U);
  BOOST_TEST((side.sections[0].ranks == even));
  BOOST_TEST((side.sections[1].ranks == std::vector{Rank{1}}));
  const Manifest& manifest = *side.sections[1].manifest;
  BOOST_TEST_REQUIRE(manifest.tensors.size() == 1U);
  BOOST_TEST((manifest.tensors[0].layout == Layout::on_ranks(Layout::replicated(), odd)));
  BOOST_TEST((manifest.aliases == std::vector<Alias>{{"tied", "w"}}));
}

BOOST_AUTO_TEST_CASE(a_member_without_tensors_has_no_rank) {
  const Bytes nothing = encode_layouts(Catalog(Rank{0}, 1));
  BOOST_TEST(nothing.empty());
  const JobLayout side = decode_layouts(std::vector{nothing, layouts_of(Rank{0}, 2, {Rank{0}})});
  BOOST_TEST(side.ranks == 2);
  BOOST_TEST_REQUIRE(side.sections.size() == 1U);
  BOOST_TEST((side.sections[0].ranks == std::vector{Rank{0}}));
  BOOST_TEST(decode_layouts(std::vector<Bytes>{nothing}).sections.empty());
}

BOOST_AUTO_TEST_CASE(members_that_contradict_each_other_are_named) {
  const Bytes first = layouts_of(Rank{0}, 2, {Rank{0}});
  refused(ErrorCode::layout_mismatch, "members 0 and 2 both have layout rank 0",
          {first, layouts_of(Rank{1}, 2, {Rank{1}}), first});
  refused(ErrorCode::layout_mismatch, "members 0 and 1 have layouts over 2 and 3 ranks",
          {first, layouts_of(Rank{1}, 3, {Rank{1}})});
}

BOOST_AUTO_TEST_CASE(what_members_send_is_checked) {
  Bytes cut = layouts_of(Rank{0}, 2, {Rank{0}});
  cut.resize(cut.size() - 8);
  BOOST_CHECK_THROW(decode_layouts(std::vector<Bytes>{cut}), Error);
  refused(ErrorCode::transport_failed, "other values", {wire::encode_values({{{"", "rank"}, Value(std::int64_t{0})}})});
  const Bytes manifest = wire::encode_manifest(Manifest{2, {}});
  refused(ErrorCode::transport_failed, "layout rank 2 of 2",
          {wire::encode_values({{{"", "manifest"}, Value(manifest)}, {{"", "rank"}, Value(std::int64_t{2})}})});
}

BOOST_AUTO_TEST_SUITE_END()

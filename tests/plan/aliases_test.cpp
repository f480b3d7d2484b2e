// SPDX-License-Identifier: Apache-2.0
#include "plan/aliases.hpp"

#include <boost/test/unit_test.hpp>
#include <functional>
#include <set>

BOOST_AUTO_TEST_SUITE(aliases)

using namespace shardwire;

namespace {

Section section(int job_ranks, std::vector<Rank> members, std::vector<TensorLayout> tensors,
                std::vector<Alias> aliases = {}) {
  return {std::make_shared<const Manifest>(Manifest{job_ranks, std::move(tensors), std::move(aliases)}),
          std::move(members)};
}

TensorLayout tensor(const char* fqn, const Extents& shape = {8}, DType dtype = DType::f32) {
  return {{{fqn, "exp_avg"}, dtype, shape}, Layout::chunk(0, 2)};
}

JobLayout named(std::vector<Alias> aliases) {
  return {1, {section(1, {Rank{0}}, {}, std::move(aliases))}};
}

JobLayout both(std::vector<TensorLayout> tensors, std::vector<Alias> aliases = {}) {
  return {2, {section(2, {Rank{0}, Rank{1}}, std::move(tensors), std::move(aliases))}};
}

// The name that `search` finds for `fqn` if the source side has `held`.
std::string found(const NameSearch& search, std::string_view fqn, const std::set<std::string_view>& held) {
  const auto name = search.find(fqn, [&](std::string_view one) { return held.contains(one); });
  return name ? std::string(*name) : "nothing";
}

bool says(const Error& error, const std::string& text) {
  return std::string(error.what()).find(text) != std::string::npos;
}

// Numbers of elements that rank 0's plan finds and misses.
std::pair<ElementCount, ElementCount> covered(const JobLayout& from, const JobLayout& to) {
  const Plan plan = shardwire::plan(from, to, Rank{0});
  std::pair<ElementCount, ElementCount> result{0, 0};
  for (const Piece& piece : plan.pieces) result.first += plan.box(piece).volume();
  for (const Gap& gap : plan.gaps) result.second += gap.box.volume();
  return result;
}

using Elements = std::pair<ElementCount, ElementCount>;

}  // namespace

BOOST_AUTO_TEST_CASE(a_name_without_aliases_stands_for_itself) {
  const JobLayout side = named({});
  const NameClasses names(side);
  BOOST_TEST(names.name_of("w") == "w");
  BOOST_TEST(names.names_of("w").empty());
}

BOOST_AUTO_TEST_CASE(tables_of_all_sections_are_taken_together) {
  // b is a in one section, c is b in another: all three are the same.
  const JobLayout side{2,
                       {section(2, {Rank{0}}, {}, {{"b", "a"}, {"y", "x"}}), section(2, {Rank{1}}, {}, {{"c", "b"}})}};
  const NameClasses names(side);
  for (const char* name : {"a", "b", "c"}) BOOST_TEST(names.name_of(name) == "a");
  for (const char* name : {"x", "y"}) BOOST_TEST(names.name_of(name) == "x");
  BOOST_TEST(names.names_of("c").size() == 3U);
  BOOST_TEST(names.name_of("d") == "d");
}

BOOST_AUTO_TEST_CASE(a_wanted_name_is_found_under_its_other_names) {
  const JobLayout tied = named({{"head", "embed"}});
  const JobLayout plain = named({});
  // The source declares it: everything is stored under the first name of the class.
  BOOST_TEST(found(NameSearch(tied, plain), "head", {"embed"}) == "embed");
  BOOST_TEST(found(NameSearch(tied, plain), "embed", {"embed"}) == "embed");
  // The target declares it.
  BOOST_TEST(found(NameSearch(plain, tied), "head", {"embed"}) == "embed");
  BOOST_TEST(found(NameSearch(plain, tied), "embed", {"head"}) == "head");
  // Both declare it, by different names.
  BOOST_TEST(found(NameSearch(named({{"b", "a"}}), named({{"c", "b"}})), "c", {"a"}) == "a");
  BOOST_TEST(found(NameSearch(plain, tied), "embed", {"other"}) == "nothing");
}

BOOST_AUTO_TEST_CASE(a_parameter_of_the_wanted_name_goes_before_its_aliases) {
  // The source holds two parameters that the target ties.
  const JobLayout from = named({});
  const JobLayout to = named({{"head", "embed"}});
  const NameSearch search(from, to);
  BOOST_TEST(found(search, "head", {"head", "embed"}) == "head");
  BOOST_TEST(found(search, "embed", {"head", "embed"}) == "embed");
}

BOOST_AUTO_TEST_CASE(two_parameters_that_the_target_takes_for_one_are_refused) {
  const JobLayout from = named({});
  const JobLayout to = named({{"b", "a"}, {"c", "a"}});
  const NameSearch search(from, to);
  BOOST_CHECK_EXCEPTION(found(search, "a", {"b", "c"}), Error, [](const Error& error) {
    BOOST_TEST_INFO(error.what());
    return error.code() == ErrorCode::layout_mismatch && says(error, "takes b and c for one parameter");
  });
}

BOOST_AUTO_TEST_CASE(the_planner_serves_one_name_from_another) {
  const std::vector<Alias> tied{{"head", "embed"}};
  for (const char* held : {"head", "embed"}) {
    for (const char* wanted : {"head", "embed"}) {
      BOOST_TEST((covered(both({tensor(held)}, tied), both({tensor(wanted)})) == Elements{4, 0}));
      BOOST_TEST((covered(both({tensor(held)}), both({tensor(wanted)}, tied)) == Elements{4, 0}));
    }
  }
  BOOST_TEST((covered(both({tensor("embed")}), both({tensor("head")})) == Elements{0, 4}));
}

BOOST_AUTO_TEST_CASE(sections_that_hold_a_parameter_under_different_names_cover_it_together) {
  const auto half = [](const char* fqn, Extent offset, int rank) {
    return TensorLayout{{{fqn, "exp_avg"}, DType::f32, {8}}, Layout::boxes({{Rank{rank}, {{{offset}, {4}}}}})};
  };
  const JobLayout from{
      2,
      {section(2, {Rank{0}}, {half("embed", 0, 0)}, {{"head", "embed"}}), section(2, {Rank{1}}, {half("head", 4, 1)})}};
  const JobLayout to = JobLayout::uniform(1, {{{{"head", "exp_avg"}, DType::f32, {8}}, Layout::replicated()}});
  BOOST_TEST((covered(from, to) == Elements{8, 0}));
  Planner planner(from, to);
  const Plan plan = planner.plan(Rank{0});
  const Schedule schedule = planner.schedule(plan);
  BOOST_REQUIRE_EQUAL(schedule.items.size(), 2U);
  BOOST_TEST((schedule.items[0].source != schedule.items[1].source));
}

BOOST_AUTO_TEST_CASE(differences_between_names_of_one_parameter_are_named) {
  const auto refused = [](const JobLayout& from, const JobLayout& to, const std::string& part) {
    BOOST_CHECK_EXCEPTION(Planner(from, to), Error, [&](const Error& error) {
      BOOST_TEST_INFO(error.what());
      return says(error, part);
    });
  };
  refused(both({tensor("embed")}), both({tensor("head", {8}, DType::bf16)}, {{"head", "embed"}}), "bf16");
  refused(both({tensor("embed")}), both({tensor("head", {9})}, {{"head", "embed"}}), "(9,)");
  refused(both({tensor("embed"), tensor("head")}, {{"head", "embed"}}), both({tensor("head")}),
          "embed:exp_avg and head:exp_avg");
}

BOOST_AUTO_TEST_SUITE_END()

// SPDX-License-Identifier: Apache-2.0
#include <boost/test/unit_test.hpp>
#include <functional>

#include "session/publication.hpp"
#include "shardwire/session.hpp"

using namespace shardwire;

namespace {

struct Fixture {
  Catalog catalog{Rank{0}, 2};
  std::vector<float> memory = std::vector<float>(64);

  void add(const std::string& fqn, const std::string& state = "exp_avg") {
    catalog.add({{fqn, state}, DType::f32, {8}}, Layout::chunk(0, 2), View{.data = memory.data()});
  }
};

void refused(const std::string& part, const std::function<void()>& action) {
  BOOST_CHECK_EXCEPTION(action(), Error, [&](const Error& error) {
    BOOST_TEST_INFO(error.what());
    return error.code() == ErrorCode::invalid_argument && std::string(error.what()).find(part) != std::string::npos;
  });
}

}  // namespace

BOOST_FIXTURE_TEST_SUITE(catalog, Fixture)

BOOST_AUTO_TEST_CASE(lists_are_values_up_to_a_depth) {
  Value value(0.9);
  for (std::size_t i = 0; i < max_value_depth; ++i) value = ValueList{{value}};
  catalog.add_value({"w", "deep"}, value);
  refused("w:deeper", [&] { catalog.add_value({"w", "deeper"}, ValueList{{value}}); });
}

BOOST_AUTO_TEST_CASE(aliases_stand_in_the_manifest_in_order) {
  catalog.alias("top", "embed");
  catalog.alias("head", "embed");
  BOOST_TEST((manifest_of(catalog)->aliases == std::vector<Alias>{{"head", "embed"}, {"top", "embed"}}));
}

BOOST_AUTO_TEST_CASE(aliases_that_say_nothing_clear_are_refused) {
  catalog.alias("head", "embed");
  refused("they are one name", [&] { catalog.alias("w", "w"); });
  refused("both names", [&] { catalog.alias("", "w"); });
  refused("both names", [&] { catalog.alias("w", ""); });
  refused("declared already, as an alias of 'embed'", [&] { catalog.alias("head", "embed"); });
  refused("'head' is itself an alias of 'embed'", [&] { catalog.alias("top", "head"); });
  refused("'embed' has the alias 'head'", [&] { catalog.alias("embed", "tokens"); });
  BOOST_TEST(catalog.aliases().size() == 1U);
}

BOOST_AUTO_TEST_CASE(a_shared_parameter_is_added_once_under_any_of_its_names) {
  catalog.alias("head", "embed");
  catalog.alias("top", "embed");
  add("head");
  refused("embed:exp_avg and head:exp_avg are one", [&] { add("embed"); });
  refused("top:exp_avg and head:exp_avg are one", [&] { add("top"); });
  refused("head:exp_avg is in the catalog already", [&] { add("head"); });
  refused("top:exp_avg and head:exp_avg are one", [&] { catalog.add_value({"top", "exp_avg"}); });
  add("embed", "exp_avg_sq");
  BOOST_TEST(catalog.entries().size() == 2U);
}

BOOST_AUTO_TEST_CASE(an_alias_that_comes_after_its_tensors_is_checked_as_well) {
  add("head");
  add("embed");
  refused("head:exp_avg and embed:exp_avg are one", [&] { catalog.alias("head", "embed"); });
  catalog.alias("top", "embed");
  refused("top:exp_avg and embed:exp_avg are one", [&] { add("top"); });

  Fixture other;
  other.add("head");
  other.catalog.alias("head", "embed");
  refused("embed:exp_avg and head:exp_avg are one", [&] { other.add("embed"); });
}

BOOST_AUTO_TEST_CASE(zero_is_refused_for_values_and_one_element_tensors) {
  refused("w:lr: Absent::zero is not for values", [&] { catalog.add_value({"w", "lr"}, 0.1, Absent::zero); });
  const TensorSpec step{{"w", "step"}, DType::f32, {1, 1}};
  refused("w:step: Absent::zero is not for values and one-element tensors, since a step of zero breaks Adam",
          [&] { catalog.add(step, Layout::replicated(), View{.data = memory.data()}, Absent::zero); });
  catalog.add(step, Layout::replicated(), View{.data = memory.data()}, Absent::skip);
  catalog.add({{"w", "exp_avg"}, DType::f32, {2}}, Layout::replicated(), View{.data = memory.data()}, Absent::zero);
}

BOOST_AUTO_TEST_CASE(copies_of_a_catalog_go_their_own_ways) {
  Catalog copy = catalog;
  copy.alias("head", "embed");
  add("head");
  add("embed");
  BOOST_TEST(catalog.aliases().empty());
}

BOOST_AUTO_TEST_SUITE_END()

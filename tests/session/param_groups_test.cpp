// SPDX-License-Identifier: Apache-2.0
#include <boost/test/unit_test.hpp>
#include <chrono>

#include "support/job.hpp"

BOOST_AUTO_TEST_SUITE(param_groups)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;

namespace {

using Ids = std::vector<std::int64_t>;
using Options = std::map<std::string, Value>;

Options adamw(double lr, Value decay) {
  return {{"lr", lr},
          {"betas", ValueList{{0.9, 0.95}}},
          {"weight_decay", std::move(decay)},
          {"amsgrad", false},
          {"foreach", Value()}};
}

/// A job of one member that publishes `held` and restores `wanted`.
std::vector<ParamGroup> restored(const std::vector<ParamGroup>& held, const std::vector<ParamGroup>& wanted,
                                 Absent absent = Absent::error) {
  Session session = Session::join(member(0, 1, free_port()), quick());
  Catalog source(Rank{0}, 1);
  add_param_groups(source, held);
  const Publication publication = session.publish(source);
  Catalog target(Rank{0}, 1);
  add_param_groups(target, wanted, absent);
  Restore restore = session.restore(target, within(patience));
  restore.wait();
  return param_groups_of(restore, wanted);
}

}  // namespace

// Both stages number their parameters from 0, and order weights and biases differently.
BOOST_AUTO_TEST_CASE(groups_of_pipeline_stages_whose_ids_collide_come_together_by_name) {
  const auto port = free_port();
  on_members(2, [&](int rank) {
    Session session = Session::join(member(rank, 2, port), quick());
    const std::map<std::int64_t, std::string> names =
        rank == 0 ? std::map<std::int64_t, std::string>{{0, "layers.0.weight"}, {1, "layers.0.bias"}}
                  : std::map<std::int64_t, std::string>{{0, "layers.1.bias"}, {1, "layers.1.weight"}};
    const Ids weights{rank == 0 ? 0 : 1};
    const Ids biases{rank == 0 ? 1 : 0};
    std::vector<ParamGroup> held{{fqns_of(weights, names), adamw(0.1, 0.01)},
                                 {fqns_of(biases, names), adamw(0.1, 0.0)}};
    if (rank == 1) std::swap(held[0], held[1]);
    Catalog source(Rank{rank}, 2);
    add_param_groups(source, held);
    Publication publication = session.publish(source);

    // After: one stage with both layers and yet another numbering.
    const std::map<std::int64_t, std::string> after{
        {0, "layers.1.bias"}, {1, "layers.0.bias"}, {2, "layers.1.weight"}, {3, "layers.0.weight"}};
    const std::vector<ParamGroup> wanted{{fqns_of(Ids{0, 1}, after), adamw(9, 9.0)},
                                         {fqns_of(Ids{2, 3}, after), adamw(9, 9.0)}};
    Catalog target(Rank{rank}, 2);
    add_param_groups(target, wanted);
    Restore restore = session.restore(target, within(patience));
    restore.wait();
    const std::vector<ParamGroup> groups = param_groups_of(restore, wanted);
    require(groups.size() == 2, "as many groups as were wanted");
    require(groups[0].fqns == std::vector<std::string>{"layers.1.bias", "layers.0.bias"}, "the caller's own grouping");
    require(groups[0].options == adamw(0.1, 0.0), "options of the biases");
    require(groups[1].options == adamw(0.1, 0.01), "options of the weights");
    session.gather("done", {}, patience);
    publication.retire(10s);
    session.close(10s);
  });
}

BOOST_AUTO_TEST_CASE(parameters_of_one_wanted_group_that_had_different_options_are_named) {
  const std::vector<ParamGroup> held{{{"a", "b", "c"}, {{"lr", 0.1}, {"eps", 1e-8}}},
                                     {{"d"}, {{"lr", 0.2}, {"eps", 1e-8}}}};
  const std::vector<ParamGroup> wanted{{{"a", "c", "d"}, {{"lr", {}}, {"eps", {}}}}};
  const Error error = failure_of([&] { restored(held, wanted); });
  BOOST_TEST((error.code() == ErrorCode::layout_mismatch));
  BOOST_TEST(says(error, "different values of 'lr': 0.1 for a and 1 more, 0.2 for d"));
  BOOST_TEST(
      (restored(held, std::vector<ParamGroup>{{{"a", "c", "d"}, {{"eps", {}}}}})[0].options == Options{{"eps", 1e-8}}));
}

BOOST_AUTO_TEST_CASE(an_option_that_nobody_had_keeps_the_value_given_when_it_may_be_absent) {
  const std::vector<ParamGroup> held{{{"a"}, {{"lr", 0.1}}}};
  const std::vector<ParamGroup> wanted{
      {{"a", "new"}, {{"lr", 0.5}, {"fused", true}}}, {{"other"}, {{"lr", 0.7}}}, {{}, {{"lr", 0.9}}}};
  const auto groups = restored(held, wanted, Absent::skip);
  BOOST_TEST((groups[0].options == Options{{"lr", 0.1}, {"fused", true}}));
  BOOST_TEST((groups[1].options == Options{{"lr", 0.7}}));
  BOOST_TEST((groups[2].options == Options{{"lr", 0.9}}));
  const Error error = failure_of([&] { restored(held, wanted); });
  BOOST_TEST(says(error, "no source has a:param_group/fused and 3 more keys"));
}

BOOST_AUTO_TEST_CASE(none_is_an_option_that_travels) {
  const std::vector<ParamGroup> held{{{"a"}, {{"foreach", Value()}}}};
  const std::vector<ParamGroup> wanted{{{"a"}, {{"foreach", true}}}};
  BOOST_TEST((restored(held, wanted, Absent::skip)[0].options == Options{{"foreach", Value()}}));
}

BOOST_AUTO_TEST_CASE(groups_that_say_nothing_clear_are_refused) {
  Catalog catalog(Rank{0}, 1);
  const std::vector<ParamGroup> twice{{{"a", "b"}, {{"lr", 0.1}}}, {{"b"}, {{"lr", 0.2}}}};
  BOOST_TEST(says(failure_of([&] { add_param_groups(catalog, twice); }), "parameter 'b' is in param_groups 0 and 1"));
  BOOST_TEST(catalog.values().empty());
  BOOST_TEST(says(failure_of([&] { (void)fqns_of(Ids{0, 7}, {{0, "a"}}); }), "parameter 7 has no name"));
  const std::vector<ParamGroup> good{{{"a"}, {{"lr", 0.1}}}};
  BOOST_TEST(
      says(failure_of([&] { add_param_groups(catalog, good, Absent::zero); }), "a:param_group/lr: Absent::zero"));
}

BOOST_AUTO_TEST_SUITE_END()

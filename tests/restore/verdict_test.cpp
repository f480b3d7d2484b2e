// SPDX-License-Identifier: Apache-2.0
#include "restore/verdict.hpp"

#include <boost/test/unit_test.hpp>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

BOOST_AUTO_TEST_SUITE(restore_verdict)

using namespace shardwire;
using namespace shardwire::restore;

namespace {

std::vector<Gap> gaps_of(const std::string& name) {
  Gap gap;
  gap.fqn = name;
  return {gap};
}

template <typename Thrown>
Error after_gaps(const Thrown& thrown, const std::vector<Gap>& missing) {
  try {
    std::rethrow_exception(with_gaps(std::make_exception_ptr(thrown), missing));
  } catch (const Error& error) {
    return error;
  }
}

}  // namespace

BOOST_AUTO_TEST_CASE(an_error_without_boxes_gets_the_missing_ones_and_keeps_the_rest) {
  const Error error = after_gaps(Error(ErrorCode::peer_lost, "gone", std::vector<Rank>{Rank{3}}), gaps_of("a"));
  BOOST_TEST((error.code() == ErrorCode::peer_lost));
  BOOST_TEST((error.ranks() == std::vector<Rank>{Rank{3}}));
  BOOST_REQUIRE(error.gaps().size() == 1U);
  BOOST_TEST(error.gaps()[0].fqn == "a");
  BOOST_TEST(std::string(error.what()).find("gone") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(boxes_that_an_error_names_itself_stay) {
  const Error error = after_gaps(Error(ErrorCode::layout_mismatch, "why", gaps_of("own")), gaps_of("other"));
  BOOST_REQUIRE(error.gaps().size() == 1U);
  BOOST_TEST(error.gaps()[0].fqn == "own");
}

BOOST_AUTO_TEST_CASE(other_exceptions_become_internal_errors) {
  const Error error = after_gaps(std::runtime_error("odd"), gaps_of("a"));
  BOOST_TEST((error.code() == ErrorCode::internal));
  BOOST_TEST(error.gaps().size() == 1U);
}

BOOST_AUTO_TEST_CASE(a_loss_lists_what_is_missing_in_the_end_and_has_no_holder) {
  const TensorSpec spec{{"a", "m"}, DType::f32, {8}};
  Planner planner(JobLayout::uniform(2, std::vector<TensorLayout>{{spec, Layout::chunk(0, 2)}}),
                  JobLayout::uniform(1, std::vector<TensorLayout>{{spec, Layout::replicated()}}));
  const Plan plan = planner.plan(Rank{0});
  BOOST_REQUIRE(plan.pieces.size() == 2U);
  const std::vector<PieceBox> missing{{0, {{1}, {2}}}, {1, {{4}, {4}}}};
  const auto last = [&](ErrorCode code, const std::vector<Rank>& lost) {
    const Error before(code, "gone", gaps_of("before"), {Rank{0}});
    try {
      std::rethrow_exception(with_last_gaps(std::make_exception_ptr(before), plan, missing, lost));
    } catch (const Error& error) {
      return error;
    }
  };
  const Error lost = last(ErrorCode::peer_lost, {Rank{0}});
  BOOST_TEST((lost.code() == ErrorCode::peer_lost));
  BOOST_TEST((lost.ranks() == std::vector<Rank>{Rank{0}}));
  BOOST_TEST((lost.gaps() == std::vector<Gap>{{"a", "m", {{1}, {2}}, Rank{0}}}));
  BOOST_TEST((last(ErrorCode::peer_lost, {}).gaps() == gaps_of("before")));
  BOOST_TEST((last(ErrorCode::timed_out, {Rank{0}}).gaps() == gaps_of("before")));
  const auto of_caller = std::make_exception_ptr(1);
  BOOST_TEST((with_last_gaps(of_caller, plan, missing, std::vector<Rank>{Rank{0}}) == of_caller));
}

BOOST_AUTO_TEST_CASE(sources_that_keep_up_are_named_only_if_all_do) {
  std::vector<SourceProgress> sources(2);
  sources[0] = {.rank = Rank{0}, .outstanding_bytes = 10, .keeps_up = true};
  sources[1] = {.rank = Rank{1}, .outstanding_bytes = 20, .keeps_up = false};
  BOOST_TEST((late_source(sources).ranks() == std::vector<Rank>{Rank{1}}));
  sources[1].keeps_up = true;
  BOOST_TEST((late_source(sources).ranks() == std::vector<Rank>{Rank{0}, Rank{1}}));
}

BOOST_AUTO_TEST_SUITE_END()

// SPDX-License-Identifier: Apache-2.0
#include "restore/verdict.hpp"

#include <boost/test/unit_test.hpp>
#include <chrono>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

#include "restore/clocks.hpp"
#include "restore/report.hpp"

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

BOOST_AUTO_TEST_CASE(a_loss_says_how_much_is_missing_and_whether_the_restore_can_be_resumed) {
  const TensorSpec spec{{"a", "m"}, DType::f32, {8}};
  const Manifest wanted{.ranks = 1, .tensors = {{spec, Layout::replicated()}}};
  const Gap first{"a", "m", {{1}, {2}}, Rank{0}};
  const Gap second{"a", "m", {{4}, {4}}, Rank{0}};
  const auto text = [&](ErrorCode code, const std::vector<Gap>& gaps, bool resumable) {
    const Error before(code, "gone", gaps, {Rank{3}});
    try {
      std::rethrow_exception(with_missing_bytes(std::make_exception_ptr(before), wanted, resumable));
    } catch (const Error& error) {
      BOOST_TEST((error.code() == code));
      BOOST_TEST((error.gaps() == gaps));
      BOOST_TEST((error.ranks() == std::vector<Rank>{Rank{3}}));
      return std::string(error.what());
    }
  };
  BOOST_TEST(text(ErrorCode::peer_lost, {first}, true) ==
             "gone; 1 box (8 B) is missing, and resume() waits for another holder");
  BOOST_TEST(text(ErrorCode::peer_lost, {first, second}, false) == "gone; 2 boxes (24 B) are missing");
  BOOST_TEST(text(ErrorCode::peer_lost, {}, true) == "gone");
  BOOST_TEST(text(ErrorCode::peer_lost, gaps_of("of another member"), true) == "gone");
  BOOST_TEST(text(ErrorCode::timed_out, {first}, true) == "gone");
  const auto of_caller = std::make_exception_ptr(1);
  BOOST_TEST((with_missing_bytes(of_caller, wanted, true) == of_caller));
}

BOOST_AUTO_TEST_CASE(sources_that_keep_up_are_named_only_if_all_do) {
  std::vector<SourceProgress> sources(2);
  sources[0] = {.rank = Rank{0}, .outstanding_bytes = 10, .keeps_up = true};
  sources[1] = {.rank = Rank{1}, .outstanding_bytes = 20, .keeps_up = false};
  BOOST_TEST((late_source(sources).ranks() == std::vector<Rank>{Rank{1}}));
  BOOST_TEST(awaited_text(sources) == "20 B from source rank 1");
  sources[1].keeps_up = true;
  BOOST_TEST((late_source(sources).ranks() == std::vector<Rank>{Rank{0}, Rank{1}}));
  sources[1] = {.rank = Rank{1}, .address = "10.0.0.7", .unanswered = true};
  BOOST_TEST(awaited_text(sources) == "an answer from source rank 1 (10.0.0.7)");
}

BOOST_AUTO_TEST_CASE(a_wait_for_a_plan_names_who_is_waited_for) {
  Situation situation{.from = "state", .target = Rank{0}, .member = 1, .published = {}, .possible = {0, 1, 2}};
  BOOST_TEST(awaited_text(situation) == "one of members 0, 2 to publish 'state'");
  situation.possible = {2};
  situation.step = 7;
  BOOST_TEST(awaited_text(situation) == "member 2 to publish step 7 of 'state'");
  situation.departed = {{3, wire::Presence::left}, {4, wire::Presence::lost}};
  BOOST_TEST(awaited_text(situation) == "member 2 to publish step 7 of 'state' (member 3 has left, member 4 is lost)");
  situation.published = {{.layout_rank = 1, .step = 7}};
  situation.undescribed = {1};
  BOOST_TEST(awaited_text(situation) == "source rank 1 to describe 'state'");
  situation.undescribed.clear();
  situation.source_ranks = 4;
  BOOST_TEST(awaited_text(situation) == "source ranks 0, 2, 3 of 4 to publish 'state'");
  situation.source_ranks = 2;
  situation.step.reset();
  situation.published = {{.layout_rank = 0, .step = 10}, {.layout_rank = 1, .step = 9}};
  BOOST_TEST(awaited_text(situation) == "source rank 1 to publish step 10 of 'state'");
  situation.published[1].step = 10;
  BOOST_TEST(awaited_text(situation) == "");
}

BOOST_AUTO_TEST_CASE(a_deadline_without_publishers_names_who_has_gone_and_who_could_publish) {
  Situation situation{.from = "state", .target = Rank{1}, .member = 1, .published = {}, .possible = {0, 1}};
  const std::string nobody = "the deadline passed: no member publishes 'state'";
  BOOST_TEST(std::string(late_in_plan(situation).what()) == nobody + "; member 0 could have done so");
  situation.departed = {{2, wire::Presence::lost}, {3, wire::Presence::left}, {4, wire::Presence::lost}};
  const Error error = late_in_plan(situation);
  const std::string gone = ", member 3 has left, members 2, 4 are lost";
  BOOST_TEST(std::string(error.what()) == nobody + gone + "; member 0 could have done so");
  BOOST_TEST((error.ranks() == std::vector<Rank>{Rank{0}}));
}

BOOST_AUTO_TEST_CASE(a_step_that_is_not_published_is_named_with_those_that_are) {
  Situation situation{.from = "state", .step = 7, .target = Rank{1}, .member = 1, .published = {}};
  // Several members publish layout rank 3.
  situation.published = {{.layout_rank = 1, .step = 7},
                         {.layout_rank = 2, .step = 6},
                         {.layout_rank = 3, .step = 5},
                         {.layout_rank = 3, .step = 6},
                         {.layout_rank = 3, .step = 6}};
  const Error error = nobody_publishes(situation);
  BOOST_TEST(std::string(error.what()) ==
             "'state' is published at step 5 by source rank 3, at step 6 by source ranks 2, 3, and step 7 is wanted");
  BOOST_TEST((error.ranks() == std::vector<Rank>{Rank{2}, Rank{3}}));
}

BOOST_AUTO_TEST_CASE(a_wait_is_noted_each_time_that_it_has_doubled) {
  using namespace std::chrono_literals;
  WaitClock wait;
  const Clock::Time began{};
  const auto look = [&](Duration after, Stage stage, ByteCount bytes) {
    return wait.look(began + after, stage, bytes);
  };
  BOOST_TEST(!look(0s, Stage::plan, 0));
  BOOST_TEST(!look(1999ms, Stage::plan, 0));
  BOOST_TEST((look(2s, Stage::plan, 0) == Duration(2s)));
  BOOST_TEST(!look(3s, Stage::plan, 0));
  BOOST_TEST((look(9s, Stage::plan, 0) == Duration(9s)));  // this thread was late
  BOOST_TEST(!look(15s, Stage::plan, 0));
  BOOST_TEST((look(16s, Stage::plan, 0) == Duration(16s)));
  BOOST_TEST(!look(40s, Stage::move, 0));
  BOOST_TEST(!look(41s, Stage::move, 1));
  BOOST_TEST(!look(42s, Stage::move, 1));
  BOOST_TEST((look(43s, Stage::move, 1) == Duration(2s)));
}

BOOST_AUTO_TEST_CASE(the_figures_of_a_report_name_the_source_that_took_longest) {
  RestoreReport report;
  report.step = 7;
  report.needed_bytes = 3'000'000;
  report.moved_bytes = 2'000'000;
  report.local_bytes = 1'000'000;
  report.seconds.plan = 0.25;
  report.seconds.wall = 1.5;
  const std::string figures =
      " at step 7 after 1.500 s (join 0.000, plan 0.250, bind 0.000, move 0.000, verify 0.000, commit 0.000): 3.00 MB "
      "needed, 2.00 MB from other ranks, 1.00 MB from this process";
  BOOST_TEST(figures_text(report) == figures);
  report.peers = {{.rank = Rank{1}, .bytes = 500'000, .path = "shm/mapped", .device = "", .predicted_seconds = 0.001},
                  {.rank = Rank{4},
                   .bytes = 1'500'000,
                   .path = "tcp/zcopy",
                   .device = "",
                   .fallback_detail = "ucx: no device",
                   .predicted_seconds = 0.5}};
  BOOST_TEST(figures_text(report) ==
             figures + "; longest expected: 1.50 MB from source rank 4 by tcp/zcopy, 500 ms (ucx: no device)");
  report.peers[0].measured_seconds = 0.75;
  report.peers[1].measured_seconds = 0.5;
  BOOST_TEST(figures_text(report) ==
             figures + "; longest: 500 kB from source rank 1 by shm/mapped in 750 ms, expected 1 ms");
  report.peers[1].measured_seconds = 1.25;
  BOOST_TEST(figures_text(report) ==
             figures +
                 "; longest: 1.50 MB from source rank 4 by tcp/zcopy in 1.25 s, expected 500 ms (ucx: no device)");
}

BOOST_AUTO_TEST_CASE(seconds_of_members_that_deliver_together_count_once_and_those_of_later_plans_are_added) {
  const auto row = [](int rank, const char* path, ByteCount bytes, double predicted, double measured) {
    return PeerReport{.rank = Rank{rank},
                      .bytes = bytes,
                      .path = path,
                      .device = "",
                      .predicted_seconds = predicted,
                      .measured_seconds = measured};
  };
  RestoreReport report;
  report.peers = one_row_each({row(1, "tcp/packed", 10, 1, 4), row(0, "tcp/packed", 20, 1, 2),
                               row(1, "shm/mapped", 30, 2, 3), row(1, "tcp/packed", 40, 1, 3)});
  const auto check = [&](std::size_t at, int rank, const std::string& path, ByteCount bytes, double predicted,
                         double measured) {
    const PeerReport& peer = report.peers.at(at);
    BOOST_TEST(to_int(peer.rank) == rank);
    BOOST_TEST(peer.path == path);
    BOOST_TEST(peer.bytes == bytes);
    BOOST_TEST(peer.predicted_seconds == predicted);
    BOOST_TEST(peer.measured_seconds == measured);
  };
  BOOST_REQUIRE(report.peers.size() == 3U);
  check(0, 0, "tcp/packed", 20, 1, 2);
  check(1, 1, "shm/mapped", 30, 2, 3);
  check(2, 1, "tcp/packed", 50, 2, 4);
  RestoreReport next;
  next.peers = {row(1, "tcp/packed", 5, 1, 6), row(2, "tcp/packed", 7, 1, 1)};
  report += next;
  BOOST_REQUIRE(report.peers.size() == 4U);
  check(2, 1, "tcp/packed", 55, 3, 10);
  check(3, 2, "tcp/packed", 7, 1, 1);
}

BOOST_AUTO_TEST_SUITE_END()

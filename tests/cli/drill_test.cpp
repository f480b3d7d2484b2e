// SPDX-License-Identifier: Apache-2.0
// Which faults a seed means, and what a drill makes of their outcome.
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <set>
#include <string>

#include "cli/drill_schedule.hpp"
#include "cli/drill_verdict.hpp"
#include "cli/fault_costs.hpp"

BOOST_AUTO_TEST_SUITE(drill)

namespace {

using namespace shardwire;
using namespace shardwire::cli;

// Rows in two halves, each held by two of four source ranks: 0 and 2, 1 and 3. Target ranks have columns.
Case replicated() {
  return parse_case(R"j({"states": ["m"], "tensors": [{"fqn": "w", "shape": [8, 8]}],
    "source": {"ranks": 4, "rules": {"*": {"mesh": [2, 2], "placements": ["R", "S(0)"]}}},
    "target": {"ranks": 2, "rules": {"*": {"chunk": 1, "over": 2}}}})j");
}

MemberResult completed(int target) {
  MemberResult result;
  result.member = target;
  result.target = Rank{target};
  result.verified = true;
  return result;
}
MemberResult failed(int target, const std::string& code, const std::string& message, std::vector<Gap> gaps = {}) {
  MemberResult result = completed(target);
  result.verified = false;
  result.errors.push_back({code, message, std::move(gaps)});
  return result;
}

FaultOutcome struck(FaultKind kind, int rank) {
  return {{.kind = kind, .rank = Rank{rank}, .percent = 50}, 1'000'000'000};
}

Verdict verdict_of(std::vector<FaultOutcome> faults, std::vector<MemberResult> results,
                   Verify verify = Verify::generation) {
  RunOptions options;
  options.verify = verify;
  JobOutcome outcome;
  outcome.faults = std::move(faults);
  outcome.results = std::move(results);
  return judge(replicated(), options, outcome);
}

Gap gap(Extent row, Extent rows) {
  return {"w", "m", {{row, 0}, {rows, 4}}, Rank{0}};
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_seed_always_means_the_same_faults_and_seeds_differ) {
  const Case job = replicated();
  std::set<std::string> different;
  std::set<FaultKind> kinds;
  std::set<Rank> ranks;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const std::vector<Fault> faults = faults_of_seed(seed, job, fault_kinds());
    BOOST_REQUIRE((faults.size() == 1 || (faults.size() == 2 && faults[0].rank != faults[1].rank)));
    const std::vector<Fault> again = faults_of_seed(seed, job, fault_kinds());
    BOOST_REQUIRE(again.size() == faults.size());
    for (std::size_t i = 0; i < faults.size(); ++i) {
      BOOST_TEST(to_string(faults[i]) == to_string(again[i]));
      different.insert(to_string(faults[i]));
      kinds.insert(faults[i].kind);
      ranks.insert(faults[i].rank);
    }
  }
  BOOST_TEST(different.size() > 100U);
  BOOST_TEST(kinds.size() == fault_kinds().size());
  BOOST_TEST(ranks.size() == 4U);
}

BOOST_AUTO_TEST_CASE(lost_ranks_are_not_struck) {
  const Case job = parse_case(R"j({"states": ["m"], "tensors": [{"fqn": "w", "shape": [8]}],
    "source": {"ranks": 3, "lost": [0, 2], "rules": {"*": {"replicated": true}}},
    "target": {"ranks": 1, "rules": {"*": {"replicated": true}}}})j");
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const std::vector<Fault> faults = faults_of_seed(seed, job, fault_kinds());
    BOOST_REQUIRE(faults.size() == 1U);
    BOOST_TEST(to_int(faults.front().rank) == 1);
  }
}

BOOST_AUTO_TEST_CASE(a_seed_that_shows_a_bug_is_run_again_with_all_that_was_asked) {
  DrillWords words;
  words.path = "case.json";
  BOOST_TEST(command_of_seed(words, 7) ==
             "shardwire drill case.json --seeds 7:8 --verify generation --notice 0.5 --timeout 60");
  words.transport = "shm,tcp";
  words.verify = "digest";
  words.kinds = "kill,cut";
  words.rate = "2M";
  words.timeout_seconds = 12.5;
  words.notice_seconds = 2;
  words.disjoint = true;
  BOOST_TEST(command_of_seed(words, 7) ==
             "shardwire drill case.json --seeds 7:8 --verify digest --notice 2 --timeout 12.5 --transport shm,tcp "
             "--kinds kill,cut --rate 2M --disjoint");
}

BOOST_AUTO_TEST_CASE(a_job_that_completes_is_completed) {
  const Verdict verdict = verdict_of({struck(FaultKind::kill, 3)}, {completed(0), completed(1)});
  BOOST_TEST((verdict.kind == Verdict::Kind::completed));
  BOOST_TEST(verdict.has_holders);
}

BOOST_AUTO_TEST_CASE(a_refusal_although_each_box_has_a_holder_is_a_bug) {
  const Verdict verdict =
      verdict_of({struck(FaultKind::kill, 3)}, {failed(0, "peer_lost", "lost", {gap(4, 4)}), completed(1)});
  BOOST_TEST((verdict.kind == Verdict::Kind::bug));
  BOOST_TEST(verdict.why == "refused, although each box has a source: lost");
}

BOOST_AUTO_TEST_CASE(a_refusal_has_to_list_boxes_that_nobody_holds) {
  const std::vector<FaultOutcome> both = {struck(FaultKind::kill, 3), struck(FaultKind::stop, 1)};
  const auto refused = [&](std::vector<Gap> gaps, const char* code = "peer_lost") {
    return verdict_of(both, {failed(0, code, "lost", std::move(gaps))});
  };
  BOOST_TEST((refused({gap(4, 4)}).kind == Verdict::Kind::refused));
  BOOST_TEST((refused({gap(5, 1), gap(7, 1)}).kind == Verdict::Kind::refused));
  BOOST_TEST(!refused({gap(4, 4)}).has_holders);
  BOOST_TEST((refused({}).kind == Verdict::Kind::bug));
  BOOST_TEST((refused({gap(3, 5)}).kind == Verdict::Kind::bug));
  BOOST_TEST((refused({gap(4, 4), gap(0, 1)}).kind == Verdict::Kind::bug));
  BOOST_TEST((refused({}, "timed_out").kind == Verdict::Kind::refused));
}

BOOST_AUTO_TEST_CASE(wrong_bytes_hangs_and_internal_errors_are_bugs) {
  const std::vector<FaultOutcome> fault = {struck(FaultKind::slow, 3)};
  BOOST_TEST((verdict_of(fault, {failed(0, "wrong_element", "x"), completed(1)}).kind == Verdict::Kind::bug));
  BOOST_TEST((verdict_of(fault, {failed(0, "internal", "x"), completed(1)}).kind == Verdict::Kind::bug));
  BOOST_TEST((verdict_of(fault, {completed(1)}).kind == Verdict::Kind::bug));
  MemberResult late = completed(0);
  late.walls = {700};
  BOOST_TEST((verdict_of(fault, {late, completed(1)}).kind == Verdict::Kind::bug));
}

BOOST_AUTO_TEST_CASE(nothing_is_asked_of_target_ranks_that_were_ended_and_little_of_isolated_ones) {
  BOOST_TEST((verdict_of({struck(FaultKind::kill, 0)}, {completed(1)}).kind == Verdict::Kind::completed));
  const auto isolated = [](const char* code) {
    return verdict_of({struck(FaultKind::cut, 0)}, {failed(0, code, "x"), completed(1)}).kind;
  };
  BOOST_TEST((isolated("peer_lost") == Verdict::Kind::completed));
  BOOST_TEST((isolated("wrong_element") == Verdict::Kind::bug));
  BOOST_TEST((isolated("internal") == Verdict::Kind::bug));
  BOOST_TEST((verdict_of({struck(FaultKind::cut, 0)}, {completed(1)}).kind == Verdict::Kind::bug));
}

BOOST_AUTO_TEST_CASE(a_restore_without_a_plan_needs_member_0) {
  const auto without_plan = [](int victim, double bind_seconds) {
    MemberResult result = failed(1, "peer_lost", "member 0, which serves the rendezvous, is lost");
    result.report.seconds.bind = bind_seconds;
    return verdict_of({struck(FaultKind::kill, victim)}, {completed(0), result});
  };
  BOOST_TEST((without_plan(0, 0).kind == Verdict::Kind::refused));
  BOOST_TEST(!without_plan(0, 0).has_holders);
  BOOST_TEST((without_plan(0, 0.1).kind == Verdict::Kind::bug));
  BOOST_TEST((without_plan(3, 0).kind == Verdict::Kind::bug));
}

BOOST_AUTO_TEST_CASE(what_was_spoilt_has_to_be_named_where_digests_are_taken) {
  const std::vector<FaultOutcome> fault = {struck(FaultKind::corrupt, 3)};
  const auto with = [&](const char* code, const char* message, Verify verify) {
    return verdict_of(fault, {failed(0, code, message), completed(1)}, verify).kind;
  };
  BOOST_TEST((with("wrong_element", "x", Verify::generation) == Verdict::Kind::refused));
  BOOST_TEST((with("wrong_element", "x", Verify::digest) == Verdict::Kind::bug));
  BOOST_TEST((with("transport_failed", "source rank 3: differs", Verify::digest) == Verdict::Kind::refused));
  BOOST_TEST((with("transport_failed", "source rank 2: differs", Verify::digest) == Verdict::Kind::bug));
}

BOOST_AUTO_TEST_CASE(costs_are_of_the_last_fault_before_the_loss) {
  const auto at = [](int rank, std::int64_t ns, std::uint64_t boxes, ByteCount again) {
    return Loss{{.rank = Rank{rank}, .boxes_replanned = boxes, .resent_bytes = again}, ns};
  };
  const FaultOutcome faults[] = {{{.kind = FaultKind::slow, .rank = Rank{1}}, 1'000'000'000},
                                 {{.kind = FaultKind::kill, .rank = Rank{1}}, 2'000'000'000},
                                 {{.kind = FaultKind::kill, .rank = Rank{2}}, std::nullopt}};
  std::vector<MemberResult> results(2);
  results[0].losses = {at(1, 2'500'000'000, 3, 100), at(2, 2'600'000'000, 1, 1)};
  results[1].losses = {at(1, 2'250'000'000, 2, 10), at(1, 500'000'000, 5, 5)};
  const std::vector<FaultCost> costs = costs_of(faults, results);
  BOOST_REQUIRE(costs.size() == 3U);
  BOOST_TEST(!costs[0].noticed_seconds.has_value());
  BOOST_TEST(costs[1].noticed_seconds.value() == 0.25);
  BOOST_TEST(costs[1].boxes_replanned == 5U);
  BOOST_TEST(costs[1].resent_bytes == 110U);
  BOOST_TEST(!costs[2].noticed_seconds.has_value());
}

BOOST_AUTO_TEST_SUITE_END()

// SPDX-License-Identifier: Apache-2.0
#include "restore/publishers.hpp"

#include <boost/test/unit_test.hpp>

#include <cstdint>
#include <string>

BOOST_AUTO_TEST_SUITE(step_choice)

using namespace shardwire;
using restore::StepChoice;

namespace {

wire::PublicationRecord record(int rank, std::int64_t step, std::uint64_t generation = 1) {
  wire::PublicationRecord one{};
  one.member = rank;
  one.layout_rank = rank;
  one.step = step;
  one.generation = generation;
  return one;
}

/// That a keeper publishes of an earlier session.
wire::PublicationRecord of(wire::PublicationRecord one, std::uint64_t origin, std::uint32_t attempt) {
  one.origin = origin;
  one.attempt = attempt;
  return one;
}

Gap gap(const std::string& fqn) {
  return {fqn, "exp_avg", Box{{0}, {4}}, Rank{0}};
}

}  // namespace

BOOST_AUTO_TEST_CASE(the_newest_step_comes_first_then_the_next_older_one) {
  StepChoice choice;
  const StepChoice::Records published{record(0, 4), record(1, 5), record(2, 4)};
  const auto newest = choice.next(published);
  BOOST_TEST_REQUIRE(newest.size() == 1U);
  BOOST_TEST(newest.front().step == 5);
  choice.note_incomplete(newest, {gap("a")});
  const auto older = choice.next(published);
  BOOST_TEST(older.size() == 2U);
  BOOST_TEST(older.front().step == 4);
  choice.note_incomplete(older, {gap("b"), gap("c")});
  BOOST_TEST(choice.next(published).empty());
}

BOOST_AUTO_TEST_CASE(a_step_whose_publications_change_is_looked_at_again) {
  StepChoice choice;
  StepChoice::Records published{record(0, 4), record(1, 5)};
  choice.note_incomplete(choice.next(published), {gap("a")});
  published.push_back(record(2, 5));
  BOOST_TEST(choice.next(published).size() == 2U);
  BOOST_TEST(choice.incomplete().empty());
  choice.note_incomplete(choice.next(published), {gap("a")});
  published[2].generation = 2;
  BOOST_TEST(choice.next(published).front().step == 5);
}

BOOST_AUTO_TEST_CASE(a_step_that_is_gone_is_forgotten) {
  StepChoice choice;
  choice.note_incomplete(choice.next({record(0, 4), record(1, 5)}), {gap("a")});
  BOOST_TEST(choice.next({record(0, 4)}).front().step == 4);
  BOOST_TEST(choice.incomplete().empty());
}

BOOST_AUTO_TEST_CASE(newer_incomplete_steps_are_listed_with_their_gaps) {
  StepChoice choice;
  const StepChoice::Records published{record(0, 4), record(1, 5), record(2, 6)};
  choice.note_incomplete({record(2, 6)}, {gap("a"), gap("b")});
  choice.note_incomplete({record(1, 5)}, {gap("c")});
  BOOST_TEST(choice.next(published).front().step == 4);
  const auto all = choice.incomplete_before(published, {.step = 4});
  BOOST_TEST_REQUIRE(all.size() == 2U);
  BOOST_TEST(all[0].step == 6);
  BOOST_TEST(all[0].gaps.size() == 2U);
  BOOST_TEST(all[1].step == 5);
  BOOST_TEST(choice.incomplete_before(published, {.step = 5}).size() == 1U);
}

// This session is at step 60, and what is left of it lacks a rank.
BOOST_AUTO_TEST_CASE(a_lower_step_of_a_later_attempt_that_was_passed_over_is_listed) {
  const StepChoice::Records published{record(0, 60), of(record(1, 100), 9, 1), of(record(2, 60), 9, 1)};
  StepChoice choice;
  choice.note_incomplete(choice.next(published), {gap("a")});
  const auto listed = choice.incomplete_before(published, {.step = 100, .origin = 9});
  BOOST_TEST_REQUIRE(listed.size() == 1U);
  BOOST_TEST(listed[0].step == 60);
  BOOST_TEST(listed[0].gaps.size() == 1U);
  BOOST_TEST(choice.incomplete_before(published, {.step = 60, .origin = 9}).empty());  // the same step
}

BOOST_AUTO_TEST_CASE(nothing_is_left_to_try_until_something_changes) {
  StepChoice choice;
  StepChoice::Records published{record(0, 4), record(1, 5)};
  BOOST_TEST(!choice.is_exhausted(published));
  choice.note_incomplete(choice.next(published), {gap("a")});
  BOOST_TEST(!choice.is_exhausted(published));
  choice.note_incomplete(choice.next(published), {});
  BOOST_TEST(choice.is_exhausted(published));
  choice.forget(4);
  BOOST_TEST(choice.next(published).front().step == 4);
  choice.note_incomplete(choice.next(published), {});
  published.push_back(record(2, 4));
  BOOST_TEST(!choice.is_exhausted(published));
}

BOOST_AUTO_TEST_CASE(what_two_sessions_published_of_one_step_is_planned_apart) {
  const StepChoice::Records published{of(record(0, 5), 9, 1), of(record(1, 5), 7, 2), record(2, 5),
                                      of(record(3, 6), 9, 1)};
  StepChoice choice;
  for (const auto& expected : {published[2], published[1], published[3], published[0]}) {
    const auto next = choice.next(published);
    BOOST_TEST_REQUIRE(next.size() == 1U);
    BOOST_TEST((next.front() == expected));
    choice.note_incomplete(next, {gap("a")});
  }
  BOOST_TEST(choice.next(published).empty());
  BOOST_TEST(choice.incomplete().size() == 2U);  // steps
  choice.forget(5);
  BOOST_TEST((choice.next(published).front() == published[2]));
}

// Session 7 has lost a host. What is left of it may hold all that this reader wants, and not what others want.
BOOST_AUTO_TEST_CASE(of_a_step_that_is_named_a_whole_state_of_an_earlier_attempt_comes_first) {
  const StepChoice::Records published{of(record(0, 5), 9, 1), of(record(1, 5), 9, 1), of(record(0, 5), 8, 1),
                                      of(record(0, 5), 7, 2)};
  const auto is_whole = [](const StepChoice::Records& state) { return state.size() == 2; };
  StepChoice choice;
  for (const std::uint64_t origin : {9U, 7U, 8U}) {
    const auto next = choice.next(published, is_whole);
    BOOST_TEST_REQUIRE(!next.empty());
    BOOST_TEST(next.front().origin == origin);
    choice.note_incomplete(next, {gap("a")});
  }
  BOOST_TEST(choice.next(published, is_whole).empty());
  // This session may be about to publish the rest.
  StepChoice::Records of_this = published;
  of_this.push_back(record(1, 5));
  BOOST_TEST(StepChoice().next(of_this, is_whole).front().origin == 0U);
}

// It has gone back to an earlier step, or has begun from scratch.
BOOST_AUTO_TEST_CASE(a_later_attempt_comes_before_an_earlier_one_whatever_its_steps) {
  const StepChoice::Records published{of(record(0, 100), 9, 1), of(record(1, 60), 7, 2), of(record(2, 59), 7, 2)};
  StepChoice choice;
  for (const auto& expected : {published[1], published[2], published[0]}) {
    const auto next = choice.next(published);
    BOOST_TEST_REQUIRE(next.size() == 1U);
    BOOST_TEST((next.front() == expected));
    choice.note_incomplete(next, {gap("a")});
  }
  const auto all = choice.incomplete();  // by step
  BOOST_TEST_REQUIRE(all.size() == 3U);
  BOOST_TEST(all.front().step == 100);
}

BOOST_AUTO_TEST_CASE(a_higher_step_of_an_earlier_attempt_is_found) {
  const auto higher = [](const StepChoice::Records& published, const restore::StateOf& taken) {
    return restore::higher_kept_step(published, taken).value_or(-1);
  };
  const StepChoice::Records published{record(0, 0), of(record(1, 100), 9, 1), of(record(2, 60), 7, 2)};
  BOOST_TEST(higher(published, {0, 0}) == 100);
  BOOST_TEST(higher(published, {60, 7}) == 100);
  BOOST_TEST(higher(published, {100, 9}) == -1);
  BOOST_TEST(higher({record(0, 0), of(record(1, 0), 9, 1)}, {0, 0}) == -1);
  BOOST_TEST(higher({record(0, 5), record(1, 6)}, {5, 0}) == -1);  // all of this session
}

// The keeper of rank 0 was not told that the attempt of session 7 has become higher.
BOOST_AUTO_TEST_CASE(an_attempt_is_the_highest_that_its_publications_name) {
  const StepChoice::Records published{of(record(0, 5), 7, 1), of(record(1, 5), 7, 4), of(record(2, 9), 8, 3)};
  StepChoice choice;
  const auto next = choice.next(published);
  BOOST_TEST((next == StepChoice::Records{published[0], published[1]}));
  choice.note_incomplete(next, {gap("a")});
  BOOST_TEST((choice.next(published) == StepChoice::Records{published[2]}));
}

BOOST_AUTO_TEST_CASE(one_plan_takes_publications_of_one_session) {
  const auto left = [](StepChoice::Records records) {
    restore::keep_one_origin(records);
    return records;
  };
  StepChoice::Records records{record(0, 5), record(1, 5), record(2, 5)};
  BOOST_TEST((left(records) == records));
  records[0].origin = records[1].origin = 7;
  BOOST_TEST((left(records) == StepChoice::Records{records[2]}));  // of this session
  records[2].origin = 9;
  BOOST_TEST((left(records) == StepChoice::Records{records[0], records[1]}));  // more ranks
  records[1] = records[0];
  BOOST_TEST((left(records) == StepChoice::Records{records[2]}));  // as many; all readers take the same
  records[0].attempt = 1;
  BOOST_TEST((left(records) == StepChoice::Records{records[0], records[1]}));  // as many, of a later attempt
}

BOOST_AUTO_TEST_SUITE_END()

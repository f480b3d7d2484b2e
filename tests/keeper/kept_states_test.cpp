// SPDX-License-Identifier: Apache-2.0
#include "keeper/kept_states.hpp"

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "support/job.hpp"
#include "wire/limits.hpp"

BOOST_AUTO_TEST_SUITE(kept_states)

using namespace shardwire;
using keeper::KeptStates;
using keeper::Snapshot;
using test::failure_of;
using test::says;

namespace {

constexpr std::uint64_t monday = 100;  // sessions
constexpr std::uint64_t tuesday = 200;
constexpr std::uint64_t wednesday = 50;  // numbers of sessions are random

std::shared_ptr<memory::SharedMemory> memory_of(ByteCount bytes) {
  return std::make_shared<memory::SharedMemory>(bytes, memory::SharedMemory::Pages::on_touch);
}

using std::chrono_literals::operator""h;

/// Memory is there at once; its pages are not taken, so that budgets can be large. What writes has joined its session. A session
/// began an hour after the one that was named before.
struct Kept : KeptStates {
  explicit Kept(ByteCount budget) : KeptStates("train", budget) {}

  using KeptStates::attempt;
  std::uint32_t attempt(std::uint64_t session) {
    const auto hours = static_cast<int>(began.size());
    return attempt(session, began.try_emplace(session, Clock::Time(hours * 1h)).first->second);
  }
  Given begin(std::uint64_t trainer, std::uint64_t session, const wire::KeepBegin& asked) {
    attempt(session);
    const Given given = KeptStates::begin(trainer, session, asked);
    if (given.fresh) provide(given.snapshot->buffer, memory_of(asked.size_bytes));
    return given;
  }
  /// Begins and ends one snapshot; returns its buffer.
  std::uint64_t keep(std::uint64_t trainer, std::uint64_t session, wire::KeepBegin asked) {
    const std::uint64_t buffer = begin(trainer, session, asked).snapshot->buffer;
    done(trainer, {.buffer = buffer});
    return buffer;
  }
  [[nodiscard]] std::set<std::int64_t> steps(std::uint64_t session) const {
    std::set<std::int64_t> found;
    for (const auto& [buffer, one] : all()) {
      if (one.session == session && one.complete) found.insert(one.step);
    }
    return found;
  }

  std::map<std::uint64_t, Clock::Time> began{};  // by session
};

wire::KeepBegin of(std::int64_t step, int rank = 0, ByteCount bytes = 100, std::uint32_t steps = 1) {
  return {.publication = "state", .step = step, .layout_rank = rank, .steps = steps, .size_bytes = bytes};
}

using Steps = std::set<std::int64_t>;

}  // namespace

BOOST_AUTO_TEST_CASE(the_newest_snapshots_stay_while_the_next_is_written) {
  Kept kept(1000);
  kept.attempt(monday);
  kept.keep(1, monday, of(1));
  kept.keep(1, monday, of(2));
  BOOST_TEST((kept.steps(monday) == Steps{1, 2}));
  const auto third = kept.begin(1, monday, of(3));
  BOOST_TEST((kept.steps(monday) == Steps{2}));
  kept.ended(1, {});  // in the middle of it
  BOOST_TEST((kept.steps(monday) == Steps{2}));
  BOOST_TEST(kept.all().size() == 1U);
  BOOST_TEST(kept.without_trainer().size() == 1U);
}

BOOST_AUTO_TEST_CASE(more_may_be_kept_and_ranks_and_names_count_apart) {
  Kept kept(10'000);
  kept.attempt(monday);
  for (const int rank : {0, 1}) {
    for (std::int64_t step = 1; step <= 5; ++step)
      kept.keep(static_cast<std::uint64_t>(rank + 1), monday, of(step, rank, 100, 3));
  }
  auto other = of(9);
  other.publication = "model";
  kept.keep(1, monday, other);
  std::size_t of_zero = 0;
  for (const auto& [buffer, one] : kept.all()) of_zero += one.layout_rank == 0 && one.name == "state" ? 1 : 0;
  BOOST_TEST(of_zero == 4U);  // three, and the one that was written last
  BOOST_TEST((kept.steps(monday) == Steps{2, 3, 4, 5, 9}));
}

BOOST_AUTO_TEST_CASE(a_budget_that_does_not_hold_all_that_is_to_be_kept_is_refused_at_once_with_both_numbers) {
  Kept kept(250);
  kept.attempt(monday);
  const Error error = failure_of([&] { kept.begin(1, monday, of(1, 0, 100, 2)); });
  BOOST_TEST((error.code() == ErrorCode::out_of_resources));
  BOOST_TEST(std::string(error.what()).find("take 300 bytes") != std::string::npos, error.what());
  BOOST_TEST(std::string(error.what()).find("of 250") != std::string::npos, error.what());
  kept.keep(1, monday, of(1, 0, 100, 1));
  const Error second = failure_of([&] { kept.begin(2, monday, of(1, 1, 100, 1)); });
  BOOST_TEST(std::string(second.what()).find("200 of 250 are promised") != std::string::npos, second.what());
  kept.ended(1, {});
  kept.begin(2, monday, of(1, 1, 100, 1));  // what has ended has no promise
  BOOST_TEST((failure_of([&] { kept.begin(3, monday, of(1, 2, 1ull << 63, 3)); }).code() ==
              ErrorCode::invalid_argument));  // overflow
}

BOOST_AUTO_TEST_CASE(a_buffer_is_used_again_once_the_trainer_reads_it_no_more) {
  Kept kept(1000);
  kept.attempt(monday);
  const auto first = kept.keep(1, monday, of(1));
  const auto second = kept.keep(1, monday, of(2));
  auto third = of(3);
  const auto fresh = kept.begin(1, monday, third);  // the first one was dropped just now, and is not free yet
  BOOST_TEST(fresh.fresh);
  BOOST_TEST(kept.used_bytes() == 300U);
  const std::uint64_t of_third = fresh.snapshot->buffer;
  kept.done(1, {.buffer = of_third});
  auto fourth = of(4);
  fourth.free = {first, second};
  const auto again = kept.begin(1, monday, fourth);
  BOOST_TEST(!again.fresh);
  BOOST_TEST(again.snapshot->buffer == first);
  BOOST_TEST((again.released == std::vector<std::uint64_t>{second}));
  BOOST_TEST(kept.used_bytes() == 200U);
  auto larger = of(5, 0, 300);
  kept.done(1, {.buffer = first});
  larger.free = {of_third, 4711};
  const auto larger_one = kept.begin(1, monday, larger);
  BOOST_TEST(larger_one.fresh);
  BOOST_TEST((larger_one.released == std::vector<std::uint64_t>{of_third, 4711}));
}

BOOST_AUTO_TEST_CASE(an_older_attempt_writes_no_more) {
  Kept kept(1000);
  BOOST_TEST(kept.attempt(monday) == 1U);
  kept.begin(1, monday, of(1));
  BOOST_TEST(kept.attempt(tuesday) == 2U);
  BOOST_TEST(kept.attempt(tuesday) == 2U);
  BOOST_TEST((failure_of([&] { kept.attempt(monday); }).code() == ErrorCode::cancelled));
  BOOST_TEST((failure_of([&] { kept.begin(1, monday, of(2)); }).code() == ErrorCode::cancelled));
}

// Tuesday began an hour after monday, whatever this keeper hears first, and whatever else it has been told.
BOOST_AUTO_TEST_CASE(the_session_that_began_last_is_the_newest_whenever_a_keeper_hears_of_it) {
  const auto refuses_monday = [](Kept& kept, std::uint32_t told) {
    return failure_of([&] { kept.attempt(monday, Clock::Time(1h), told); }).code() == ErrorCode::cancelled;
  };
  for (const bool older_first : {false, true}) {
    for (const std::uint32_t told_monday :
         {0U, 7U, wire::max_attempt}) {  // by keepers of other hosts, or by one before this
      for (const std::uint32_t told_tuesday : {0U, 1U, 9U}) {
        Kept kept(1000);
        if (older_first) BOOST_TEST(kept.attempt(monday, Clock::Time(1h), told_monday) == std::max(told_monday, 1U));
        kept.attempt(tuesday, Clock::Time(2h), told_tuesday);
        BOOST_TEST(kept.newest_session() == tuesday);
        BOOST_TEST(refuses_monday(kept, told_monday));
        BOOST_TEST(refuses_monday(kept, told_monday));
        kept.KeptStates::begin(1, tuesday, of(1));
        BOOST_TEST((failure_of([&] { kept.KeptStates::begin(2, monday, of(2)); }).code() == ErrorCode::cancelled));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(attempts_rise_with_the_beginnings_of_their_sessions) {
  Kept kept(1000);
  const auto refused = [&](std::uint64_t session, std::chrono::hours began, std::uint32_t told) {
    return failure_of([&] { kept.attempt(session, Clock::Time(began), told); }).code() == ErrorCode::cancelled;
  };
  BOOST_TEST(kept.attempts() == 0U);
  BOOST_TEST(kept.attempt_of(monday) == 0U);
  BOOST_TEST(kept.attempt(monday, Clock::Time(1h)) == 1U);
  BOOST_TEST(kept.attempt(tuesday, Clock::Time(3h), 5) == 5U);  // as other members were told
  BOOST_TEST(refused(wednesday, 2h, 1));                        // began in between
  BOOST_TEST(kept.attempt_of(wednesday) == 2U);
  BOOST_TEST(kept.attempts() == 5U);
  BOOST_TEST(refused(wednesday, 2h, 8));  // a keeper that holds snapshots of it counts it higher
  BOOST_TEST(kept.attempt_of(monday) == 1U);
  BOOST_TEST(kept.attempts() == 9U);
  BOOST_TEST(kept.attempt(tuesday, Clock::Time(3h), 6) == 9U);
  BOOST_TEST(kept.attempt(tuesday, Clock::Time::max(), 12) == 12U);  // raised elsewhere
  BOOST_TEST(kept.newest_session() == tuesday);
  BOOST_TEST(refused(wednesday, 2h, wire::max_attempt));
  BOOST_TEST(kept.attempts() == wire::max_attempt);  // there is no higher one
  BOOST_TEST(kept.attempt(4710, Clock::Time(4h)) == wire::max_attempt);
  BOOST_TEST(kept.newest_session() == 4710U);
}

// A member that got the answer to its request to join late knows less well when its session began.
BOOST_AUTO_TEST_CASE(the_earliest_beginning_that_a_member_names_counts) {
  Kept kept(1000);
  BOOST_TEST(kept.attempt(tuesday, Clock::Time(2h)) == 1U);
  BOOST_TEST(kept.attempt(monday, Clock::Time(3h)) == 2U);
  BOOST_TEST((failure_of([&] { kept.attempt(monday, Clock::Time(1h)); }).code() == ErrorCode::cancelled));
  BOOST_TEST(kept.newest_session() == tuesday);
  BOOST_TEST(kept.attempt(tuesday, Clock::Time(2h)) == 3U);
  BOOST_TEST((failure_of([&] { kept.attempt(monday, Clock::Time(3h)); }).code() == ErrorCode::cancelled));
}

BOOST_AUTO_TEST_CASE(of_two_sessions_that_began_at_once_all_keepers_take_the_same) {
  for (const bool monday_first : {false, true}) {
    Kept kept(1000);
    if (monday_first) kept.attempt(monday, Clock::Time(1h));
    kept.attempt(tuesday, Clock::Time(1h));
    BOOST_TEST((failure_of([&] { kept.attempt(monday, Clock::Time(1h), 3); }).code() == ErrorCode::cancelled));
    BOOST_TEST(kept.newest_session() == tuesday);
  }
}

BOOST_AUTO_TEST_CASE(what_an_earlier_attempt_left_stays_until_each_writer_of_the_newest_has_a_complete_one) {
  Kept kept(10'000);
  kept.attempt(monday);
  for (const int rank : {0, 1}) {
    for (const std::int64_t step : {7, 8}) kept.keep(static_cast<std::uint64_t>(rank + 1), monday, of(step, rank));
  }
  kept.ended(1, {});
  kept.ended(2, {});
  kept.attempt(tuesday);
  auto begin = of(8);
  begin.restored = {7, monday};  // step 8 was not complete elsewhere
  kept.keep(3, tuesday, begin);
  BOOST_TEST((kept.steps(monday) == Steps{7}));
  const auto late = kept.begin(4, tuesday, of(8, 1));
  kept.begin(3, tuesday, of(9));
  BOOST_TEST((kept.steps(monday) == Steps{7}));
  kept.done(4, {.buffer = late.snapshot->buffer});
  kept.begin(4, tuesday, of(9, 1));
  BOOST_TEST(kept.steps(monday).empty());
  BOOST_TEST((kept.steps(tuesday) == Steps{8}));
}

// Restored from elsewhere: what is here may be all that is left of its step.
BOOST_AUTO_TEST_CASE(nothing_is_dropped_for_a_step_that_is_not_here) {
  Kept kept(10'000);
  kept.attempt(monday);
  kept.keep(1, monday, of(7));
  kept.ended(1, {});
  kept.attempt(tuesday);
  auto begin = of(8);
  begin.restored = {6, monday};
  kept.begin(2, tuesday, begin);
  BOOST_TEST((kept.steps(monday) == Steps{7}));
}

BOOST_AUTO_TEST_CASE(a_replaced_trainer_goes_on_with_what_is_kept_of_its_rank) {
  Kept kept(1000);
  kept.attempt(monday);
  kept.keep(1, monday, of(1));
  kept.keep(1, monday, of(2));
  kept.ended(1, {});
  kept.keep(2, monday, of(2));
  BOOST_TEST((kept.steps(monday) == Steps{2}));
  BOOST_TEST(kept.without_trainer().empty());  // published again at the same step
  kept.keep(2, monday, of(3));
  BOOST_TEST((kept.steps(monday) == Steps{2, 3}));
}

BOOST_AUTO_TEST_CASE(what_trainers_have_left_can_be_dropped_by_name_and_by_time) {
  using namespace std::chrono_literals;
  Kept kept(1000);
  kept.attempt(monday);
  kept.keep(1, monday, of(1));
  kept.keep(2, monday, of(1, 1));
  kept.ended(1, Clock::Time(10s));
  kept.drop("model");
  BOOST_TEST(kept.all().size() == 2U);
  kept.drop_old(Clock::Time(10s));
  BOOST_TEST(kept.all().size() == 2U);
  kept.drop_old(Clock::Time(11s));
  BOOST_TEST(kept.all().size() == 1U);  // the other one has a trainer
  kept.drop("state");
  BOOST_TEST(kept.all().size() == 1U);
  kept.ended(2, Clock::Time(20s));
  kept.drop("");
  BOOST_TEST(kept.all().empty());
  BOOST_TEST(kept.used_bytes() == 0U);
}

BOOST_AUTO_TEST_CASE(only_its_trainer_ends_a_snapshot_and_only_once_and_inside_of_its_memory) {
  Kept kept(1000);
  kept.attempt(monday);
  const std::uint64_t buffer = kept.begin(1, monday, of(1)).snapshot->buffer;
  const auto refused = [&](std::uint64_t trainer, wire::KeepDone content) {
    return failure_of([&] { kept.done(trainer, std::move(content)); }).code() == ErrorCode::invalid_argument;
  };
  BOOST_TEST(refused(2, {.buffer = buffer}));
  BOOST_TEST(refused(1, {.buffer = buffer + 1}));
  BOOST_TEST(refused(1, {.buffer = buffer, .tensors = {{.offset_bytes = 101}}}));
  BOOST_TEST(refused(1, {.buffer = buffer, .tensors = {{.offset_bytes = 8, .size_bytes = ~0ull - 4}}}));
  kept.done(1, {.buffer = buffer, .tensors = {{.offset_bytes = 40, .size_bytes = 60}}});
  BOOST_TEST(refused(1, {.buffer = buffer}));
  const std::uint64_t next = kept.begin(1, monday, of(2)).snapshot->buffer;
  kept.quit(2, next, false);
  BOOST_TEST(kept.all().size() == 2U);
  kept.quit(1, next, false);
  BOOST_TEST(kept.all().size() == 1U);
  BOOST_TEST(kept.used_bytes() == 200U);  // the trainer may use the buffer again
  const std::uint64_t third = kept.begin(1, monday, of(3)).snapshot->buffer;
  kept.done(1, {.buffer = third});
  kept.quit(1, third, true);  // its publication has failed
  BOOST_TEST((kept.steps(monday) == Steps{1}));
  BOOST_TEST(kept.used_bytes() == 200U);
}

BOOST_AUTO_TEST_CASE(a_job_that_goes_back_keeps_what_it_wrote_last) {
  Kept kept(1000);
  kept.attempt(monday);
  kept.keep(1, monday, of(100));
  kept.keep(1, monday, of(91));
  kept.begin(1, monday, of(92));
  BOOST_TEST((kept.steps(monday) == Steps{91}));
}

BOOST_AUTO_TEST_CASE(trainers_that_hold_the_same_rank_leave_each_other_alone) {
  Kept kept(1000);
  kept.attempt(monday);
  kept.keep(1, monday, of(7));
  kept.keep(2, monday, of(7));
  const std::uint64_t of_two = kept.begin(2, monday, of(8)).snapshot->buffer;
  const std::uint64_t of_one = kept.begin(1, monday, of(8)).snapshot->buffer;
  BOOST_TEST((kept.steps(monday) == Steps{7}));
  kept.done(1, {.buffer = of_one});
  kept.done(2, {.buffer = of_two});
  BOOST_TEST(kept.all().size() == 4U);
}

// The budget holds what is kept and one more, and the job begins again without a restore: its state came from a disk.
BOOST_AUTO_TEST_CASE(a_job_that_restores_from_elsewhere_finds_room) {
  Kept kept(400);
  kept.attempt(monday);
  for (const int rank : {0, 1}) {
    for (const std::int64_t step : {7, 8}) kept.keep(static_cast<std::uint64_t>(rank + 1), monday, of(step, rank));
  }
  kept.ended(1, {});
  kept.ended(2, {});
  kept.attempt(tuesday);
  kept.keep(3, tuesday, of(5, 0));
  BOOST_TEST((kept.steps(monday) == Steps{8}));
  kept.keep(4, tuesday, of(5, 1));
  kept.keep(3, tuesday, of(6, 0));
  BOOST_TEST(kept.steps(monday).empty());
}

BOOST_AUTO_TEST_CASE(what_an_older_attempt_has_begun_does_not_become_complete) {
  Kept kept(1000);
  kept.attempt(monday);
  const std::uint64_t buffer = kept.begin(1, monday, of(1)).snapshot->buffer;
  kept.attempt(tuesday);
  BOOST_TEST((failure_of([&] { kept.done(1, {.buffer = buffer}); }).code() == ErrorCode::cancelled));
}

BOOST_AUTO_TEST_CASE(a_promise_goes_with_the_last_snapshot_of_its_name) {
  Kept kept(200);
  kept.attempt(monday);
  const std::uint64_t buffer = kept.begin(1, monday, of(1)).snapshot->buffer;
  kept.quit(1, buffer, true);
  auto other = of(1);
  other.publication = "model";
  kept.keep(1, monday, other);
}

// --- memory that is still being taken ---

BOOST_AUTO_TEST_CASE(memory_that_is_being_taken_counts_and_cannot_be_ended) {
  Kept kept(400);
  kept.attempt(monday);
  const auto given = kept.KeptStates::begin(1, monday, of(1));
  BOOST_TEST(given.fresh);
  BOOST_TEST(!given.snapshot->memory);
  BOOST_TEST(kept.used_bytes() == 100U);
  const std::uint64_t buffer = given.snapshot->buffer;
  BOOST_TEST((failure_of([&] { kept.done(1, {.buffer = buffer}); }).code() == ErrorCode::invalid_argument));
  BOOST_TEST(kept.provide(buffer, memory_of(100)) == given.snapshot);
  kept.done(1, {.buffer = buffer});
  BOOST_TEST((kept.steps(monday) == Steps{1}));
}

BOOST_AUTO_TEST_CASE(a_snapshot_that_is_gone_before_its_memory_is_there_leaves_no_trace) {
  for (const std::string how : {"ended", "quit", "begun anew"}) {
    Kept kept(200);
    kept.attempt(monday);
    const std::uint64_t buffer = kept.KeptStates::begin(1, monday, of(1)).snapshot->buffer;
    if (how == "ended") kept.ended(1, {});
    if (how == "quit") kept.quit(1, buffer, true);
    if (how == "begun anew") kept.keep(1, monday, of(1));
    BOOST_TEST(kept.used_bytes() == (how == "begun anew" ? 100U : 0U), how);
    const auto late = memory_of(100);
    BOOST_TEST(kept.provide(buffer, late) == nullptr, how);
    BOOST_TEST(late.use_count() == 1, how);
    if (how != "begun anew") kept.keep(2, monday, of(1));  // all of the budget is there
  }
}

// --- what is complete here ---

BOOST_AUTO_TEST_CASE(a_step_is_complete_here_once_each_rank_of_its_layout_is) {
  Kept kept(10'000);
  const auto keep_of = [&](std::uint64_t session, std::int64_t step, int rank, int ranks) {
    const auto trainer = static_cast<std::uint64_t>(rank + 1);
    wire::KeepBegin asked = of(step, rank);
    asked.is_copy = rank == 1;
    const std::uint64_t buffer = kept.begin(trainer, session, asked).snapshot->buffer;
    kept.done(trainer, {.buffer = buffer, .manifest = wire::encode_manifest({.ranks = ranks, .tensors = {}})});
  };
  using Complete = std::vector<KeptStates::CompleteStep>;
  keep_of(monday, 7, 0, 2);
  BOOST_TEST(kept.complete_here().empty());
  kept.begin(2, monday, of(7, 1));  // is being written
  BOOST_TEST(kept.complete_here().empty());
  keep_of(monday, 7, 1, 2);
  BOOST_TEST((kept.complete_here() == Complete{{"state", 7, monday, 2}}));
  keep_of(monday, 8, 0, 2);
  BOOST_TEST((kept.complete_here() == Complete{{"state", 7, monday, 2}}));
  keep_of(monday, 8, 1, 2);
  BOOST_TEST((kept.complete_here() == Complete{{"state", 8, monday, 2}}));
  std::set<std::int32_t> copies;
  for (const auto& [buffer, one] : kept.all()) {
    if (one.is_copy) copies.insert(one.layout_rank);
  }
  BOOST_TEST((copies == std::set<std::int32_t>{1}));
  for (const std::uint64_t trainer : {1, 2}) kept.ended(trainer, {});
  // Steps of different attempts do not complete each other, and the newest attempt with a complete one counts.
  keep_of(tuesday, 8, 0, 3);
  BOOST_TEST((kept.complete_here() == Complete{{"state", 8, monday, 2}}));
  keep_of(tuesday, 5, 2, 1);  // rank 2 of a layout of one rank
  for (const int rank : {0, 1, 2}) keep_of(tuesday, 4, rank, 3);
  BOOST_TEST((kept.complete_here() == Complete{{"state", 4, tuesday, 3}}));
}

BOOST_AUTO_TEST_CASE(a_snapshot_without_a_manifest_completes_no_step) {
  Kept kept(1000);
  const std::uint64_t buffer = kept.begin(1, monday, of(1)).snapshot->buffer;
  kept.done(1, {.buffer = buffer, .manifest = Bytes(24, std::byte{0x55})});
  BOOST_TEST(kept.complete_here().empty());
}

// --- copies of other hosts' snapshots ---

BOOST_AUTO_TEST_CASE(one_more_stays_where_copies_are_made) {
  Kept kept(1000);
  const auto copied = [](std::int64_t step, int rank = 0) {
    wire::KeepBegin asked = of(step, rank);
    asked.copied = true;
    return asked;
  };
  for (std::int64_t step = 1; step <= 4; ++step) {
    kept.keep(1, monday, copied(step));
    kept.keep(1, monday, copied(step, 5));  // of a rank of another host
  }
  kept.begin(1, monday, copied(5));
  std::set<std::pair<std::int32_t, std::int64_t>> held;
  for (const auto& [buffer, one] : kept.all()) held.insert({one.layout_rank, one.step});
  BOOST_TEST((held == std::set<std::pair<std::int32_t, std::int64_t>>{{0, 3}, {0, 4}, {0, 5}, {5, 2}, {5, 3}, {5, 4}}));
  // Three snapshots of each of two ranks are promised.
  BOOST_TEST(says(failure_of([&] { kept.begin(2, monday, of(5, 1, 201)); }), "600 of 1000"));
}

BOOST_AUTO_TEST_CASE(earlier_snapshots_stay_until_copies_of_the_first_new_ones_are_known_to_be_complete) {
  Kept kept(10000);
  kept.keep(1, monday, of(1));
  kept.ended(1, {});
  wire::KeepBegin asked = of(2);
  asked.copied = true;
  kept.keep(2, tuesday, asked);
  asked.step = 3;
  kept.keep(2, tuesday, asked);
  BOOST_TEST((kept.steps(monday) == Steps{1}));
  asked.step = 4;
  kept.keep(2, tuesday, asked);
  BOOST_TEST(kept.steps(monday).empty());
}

// Two ranks of this host and copies of two of another one, of 100 bytes each, in three snapshots.
BOOST_AUTO_TEST_CASE(a_budget_for_three_snapshots_lasts_beyond_a_restart) {
  Kept kept(1200);
  std::map<std::uint64_t, std::vector<std::uint64_t>> mapped;  // buffers, by trainer
  const auto asked = [](std::int64_t step, int rank, bool is_copy) {
    wire::KeepBegin begin = of(step, rank);
    begin.copied = true;
    begin.is_copy = is_copy;
    return begin;
  };
  const auto write = [&](std::uint64_t session, std::int64_t step, int rank, bool is_copy) {
    wire::KeepBegin begin = asked(step, rank, is_copy);
    if (session == tuesday) begin.restored = wire::KeepBegin::Restored{4, monday};
    const std::uint64_t trainer = session + static_cast<std::uint64_t>(rank % 2);
    begin.free = mapped[trainer];
    mapped[trainer].push_back(kept.keep(trainer, session, begin));
  };
  for (std::int64_t step = 1; step <= 5; ++step) {
    for (const int rank : {0, 1}) write(monday, step, rank, false);
    for (const int rank : {2, 3}) write(monday, step, rank, true);
  }
  for (const int rank : {0, 1}) kept.ended(monday + static_cast<std::uint64_t>(rank), {});
  for (std::int64_t step = 5; step <= 7; ++step) {
    for (const int rank : {0, 1}) write(tuesday, step, rank, false);
    // One of the copies of the latest step is not made yet when the next one is written.
    write(tuesday, step, 2, true);
    if (step < 6) write(tuesday, step, 3, true);
  }
  BOOST_TEST(kept.steps(monday).empty());
}

BOOST_AUTO_TEST_CASE(a_copy_whose_publisher_is_lost_counts_as_one_without_a_trainer) {
  Kept kept(1000);
  const std::uint64_t copy = kept.keep(1, monday, of(1, 5));
  const std::uint64_t unfinished = kept.begin(1, monday, of(2, 5)).snapshot->buffer;
  BOOST_TEST(kept.without_trainer().empty());
  BOOST_TEST(!kept.orphan(2, copy, {}));  // another trainer's
  BOOST_TEST(!kept.orphan(1, unfinished, {}));
  BOOST_TEST(kept.orphan(1, copy, {}));
  BOOST_TEST(!kept.orphan(1, copy, {}));
  BOOST_TEST(kept.without_trainer().size() == 1U);
  // The trainer goes on copying that rank from whoever has it now.
  kept.done(1, {.buffer = unfinished});
  kept.keep(1, monday, of(3, 5));
  BOOST_TEST(kept.without_trainer().empty());
}

BOOST_AUTO_TEST_CASE(what_trainers_have_replaced_is_published_after_a_loss_until_all_have_gone_back) {
  Kept kept(10000);
  const auto published = [&] {
    Steps steps;
    for (const Snapshot* one : kept.to_publish()) steps.insert(one->step);
    return steps;
  };
  wire::KeepBegin copy = of(1, 7);
  copy.is_copy = true;
  kept.keep(1, monday, copy);
  copy.step = 2;
  kept.keep(1, monday, copy);
  kept.keep(1, monday, of(4));
  kept.keep(1, monday, of(5));
  BOOST_TEST(published().empty());
  kept.member_lost();
  BOOST_TEST((published() == Steps{4}));
  // The trainer was about to finish this one, and others have not.
  kept.keep(1, monday, of(6));
  BOOST_TEST((published() == Steps{5}));
  // It has restored what the lost member had.
  kept.keep(1, monday, of(5));
  BOOST_TEST(published().empty());
  kept.keep(1, monday, of(6));
  BOOST_TEST(published().empty());
}

BOOST_AUTO_TEST_CASE(steps_after_one_that_is_written_again_are_dropped) {
  Kept kept(10000);
  for (const std::int64_t step : {7, 8, 9}) kept.keep(1, monday, of(step, 0, 100, 3));
  kept.keep(2, monday, of(9, 0, 100, 3));  // of another trainer
  kept.keep(1, monday, of(8, 0, 100, 3));
  kept.ended(1, {});
  BOOST_TEST(kept.without_trainer().size() == 2U);
  BOOST_TEST((kept.steps(monday) == Steps{7, 8, 9}));
  kept.ended(2, {});
  BOOST_TEST(kept.without_trainer().size() == 3U);
}

BOOST_AUTO_TEST_SUITE_END()

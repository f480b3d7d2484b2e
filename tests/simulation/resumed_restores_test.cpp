// SPDX-License-Identifier: Apache-2.0
// A restore that has failed goes on when a holder of its step is there again. In made time; session/copies has real processes.
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/release_queue.hpp"
#include "simulation/member.hpp"
#include "simulation/slow_restores.hpp"

BOOST_AUTO_TEST_SUITE(resumed_restores)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;
using namespace shardwire::simulation;

namespace {

const auto fabrics = boost::unit_test::data::make(made_fabrics);
const auto cases = fabrics * boost::unit_test::data::make({false, true}) * boost::unit_test::data::make(made_methods);

// --- two holders of the only layout rank, of which the first one publishes ---

/// Kills the holder once a part of the bytes has arrived.
Restore lose_holder(TwoHolders& job, const RestoreOptions& options) {
  Restore restore = job.begun(options);
  job.lose_first(true);
  return restore;
}

}  // namespace

BOOST_DATA_TEST_CASE(a_spare_of_the_last_holder_that_was_killed_gives_what_is_missing, cases, fabric, in_arena, name) {
  const auto method = method_of(name);
  TwoHolders job(fabric, in_arena, 1, 1);
  Restore restore = lose_holder(job, slowly(method));
  const Error error = failure_of([&] { restore.wait(); });
  BOOST_TEST((error.code() == ErrorCode::peer_lost), error.what());
  BOOST_TEST(!error.gaps().empty());
  BOOST_TEST(restore.poll());

  restore.resume(patience);
  job.made.pass(10s);
  BOOST_TEST(!restore.poll());
  job.publish(1);
  const auto began = job.made.now();
  restore.wait();
  BOOST_TEST((job.made.now() - began < soon));
  require_complete(job.wanted, restore.report());
  if (comes_in_copies(fabric, method)) BOOST_TEST(restore.report().resent_bytes == 0U);
  job.wanted.fill(7);
  job.reader.restore(job.wanted.catalog(), within(patience)).wait();
  BOOST_TEST(job.wanted.is(1));
}

// Each byte is in a box of the error or in place. By the method packed no byte is both: what is under way when the holder dies
// lies in staging.
BOOST_DATA_TEST_CASE(a_loss_in_the_middle_lists_exactly_what_is_missing,
                     boost::unit_test::data::make({"zcopy", "packed"}), name) {
  const auto method = method_of(name);
  TwoHolders job("streams", false, 1, 1);
  Restore restore = lose_holder(job, slowly(method));
  const Error error = failure_of([&] { restore.wait(); });
  BOOST_TEST((error.code() == ErrorCode::peer_lost), error.what());
  MadeTensor all_restored(1);
  MadeTensor all_before(7);
  const auto holds = [&](std::size_t first, std::size_t end, MadeTensor& what) {
    return std::memcmp(job.wanted.shard.data() + 4 * first, what.shard.data() + 4 * first, 4 * (end - first)) == 0;
  };
  std::vector<Gap> gaps = error.gaps();
  std::ranges::sort(gaps, {}, [](const Gap& gap) { return gap.box.lower(0); });
  BOOST_TEST(!gaps.empty());
  std::size_t in_place = 0;
  std::size_t end = 0;  // of the gaps so far
  for (const Gap& gap : gaps) {
    BOOST_TEST(gap.fqn == "w");
    BOOST_TEST(gap.state == "exp_avg");
    const auto first = static_cast<std::size_t>(gap.box.lower(0));
    BOOST_TEST_REQUIRE(first >= end);
    BOOST_TEST(holds(end, first, all_restored), "of the elements " << end << " to " << first << " some are missing");
    in_place += first - end;
    end = static_cast<std::size_t>(gap.box.upper(0));
    if (method == RestoreMethod::packed) {
      BOOST_TEST(holds(first, end, all_before), "of the gap " << first << " to " << end << " some are not missing");
    }
  }
  BOOST_TEST(holds(end, made_bytes / 4, all_restored), "of the elements from " << end << " on some are missing");
  BOOST_TEST(in_place + made_bytes / 4 - end >= made_bytes / 8 / 4);
}

BOOST_DATA_TEST_CASE(a_restore_that_has_timed_out_goes_on_with_the_same_holder, cases, fabric, in_arena, name) {
  const auto method = method_of(name);
  TwoHolders job(fabric, in_arena, 1, 1);
  RestoreOptions options = slowly(method, made_bytes / 6);  // 6 s
  options.timeout = 2s;
  Restore restore = job.reader.restore(job.wanted.catalog(), options);
  const Error error = failure_of([&] { restore.wait(); });
  BOOST_TEST((error.code() == ErrorCode::timed_out), error.what());
  BOOST_TEST(error.retryable());
  BOOST_TEST(restore.report().moved_bytes > 0U);
  restore.resume(patience);
  job.finish(restore);
  // So do those from mapped memory that was still published.
  const bool mapped = !method && in_arena && std::string_view(fabric) == "maps";
  if (mapped || comes_in_copies(fabric, method)) BOOST_TEST(restore.report().resent_bytes == 0U);
  BOOST_TEST(restore.report().moved_bytes >= made_bytes);
}

BOOST_DATA_TEST_CASE(a_stopped_holder_that_continues_is_one_again, fabrics, fabric) {
  TwoHolders job(fabric, false, 1, 1);
  Restore restore = job.begun(slowly_within(4s, RestoreMethod::zcopy));
  std::optional<Stopped> hold(std::in_place, job.made, 1);
  const Error error = failure_of([&] { restore.wait(); });
  BOOST_TEST((error.code() == ErrorCode::timed_out), error.what());
  restore.resume(patience);
  hold.reset();
  job.finish(restore);
}

BOOST_AUTO_TEST_CASE(a_restore_that_finds_no_holder_names_the_rank_and_can_be_resumed_again) {
  TwoHolders job("streams", false, 1, 1);
  Restore restore = lose_holder(job, slowly(RestoreMethod::zcopy));
  BOOST_TEST((failure_of([&] { restore.wait(); }).code() == ErrorCode::peer_lost));
  for (int attempt = 0; attempt < 2; ++attempt) {
    restore.resume(300ms);
    const Error error = failure_of([&] { restore.wait(); });
    BOOST_TEST((error.code() == ErrorCode::timed_out), error.what());
    BOOST_TEST(error.retryable());
    BOOST_TEST((error.ranks() == std::vector{Rank{0}}));
    BOOST_TEST(!error.gaps().empty());
    BOOST_TEST(says(error, "no member publishes step 0 of 'state' as source rank 0"), error.what());
    BOOST_TEST(restore.report().moved_bytes > 0U);
  }
  restore.resume(patience);
  job.publish(1);
  job.finish(restore);
  BOOST_TEST(restore.report().resent_bytes == 0U);
}

BOOST_AUTO_TEST_CASE(a_cancelled_restore_can_be_resumed_and_cancelled_again) {
  TwoHolders job("streams", false, 1, 1);
  Restore restore = job.reader.restore(job.wanted.catalog(), slowly(RestoreMethod::packed));
  restore.on_progress(
      [&](const Progress& progress) {
        if (progress.done_bytes >= made_bytes / 8) restore.cancel();
      },
      1ms);
  BOOST_TEST((failure_of([&] { restore.wait(); }).code() == ErrorCode::cancelled));
  restore.resume(patience);
  BOOST_TEST((failure_of([&] { restore.wait(); }).code() == ErrorCode::cancelled));
  restore.on_progress(nullptr);
  int done = 0;
  restore.resume(patience);
  restore.on_done([&] { ++done; });
  job.finish(restore);
  BOOST_TEST(restore.report().resent_bytes == 0U);
  job.reader.close(20s);
  BOOST_TEST(done == 1);
}

// --- halves of a tensor ---

namespace {

const TensorSpec spec{{"w", "exp_avg"}, DType::f32, {64, 16}};

// A member of five that publishes rows of a tensor.
struct Source {
  Source(Scenario& made, int number, Layout layout, int layout_rank, int ranks, TensorSpec of = spec)
      : held(std::move(of), std::move(layout), Rank{layout_rank}), catalog(Rank{layout_rank}, ranks) {
    session.emplace(made.join(number));
    held.add_to(catalog);
  }
  void publish(std::uint64_t seed, std::int64_t step) {
    held.fill(seed);
    publication = session->publish(catalog, {.step = step});
  }

  std::optional<Session> session;
  TestShard held;
  Catalog catalog;
  Publication publication;
};

// Members 1 and 4 publish halves, of which the second is lost once all is bound; member 2 is its spare, member 3 reads.
struct Halves {
  explicit Halves(const Layout& of_spare = Layout::chunk(0, 2), TensorSpec what = spec)
      : spare(made, 2, of_spare, 1, 2, std::move(what)) {
    first.publish(1, 5);
    second.publish(1, 5);
    wanted.fill(4711);
    wanted.add_to(catalog);
  }
  // Fails, since the second half is gone.
  Restore failed() {
    RestoreOptions options = within(patience);
    options.method = RestoreMethod::zcopy;
    Restore restore = reader.restore(catalog, options);
    const Error error = failure_of([&] { restore.wait(); });
    BOOST_TEST((error.code() == ErrorCode::peer_lost), error.what());
    BOOST_TEST((error.ranks() == std::vector{Rank{1}}));
    BOOST_TEST(says(error, "(2.05 kB)"), error.what());  // half of the tensor
    BOOST_TEST(says(error, " missing, and resume() waits for another holder"), error.what());
    return restore;
  }
  // Nothing is committed: bytes of the second half are as they were.
  void require_uncommitted() { BOOST_TEST(wanted.wrong(1) > 0U); }

  Scenario made{5};
  Session host = made.join(0);
  Source first{made, 1, Layout::chunk(0, 2), 0, 2};
  Source second{made, 4, Layout::chunk(0, 2), 1, 2};
  Source spare;
  Session reader = made.join(3, when_bound([this] { second.session.reset(); }));
  TestShard wanted{spec, Layout::replicated(), Rank{0}};
  Catalog catalog{Rank{0}, 1};
};

}  // namespace

BOOST_AUTO_TEST_CASE(the_same_rank_of_another_member_completes_it_with_the_values_of_before) {
  Halves job;
  Restore restore = job.failed();
  job.require_uncommitted();
  restore.resume(patience);
  job.spare.publish(1, 5);
  restore.wait();
  BOOST_TEST(job.wanted.wrong(1) == 0U);
  const RestoreReport& report = restore.report();
  BOOST_TEST(report.needed_bytes == 64U * 16U * 4U);
  BOOST_TEST(report.moved_bytes + report.local_bytes ==
             report.needed_bytes + report.overread_bytes + report.resent_bytes);
  BOOST_TEST(report.resent_bytes == 0U);
  const Error error = failure_of([&] { restore.resume(patience); });
  BOOST_TEST((error.code() == ErrorCode::invalid_argument));
  BOOST_TEST(says(error, "complete"), error.what());
}

BOOST_AUTO_TEST_CASE(a_running_restore_and_one_of_a_closed_session_are_not_resumed) {
  Halves job;
  Restore restore = job.failed();
  restore.resume(patience);
  const Error running = failure_of([&] { restore.resume(patience); });
  BOOST_TEST((running.code() == ErrorCode::invalid_argument));
  BOOST_TEST(says(running, "running"), running.what());
  job.reader.close(20s);
  BOOST_TEST((failure_of([&] { restore.wait(); }).code() == ErrorCode::cancelled));
  BOOST_TEST((failure_of([&] { restore.resume(patience); }).code() == ErrorCode::invalid_argument));
  Restore nothing;
  BOOST_TEST((failure_of([&] { nothing.resume(patience); }).code() == ErrorCode::invalid_argument));
}

BOOST_AUTO_TEST_CASE(a_restore_that_is_cancelled_right_after_its_resume_keeps_all_that_is_in_place) {
  Halves job;
  Restore restore = job.failed();
  for (int time = 0; time < 2; ++time) {
    restore.resume(patience);
    restore.cancel();
    const Error error = failure_of([&] { restore.wait(); });
    BOOST_TEST((error.code() == ErrorCode::cancelled), error.what());
    job.require_uncommitted();
  }
  restore.resume(patience);
  job.spare.publish(1, 5);
  restore.wait();
  BOOST_TEST(job.wanted.wrong(1) == 0U);
  BOOST_TEST(restore.report().needed_bytes == 64U * 16U * 4U);
  BOOST_TEST(restore.report().resent_bytes == 0U);
}

BOOST_AUTO_TEST_CASE(a_holder_of_another_layout_or_shape_is_refused_and_nothing_is_committed) {
  const Layout rows = Layout::boxes({{Rank{1}, {{{32, 0}, {32, 16}}}}});  // the same elements
  const TensorSpec wider{spec.key, spec.dtype, {64, 17}};
  for (const bool shape : {false, true}) {
    Halves job(shape ? Layout::chunk(0, 2) : rows, shape ? wider : spec);
    Restore restore = job.failed();
    restore.resume(patience);
    job.spare.publish(1, 5);
    const auto began = job.made.now();
    const Error error = failure_of([&] { restore.wait(); });
    BOOST_TEST((job.made.now() - began < soon));
    BOOST_TEST((error.code() == ErrorCode::layout_mismatch));
    BOOST_TEST((error.ranks() == std::vector{Rank{1}}));
    BOOST_TEST(says(error, "member 2 publishes layout rank 1 of 'state' at step 5"), error.what());
    BOOST_TEST(!error.gaps().empty());
    job.require_uncommitted();
  }
}

BOOST_AUTO_TEST_CASE(a_holder_at_another_step_is_none) {
  Halves job;
  Restore restore = job.failed();
  job.spare.publish(2, 6);
  restore.resume(500ms);
  const Error error = failure_of([&] { restore.wait(); });
  BOOST_TEST((error.code() == ErrorCode::step_mismatch));
  BOOST_TEST((error.ranks() == std::vector{Rank{1}}));
  BOOST_TEST(says(error, "no member publishes step 5 of 'state' as source rank 1"), error.what());
  BOOST_TEST(says(error, "source rank 1 is published at step 6"), error.what());
  job.require_uncommitted();
}

BOOST_AUTO_TEST_CASE(a_restore_that_had_no_plan_begins_anew) {
  Scenario made(4);
  Source host(made, 0, Layout::replicated(), 0, 1);
  Session reader = made.join(3);
  TestShard wanted(spec, Layout::replicated(), Rank{0});
  wanted.fill(4711);
  Catalog catalog(Rank{0}, 1);
  wanted.add_to(catalog);
  Restore restore = reader.restore(catalog, within(200ms));
  BOOST_TEST((failure_of([&] { restore.wait(); }).code() == ErrorCode::timed_out));
  restore.resume(patience);
  host.publish(1, 5);
  restore.wait();
  BOOST_TEST(wanted.wrong(1) == 0U);
  BOOST_TEST(restore.report().resent_bytes == 0U);
}

BOOST_AUTO_TEST_CASE(the_owner_of_the_destination_is_kept_while_the_restore_can_be_resumed) {
  Scenario made(1);
  Session host = made.join(0);
  auto memory = std::make_shared<std::vector<std::byte>>(64 * 16 * 4);
  const std::weak_ptr<std::vector<std::byte>> left = memory;
  std::optional<Restore> restore;
  {
    Catalog catalog(Rank{0}, 1);
    View view{.data = memory->data()};
    view.owner = std::exchange(memory, nullptr);
    catalog.add(spec, Layout::replicated(), view);
    restore.emplace(host.restore(catalog, within(100ms)));
  }
  BOOST_TEST((failure_of([&] { restore->wait(); }).code() == ErrorCode::timed_out));
  auto last = std::make_shared<int>(0);
  const std::weak_ptr<int> released = last;
  ReleaseQueue::instance().release(std::move(last));  // after whatever the restore has released
  BOOST_TEST(count_kept({released}) == 0U);
  BOOST_TEST(!left.expired());
  restore.reset();
  made.pass(1s);
  BOOST_TEST(count_kept({left}) == 0U);
}

BOOST_AUTO_TEST_SUITE_END()

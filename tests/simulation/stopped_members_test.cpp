// SPDX-License-Identifier: Apache-2.0
// A process that is stopped during a restore blocks neither the other side nor its memory. In made time; session/hang has real
// processes.
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <cstdint>
#include <optional>
#include <string_view>

#include "simulation/slow_restores.hpp"

BOOST_AUTO_TEST_SUITE(stopped_members)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;
using namespace shardwire::simulation;

namespace {

const auto fabrics = boost::unit_test::data::make(made_fabrics);
const auto with_or_without = boost::unit_test::data::make({true, false});

/// A restore whose source is stopped ends at its deadline.
Error failure_at(Duration timeout, Pair& pair, Restore& restore, Clock::Time began) {
  const Error error = failure_of([&] { restore.wait(); });
  const auto took = pair.made.now() - began;
  BOOST_TEST((error.code() == ErrorCode::timed_out), error.what());
  BOOST_TEST((took >= timeout && took < timeout + slack));
  return error;
}

/// Memory that was returned stays as it is once the source continues, and serves another restore.
void require_free(Pair& pair) {
  pair.wanted.fill(5);
  pair.made.resume(pair.source_process());
  MadeTensor other;
  pair.reader->restore(other.catalog(), within(patience)).wait();
  BOOST_TEST(other.is(1));
  BOOST_TEST(pair.wanted.is(5));
  pair.require_restored();
}

/// The reader does not get the publication to its end: a retirement ends at its timeout, if it has a lease.
void retire_at(Duration timeout, Pair& pair, bool leased) {
  const auto began = pair.made.now();
  if (leased) {
    BOOST_TEST((failure_of([&] { pair.publication.retire(timeout); }).code() == ErrorCode::timed_out));
    BOOST_TEST((pair.made.now() - began >= timeout));
  } else {
    pair.publication.retire(patience);  // waits for nobody
  }
  BOOST_TEST((pair.made.now() - began < timeout + slack));
  pair.held->fill(5);  // the memory is the caller's again: the reader must not accept its bytes as the published ones
}

/// The restore gets the next publication, or fails if it had a lease.
void require_next_or_lost(Pair& pair, Restore& restore, bool leased) {
  pair.held->fill(1);
  pair.publication = pair.source->publish(pair.held->catalog());
  const auto published = pair.made.now();
  try {
    restore.wait();
    BOOST_TEST(pair.wanted.is(1));
  } catch (const Error& error) {
    BOOST_TEST((leased && error.code() == ErrorCode::peer_lost), error.what());
  }
  BOOST_TEST((pair.made.now() - published < 10s));
  pair.require_restored();
}

}  // namespace

BOOST_DATA_TEST_CASE(a_source_that_hangs_holds_a_restore_no_longer_than_its_deadline,
                     fabrics* boost::unit_test::data::make({1, 3, 5}), fabric, eighths) {
  Pair pair(fabric);
  const auto began = pair.made.now();
  Restore restore = pair.begun(slowly_within(4s, RestoreMethod::zcopy), made_bytes / 8 * eighths);
  pair.source_process().stop();
  BOOST_TEST(!failure_at(4s, pair, restore, began).gaps().empty());
  require_free(pair);
}

BOOST_DATA_TEST_CASE(a_restore_can_be_cancelled_whether_its_source_hangs_or_not, fabrics* with_or_without, fabric,
                     hangs) {
  Pair pair(fabric);
  Restore restore = pair.begun(slowly(RestoreMethod::zcopy));
  if (hangs) pair.source_process().stop();
  const auto began = pair.made.now();
  restore.cancel();
  const Error error = failure_of([&] { restore.wait(); });
  BOOST_TEST((error.code() == ErrorCode::cancelled), error.what());
  BOOST_TEST((pair.made.now() - began < slack));
  require_free(pair);
}

// The source hangs before the first request, or once all is bound. The reader waits for messages, or for digests of bytes that it
// has read without the source.
BOOST_DATA_TEST_CASE(a_source_that_hangs_at_any_stage_holds_a_restore_no_longer_than_its_deadline,
                     fabrics* with_or_without* boost::unit_test::data::make(made_methods) * with_or_without, fabric,
                     once_bound, method, in_arena) {
  Pair pair(fabric, in_arena);
  pair.at_bound = [&] { pair.source_process().stop(); };
  if (!once_bound) pair.source_process().stop();
  RestoreOptions options = slowly_within(3s, method_of(method));
  options.verify = Verify::digest;
  const auto began = pair.made.now();
  Restore restore = pair.restore(options);
  failure_at(3s, pair, restore, began);
  BOOST_TEST(pair.bound == once_bound);
  pair.at_bound = nullptr;
  require_free(pair);
}

// The stopped reader continues with the next publication, or fails with an error if its aborted connection ends before the
// reason arrives.
BOOST_DATA_TEST_CASE(a_reader_that_stops_gets_the_next_publication_or_an_error_when_it_goes_on,
                     fabrics* boost::unit_test::data::make({"joined", "bound", "moving"}) *
                         boost::unit_test::data::make(made_methods) * with_or_without,
                     fabric, stage, method, in_arena) {
  const bool leased = std::string_view(stage) != "joined";
  const RestoreOptions options = slowly(method_of(method));
  Pair pair(fabric, in_arena, 0);
  Restore restore;
  if (std::string_view(stage) == "bound") {
    restore = pair.restore(options);
    pair.made.wait_until([&] { return pair.bound; });
  }
  if (std::string_view(stage) == "moving") restore = pair.begun(options);
  {
    const Stopped hold(pair.made, 1);
    retire_at(500ms, pair, leased);
  }
  if (!leased) restore = pair.restore(options);
  pair.made.pass(100ms);
  require_next_or_lost(pair, restore, leased);
}

BOOST_DATA_TEST_CASE(a_slow_reader_holds_no_publication_beyond_the_timeout_and_gets_the_next_one_or_an_error,
                     fabrics* with_or_without, fabric, in_arena) {
  Pair pair(fabric, in_arena, 0);
  Restore restore = pair.begun(slowly({}, made_bytes / 2));
  retire_at(500ms, pair, true);
  require_next_or_lost(pair, restore, true);
}

// It holds slots that the source packed for it, except the last one.
BOOST_DATA_TEST_CASE(a_reader_that_hangs_does_not_keep_others_from_what_is_packed, fabrics, fabric) {
  Pair pair(fabric, false, 0, 3);
  Session other = pair.made.join(2);
  RestoreOptions options = slowly(RestoreMethod::packed, 0);
  options.staging_bytes = made_bytes;
  Restore restore = pair.restore(options);
  pair.made.wait_until([&] { return pair.bound; });
  pair.made.pass(1ms);
  BOOST_TEST(!restore.poll());
  {
    const Stopped hold(pair.made, 1);
    MadeTensor copy(7);
    other.restore(copy.catalog(), slowly(RestoreMethod::packed, 0)).wait();
    BOOST_TEST(copy.is(1));
  }
  restore.wait();
  BOOST_TEST(pair.wanted.is(1));
}

// --- two holders ---

namespace {

constexpr Duration notice = 1s;

RestoreOptions noticing(std::optional<RestoreMethod> method, ByteCount bytes_per_second) {
  RestoreOptions options = slowly(method, bytes_per_second);
  options.notice = notice;
  return options;
}

const auto methods = boost::unit_test::data::make(made_methods);
const auto layout_ranks = boost::unit_test::data::make({1, 2});

}  // namespace

BOOST_DATA_TEST_CASE(a_holder_that_is_stopped_or_killed_while_it_is_read_costs_what_it_has_not_delivered,
                     fabrics* methods* with_or_without* with_or_without* layout_ranks, fabric, method, in_arena, killed,
                     ranks) {
  TwoHolders job(fabric, in_arena, ranks);
  Restore restore = job.begun(noticing(method_of(method), made_bytes / 2 * 3));
  job.lose_first(killed);
  const auto began = job.made.now();
  job.finish(restore);
  BOOST_TEST((job.made.now() - began < notice + soon));
  const RestoreReport& report = restore.report();
  if (comes_in_copies(fabric, method_of(method))) BOOST_TEST(report.resent_bytes == 0U);
  // Network cards and mapped memory of a stopped process are read as well.
  const bool is_read =
      !method_of(method) && (std::string_view(fabric) == "reads" || (std::string_view(fabric) == "maps" && in_arena));
  if (is_read && in_arena && !killed) BOOST_TEST(report.lost.empty());
  if (ranks == 1 || (is_read && !killed)) return;
  BOOST_TEST_REQUIRE(report.lost.size() == 1U);
  const LostSource& lost = report.lost.front();
  BOOST_TEST(to_int(lost.rank) == 0);
  BOOST_TEST((lost.reason == ErrorCode::peer_lost));
  BOOST_TEST(!lost.why.empty());
  BOOST_TEST(lost.resent_bytes == report.resent_bytes);
}

BOOST_DATA_TEST_CASE(a_holder_that_is_stopped_or_killed_before_or_once_all_is_bound_is_replaced,
                     fabrics* methods* with_or_without* with_or_without* with_or_without* with_or_without* layout_ranks,
                     fabric, method, in_arena, killed, before, digest, ranks) {
  TwoHolders job(fabric, in_arena, ranks);
  // The manifest is known, so that only the restore itself meets the stopped member.
  if (before) {
    job.reader.restore(job.wanted.catalog(), within(patience)).wait();
    job.wanted.fill(7);
    job.lose_first(killed);
  } else {
    job.at_bound = [&] { job.lose_first(killed); };
  }
  RestoreOptions options = noticing(method_of(method), 0);
  options.verify = digest ? Verify::digest : Verify::generation;
  const auto began = job.made.now();
  Restore restore = job.reader.restore(job.wanted.catalog(), options);
  job.finish(restore);
  BOOST_TEST((job.made.now() - began < notice + soon));
  BOOST_TEST(!job.at_bound);
}

BOOST_DATA_TEST_CASE(a_spare_that_publishes_later_replaces_a_member_that_is_stopped_or_killed,
                     fabrics* methods* with_or_without* boost::unit_test::data::make({"stopped", "killed",
                                                                                      "stopped while it is read"}),
                     fabric, method, in_arena, loss) {
  TwoHolders job(fabric, in_arena, 1, 1);
  const RestoreOptions options = noticing(method_of(method), made_bytes / 4 * 3);
  Restore restore;
  const bool during = std::string_view(loss) == "stopped while it is read";
  if (during) restore = job.begun(options);
  job.lose_first(std::string_view(loss) == "killed");
  job.publish(1);
  if (!during) job.made.pass(soon);  // the reader knows of both
  const auto began = job.made.now();
  if (!during) restore = job.reader.restore(job.wanted.catalog(), options);
  job.finish(restore);
  BOOST_TEST((job.made.now() - began < notice + 2 * soon));
}

BOOST_AUTO_TEST_CASE(a_stopped_member_that_has_not_told_its_values_is_left_out_if_the_others_hold_everything) {
  const TensorKey epoch{"", "epoch"};
  TwoHolders job("streams", false, 1, 0);
  job.publish(0);
  job.made.process(1).stop();
  Catalog catalog = job.held[1].catalog();
  catalog.add_value(epoch, std::int64_t{7});
  const Publication publication = job.members[1]->publish(catalog);

  Catalog wanted = job.wanted.catalog();
  wanted.add_value(epoch);
  const auto began = job.made.now();
  Restore restore = job.reader.restore(wanted, noticing(RestoreMethod::zcopy, 0));
  job.finish(restore);
  BOOST_TEST((job.made.now() - began < 10s + notice + slack));  // a handshake with the stopped one has 10 s
  BOOST_TEST((restore.value(epoch) == Value(std::int64_t{7})));

  // Nothing counts as absent that the stopped one may have.
  for (const Absent absent : {Absent::error, Absent::skip}) {
    Catalog more = job.wanted.catalog();
    more.add_value({"", "other"}, {}, absent);
    RestoreOptions options = noticing(RestoreMethod::zcopy, 0);
    options.timeout = 3s;
    const Error error = failure_of([&] { job.reader.restore(more, options).wait(); });
    BOOST_TEST((error.code() == ErrorCode::timed_out), error.what());
    BOOST_TEST(says(error, "source rank 0 had not yet described"), error.what());
  }
}

BOOST_DATA_TEST_CASE(holders_that_are_all_stopped_are_waited_for_and_any_may_go_on,
                     fabrics* boost::unit_test::data::make({1, 2}), fabric, which) {
  TwoHolders job(fabric);
  Restore restore = job.begun(noticing(RestoreMethod::zcopy, made_bytes / 3));
  for (const int member : {1, 2}) job.made.process(member).stop();
  job.made.pass(4 * notice);
  BOOST_TEST(!restore.poll());
  job.made.resume(job.made.process(which));
  job.finish(restore);
}

BOOST_DATA_TEST_CASE(the_only_holder_is_waited_for_until_the_deadline, fabrics, fabric) {
  TwoHolders job(fabric);
  job.made.kill(2, job.members[1]);
  RestoreOptions options = noticing(RestoreMethod::zcopy, made_bytes / 3);
  Restore restore = job.begun(options);
  job.made.process(1).stop();
  job.made.pass(3 * notice);
  BOOST_TEST(!restore.poll());
  job.made.resume(job.made.process(1));
  job.finish(restore);

  options.timeout = 3 * notice;
  const auto began = job.made.now();
  restore = job.begun(options);
  job.made.process(1).stop();
  BOOST_TEST((failure_of([&] { restore.wait(); }).code() == ErrorCode::timed_out));
  BOOST_TEST((job.made.now() - began >= options.timeout && job.made.now() - began < options.timeout + slack));
}

// No byte comes for eight times the notice, and the source answers.
BOOST_DATA_TEST_CASE(a_slow_source_is_kept, fabrics* boost::unit_test::data::make(made_methods), fabric, method) {
  TwoHolders job(fabric);
  constexpr Extent elements = 1024;  // the least that a limited rate asks for at once
  TestShard part(made_tensor, Layout::boxes({{Rank{0}, {Box{{0}, {elements}}}}}), Rank{0});
  Catalog catalog(Rank{0}, 1);
  part.add_to(catalog);
  const auto began = job.made.now();
  Restore restore = job.reader.restore(catalog, noticing(method_of(method), elements * 4 / 8));
  restore.wait();
  BOOST_TEST((job.made.now() - began > 2 * notice));
  BOOST_TEST(restore.report().lost.empty());
  BOOST_TEST(restore.report().resent_bytes == 0U);
  BOOST_TEST(part.wrong(1) == 0U);
}

BOOST_AUTO_TEST_CASE(the_seat_of_a_member_that_hangs_goes_to_who_comes_later) {
  Pair pair("streams");
  Process& process = pair.source_process();
  const auto began = pair.made.now();
  const Error refused = failure_of([&] { pair.made.join(1); });
  BOOST_TEST(says(refused, "joined already and is alive"), refused.what());
  BOOST_TEST((pair.made.now() - began < 5s));
  process.stop();
  Session replacement = pair.made.join(1);
  pair.held->fill(2);
  const Publication publication = replacement.publish(pair.held->catalog());
  pair.made.pass(1s);
  pair.require_restored(2);
  pair.made.resume(process);
  const Error end = failure_of([&] { pair.source->gather("never", {}, patience); });
  BOOST_TEST(says(end, "another process has taken the seat of member 1"), end.what());
}

BOOST_AUTO_TEST_SUITE_END()

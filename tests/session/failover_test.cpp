// SPDX-License-Identifier: Apache-2.0
// A source that dies costs what it has not delivered; the rest of the restore stands. tests/simulation/stopped_members_test.cpp has
// sources that are silent, in made time.
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "session/hang.hpp"
#include "support/blocked.hpp"
#include "support/bytes.hpp"
#include "support/deadline.hpp"
#include "support/sanitizer.hpp"

BOOST_AUTO_TEST_SUITE(failover)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;
using WallClock = std::chrono::steady_clock;

namespace {

constexpr auto soon = 20s;  // well before any deadline
const std::optional<RestoreMethod> methods[] = {std::nullopt, RestoreMethod::zcopy, RestoreMethod::packed};

// Member 0 reads what members 1 and 2 both hold.
struct Replicas2 {
  explicit Replicas2(const std::string& task, const SessionOptions& options = quick()) {
    for (const char* number : {" 1", " 2"}) holders.emplace_back(peer_arguments(task + number, port, 3));
    session.emplace(Session::join(member(0, 3, port), options));
    for (const Child& holder : holders) read_frame(holder.socket());
    session->await_step("state", 0, patience);  // publish() does not wait until this member knows of it
  }

  std::uint16_t port = free_port();
  std::deque<Child> holders;
  std::optional<Session> session;
  Tensor tensor;
};

RestoreOptions slowly(std::optional<RestoreMethod> method) {
  RestoreOptions options = by(method, patience);
  options.ingress_bytes_per_second = tensor_bytes / 2 * 3;
  return options;
}

void require_complete(const Tensor& tensor, const RestoreReport& report) {
  BOOST_TEST(tensor.is_filled());
  BOOST_TEST(report.needed_bytes == tensor_bytes);
  BOOST_TEST(report.moved_bytes + report.local_bytes ==
             report.needed_bytes + report.overread_bytes + report.resent_bytes);
  ByteCount by_method = 0;
  report.methods.each([&](Method, const MethodReport& row) { by_method += row.bytes; });
  BOOST_TEST(by_method == report.moved_bytes + report.local_bytes);
}

// The source that publishes as this layout rank, and no other, was given up.
void require_lost(Rank rank, const RestoreReport& report) {
  BOOST_TEST_REQUIRE(report.lost.size() == 1U);
  const LostSource& lost = report.lost.front();
  BOOST_TEST(to_int(lost.rank) == to_int(rank));
  BOOST_TEST((lost.reason == ErrorCode::peer_lost));
  BOOST_TEST(!lost.why.empty());
  BOOST_TEST(lost.after_seconds > 0);
  BOOST_TEST(lost.after_seconds <= report.seconds.wall);
  BOOST_TEST(lost.resent_bytes == report.resent_bytes);
  BOOST_TEST((lost.boxes_replanned > 0 || lost.resent_bytes == 0));
}

}  // namespace

BOOST_DATA_TEST_CASE(a_replica_that_is_killed_while_it_is_read_costs_what_it_has_not_delivered,
                     boost::unit_test::data::make({"replica", "arena replica"}), task) {
  const Deadline deadline(400s);
  for (const auto method : methods) {
    for (const std::size_t victim : {0, 1}) {
      if (with_sanitizer && (victim == 0) == (method == RestoreMethod::zcopy)) continue;  // one of each method
      Replicas2 job(task);
      bool killed = false;
      std::atomic<ByteCount> most = 0;
      RestoreOptions options = slowly(method);
      options.stop_at_values = true;  // until it is watched
      Restore restore = job.session->restore(job.tensor.catalog(), options);
      restore.on_progress(
          [&](const Progress& progress) {
            if (progress.done_bytes > 0 && !std::exchange(killed, true)) job.holders[victim].kill();
            most = std::max<ByteCount>(most, progress.total_bytes);
          },
          1ms);
      restore.proceed();
      restore.wait();
      const RestoreReport report = restore.report();
      require_complete(job.tensor, report);
      BOOST_TEST(most == tensor_bytes);
      require_lost(Rank{static_cast<std::int32_t>(victim)}, report);
      // The memory of an arena is read on, and messages that have arrived stand.
      BOOST_TEST((report.lost.front().boxes_replanned > 0) == (method || task == "replica" || !maps_arenas()));
      // Messages that are copied prove themselves, and a mapped word proves what was read. Another word is read now and then.
      const auto over = [](const char* transport) {
        return transport_under_test().find(transport) != std::string::npos;
      };
      BOOST_TEST(report.resent_bytes <= (over("ucx") ? tensor_bytes / 2 : over("libfabric") ? tensor_bytes / 8 : 0U));
      // The next restore of the same catalog reads from the one that is left.
      std::memset(job.tensor.bytes().data(), 0, tensor_bytes);
      job.session->restore(job.tensor.catalog(), by(method, patience)).wait();
      BOOST_TEST(job.tensor.is_filled());
    }
  }
}

BOOST_DATA_TEST_CASE(a_replica_that_is_killed_once_all_is_bound_is_replaced,
                     boost::unit_test::data::make(in_each_memory("replica")), task) {
  const Deadline deadline(400s);
  for (const auto method : methods) {
    Replicas2* job = nullptr;
    bool killed = false;
    Replicas2 made(task, when_all_is_bound([&] {
                     if (!std::exchange(killed, true)) kill_and_await(job->holders[0]);
                   }));
    job = &made;
    Restore restore = made.session->restore(made.tensor.catalog(), by(method, patience));
    restore.wait();
    BOOST_TEST(killed);
    require_complete(made.tensor, restore.report());
  }
}

BOOST_AUTO_TEST_CASE(a_replica_that_is_killed_is_replaced_whatever_is_asked_of_replicas_and_digests) {
  const Deadline deadline(400s);
  for (const Replicas replicas : {Replicas::spread, Replicas::first}) {
    for (const Verify verify : {Verify::generation, Verify::digest}) {
      Replicas2 job("replica");
      RestoreOptions options = slowly(std::nullopt);
      options.replicas = replicas;
      options.verify = verify;
      Restore restore = moving(*job.session, job.tensor.catalog(), options, [&] { job.holders[0].kill(); });
      restore.wait();
      require_complete(job.tensor, restore.report());
    }
  }
}

// The replicas differ, so that a mixture shows. The first box has arrived when its holder dies, the second has not.
BOOST_DATA_TEST_CASE(a_tensor_is_not_mixed_from_unequal_replicas_of_which_one_is_killed_while_it_is_read,
                     boost::unit_test::data::xrange(3), which) {
  const Deadline deadline(400s);
  const std::size_t half = tensor_bytes / 2, quarter = tensor_bytes / 4;
  const auto box = [&](std::size_t first) { return Box{{static_cast<Extent>(first)}, {static_cast<Extent>(quarter)}}; };
  Replicas2 job("unequal replica");
  std::vector<std::byte> memory(half);
  Catalog wanted(Rank{0}, 1);
  wanted.add({{"w", "exp_avg"}, DType::u8, {static_cast<Extent>(tensor_bytes)}},
             Layout::boxes({{Rank{0}, {box(0), box(half)}}}), View{.data = memory.data()});
  RestoreOptions options = by(methods[static_cast<std::size_t>(which)], patience);
  options.replicas = Replicas::first;
  options.ingress_bytes_per_second = half;
  Restore restore = moving(
      *job.session, wanted, options, [&] { job.holders[0].kill(); }, quarter + 1);
  restore.wait();
  std::vector<std::byte> held(tensor_bytes);  // by the replica that is left
  fill_pattern(held, 1);
  const std::span<const std::byte> all(held), restored(memory);
  BOOST_TEST(same_bytes(restored.first(quarter), all.first(quarter)));
  BOOST_TEST(same_bytes(restored.last(quarter), all.subspan(half, quarter)));
  const RestoreReport report = restore.report();
  require_lost(Rank{0}, report);
  BOOST_TEST(report.lost.front().boxes_replanned == 2U);
  BOOST_TEST(report.resent_bytes > quarter);
  BOOST_TEST(report.needed_bytes == half);
  BOOST_TEST(report.moved_bytes + report.local_bytes ==
             report.needed_bytes + report.overread_bytes + report.resent_bytes);
}

BOOST_DATA_TEST_CASE(the_last_holder_that_is_killed_ends_the_restore_soon, boost::unit_test::data::xrange(3), which) {
  const Deadline deadline(400s);
  const auto method = methods[static_cast<std::size_t>(which)];
  Replicas2 job("replica");
  auto began = WallClock::now();
  Restore restore = moving(*job.session, job.tensor.catalog(), slowly(method), [&] {
    for (const Child& holder : job.holders) holder.kill();
    began = WallClock::now();
  });
  const Error error = failure_of([&] { restore.wait(); });
  BOOST_TEST((error.code() == ErrorCode::peer_lost), error.what());
  BOOST_TEST((WallClock::now() - began < soon));
  BOOST_TEST(!error.gaps().empty());
  BOOST_TEST(!restore.report().lost.empty());
  BOOST_TEST_REQUIRE(error.report() != nullptr);
  BOOST_TEST(error.report()->lost.size() == restore.report().lost.size());
  BOOST_TEST(error.report()->seconds.move > 0);
}

// Memory of an arena is read on although its owner is dead. Nobody but the reader can tell that it is not what was published.
BOOST_DATA_TEST_CASE(what_has_rotten_in_memory_of_a_dead_replica_comes_from_another,
                     boost::unit_test::data::make({"rotting replica", "rotting arena replica"}), task) {
  const Deadline deadline(400s);
  Replicas2 job(task);
  Restore restore = moving(*job.session, job.tensor.catalog(), slowly(std::nullopt), [&] {
    write_frame(job.holders[0].socket(), {});
    read_frame(job.holders[0].socket());
    job.holders[0].kill();
  });
  restore.wait();
  require_complete(job.tensor, restore.report());
  for (const CorruptBox& one : restore.report().corrupt) BOOST_TEST(to_int(one.source) == 0);
  if (maps_arenas() && std::string_view(task) == "rotting arena replica") {
    BOOST_TEST(!restore.report().corrupt.empty());
  }
}

// With digests, what a dead replica has delivered counts as without.
BOOST_DATA_TEST_CASE(a_replica_with_digests_that_is_killed_is_replaced,
                     boost::unit_test::data::make(in_each_memory("rotting replica")), task) {
  const Deadline deadline(400s);
  for (const auto method : methods) {
    Replicas2 job(task);
    Restore restore = moving(*job.session, job.tensor.catalog(), slowly(method), [&] { job.holders[0].kill(); });
    restore.wait();
    require_complete(job.tensor, restore.report());
    BOOST_TEST(restore.report().corrupt.empty());
    if (method) BOOST_TEST(restore.report().resent_bytes == 0U);
  }
}

// All its bytes are in place and confirmed: zeros are written, which takes no source.
BOOST_AUTO_TEST_CASE(sources_that_end_during_the_commit_cost_nothing) {
  const Deadline deadline(400s);
  Replicas2 job("replica");
  // Long enough to be met in the middle. The thread sanitizer keeps a record of every byte.
  std::vector<std::byte> zeros(std::size_t{with_thread_sanitizer ? 128 : 512} << 20);
  Catalog catalog = job.tensor.catalog();
  catalog.add({{"absent", "exp_avg"}, DType::u8, {static_cast<Extent>(zeros.size())}}, Layout::replicated(),
              View{.data = zeros.data()}, Absent::zero);
  bool killed = false;
  // A busy machine may commit between two looks at the progress.
  for (int attempt = 0; !killed && attempt < 10; ++attempt) {
    std::memset(job.tensor.bytes().data(), 0, tensor_bytes);
    std::memset(zeros.data(), 1, zeros.size());
    Restore restore = job.session->restore(catalog, by(std::nullopt, patience));
    restore.on_progress(
        [&](const Progress& progress) {
          if (std::string_view(progress.stage) != "commit" || std::exchange(killed, true)) return;
          for (const Child& holder : job.holders) holder.kill();
        },
        1ms);
    restore.wait();
  }
  BOOST_TEST(killed);
  BOOST_TEST(job.tensor.is_filled());
  BOOST_TEST(all_are(zeros, std::byte{0}));
}

BOOST_DATA_TEST_CASE(a_replica_that_is_stopped_while_it_is_read_costs_what_it_has_not_delivered,
                     boost::unit_test::data::make(in_each_memory("replica")), task) {
  const Deadline deadline(400s);
  for (const auto method : methods) {
    RestoreOptions options = slowly(method);
    options.notice = 1s;  // a busy machine may keep the live one from answering for half of that
    RestoreReport report;
    do {
      Replicas2 job(task);
      Restore restore =
          moving(*job.session, job.tensor.catalog(), options, [&] { freeze_and_await(job.holders[method ? 1 : 0]); });
      const auto began = WallClock::now();
      restore.wait();
      BOOST_TEST((WallClock::now() - began < soon + options.notice));
      report = restore.report();
      require_complete(job.tensor, report);
      options.notice *= 3;
    } while (report.lost.size() > 1 && options.notice < soon / 2);  // the live one was silent too, on a busy machine
    // The kernel copies from memory of a stopped process as well.
    if (method || !maps_arenas()) require_lost(Rank{method ? 1 : 0}, report);
  }
}

BOOST_AUTO_TEST_SUITE_END()

// SPDX-License-Identifier: Apache-2.0
// A restore that has failed goes on when a holder of its step is there again.
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "session/hang.hpp"
#include "support/blocked.hpp"
#include "support/bytes.hpp"
#include "support/deadline.hpp"

BOOST_AUTO_TEST_SUITE(resume)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;
using WallClock = std::chrono::steady_clock;

namespace {

constexpr auto soon = 20s;  // well before any deadline
const std::optional<RestoreMethod> methods[] = {std::nullopt, RestoreMethod::zcopy, RestoreMethod::packed};

// --- real processes: members 1 and 2 publish the only layout rank ---

// Member 0 reads; the others publish on command.
struct Job {
  explicit Job(const std::string& memory) {
    for (const int number : {1, 2}) {
      const std::string task = memory + "copy " + std::to_string(number);
      members.try_emplace(number, peer_arguments(task, port, 3));
    }
    session.emplace(Session::join(member(0, 3, port), quick()));
    for (auto& [number, child] : members) read_frame(child.socket());
  }
  void publish(int number) {
    write_frame(members.at(number).socket(), {});
    read_frame(members.at(number).socket());
  }
  /// Kills the holder once a part of the bytes has arrived.
  Restore lose_holder(const RestoreOptions& options) {
    return moving(
        *session, tensor.catalog(), options, [this] { kill_and_await(members.at(1)); }, enough_bytes);
  }

  std::uint16_t port = free_port();
  std::map<int, Child> members;
  std::optional<Session> session;
  Tensor tensor;
};

RestoreOptions slowly(std::optional<RestoreMethod> method) {
  RestoreOptions options = by(method, patience);
  options.notice = 500ms;
  options.ingress_bytes_per_second = tensor_bytes / 4 * 3;
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

// Bytes that came in messages, and from mapped memory that was still published, stay.
bool proves_itself(const std::string& memory, std::optional<RestoreMethod> method) {
  return method.has_value() || memory == "arena ";
}

}  // namespace

BOOST_DATA_TEST_CASE(a_spare_of_the_last_holder_that_was_killed_gives_what_is_missing,
                     boost::unit_test::data::make({"", "arena "}), memory) {
  const Deadline deadline(400s);
  for (const auto method : methods) {
    if (!method && *memory != '\0') continue;  // an arena that is mapped is read on
    Job job(memory);
    job.publish(1);
    Restore restore = job.lose_holder(slowly(method));
    const Error error = failure_of([&] { restore.wait(); });
    BOOST_TEST((error.code() == ErrorCode::peer_lost), error.what());
    BOOST_TEST(!error.gaps().empty());
    BOOST_TEST(restore.poll());

    restore.resume(patience);
    BOOST_TEST(!restore.poll());
    job.publish(2);
    const auto began = WallClock::now();
    restore.wait();
    BOOST_TEST((WallClock::now() - began < soon));
    require_complete(job.tensor, restore.report());
    if (proves_itself(memory, method)) BOOST_TEST(restore.report().resent_bytes == 0U);
    std::memset(job.tensor.bytes().data(), 0, tensor_bytes);
    job.session->restore(job.tensor.catalog(), within(patience)).wait();
    BOOST_TEST(job.tensor.is_filled());
  }
}

// Each byte is in a box of the error or in place. By the method packed no byte is both: what is under way when the holder dies
// lies in staging, and messages at this rate are so small that each is copied from there as soon as it has arrived.
BOOST_DATA_TEST_CASE(a_loss_in_the_middle_lists_exactly_what_is_missing, boost::unit_test::data::make({1, 2}), which) {
  const Deadline deadline(400s);
  const auto method = methods[static_cast<std::size_t>(which)];
  constexpr std::uint8_t before = 101;  // no byte of this pattern is one of that which is restored
  Job job("");
  job.publish(1);
  job.tensor.fill(before);
  RestoreOptions options = slowly(method);
  options.ingress_bytes_per_second = 12 << 20;
  Restore restore = job.lose_holder(options);
  const Error error = failure_of([&] { restore.wait(); });
  BOOST_TEST((error.code() == ErrorCode::peer_lost), error.what());
  std::vector<std::byte> all_restored(tensor_bytes), all_before(tensor_bytes);
  fill_pattern(all_restored, 0);
  fill_pattern(all_before, before);
  const auto holds = [&](std::size_t first, std::size_t end, const std::vector<std::byte>& what) {
    return same_bytes(job.tensor.bytes().subspan(first, end - first), std::span(what).subspan(first, end - first));
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
    BOOST_TEST(holds(end, first, all_restored), "of the bytes " << end << " to " << first << " some are missing");
    in_place += first - end;
    end = static_cast<std::size_t>(gap.box.upper(0));
    if (method == RestoreMethod::packed) {
      BOOST_TEST(holds(first, end, all_before), "of the gap " << first << " to " << end << " some are not missing");
    }
  }
  BOOST_TEST(holds(end, tensor_bytes, all_restored), "of the bytes from " << end << " on some are missing");
  BOOST_TEST(in_place + tensor_bytes - end >= enough_bytes);
}

BOOST_DATA_TEST_CASE(a_restore_that_has_timed_out_goes_on_with_the_same_holder,
                     boost::unit_test::data::make({"", "arena "}) * boost::unit_test::data::xrange(3), memory, which) {
  const Deadline deadline(400s);
  const auto method = methods[static_cast<std::size_t>(which)];
  Job job(memory);
  job.publish(1);
  RestoreOptions options = slowly(method);
  options.ingress_bytes_per_second = tensor_bytes / 6;  // 6 s
  Restore restore;
  const Error error = failure_by(
      2s,
      [&](Duration timeout) {
        options.timeout = timeout;
        restore = job.session->restore(job.tensor.catalog(), options);
        restore.wait();
      },
      [&](const Error&) { return restore.report().moved_bytes > 0; });
  BOOST_TEST((error.code() == ErrorCode::timed_out), error.what());
  BOOST_TEST(error.retryable());
  const ByteCount moved = restore.report().moved_bytes;
  BOOST_TEST(moved > 0U);
  restore.resume(patience);
  restore.wait();
  require_complete(job.tensor, restore.report());
  if (proves_itself(memory, method)) BOOST_TEST(restore.report().resent_bytes == 0U);
  BOOST_TEST(restore.report().moved_bytes >= tensor_bytes);
}

BOOST_AUTO_TEST_CASE(a_stopped_holder_that_continues_is_one_again) {
  const Deadline deadline(400s);
  Job job("");
  job.publish(1);
  RestoreOptions options = slowly(RestoreMethod::zcopy);
  bool stopped = false;
  Restore restore;
  const Error error = failure_by(
      4s,
      [&](Duration timeout) {
        options.timeout = timeout;
        restore = moving(
            *job.session, job.tensor.catalog(), options,
            [&] {
              freeze_and_await(job.members.at(1));
              stopped = true;
            },
            enough_bytes);
        restore.wait();
      },
      [&](const Error&) { return stopped; });
  BOOST_TEST((error.code() == ErrorCode::timed_out), error.what());
  restore.resume(patience);
  ::kill(job.members.at(1).pid(), SIGCONT);
  restore.wait();
  require_complete(job.tensor, restore.report());
}

BOOST_AUTO_TEST_CASE(a_restore_that_finds_no_holder_names_the_rank_and_can_be_resumed_again) {
  const Deadline deadline(400s);
  Job job("");
  job.publish(1);
  Restore restore = job.lose_holder(slowly(RestoreMethod::zcopy));
  BOOST_TEST((failure_of([&] { restore.wait(); }).code() == ErrorCode::peer_lost));
  for (int attempt = 0; attempt < 2; ++attempt) {
    const auto resume = [&](Duration timeout) {
      restore.resume(timeout);
      restore.wait();
    };
    const Error error =
        failure_by(300ms, resume, [](const Error& one) { return says(one, "no member publishes step 0"); });
    BOOST_TEST((error.code() == ErrorCode::timed_out), error.what());
    BOOST_TEST(error.retryable());
    BOOST_TEST((error.ranks() == std::vector{Rank{0}}));
    BOOST_TEST(!error.gaps().empty());
    BOOST_TEST(says(error, "no member publishes step 0 of 'state' as source rank 0"), error.what());
    BOOST_TEST(restore.report().moved_bytes > 0U);
  }
  restore.resume(patience);
  job.publish(2);
  restore.wait();
  require_complete(job.tensor, restore.report());
  BOOST_TEST(restore.report().resent_bytes == 0U);
}

BOOST_AUTO_TEST_CASE(a_cancelled_restore_can_be_resumed_and_cancelled_again) {
  const Deadline deadline(400s);
  Job job("");
  job.publish(1);
  RestoreOptions options = slowly(RestoreMethod::packed);
  options.stop_at_values = true;  // until it is watched
  Restore restore = job.session->restore(job.tensor.catalog(), options);
  restore.on_progress(
      [&](const Progress& progress) {
        if (progress.done_bytes >= enough_bytes) restore.cancel();
      },
      1ms);
  restore.proceed();
  BOOST_TEST((failure_of([&] { restore.wait(); }).code() == ErrorCode::cancelled));
  restore.resume(patience);
  BOOST_TEST((failure_of([&] { restore.wait(); }).code() == ErrorCode::cancelled));
  restore.on_progress(nullptr);
  int done = 0;
  restore.resume(patience);
  restore.on_done([&] { ++done; });
  restore.wait();
  require_complete(job.tensor, restore.report());
  BOOST_TEST(restore.report().resent_bytes == 0U);
  job.session->close(20s);
  BOOST_TEST(done == 1);
}

// --- sessions of this process ---

namespace {

const TensorSpec spec{{"w", "exp_avg"}, DType::f32, {64, 16}};

// A member of five that publishes rows of a tensor.
struct Source {
  Source(int number, std::uint16_t port, Layout layout, int layout_rank, int ranks, TensorSpec of = spec)
      : held(std::move(of), std::move(layout), Rank{layout_rank}), catalog(Rank{layout_rank}, ranks) {
    session.emplace(Session::join(member(number, 5, port), quick()));
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
      : spare(2, port, of_spare, 1, 2, std::move(what)) {
    first.publish(1, 5);
    second.publish(1, 5);
    const SessionOptions options = when_all_is_bound([this] { second.session.reset(); });
    reader.emplace(Session::join(member(3, 5, port), options));
    wanted.fill(4711);
    wanted.add_to(catalog);
  }
  // Fails, since the second half is gone.
  Restore failed() {
    RestoreOptions options = by(RestoreMethod::zcopy, patience);
    Restore restore = reader->restore(catalog, options);
    const Error error = failure_of([&] { restore.wait(); });
    BOOST_TEST((error.code() == ErrorCode::peer_lost), error.what());
    BOOST_TEST((error.ranks() == std::vector{Rank{1}}));
    BOOST_TEST(says(error, "(2.05 kB)"), error.what());  // half of the tensor
    BOOST_TEST(says(error, " missing, and resume() waits for another holder"), error.what());
    return restore;
  }
  // Nothing is committed: bytes of the second half are as they were.
  void require_uncommitted() { BOOST_TEST(wanted.wrong(1) > 0U); }

  std::uint16_t port = free_port();
  Session host = Session::join(member(0, 5, port), quick());
  Source first{1, port, Layout::chunk(0, 2), 0, 2};
  Source second{4, port, Layout::chunk(0, 2), 1, 2};
  Source spare;
  std::optional<Session> reader;
  TestShard wanted{spec, Layout::replicated(), Rank{0}};
  Catalog catalog{Rank{0}, 1};
};

}  // namespace

BOOST_AUTO_TEST_CASE(the_same_rank_of_another_member_completes_it_with_the_values_of_before) {
  const Deadline deadline(400s);
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
  job.reader->close(20s);
  BOOST_TEST((failure_of([&] { restore.wait(); }).code() == ErrorCode::cancelled));
  BOOST_TEST((failure_of([&] { restore.resume(patience); }).code() == ErrorCode::invalid_argument));
  Restore nothing;
  BOOST_TEST((failure_of([&] { nothing.resume(patience); }).code() == ErrorCode::invalid_argument));
}

BOOST_AUTO_TEST_CASE(a_restore_that_is_cancelled_right_after_its_resume_keeps_all_that_is_in_place) {
  const Deadline deadline(400s);
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
    const auto began = WallClock::now();
    const Error error = failure_of([&] { restore.wait(); });
    BOOST_TEST((WallClock::now() - began < soon));
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
  const auto resume = [&](Duration timeout) {
    restore.resume(timeout);
    restore.wait();
  };
  const Error error = failure_by(500ms, resume, with_code(ErrorCode::step_mismatch));
  BOOST_TEST((error.code() == ErrorCode::step_mismatch));
  BOOST_TEST((error.ranks() == std::vector{Rank{1}}));
  BOOST_TEST(says(error, "no member publishes step 5 of 'state' as source rank 1"), error.what());
  BOOST_TEST(says(error, "source rank 1 is published at step 6"), error.what());
  job.require_uncommitted();
}

BOOST_AUTO_TEST_CASE(a_restore_that_had_no_plan_begins_anew) {
  const auto port = free_port();
  Source host(0, port, Layout::replicated(), 0, 1);
  Session reader = Session::join(member(3, 5, port), quick());
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
  const auto port = free_port();
  Session host = Session::join(member(0, 5, port), quick());
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
  std::this_thread::sleep_for(100ms);  // owners are released by another thread
  BOOST_TEST(!left.expired());
  restore.reset();
  for (const auto end = WallClock::now() + soon; !left.expired() && WallClock::now() < end;)
    std::this_thread::sleep_for(1ms);
  BOOST_TEST(left.expired());
}

BOOST_AUTO_TEST_SUITE_END()

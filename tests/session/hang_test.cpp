// SPDX-License-Identifier: Apache-2.0
// A process that is stopped during a restore blocks neither the other side nor its memory.
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <atomic>
#include <csignal>
#include <future>
#include <memory>
#include <optional>

#include "session/hang.hpp"
#include "support/blocked.hpp"
#include "support/deadline.hpp"

BOOST_AUTO_TEST_SUITE(hang)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;
using WallClock = std::chrono::steady_clock;

namespace {

constexpr auto bounded = 40s;  // beyond a deadline; a hang would never end

std::string told(const Child& child) {
  const auto frame = read_frame(child.socket());
  return {reinterpret_cast<const char*>(frame.data()), frame.size()};
}

void await_stop(const Child& child) {
  int status = 0;
  BOOST_REQUIRE(::waitpid(child.pid(), &status, WUNTRACED) == child.pid());
  BOOST_REQUIRE(WIFSTOPPED(status));
}

// A restore whose source is stopped after some bytes moved.
Restore restore_from_stopped(Session& session, Tensor& tensor, const Child& child, Duration timeout,
                             ByteCount stop_after) {
  RestoreOptions options = zcopy(timeout);
  options.ingress_bytes_per_second = tensor_bytes;  // a busy machine may look at its progress late
  return moving(
      session, tensor.catalog(), options, [&] { freeze_and_await(child); }, stop_after);
}

// A reader that stops in the middle of its restore from this session.
Publication publish_to_reader_that_stops(Session& session, Tensor& tensor, const Child& child) {
  write_frame(child.socket(), {});  // the reader restores
  told(child);
  Publication publication = session.publish(tensor.catalog());
  await_stop(child);
  return publication;
}

// Overwrites the tensor once the library has returned its memory.
void overwrite(Tensor& tensor) {
  std::memset(tensor.bytes().data(), 0x5a, tensor.bytes().size());
}

void check_it_works_again(Session& session, Tensor& tensor) {
  Restore restore = session.restore(tensor.catalog(), zcopy(patience));
  restore.wait();
  BOOST_TEST(tensor.is_filled());
}

// Returned memory stays unchanged, also when the source continues: then it serves another restore.
void check_memory_is_free(Session& session, Tensor& tensor, const Child& child) {
  overwrite(tensor);
  ::kill(child.pid(), SIGCONT);
  Tensor other;
  check_it_works_again(session, other);
  BOOST_TEST(all_are(tensor.bytes(), std::byte{0x5a}));
}

boost::test_tools::assertion_result connections_may_be_cut_while_they_send(boost::unit_test::test_unit_id /*case*/) {
  boost::test_tools::assertion_result result(transport_under_test() != "ucx");
  result.message() << "UCX over TCP may use a connection after it has freed it then (transport/README.md)";
  return result;
}

}  // namespace

BOOST_DATA_TEST_CASE(a_source_that_hangs_holds_a_restore_no_longer_than_its_deadline, boost::unit_test::data::xrange(3),
                     round) {
  const Deadline deadline(400s);
  const auto port = free_port();
  std::unique_ptr<Session> session;
  Child child = peer_process("source", port);
  session = std::make_unique<Session>(Session::join(member(0, 2, port), quick()));
  Tensor tensor;
  told(child);
  write_frame(child.socket(), {});  // the source publishes
  bool stopped = false;
  const auto restore = [&](Duration timeout) {
    const auto began = WallClock::now();
    const ByteCount stop_after = tensor_bytes / 8 * static_cast<ByteCount>(1 + 2 * round);
    Restore one = restore_from_stopped(*session, tensor, child, timeout, stop_after);
    stopped = true;
    const Error error = failure_of([&] { one.wait(); });
    BOOST_TEST((WallClock::now() - began < timeout + bounded));
    throw error;
  };
  const Error error = failure_by(4s, restore, [&](const Error&) { return stopped; });
  BOOST_TEST((error.code() == ErrorCode::timed_out), error.what());
  BOOST_TEST(!error.gaps().empty());
  check_memory_is_free(*session, tensor, child);
  check_it_works_again(*session, tensor);
  write_frame(child.socket(), {});
}

BOOST_AUTO_TEST_CASE(a_restore_from_a_source_that_hangs_can_be_cancelled) {
  const Deadline deadline(400s);
  const auto port = free_port();
  Child child = peer_process("source", port);
  Session session = Session::join(member(0, 2, port), quick());
  Tensor tensor;
  told(child);
  write_frame(child.socket(), {});  // the source publishes
  Restore restore = restore_from_stopped(session, tensor, child, patience, enough_bytes);
  const auto began = WallClock::now();
  restore.cancel();
  const Error error = failure_of([&] { restore.wait(); });
  BOOST_TEST((error.code() == ErrorCode::cancelled), error.what());
  BOOST_TEST((WallClock::now() - began < bounded));
  check_memory_is_free(session, tensor, child);
  check_it_works_again(session, tensor);
  write_frame(child.socket(), {});
}

BOOST_AUTO_TEST_CASE(a_running_restore_can_be_cancelled) {
  const Deadline deadline(400s);
  const auto port = free_port();
  Child child = peer_process("source", port);
  Session session = Session::join(member(0, 2, port), quick());
  Tensor tensor;
  told(child);
  RestoreOptions options = zcopy(patience);
  options.ingress_bytes_per_second = 1 << 20;  // it takes a minute
  write_frame(child.socket(), {});             // the source publishes
  Restore restore = moving(session, tensor.catalog(), options, [] {});
  restore.cancel();
  BOOST_TEST((failure_of([&] { restore.wait(); }).code() == ErrorCode::cancelled));
  check_memory_is_free(session, tensor, child);
  check_it_works_again(session, tensor);
  write_frame(child.socket(), {});
}

BOOST_TEST_DECORATOR(*boost::unit_test::label("cut-while-sending") *
                     boost::unit_test::precondition(connections_may_be_cut_while_they_send))
BOOST_AUTO_TEST_CASE(a_reader_that_hangs_holds_no_publication_beyond_the_timeout) {
  const Deadline deadline(400s);
  const auto port = free_port();
  Child child = peer_process("hasty zcopy reader", port);
  Session session = Session::join(member(0, 2, port), quick());
  told(child);
  Tensor tensor;
  tensor.fill();
  Publication publication = publish_to_reader_that_stops(session, tensor, child);
  const auto began = WallClock::now();
  const Error error = failure_of([&] { publication.retire(1s); });
  BOOST_TEST((error.code() == ErrorCode::timed_out), error.what());
  BOOST_TEST((WallClock::now() - began < 1s + bounded));
  // The memory is the caller's again: the reader must not accept its bytes as the published ones.
  overwrite(tensor);
  ::kill(child.pid(), SIGCONT);
  const std::string first = told(child);
  BOOST_TEST(first.starts_with("error: "), first);
  tensor.fill();
  const Publication next = session.publish(tensor.catalog());
  write_frame(child.socket(), {});
  const std::string second = told(child);
  BOOST_TEST(second == "good");
}

const char* const stages[] = {"joined", "bound", "moving"};
const char* const methods[] = {"zcopy", "packed", "cheapest"};

// The stopped reader continues with the next publication, or fails with an error if its aborted connection ends before
// the reason arrives.
BOOST_DATA_TEST_CASE(a_reader_that_stops_gets_the_next_publication_or_an_error_when_it_goes_on,
                     boost::unit_test::data::make(stages) * boost::unit_test::data::make(methods), stage, method) {
  const Deadline deadline(400s);
  const bool leased = std::string_view(stage) != "joined";
  for (const bool in_arena : {false, true}) {
    if (in_arena && std::string_view(method) != "cheapest") continue;  // messages do not depend on the kind of memory
    const auto port = free_port();
    Child child = peer_process(std::string(stage) + " " + method + " reader", port);
    Session session = Session::join(member(0, 2, port), quick());
    told(child);
    auto tensor = in_arena ? std::make_unique<Tensor>(session) : std::make_unique<Tensor>();
    tensor->fill();
    Publication publication = publish_to_reader_that_stops(session, *tensor, child);
    const auto began = WallClock::now();
    if (leased) {
      const Error error = failure_of([&] { publication.retire(500ms); });
      BOOST_TEST((error.code() == ErrorCode::timed_out), error.what());
    } else {
      publication.retire(patience);  // waits for nobody
    }
    BOOST_TEST((WallClock::now() - began < 500ms + bounded));
    overwrite(*tensor);
    ::kill(child.pid(), SIGCONT);
    std::this_thread::sleep_for(100ms);  // the reader may see the withdrawal or the next publication first
    tensor->fill();
    const Publication next = session.publish(tensor->catalog());
    const auto published = WallClock::now();
    const std::string first = told(child);
    BOOST_TEST((first == "good" || (leased && first.starts_with("error: "))), first);
    BOOST_TEST((WallClock::now() - published < 60s));  // its deadline is longer
    write_frame(child.socket(), {});
    const std::string second = told(child);
    BOOST_TEST(second == "good");
  }
}

BOOST_AUTO_TEST_CASE(a_slow_reader_holds_no_publication_beyond_the_timeout_and_gets_the_next_one_or_an_error) {
  const Deadline deadline(400s);
  for (const bool in_arena : {false, true}) {
    const auto port = free_port();
    Session source = Session::join(member(0, 2, port), quick());
    Session reader = Session::join(member(1, 2, port), quick());
    auto tensor = in_arena ? std::make_unique<Tensor>(source) : std::make_unique<Tensor>();
    tensor->fill();
    Tensor wanted;
    RestoreOptions options = within(patience);
    options.ingress_bytes_per_second = tensor_bytes / 4 * 3;
    Restore restore = reader.restore(wanted.catalog(), options);
    std::promise<void> retired;
    const auto moving = std::make_shared<std::atomic<bool>>(false);  // owners: this case and the callback
    restore.on_progress(
        [moving, over = retired.get_future().share()](const Progress& progress) {
          *moving = *moving || progress.done_bytes > 0;
          if (progress.done_bytes > tensor_bytes * 3 / 4) over.wait();  // a busy machine may retire it late
        },
        1ms);
    Publication publication = source.publish(tensor->catalog());  // no callback is missed
    while (!*moving && !restore.poll()) std::this_thread::sleep_for(1ms);
    const Error error = failure_of([&] { publication.retire(500ms); });
    BOOST_TEST((error.code() == ErrorCode::timed_out), error.what());
    retired.set_value();
    overwrite(*tensor);
    tensor->fill();
    const Publication next = source.publish(tensor->catalog());
    const auto published = WallClock::now();
    try {
      restore.wait();
      BOOST_TEST(wanted.is_filled());
    } catch (const Error& told) {
      BOOST_TEST((told.code() == ErrorCode::peer_lost), told.what());
    }
    BOOST_TEST((WallClock::now() - published < 60s));
    check_it_works_again(reader, wanted);
  }
}

// The source hangs before the first request, or once all is bound.
BOOST_DATA_TEST_CASE(a_source_that_hangs_at_any_stage_holds_a_restore_no_longer_than_its_deadline,
                     boost::unit_test::data::make({"joined", "bound"}), stage) {
  const Deadline deadline(400s);
  const auto port = free_port();
  Child child = peer_process("source", port);
  std::atomic<bool> freeze = std::string_view(stage) == "bound";
  Session session = Session::join(member(0, 2, port), when_all_is_bound([&] {
                                    if (freeze.exchange(false)) freeze_and_await(child);
                                  }));
  told(child);
  write_frame(child.socket(), {});
  if (std::string_view(stage) == "joined") {
    told(child);
    child.freeze();
    await_stop(child);
  }
  Tensor tensor;
  const auto began = WallClock::now();
  Restore restore = session.restore(tensor.catalog(), zcopy(3s));
  const Error error = failure_of([&] { restore.wait(); });
  freeze = false;
  BOOST_TEST((error.code() == ErrorCode::timed_out), error.what());
  BOOST_TEST((WallClock::now() - began < 3s + bounded));
  check_memory_is_free(session, tensor, child);
  check_it_works_again(session, tensor);
  write_frame(child.socket(), {});
}

// Whether the reader waits for packed bytes, or for digests of bytes that it read without the source.
BOOST_DATA_TEST_CASE(a_source_that_hangs_once_all_is_bound_holds_no_way_longer_than_the_deadline,
                     boost::unit_test::data::make({"source", "arena source"}) *
                         boost::unit_test::data::make({"packed", "cheapest"}),
                     task, method) {
  const Deadline deadline(400s);
  const auto port = free_port();
  Child child = peer_process(task, port);
  std::atomic<bool> freeze = true;
  Session session = Session::join(member(0, 2, port), when_all_is_bound([&] {
                                    if (freeze.exchange(false)) freeze_and_await(child);
                                  }));
  told(child);
  if (std::string_view(task) == "source") write_frame(child.socket(), {});  // the source publishes
  Tensor tensor;
  RestoreOptions how = by(
      std::string_view(method) == "packed" ? std::optional(RestoreMethod::packed) : std::optional<RestoreMethod>(), 3s);
  how.verify = Verify::digest;
  const auto restore = [&](Duration timeout) {
    how.timeout = timeout;
    session.restore(tensor.catalog(), how).wait();
  };
  const Error error = failure_by(3s, restore, [&](const Error&) { return !freeze; });
  BOOST_TEST((error.code() == ErrorCode::timed_out), error.what());
  BOOST_TEST(!freeze);
  check_memory_is_free(session, tensor, child);
  check_it_works_again(session, tensor);
  write_frame(child.socket(), {});
}

// It holds slots that the source packed for it, except the last one.
BOOST_AUTO_TEST_CASE(a_reader_that_hangs_does_not_keep_others_from_what_is_packed) {
  const Deadline deadline(400s);
  const auto port = free_port();
  Child child = peer_process("packed reader", port, 3);
  SessionOptions options = quick();
  options.staging_bytes = 1u << 20;
  Session session = Session::join(member(0, 3, port), options);
  Session other = Session::join(member(2, 3, port), quick());
  told(child);
  Tensor tensor;
  tensor.fill();
  Publication publication = publish_to_reader_that_stops(session, tensor, child);
  Tensor copy;
  other.restore(copy.catalog(), by(RestoreMethod::packed, patience)).wait();
  BOOST_TEST(copy.is_filled());
  ::kill(child.pid(), SIGCONT);
  const std::string first = told(child);
  BOOST_TEST(first == "good");
}

// Mapped memory that was restored once is read, and known to be live, without a message to its source.
BOOST_AUTO_TEST_CASE(a_small_restore_from_mapped_memory_needs_nothing_of_its_source_the_second_time) {
  const Deadline deadline(400s);
  const auto port = free_port();
  Child child = peer_process("small source", port);
  Session session = Session::join(member(0, 2, port), quick());
  told(child);
  SmallTensor tensor(session);
  const Catalog wanted = tensor.catalog();
  session.restore(wanted, within(patience)).wait();
  BOOST_TEST(tensor.shard.wrong(1) == 0U);
  child.freeze();
  await_stop(child);
  tensor.shard.fill(2);
  Restore restore = session.restore(wanted, within(maps_arenas() ? Duration(patience) : 2s));
  if (maps_arenas()) {
    restore.wait();
    BOOST_TEST(tensor.shard.wrong(1) == 0U);
  } else {
    BOOST_TEST((failure_of([&] { restore.wait(); }).code() == ErrorCode::timed_out));
  }
  ::kill(child.pid(), SIGCONT);
  session.restore(wanted, within(patience)).wait();
  BOOST_TEST(tensor.shard.wrong(1) == 0U);
  write_frame(child.socket(), {});
}

BOOST_AUTO_TEST_CASE(a_source_that_dies_is_lost_although_a_child_of_its_fork_lives) {
  const Deadline deadline(400s);
  const auto port = free_port();
  Child source = peer_process("forked source", port);
  Session session = Session::join(member(0, 2, port), quick());
  const auto frame = read_frame(source.socket());
  pid_t grandchild = 0;
  BOOST_REQUIRE(frame.size() == sizeof grandchild);
  std::memcpy(&grandchild, frame.data(), sizeof grandchild);
  BOOST_REQUIRE(::kill(grandchild, 0) == 0);
  const auto began = WallClock::now();
  ::kill(source.pid(), SIGKILL);
  const Error error = failure_of([&] { session.gather("never", {}, patience); });
  BOOST_TEST((error.code() == ErrorCode::peer_lost), error.what());
  BOOST_TEST((WallClock::now() - began < bounded));
  BOOST_TEST(::kill(grandchild, SIGKILL) == 0);
}

BOOST_AUTO_TEST_CASE(the_seat_of_a_member_that_hangs_goes_to_who_comes_later) {
  const Deadline deadline(400s);
  struct Job {
    std::uint16_t port = free_port();
    Child child = peer_process("member", port);
    Session session = Session::join(member(0, 2, port), quick());
  };
  std::optional<Job> job;
  // A live member keeps its rank, and the newcomer is refused at once. A member that a busy machine keeps from answering loses
  // its rank, and the case begins again.
  std::optional<Error> refused;
  for (int attempt = 0; !refused && attempt < 3; ++attempt) {
    job.emplace();
    told(job->child);
    const auto began = WallClock::now();
    try {
      Session::join(member(1, 2, job->port), quick());
    } catch (const Error& error) {
      refused = error;
      BOOST_TEST(says(error, "joined already and is alive"), error.what());
      BOOST_TEST((WallClock::now() - began < bounded));
    }
  }
  BOOST_TEST_REQUIRE(refused.has_value(), "a live member lost its rank three times");

  auto& [port, child, session] = *job;
  child.freeze();
  await_stop(child);
  Session replacement = Session::join(member(1, 2, port), quick());
  SmallTensor fresh(replacement);
  fresh.shard.fill(2);
  const Publication publication = replacement.publish(fresh.catalog());
  SmallTensor wanted(session);
  for (bool restored = false; !restored;) {  // the reader may still know only the first publication
    try {
      session.restore(wanted.catalog(), within(5s)).wait();
      restored = wanted.shard.wrong(2) == 0;
    } catch (const Error& lost) {
      BOOST_TEST_MESSAGE(lost.what());
    }
  }
  BOOST_TEST(wanted.shard.wrong(2) == 0U);

  ::kill(child.pid(), SIGCONT);
  const std::string end = told(child);
  BOOST_TEST(end.find("another process has taken the seat of member 1") != std::string::npos, end);
}

BOOST_AUTO_TEST_SUITE_END()

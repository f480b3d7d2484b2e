// SPDX-License-Identifier: Apache-2.0
// A process that is stopped in the middle of a restore holds up neither the other side nor its memory.
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <atomic>
#include <csignal>
#include <memory>

#include "session/hang.hpp"
#include "support/deadline.hpp"

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

namespace {

constexpr auto bounded = 6s;  // beyond a deadline; a hang would last for ever

std::string told(const Child& child) {
  const auto frame = read_frame(child.socket());
  return {reinterpret_cast<const char*>(frame.data()), frame.size()};
}

void await_stop(const Child& child) {
  int status = 0;
  BOOST_REQUIRE(::waitpid(child.pid(), &status, WUNTRACED) == child.pid());
  BOOST_REQUIRE(WIFSTOPPED(status));
}

// A restore whose source stops once some bytes have come. The source publishes only after the callback is in place.
Restore restore_from_stopped(Session& session, Tensor& tensor, const Child& child, Duration deadline,
                             ByteCount stop_after) {
  Restore restore = session.restore(tensor.catalog(), straight(deadline));
  restore.on_progress(
      [&child, stop_after](const Progress& progress) {
        if (progress.done_bytes >= stop_after || std::string_view(progress.stage) == "done") child.freeze();
      },
      1ms);
  std::this_thread::sleep_for(100ms);  // until the callback's interval counts
  write_frame(child.socket(), {});
  await_stop(child);
  restore.on_progress({});  // it must not be stopped again
  return restore;
}

// A reader that has its session restores, and stops in the middle.
Publication publish_to_reader_that_stops(Session& session, Tensor& tensor, const Child& child) {
  write_frame(child.socket(), {});  // it restores
  told(child);
  std::this_thread::sleep_for(100ms);  // until its callback's interval counts
  Publication publication = session.publish(tensor.catalog());
  await_stop(child);
  return publication;
}

// Until the tensor is somebody's again.
void overwrite(Tensor& tensor) {
  std::ranges::fill(tensor.bytes(), std::byte{0x5a});
}

// What was given back stays as it is, also when the source goes on.
void check_memory_is_free(Tensor& tensor, const Child& child) {
  overwrite(tensor);
  ::kill(child.pid(), SIGCONT);
  std::this_thread::sleep_for(700ms);
  BOOST_TEST(
      std::all_of(tensor.bytes().begin(), tensor.bytes().end(), [](std::byte b) { return b == std::byte{0x5a}; }));
}

void check_it_works_again(Session& session, Tensor& tensor) {
  Restore restore = session.restore(tensor.catalog(), straight(30s));
  restore.wait();
  BOOST_TEST(tensor.is_filled());
}

boost::test_tools::assertion_result connections_may_be_cut_while_they_send(boost::unit_test::test_unit_id /*case*/) {
  boost::test_tools::assertion_result result(transport_under_test() != "ucx");
  result.message() << "UCX over TCP may use a connection after it has freed it then (transport/README.md)";
  return result;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(hang)

BOOST_DATA_TEST_CASE(a_source_that_hangs_holds_a_restore_no_longer_than_its_deadline, boost::unit_test::data::xrange(3),
                     round) {
  const Deadline deadline(150s);
  const auto port = free_port();
  std::unique_ptr<Session> session;
  Child child = peer_process("source", port);
  session = std::make_unique<Session>(Session::join(member(0, 2, port), quick()));
  Tensor tensor;
  told(child);
  const auto began = Clock::now();
  Restore restore =
      restore_from_stopped(*session, tensor, child, 4s, enough_bytes * static_cast<ByteCount>(1 + 4 * round));
  const Error error = failure_of([&] { restore.wait(); });
  BOOST_TEST((error.code() == ErrorCode::timed_out), error.what());
  BOOST_TEST(!error.gaps().empty());
  BOOST_TEST((Clock::now() - began < 4s + bounded));
  check_memory_is_free(tensor, child);
  check_it_works_again(*session, tensor);
  write_frame(child.socket(), {});
}

BOOST_AUTO_TEST_CASE(a_restore_from_a_source_that_hangs_can_be_cancelled) {
  const Deadline deadline(150s);
  const auto port = free_port();
  Child child = peer_process("source", port);
  Session session = Session::join(member(0, 2, port), quick());
  Tensor tensor;
  told(child);
  Restore restore = restore_from_stopped(session, tensor, child, 40s, enough_bytes);
  const auto began = Clock::now();
  restore.cancel();
  const Error error = failure_of([&] { restore.wait(); });
  BOOST_TEST((error.code() == ErrorCode::cancelled), error.what());
  BOOST_TEST((Clock::now() - began < bounded));
  check_memory_is_free(tensor, child);
  check_it_works_again(session, tensor);
  write_frame(child.socket(), {});
}

BOOST_AUTO_TEST_CASE(a_running_restore_can_be_cancelled) {
  const Deadline deadline(150s);
  const auto port = free_port();
  Child child = peer_process("source", port);
  Session session = Session::join(member(0, 2, port), quick());
  Tensor tensor;
  told(child);
  Restore restore = session.restore(tensor.catalog(), straight(40s));
  std::atomic<bool> moving = false;
  restore.on_progress([&](const Progress& progress) { moving = moving || progress.done_bytes > 0; }, 1ms);
  std::this_thread::sleep_for(100ms);
  write_frame(child.socket(), {});
  while (!moving) std::this_thread::yield();
  restore.cancel();
  BOOST_TEST((failure_of([&] { restore.wait(); }).code() == ErrorCode::cancelled));
  check_memory_is_free(tensor, child);
  check_it_works_again(session, tensor);
  write_frame(child.socket(), {});
}

BOOST_TEST_DECORATOR(*boost::unit_test::precondition(connections_may_be_cut_while_they_send))
BOOST_AUTO_TEST_CASE(a_reader_that_hangs_holds_no_publication_beyond_the_timeout) {
  const Deadline deadline(150s);
  const auto port = free_port();
  Child child = peer_process("straight reader", port);
  Session session = Session::join(member(0, 2, port), quick());
  told(child);
  Tensor tensor;
  tensor.fill();
  Publication publication = publish_to_reader_that_stops(session, tensor, child);
  const auto began = Clock::now();
  const Error error = failure_of([&] { publication.retire(1s); });
  BOOST_TEST((error.code() == ErrorCode::timed_out), error.what());
  BOOST_TEST((Clock::now() - began < 1s + bounded));
  // The memory is ours again: what the reader gets of it now, it must not take for what was published.
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
const char* const ways[] = {"straight", "packed", "cheapest"};

// Whatever it had begun, it goes on with what is published then; or it is told, when the connection that was cut ends before
// the reason for it has come.
BOOST_DATA_TEST_CASE(a_reader_that_stops_gets_the_next_publication_or_an_error_when_it_goes_on,
                     boost::unit_test::data::make(stages) * boost::unit_test::data::make(ways), stage, way) {
  const Deadline deadline(150s);
  const bool leased = std::string_view(stage) != "joined";
  for (const bool in_arena : {false, true}) {
    if (in_arena && std::string_view(way) != "cheapest") continue;  // a message is a message
    const auto port = free_port();
    Child child = peer_process(std::string(stage) + " " + way + " reader", port);
    Session session = Session::join(member(0, 2, port), quick());
    told(child);
    auto tensor = in_arena ? std::make_unique<Tensor>(session) : std::make_unique<Tensor>();
    tensor->fill();
    Publication publication = publish_to_reader_that_stops(session, *tensor, child);
    const auto began = Clock::now();
    if (leased) {
      const Error error = failure_of([&] { publication.retire(500ms); });
      BOOST_TEST((error.code() == ErrorCode::timed_out), error.what());
    } else {
      publication.retire(500ms);
    }
    BOOST_TEST((Clock::now() - began < 500ms + bounded));
    overwrite(*tensor);
    ::kill(child.pid(), SIGCONT);
    std::this_thread::sleep_for(100ms);  // it may see that its memory is gone, or what comes next
    tensor->fill();
    const Publication next = session.publish(tensor->catalog());
    const auto published = Clock::now();
    const std::string first = told(child);
    BOOST_TEST((first == "good" || (leased && first.starts_with("error: "))), first);
    BOOST_TEST((Clock::now() - published < 20s));  // its deadline is 30 s
    write_frame(child.socket(), {});
    const std::string second = told(child);
    BOOST_TEST(second == "good");
  }
}

BOOST_AUTO_TEST_CASE(a_slow_reader_holds_no_publication_beyond_the_timeout_and_gets_the_next_one_or_an_error) {
  const Deadline deadline(150s);
  for (const bool in_arena : {false, true}) {
    const auto port = free_port();
    Session source = Session::join(member(0, 2, port), quick());
    Session reader = Session::join(member(1, 2, port), quick());
    auto tensor = in_arena ? std::make_unique<Tensor>(source) : std::make_unique<Tensor>();
    tensor->fill();
    Publication publication = source.publish(tensor->catalog());
    Tensor wanted;
    RestoreOptions options = within(100s);
    options.ingress_bytes_per_second = 50 << 20;
    std::atomic<bool> moving = false;
    Restore restore = reader.restore(wanted.catalog(), options);
    restore.on_progress([&](const Progress& progress) { moving = moving || progress.done_bytes > 0; }, 1ms);
    while (!moving) std::this_thread::yield();
    const Error error = failure_of([&] { publication.retire(500ms); });
    BOOST_TEST((error.code() == ErrorCode::timed_out), error.what());
    overwrite(*tensor);
    tensor->fill();
    const Publication next = source.publish(tensor->catalog());
    const auto published = Clock::now();
    try {
      restore.wait();
      BOOST_TEST(wanted.is_filled());
    } catch (const Error& told) {
      BOOST_TEST((told.code() == ErrorCode::peer_lost), told.what());
    }
    BOOST_TEST((Clock::now() - published < 50s));
    check_it_works_again(reader, wanted);
  }
}

// A source that hangs before anything was asked of it, or once all is bound.
BOOST_DATA_TEST_CASE(a_source_that_hangs_at_any_stage_holds_a_restore_no_longer_than_its_deadline,
                     boost::unit_test::data::make({"joined", "bound"}), stage) {
  const Deadline deadline(150s);
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
  const auto began = Clock::now();
  Restore restore = session.restore(tensor.catalog(), straight(3s));
  const Error error = failure_of([&] { restore.wait(); });
  BOOST_TEST((error.code() == ErrorCode::timed_out), error.what());
  BOOST_TEST((Clock::now() - began < 3s + bounded));
  check_memory_is_free(tensor, child);
  check_it_works_again(session, tensor);
  write_frame(child.socket(), {});
}

// Whatever it is waited for: what it packs, or its digests of what is read without it.
BOOST_DATA_TEST_CASE(a_source_that_hangs_once_all_is_bound_holds_no_way_longer_than_the_deadline,
                     boost::unit_test::data::make({"source", "arena source"}) *
                         boost::unit_test::data::make({"packed", "cheapest"}),
                     task, way) {
  const Deadline deadline(150s);
  const auto port = free_port();
  Child child = peer_process(task, port);
  std::atomic<bool> freeze = true;
  Session session = Session::join(member(0, 2, port), when_all_is_bound([&] {
                                    if (freeze.exchange(false)) freeze_and_await(child);
                                  }));
  told(child);
  if (std::string_view(task) == "source") write_frame(child.socket(), {});  // it publishes
  Tensor tensor;
  RestoreOptions how = by(std::string_view(way) == "packed" ? std::optional(Way::packed) : std::optional<Way>(), 3s);
  how.verify = Verify::digest;
  Restore restore = session.restore(tensor.catalog(), how);
  const Error error = failure_of([&] { restore.wait(); });
  BOOST_TEST((error.code() == ErrorCode::timed_out), error.what());
  BOOST_TEST(!freeze);
  check_memory_is_free(tensor, child);
  check_it_works_again(session, tensor);
  write_frame(child.socket(), {});
}

// It holds slots that the source has packed for it, and not the last of them.
BOOST_AUTO_TEST_CASE(a_reader_that_hangs_does_not_keep_others_from_what_is_packed) {
  const Deadline deadline(150s);
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
  other.restore(copy.catalog(), by(Way::packed, 30s)).wait();
  BOOST_TEST(copy.is_filled());
  ::kill(child.pid(), SIGCONT);
  const std::string first = told(child);
  BOOST_TEST(first == "good");
}

// What has been restored once and can be mapped is read, and known to be live, without a word from its source.
BOOST_AUTO_TEST_CASE(a_small_restore_from_mapped_memory_needs_nothing_of_its_source_the_second_time) {
  const Deadline deadline(150s);
  const auto port = free_port();
  Child child = peer_process("small source", port);
  Session session = Session::join(member(0, 2, port), quick());
  told(child);
  SmallTensor tensor(session);
  const Catalog wanted = tensor.catalog();
  session.restore(wanted, within(20s)).wait();
  BOOST_TEST(tensor.shard.wrong(1) == 0U);
  child.freeze();
  await_stop(child);
  tensor.shard.fill(2);
  Restore restore = session.restore(wanted, within(2s));
  if (maps_arenas()) {
    restore.wait();
    BOOST_TEST(tensor.shard.wrong(1) == 0U);
  } else {
    BOOST_TEST((failure_of([&] { restore.wait(); }).code() == ErrorCode::timed_out));
  }
  ::kill(child.pid(), SIGCONT);
  session.restore(wanted, within(20s)).wait();
  BOOST_TEST(tensor.shard.wrong(1) == 0U);
  write_frame(child.socket(), {});
}

BOOST_AUTO_TEST_CASE(a_source_that_dies_is_lost_although_a_child_of_its_fork_lives) {
  const Deadline deadline(150s);
  const auto port = free_port();
  Child source = peer_process("forked source", port);
  Session session = Session::join(member(0, 2, port), quick());
  const auto frame = read_frame(source.socket());
  pid_t grandchild = 0;
  BOOST_REQUIRE(frame.size() == sizeof grandchild);
  std::memcpy(&grandchild, frame.data(), sizeof grandchild);
  BOOST_REQUIRE(::kill(grandchild, 0) == 0);
  const auto began = Clock::now();
  ::kill(source.pid(), SIGKILL);
  const Error error = failure_of([&] { session.gather("never", {}, 30s); });
  BOOST_TEST((error.code() == ErrorCode::peer_lost), error.what());
  BOOST_TEST((Clock::now() - began < bounded));
  BOOST_TEST(::kill(grandchild, SIGKILL) == 0);
}

BOOST_AUTO_TEST_CASE(the_seat_of_a_member_that_hangs_goes_to_who_comes_later) {
  const Deadline deadline(200s);
  const auto port = free_port();
  Child child = peer_process("member", port);
  Session session = Session::join(member(0, 2, port), quick());
  told(child);
  // A live member keeps its seat, and the newcomer hears of it at once.
  const auto refused = Clock::now();
  const Error error = failure_of([&] { Session::join(member(1, 2, port), quick()); });
  BOOST_TEST(says(error, "joined already and is alive"), error.what());
  BOOST_TEST((Clock::now() - refused < 4s));

  child.freeze();
  await_stop(child);
  Session replacement = Session::join(member(1, 2, port), quick());
  SmallTensor fresh(replacement);
  fresh.shard.fill(2);
  const Publication publication = replacement.publish(fresh.catalog());
  SmallTensor wanted(session);
  for (bool restored = false; !restored;) {  // the reader may still know the first publication only
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

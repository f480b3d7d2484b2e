// SPDX-License-Identifier: Apache-2.0
// A process that is stopped during a restore blocks neither the other side nor its memory. tests/simulation/stopped_members_test.cpp
// has all stages and methods in made time.
#include <boost/test/unit_test.hpp>

#include <csignal>

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

BOOST_AUTO_TEST_CASE(a_source_that_hangs_holds_a_restore_no_longer_than_its_deadline) {
  const Deadline deadline(400s);
  const auto port = free_port();
  Child child = peer_process("source", port);
  Session session = Session::join(member(0, 2, port), quick());
  Tensor tensor;
  told(child);
  write_frame(child.socket(), {});  // the source publishes
  bool stopped = false;
  const auto restore = [&](Duration timeout) {
    const auto began = WallClock::now();
    RestoreOptions options = zcopy(timeout);
    options.ingress_bytes_per_second = tensor_bytes;  // a busy machine may look at its progress late
    Restore one = moving(
        session, tensor.catalog(), options, [&] { freeze_and_await(child); }, tensor_bytes / 8 * 3);
    stopped = true;
    const Error error = failure_of([&] { one.wait(); });
    BOOST_TEST((WallClock::now() - began < timeout + bounded));
    throw error;
  };
  const Error error = failure_by(4s, restore, [&](const Error&) { return stopped; });
  BOOST_TEST((error.code() == ErrorCode::timed_out), error.what());
  BOOST_TEST(!error.gaps().empty());
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
  write_frame(child.socket(), {});  // the reader restores
  told(child);
  Publication publication = session.publish(tensor.catalog());
  await_stop(child);
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

BOOST_AUTO_TEST_SUITE_END()

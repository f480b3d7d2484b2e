// SPDX-License-Identifier: Apache-2.0
// Restores that read another process's memory by RDMA hardware: the processor time that this costs the source, and
// behaviour when the source is killed, withdraws its memory, or forks meanwhile.
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <atomic>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include "session/hang.hpp"
#include "support/blocked.hpp"
#include "support/deadline.hpp"
#include "transport/rdma.hpp"

namespace rdma {

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;
using WallClock = std::chrono::steady_clock;

namespace {

const char* const kinds_of_memory[] = {"arena source", "registered source"};

boost::test_tools::assertion_result a_port_is_active(boost::unit_test::test_unit_id /*case*/) {
  boost::test_tools::assertion_result result(!transport::active_ports().empty());
  if (!result) result.message() << transport::probe_rdma().detail;
  return result;
}

RestoreOptions by_reads() {
  return by(RestoreMethod::read, 60s * slowdown());
}

// Number of context switches per thread, without the thread in which UCX checks its timers ten times a second.
std::map<std::string, std::uint64_t> turns_of_threads(pid_t pid) {
  std::map<std::string, std::uint64_t> turns;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task")) {
    std::ifstream status(entry.path() / "status");
    std::string thread = entry.path().filename();
    for (std::string line; std::getline(status, line);) {
      if (line == "Name:\tasync") break;
      if (line.starts_with("Name:")) thread += line.substr(line.find(':') + 1);
      if (line.find("ctxt_switches:") != std::string::npos)
        turns[thread] += std::stoull(line.substr(line.find(':') + 1));
    }
  }
  return turns;
}

std::string text_of(const std::map<std::string, std::uint64_t>& turns) {
  std::string text;
  for (const auto& [thread, count] : turns) text += thread + ": " + std::to_string(count) + " ";
  return text;
}

}  // namespace

}  // namespace rdma

BOOST_AUTO_TEST_SUITE(rdma, *boost::unit_test::precondition(a_port_is_active))

// The source's processor is needed neither for the bytes nor for the proof that they belong to the publication.
BOOST_DATA_TEST_CASE(a_source_that_is_stopped_once_all_is_bound_is_read_and_the_restore_ends_well,
                     boost::unit_test::data::make(kinds_of_memory), task) {
  const Deadline deadline(150s);
  const auto port = free_port();
  Child child = peer_process(task, port);
  std::atomic<bool> freeze = true;
  Session session = Session::join(member(0, 2, port), when_all_is_bound([&] {
                                    if (freeze.exchange(false)) freeze_and_await(child);
                                  }));
  read_frame(child.socket());
  Tensor tensor;
  Restore restore = session.restore(tensor.catalog(), by_reads());
  restore.wait();
  BOOST_TEST(!freeze);
  BOOST_TEST(tensor.is_filled());
  ::kill(child.pid(), SIGCONT);
  write_frame(child.socket(), {});
}

BOOST_AUTO_TEST_CASE(no_thread_of_a_source_wakes_while_it_is_read) {
  const Deadline deadline(150s);
  const auto port = free_port();
  Child child = peer_process("arena source", port);
  Session session = join_with(child, port);
  Tensor tensor;
  for (const bool counted : {false, true}) {  // only the first restore of a session sets up connections
    tensor.fill();
    std::memset(tensor.bytes().data(), 0, tensor.bytes().size());
    const auto began = WallClock::now();
    Restore restore = session.restore(tensor.catalog(), by_reads());
    std::map<std::string, std::uint64_t> first;
    std::map<std::string, std::uint64_t> last;
    restore.on_progress(
        [&](const Progress& progress) {
          if (std::string_view(progress.stage) != "move" || progress.done_bytes < enough_bytes / 2) return;
          (first.empty() ? first : last) = turns_of_threads(child.pid());
        },
        1ms);
    restore.wait();
    BOOST_TEST(tensor.is_filled());
    if (!counted) continue;
    BOOST_TEST(!first.empty());
    BOOST_TEST(!last.empty());
    // A connection without traffic for ten seconds is pinged.
    const auto pings = static_cast<std::uint64_t>((WallClock::now() - began) / 5s);
    BOOST_TEST(last.size() == first.size());
    for (const auto& [thread, turns] : first) {
      BOOST_TEST((last[thread] <= turns + pings), text_of(first) << "then " << text_of(last));
    }
  }
  write_frame(child.socket(), {});
}

BOOST_DATA_TEST_CASE(a_source_that_is_killed_while_it_is_read_ends_the_restore_soon,
                     boost::unit_test::data::make(kinds_of_memory), task) {
  const Deadline deadline(150s);
  const auto port = free_port();
  Child child = peer_process(task, port);
  Session session = join_with(child, port);
  Tensor tensor;
  RestoreOptions options = by_reads();
  options.ingress_bytes_per_second = tensor_bytes / 16;
  Restore restore = moving(session, tensor.catalog(), options, [&] { child.kill(); });
  const auto began = WallClock::now();
  const Error error = failure_of([&] { restore.wait(); });
  BOOST_TEST((WallClock::now() - began < 10s * slowdown()));
  BOOST_TEST((error.code() == ErrorCode::peer_lost), error.what());
  BOOST_TEST(!error.gaps().empty());
  // Nothing writes to the tensor any more.
  std::memset(tensor.bytes().data(), 0x5a, tensor.bytes().size());
  std::this_thread::sleep_for(500ms);
  const auto untouched = [](std::byte b) { return b == std::byte{0x5a}; };
  BOOST_TEST(std::all_of(tensor.bytes().begin(), tensor.bytes().end(), untouched));
}

// The keys of the first publication become invalid, which ends the connection on which they are used. The restore reads
// the next publication completely.
BOOST_AUTO_TEST_CASE(memory_that_is_taken_back_while_it_is_read_leaves_no_byte_of_it_behind) {
  const Deadline deadline(150s);
  const auto port = free_port();
  Child child = peer_process("replacing source", port);
  Session session = join_with(child, port);
  Tensor tensor;
  RestoreOptions options = by_reads();
  options.ingress_bytes_per_second = tensor_bytes / 2;  // so that some bytes are still unread at the withdrawal
  ByteCount again = 0;
  for (int round = 0; round < 3 || again == 0; ++round) {  // until a withdrawal comes while bytes move
    std::memset(tensor.bytes().data(), 0, tensor.bytes().size());
    Restore restore = session.restore(tensor.catalog(), options);
    std::atomic<bool> moving = false;
    restore.on_progress([&](const Progress& progress) { moving = moving || progress.done_bytes > enough_bytes; }, 1ms);
    while (!moving && !restore.poll()) std::this_thread::yield();
    write_frame(child.socket(), {});  // it withdraws, overwrites its memory, and publishes another state
    restore.wait();
    const bool old_bytes = tensor.is_filled(static_cast<std::uint8_t>(round));
    const bool new_bytes = tensor.is_filled(static_cast<std::uint8_t>(round + 1));
    BOOST_TEST((old_bytes || new_bytes));
    again += restore.report().resent_bytes;
    BOOST_TEST_MESSAGE("round " << round << ": " << (old_bytes ? "all was read before" : "planned anew"));
    read_frame(child.socket());
  }
}

// After fork(), parent and child share pages that hardware writes into until one of them writes there.
BOOST_AUTO_TEST_CASE(who_forks_while_it_reads_gets_every_byte_itself) {
  const Deadline deadline(150s);
  const auto port = free_port();
  Child child = peer_process("forking source", port);
  Session session = join_with(child, port);
  Tensor tensor;
  std::memset(tensor.bytes().data(), 0, tensor.bytes().size());
  Restore restore = session.restore(tensor.catalog(), by_reads());
  std::atomic<bool> moving = false;
  restore.on_progress([&](const Progress& progress) { moving = moving || progress.done_bytes > 0; }, 1ms);
  while (!moving && !restore.poll()) std::this_thread::yield();
  std::vector<pid_t> forked;
  for (int i = 0; i < 4; ++i) {
    write_frame(child.socket(), {});  // the source forks as well
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::signal(SIGSEGV, [](int) { ::_exit(0); });                       // a child may lack hardware-written pages
      std::memset(tensor.bytes().data(), 0x33, tensor.bytes().size());  // the child's own copy
      ::_exit(0);
    }
    forked.push_back(pid);
  }
  for (const pid_t pid : forked) {
    int status = 0;
    BOOST_TEST(::waitpid(pid, &status, 0) == pid);
    BOOST_TEST(status == 0);
  }
  restore.wait();
  BOOST_TEST(tensor.is_filled());
}

BOOST_AUTO_TEST_SUITE_END()

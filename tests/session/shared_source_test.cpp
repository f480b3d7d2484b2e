// SPDX-License-Identifier: Apache-2.0
// Two restores of one session that read from the same source at once, over one connection: what befalls the one is not the
// other's fault. Not over messages of UCX: over TCP it may use a connection that is cut after it has freed it, and a source does not
// notice that its reader has connected anew (transport/README.md).
#include <boost/test/unit_test.hpp>

#include <atomic>
#include <csignal>
#include <cstring>

#include "session/hang.hpp"
#include "support/deadline.hpp"

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;

namespace {

bool over(std::string_view transport) {
  const char* const all = std::getenv("TEST_TRANSPORT");
  return all != nullptr && std::string_view(all).starts_with(transport);
}

// Reads that a processor answers are those of libfabric here; over the others it sends.
RestoreOptions in_need_of_the_source() {
  return by(over("libfabric") ? Way::read : Way::straight, 60s * slowdown());
}

/// A restore that takes a second or more.
struct SlowRestore {
  explicit SlowRestore(Session& session) {
    std::memset(tensor.bytes().data(), 0, tensor.bytes().size());
    RestoreOptions options = in_need_of_the_source();
    options.ingress_bytes_per_second = tensor_bytes;
    restore.emplace(session.restore(tensor.catalog(), options));
    restore->on_progress([this](const Progress& progress) { moving = moving || progress.done_bytes > 0; }, 1ms);
  }
  ~SlowRestore() { restore.reset(); }
  SlowRestore(const SlowRestore&) = delete;
  SlowRestore& operator=(const SlowRestore&) = delete;

  void await_moving() {
    while (!moving && !restore->poll()) std::this_thread::yield();
  }

  Tensor tensor;
  std::atomic<bool> moving = false;
  std::optional<Restore> restore;
};

}  // namespace

BOOST_AUTO_TEST_SUITE(shared_source)

BOOST_AUTO_TEST_CASE(who_gives_up_a_source_that_hangs_takes_nothing_from_another_restore) {
  const Deadline deadline(150s);
  const auto port = free_port();
  Child child = peer_process("registered source", port);
  Session session = join_with(child, port);
  ByteCount moved_again =
      0;  // where the connection was cut: it is when the source hangs in the middle of a message, or of reads
  for (int round = 0; round < 3 && moved_again == 0; ++round) {
    SlowRestore patient(session);
    patient.await_moving();
    Tensor tensor;
    Restore impatient = session.restore(tensor.catalog(), in_need_of_the_source());
    std::atomic<bool> frozen = false;
    impatient.on_progress(
        [&](const Progress& progress) {
          if (progress.done_bytes >= enough_bytes && !frozen.exchange(true)) freeze_and_await(child);
        },
        1ms);
    while (!frozen && !impatient.poll()) std::this_thread::yield();
    BOOST_REQUIRE(frozen);
    impatient.cancel();
    BOOST_TEST((failure_of([&] { impatient.wait(); }).code() == ErrorCode::cancelled));
    ::kill(child.pid(), SIGCONT);
    patient.restore->wait();
    BOOST_TEST(patient.tensor.is_filled());
    moved_again = patient.restore->report().again;
  }
  if (over("libfabric")) BOOST_TEST(moved_again > 0);
  write_frame(child.socket(), {});
}

// Both were read by the keys that open nothing any more.
BOOST_AUTO_TEST_CASE(both_get_what_takes_the_place_of_memory_that_is_taken_back) {
  const Deadline deadline(150s);
  const auto port = free_port();
  Child child = peer_process("replacing source", port);
  Session session = join_with(child, port);
  ByteCount moved_again = 0;
  for (int round = 0; round < 3; ++round) {
    SlowRestore one(session);
    SlowRestore other(session);
    one.await_moving();
    other.await_moving();
    write_frame(child.socket(), {});  // it withdraws, spoils its memory, and publishes something else
    for (SlowRestore* restore : {&one, &other}) {
      restore->restore->wait();
      const bool all_was_read_before = restore->tensor.is_filled(static_cast<std::uint8_t>(round));
      BOOST_TEST((all_was_read_before || restore->tensor.is_filled(static_cast<std::uint8_t>(round + 1))));
      moved_again += restore->restore->report().again;
    }
    read_frame(child.socket());
  }
  if (!on_slow_machine()) BOOST_TEST(moved_again > 0);
}

BOOST_AUTO_TEST_SUITE_END()

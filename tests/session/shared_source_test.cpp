// SPDX-License-Identifier: Apache-2.0
// Two restores of one session that read from the same source at once, over one connection: a fault of one does not
// affect the other. Not run over messages of UCX: over TCP it may use an aborted connection after freeing it, and a
// source does not notice that its reader has reconnected (transport/README.md).
#include <boost/test/unit_test.hpp>

#include <atomic>
#include <csignal>
#include <cstring>

#include "session/hang.hpp"
#include "support/blocked.hpp"
#include "support/deadline.hpp"

BOOST_AUTO_TEST_SUITE(shared_source)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;

namespace {

bool over(std::string_view transport) {
  const char* const all = std::getenv("TEST_TRANSPORT");
  return all != nullptr && std::string_view(all).starts_with(transport);
}

// Methods that need the source's processor: reads over libfabric's tcp provider, messages over the other fabrics.
RestoreOptions in_need_of_the_source() {
  return by(over("libfabric") ? RestoreMethod::read : RestoreMethod::zcopy, 60s * slowdown());
}

/// A restore that takes a second or more, once it proceeds.
struct SlowRestore {
  explicit SlowRestore(Session& session) {
    std::memset(tensor.bytes().data(), 0, tensor.bytes().size());
    RestoreOptions options = in_need_of_the_source();
    options.ingress_bytes_per_second = tensor_bytes;
    options.stop_at_values = true;
    restore.emplace(session.restore(tensor.catalog(), options));
  }
  ~SlowRestore() { restore.reset(); }
  SlowRestore(const SlowRestore&) = delete;
  SlowRestore& operator=(const SlowRestore&) = delete;

  Tensor tensor;
  std::optional<Restore> restore;
};

}  // namespace

BOOST_AUTO_TEST_CASE(who_gives_up_a_source_that_hangs_takes_nothing_from_another_restore) {
  const Deadline deadline(300s);
  const auto port = free_port();
  Child child = peer_process("registered source", port);
  // The patient restore connects again if the connection was aborted, that is, if the source stops in the middle of
  // a message or of reads. Over libfabric the moment depends on the machine, so rounds continue until reads were in
  // flight.
  std::atomic<bool> connected_again = false;
  SessionOptions watching = quick();
  watching.log = [&](LogLevel, std::string_view text) {
    connected_again = connected_again || text.find("over another path") != std::string_view::npos;
  };
  Session session = join_with(child, port, watching);
  for (int round = 0; !connected_again && round < (over("libfabric") ? 50 : 3); ++round) {
    SlowRestore patient(session);
    BlockedInMove{*patient.restore};
    Tensor tensor;
    Restore impatient = moving(
        session, tensor.catalog(), in_need_of_the_source(), [&] { freeze_and_await(child); }, enough_bytes);
    impatient.cancel();
    BOOST_TEST((failure_of([&] { impatient.wait(); }).code() == ErrorCode::cancelled));
    ::kill(child.pid(), SIGCONT);
    patient.restore->wait();
    BOOST_TEST(patient.tensor.is_filled());
    BOOST_TEST(patient.restore->report().resent_bytes == 0U);
  }
  if (over("libfabric")) BOOST_TEST(connected_again);
  write_frame(child.socket(), {});
}

// Both restores used keys that are withdrawn now.
BOOST_AUTO_TEST_CASE(both_get_what_takes_the_place_of_memory_that_is_taken_back) {
  const Deadline deadline(300s);
  const auto port = free_port();
  Child child = peer_process("replacing source", port);
  Session session = join_with(child, port);
  ByteCount moved_again = 0;
  for (int round = 0; round < 3; ++round) {
    SlowRestore one(session);
    std::optional<BlockedInMove> first(std::in_place, *one.restore);
    SlowRestore other(session);
    {
      // Restores of one session have one thread, so neither goes on.
      const BlockedInMove both(*other.restore, 1, [&] {
        first.reset();
        other.restore->proceed();
      });
      write_frame(child.socket(), {});  // it withdraws, overwrites its memory, and publishes another state
      read_frame(child.socket());
    }
    for (SlowRestore* restore : {&one, &other}) {
      restore->restore->wait();
      const bool all_was_read_before = restore->tensor.is_filled(static_cast<std::uint8_t>(round));
      BOOST_TEST((all_was_read_before || restore->tensor.is_filled(static_cast<std::uint8_t>(round + 1))));
      moved_again += restore->restore->report().resent_bytes;
    }
  }
  BOOST_TEST(moved_again != 0U);
}

BOOST_AUTO_TEST_SUITE_END()

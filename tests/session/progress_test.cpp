// SPDX-License-Identifier: Apache-2.0
// Sessions that sleep while they wait, and sessions that first spin for a while.
#include <unistd.h>

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <fstream>
#include <string>

#include "support/deadline.hpp"
#include "support/job.hpp"

namespace shardwire {
std::ostream& operator<<(std::ostream& out, const ProgressMode& mode) {
  return out << "spin of " << mode.spin.count() << " ns";
}
}  // namespace shardwire

BOOST_AUTO_TEST_SUITE(progress)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;

namespace {

// A thread that waits for a processor does not sleep.
bool all_other_threads_sleep() {
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    if (thread.path().filename() == std::to_string(::gettid())) continue;
    std::string text;
    std::getline(std::ifstream(thread.path() / "stat"), text);  // number, name in parentheses, state
    const auto name_end = text.rfind(") ");
    if (name_end != std::string::npos && text[name_end + 2] != 'S') return false;
  }
  return true;
}

// True once many looks in a row have found them asleep.
bool fall_asleep() {
  int looks = 0;
  return run_until([] {}, [&] { return (looks = all_other_threads_sleep() ? looks + 1 : 0) == 100; }, patience);
}

// Rows to columns, by packed reads and by mapped arenas; then every member idles.
void restore_then_idle(int rank, int members, std::uint16_t port, const SessionOptions& options, bool arena) {
  Session session = Session::join(member(rank, members, port), options);
  const TensorSpec spec{{"w", "exp_avg"}, DType::f32, {64, 100}};
  TestShard held(spec, Layout::chunk(0, members), Rank{rank});
  TestShard wanted(spec, Layout::mesh({members}, {Shard{1}}), Rank{rank});
  Arena memory = session.allocate(held.size_bytes());
  if (arena) held.use(memory.data());
  held.fill(1);
  Catalog source(Rank{rank}, members);
  Catalog target(Rank{rank}, members);
  held.add_to(source);
  wanted.add_to(target);
  Publication publication = session.publish(source);
  session.restore(target, tight_within(patience)).wait();
  require(wanted.wrong(1) == 0, "every element arrived");
  session.gather("restored", {}, patience);
  if (rank == 0) require(fall_asleep(), "an idle session sleeps");  // the members are threads of this process
  session.gather("idled", {}, patience);
  publication.retire(10s);
  session.close(10s);
}

const ProgressMode modes[] = {ProgressMode::wakeup(), ProgressMode::spinning(50us), ProgressMode::spinning(10ms)};

}  // namespace

BOOST_DATA_TEST_CASE(members_restore_and_then_sleep, boost::unit_test::data::make(modes), mode) {
  for (const bool arena : {false, true}) {
    const auto port = free_port();
    SessionOptions options = tight();
    options.progress = mode;
    on_members(3, [&](int rank) { restore_then_idle(rank, 3, port, options, arena); });
  }
}

BOOST_AUTO_TEST_CASE(members_may_wait_in_different_ways) {
  const auto port = free_port();
  on_members(3, [&](int rank) {
    SessionOptions options = tight();
    options.progress = modes[rank];
    restore_then_idle(rank, 3, port, options, false);
  });
}

BOOST_AUTO_TEST_CASE(a_negative_time_is_refused) {
  SessionOptions options = quick();
  options.progress.spin = -1ns;
  const Error error = failure_of([&] { Session::join(member(0, 1, free_port()), options); });
  BOOST_TEST((error.code() == ErrorCode::invalid_argument));
}

BOOST_AUTO_TEST_SUITE_END()

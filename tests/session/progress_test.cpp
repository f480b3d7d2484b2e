// SPDX-License-Identifier: Apache-2.0
// Sessions that sleep while they wait, and sessions that first spin for a while.
#include <sys/resource.h>

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <thread>

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

std::chrono::duration<double> processor_time() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return std::chrono::seconds(time.tv_sec) + std::chrono::microseconds(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Rows to columns, by packed reads and by mapped arenas; then every member idles for a second.
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
  const auto before = processor_time();
  std::this_thread::sleep_for(1s);
  // Time of all members together, which are threads here: one member that does not sleep would use a second.
  require(processor_time() - before < 500ms, "an idle session sleeps");
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

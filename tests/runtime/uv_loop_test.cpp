// SPDX-License-Identifier: Apache-2.0
#include "runtime/uv_loop.hpp"

#include <boost/test/unit_test.hpp>

#include <chrono>
#include <functional>
#include <future>
#include <optional>
#include <utility>

#include "support/deadline.hpp"

BOOST_AUTO_TEST_SUITE(uv_loop)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;

// Tasks of other threads arrive like bytes of sockets: only between the timers.
BOOST_AUTO_TEST_CASE(timers_that_start_themselves_again_at_once_hold_up_nothing_else) {
  const Deadline deadline(60s);
  UvLoop loop;
  std::optional<Timer> timers[2];
  bool stopped = false;
  std::promise<void> running;
  bool told = false;
  std::function<void(int)> again = [&](int i) {
    if (!std::exchange(told, true)) running.set_value();
    const auto until = std::chrono::steady_clock::now() + 2ms;
    while (std::chrono::steady_clock::now() < until) continue;  // longer than the clock's unit
    if (!stopped) timers[i]->start(0s, [&, i] { again(i); });
  };
  loop.call([&] {
    for (int i = 0; i < 2; ++i) timers[i].emplace(loop).start(0s, [&, i] { again(i); });
  });
  running.get_future().wait();
  loop.call([&] { stopped = true; });
  loop.end([&] {
    for (auto& one : timers) one.reset();
  });
}

BOOST_AUTO_TEST_SUITE_END()

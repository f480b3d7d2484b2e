// SPDX-License-Identifier: Apache-2.0
#include "runtime/await.hpp"

#include <boost/test/unit_test.hpp>
#include <optional>
#include <stdexcept>
#include <thread>

#include "runtime/uv_loop.hpp"
#include "support/deadline.hpp"

namespace await_results {

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;

namespace {

struct Fixture {
  Deadline deadline{20s};
  UvLoop loop;
};

ErrorCode code_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.code();
  }
  throw std::logic_error("nothing was thrown");
}

std::exception_ptr lost(const char* why) {
  return std::make_exception_ptr(Error(ErrorCode::peer_lost, why));
}

}  // namespace

}  // namespace await_results

BOOST_FIXTURE_TEST_SUITE(await_results, Fixture)

BOOST_AUTO_TEST_CASE(an_answer_may_come_after_start_has_returned) {
  std::optional<Timer> timer;
  const int result = await<int>(loop, [&](const Answer<int>& answer) {
    BOOST_TEST(loop.is_current());
    timer.emplace(loop).start(10ms, [answer] { answer.give(7); });
  });
  BOOST_TEST(result == 7);
  loop.end([&] { timer.reset(); });
}

BOOST_AUTO_TEST_CASE(an_answer_may_come_from_within_start) {
  await<void>(loop, [](const Answer<void>& answer) { answer.give(); });
  BOOST_TEST((await<std::vector<int>>(loop, [](const auto& answer) {
                answer.give(std::vector{1, 2});
              }) == std::vector{1, 2}));
}

BOOST_AUTO_TEST_CASE(failures_come_back_as_they_are) {
  BOOST_CHECK_THROW(await<int>(loop, [](const Answer<int>&) { throw std::out_of_range("start"); }), std::out_of_range);
  const auto fail = [&] { await<int>(loop, [](const auto& answer) { answer.fail(lost("answer")); }); };
  BOOST_CHECK(code_of(fail) == ErrorCode::peer_lost);
}

BOOST_AUTO_TEST_CASE(an_answer_is_the_callback_of_an_operation) {
  const auto end_with = [](const std::function<void(int, const std::exception_ptr&)>& done,
                           const std::exception_ptr& error) { done(5, error); };
  BOOST_TEST(await<int>(loop, [&](const auto& answer) { end_with(answer, nullptr); }) == 5);
  const auto fail = [&] { await<int>(loop, [&](const auto& answer) { end_with(answer, lost("operation")); }); };
  BOOST_CHECK(code_of(fail) == ErrorCode::peer_lost);
  await<void>(loop, [](const std::function<void(const std::exception_ptr&)>& done) { done(nullptr); });
  const auto fail_void = [&] { await<void>(loop, [](const auto& answer) { answer(lost("operation")); }); };
  BOOST_CHECK(code_of(fail_void) == ErrorCode::peer_lost);
}

BOOST_AUTO_TEST_CASE(a_caller_can_look_whether_the_answer_is_there) {
  std::optional<Answer<int>> kept;
  Awaited<int> result = begin_on<int>(loop, [&](const Answer<int>& answer) { kept = answer; });
  BOOST_TEST(!result.ready_within(1ms));
  loop.post([&] { kept->give(3); });
  BOOST_TEST(result.ready_within(20s));
  BOOST_TEST(result.take() == 3);
}

BOOST_AUTO_TEST_CASE(a_loop_that_ends_first_ends_the_wait) {
  std::optional<Answer<int>> kept;  // kept, as a session's operation keeps it
  Awaited<int> result = begin_on<int>(loop, [&](const Answer<int>& answer) { kept = answer; });
  std::thread other([&] { loop.end([&] { kept.reset(); }); });
  BOOST_CHECK_THROW(result.take(), LoopEnded);
  other.join();
}

BOOST_AUTO_TEST_CASE(nothing_runs_on_a_loop_that_has_ended) {
  loop.end();
  bool ran = false;
  BOOST_CHECK_THROW(await<int>(loop,
                               [&](const Answer<int>& answer) {
                                 ran = true;
                                 answer.give(1);
                               }),
                    LoopEnded);
  BOOST_TEST(!ran);
}

BOOST_AUTO_TEST_CASE(the_loop_does_not_wait_for_itself) {
  const auto inside = [this] {
    BOOST_TEST(await<int>(loop, [](const auto& answer) { answer.give(5); }) == 5);
    std::optional<Answer<int>> kept;  // destroying it would answer that the loop has ended
    return code_of([&] { await<int>(loop, [&](const Answer<int>& answer) { kept = answer; }); });
  };
  BOOST_CHECK(loop.call(inside) == ErrorCode::unsupported);
}

BOOST_AUTO_TEST_SUITE_END()

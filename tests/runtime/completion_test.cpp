// SPDX-License-Identifier: Apache-2.0
#include "runtime/completion.hpp"

#include <poll.h>

#include <boost/test/unit_test.hpp>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>

BOOST_AUTO_TEST_SUITE(completion)

using namespace shardwire;
using namespace std::chrono_literals;
using detail::Completion;

namespace {

bool is_readable(int descriptor) {
  pollfd one{descriptor, POLLIN, 0};
  return ::poll(&one, 1, 0) == 1;
}

std::exception_ptr lost() {
  return std::make_exception_ptr(Error(ErrorCode::peer_lost, "gone"));
}

bool is_cancelled(const Error& error) {
  return error.code() == ErrorCode::cancelled;
}
bool is_lost(const Error& error) {
  return error.code() == ErrorCode::peer_lost;
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_wait_ends_with_the_operation_and_throws_its_error) {
  Completion good{Interruption()}, bad{Interruption()};
  std::thread ends([&] {
    good.finish(nullptr);
    bad.finish(lost());
  });
  BOOST_CHECK_NO_THROW(good.wait());
  BOOST_CHECK_EXCEPTION(bad.wait(), Error, is_lost);
  BOOST_CHECK_EXCEPTION(static_cast<void>(bad.wait_for(1s)), Error, is_lost);
  BOOST_CHECK_NO_THROW(bad.wait_for_end());
  BOOST_TEST((good.is_done() && bad.is_done()));
  ends.join();
}

BOOST_AUTO_TEST_CASE(a_wait_for_a_duration_returns_false_while_the_operation_runs) {
  Completion completion{Interruption()};
  BOOST_TEST(!completion.wait_for(0ns));
  BOOST_TEST(!completion.wait_for(1ms));
  BOOST_TEST(!completion.is_done());
  completion.finish(nullptr);
  BOOST_TEST(completion.wait_for(0ns));
}

BOOST_AUTO_TEST_CASE(the_descriptor_is_readable_from_the_end_on_whenever_it_was_made) {
  Completion before{Interruption()}, after{Interruption()};
  const int early = before.descriptor();
  BOOST_TEST(!is_readable(early));
  before.finish(nullptr);
  after.finish(lost());
  BOOST_TEST(is_readable(early));
  BOOST_TEST(before.descriptor() == early);
  BOOST_TEST(is_readable(after.descriptor()));
}

BOOST_AUTO_TEST_CASE(the_callback_runs_once_at_the_end_or_at_once_after_it) {
  Completion completion{Interruption()};
  int replaced = 0, called = 0, late = 0;
  completion.on_done([&] { ++replaced; });
  completion.on_done([&] { ++called; });
  BOOST_TEST(called == 0);
  completion.finish(nullptr);
  BOOST_TEST(called == 1);
  completion.on_done([&] { ++late; });
  BOOST_TEST(late == 1);
  BOOST_TEST(replaced == 0);
}

BOOST_AUTO_TEST_CASE(an_interruption_ends_the_wait_but_not_the_operation) {
  std::atomic<bool> asked = true;
  Completion completion{Interruption([&] { return asked.load(); })};
  BOOST_CHECK_EXCEPTION(completion.wait(), Error, is_cancelled);
  BOOST_CHECK_EXCEPTION(static_cast<void>(completion.wait_for(1h)), Error, is_cancelled);
  BOOST_TEST(!completion.is_done());
  asked = false;
  completion.finish(nullptr);
  BOOST_CHECK_NO_THROW(completion.wait());
}

BOOST_AUTO_TEST_CASE(an_exception_of_the_callers_function_comes_out_of_the_wait) {
  Completion completion{Interruption([]() -> bool { throw std::domain_error("signal"); })};
  BOOST_CHECK_THROW(completion.wait(), std::domain_error);
}

BOOST_AUTO_TEST_CASE(an_interruption_that_stops_the_operation_comes_out_at_its_end) {
  Completion completion{Interruption([] { return true; })};
  bool stopped = false;
  const auto stop = [&] {
    stopped = true;
    completion.finish(lost());
  };
  BOOST_CHECK_EXCEPTION(completion.wait(stop), Error, is_cancelled);
  BOOST_TEST(stopped);
}

BOOST_AUTO_TEST_CASE(an_operation_that_has_ended_is_never_interrupted) {
  Completion completion{Interruption([]() -> bool { throw std::logic_error("asked"); })};
  completion.finish(nullptr);
  BOOST_CHECK_NO_THROW(completion.wait());
  BOOST_CHECK_NO_THROW(completion.wait([] {}));
  BOOST_TEST(completion.wait_for(0ns));
}

BOOST_AUTO_TEST_SUITE_END()

// SPDX-License-Identifier: Apache-2.0
#include "runtime/release_queue.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <thread>
#include <vector>

BOOST_AUTO_TEST_SUITE(release_queue)

using namespace shardwire;
using namespace std::chrono_literals;

namespace {

constexpr auto ages = 120s;

/// Calls `gone` where it is destroyed.
std::shared_ptr<const void> object(std::function<void()> gone) {
  return {reinterpret_cast<const void*>(1), [gone = std::move(gone)](const void*) { gone(); }};
}

// Kept for ever, and where the leak checker finds it.
template <typename Object>
Object& for_ever(Object* object) {
  static auto* const all = new std::vector<Object*>();
  all->push_back(object);
  return *object;
}

// Its thread uses it for ever.
ReleaseQueue& new_queue() {
  return for_ever(new ReleaseQueue());
}

}  // namespace

BOOST_AUTO_TEST_CASE(the_last_reference_is_dropped_on_another_thread) {
  std::promise<std::thread::id> dropped;
  new_queue().release(object([&] { dropped.set_value(std::this_thread::get_id()); }));
  BOOST_TEST((dropped.get_future().get() != std::this_thread::get_id()));
}

BOOST_AUTO_TEST_CASE(an_object_with_other_references_stays) {
  std::atomic<bool> gone = false;
  auto kept = object([&] { gone = true; });
  ReleaseQueue& queue = new_queue();
  queue.release(kept);
  queue.stop(ages);
  BOOST_TEST(!gone);
  kept.reset();
  BOOST_TEST(gone);
}

BOOST_AUTO_TEST_CASE(a_destructor_that_blocks_delays_no_caller) {
  std::promise<void> go;
  std::promise<void> second;
  ReleaseQueue& queue = new_queue();
  queue.release(object([&] { go.get_future().wait(); }));
  queue.release(object([&] { second.set_value(); }));
  go.set_value();
  second.get_future().wait();
  queue.stop(ages);
}

BOOST_AUTO_TEST_CASE(a_stopped_queue_keeps_objects_for_ever) {
  static std::atomic<int> gone = 0;
  ReleaseQueue& queue = new_queue();
  queue.release(object([] { ++gone; }));
  queue.stop(ages);
  BOOST_TEST(gone == 1);
  queue.release(object([] { ++gone; }));
  queue.stop(1ms);
  BOOST_TEST(gone == 1);
}

BOOST_AUTO_TEST_CASE(a_destructor_may_release_another_object) {
  std::promise<void> inner;
  ReleaseQueue& queue = new_queue();
  queue.release(object([&] { queue.release(object([&] { inner.set_value(); })); }));
  inner.get_future().wait();
  queue.stop(ages);
}

BOOST_AUTO_TEST_CASE(a_child_of_fork_keeps_what_it_inherited) {
  ReleaseQueue& queue = new_queue();
  auto inherited = object([] { ::_exit(1); });
  const pid_t child = ::fork();
  if (child == 0) {
    queue.release(std::move(inherited));
    ::_exit(0);
  }
  int status = -1;
  BOOST_REQUIRE(::waitpid(child, &status, 0) == child);
  BOOST_TEST(status == 0);
  for_ever(new std::shared_ptr<const void>(std::move(inherited)));  // its end is that of a child
}

BOOST_AUTO_TEST_CASE(kept_owners_are_released_once) {
  std::promise<void> gone;
  auto owner = object([&] { gone.set_value(); });
  std::weak_ptr<const void> watched = owner;
  {
    KeptOwners kept(std::move(owner));
    BOOST_TEST(!watched.expired());
    KeptOwners moved = std::move(kept);
    kept.release();
    BOOST_TEST(!watched.expired());
  }
  gone.get_future().wait();
}

BOOST_AUTO_TEST_SUITE_END()

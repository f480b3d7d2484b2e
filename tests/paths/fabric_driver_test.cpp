// SPDX-License-Identifier: Apache-2.0
// When the loop sleeps and when it keeps polling, measured by counting calls to a fabric.
#include <boost/test/unit_test.hpp>

#include <atomic>
#include <stdexcept>

#include "paths/fabric_driver.hpp"
#include "runtime/uv_loop.hpp"
#include "support/deadline.hpp"
#include "support/wake_event.hpp"

BOOST_AUTO_TEST_SUITE(fabric_driver)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;

namespace {

/// A fabric that only counts calls; its descriptor signals work.
class CountingFabric final : public transport::Fabric {
 public:
  /// From any thread: the next progress() finds something.
  void give_work() { event_.signal(); }

  [[nodiscard]] std::string_view name() const override { return "counting"; }
  [[nodiscard]] std::string version() const override { return "counting"; }
  [[nodiscard]] std::string domain() const override { return {}; }
  [[nodiscard]] Bytes address() const override { return {}; }
  std::unique_ptr<transport::Region> allocate(ByteCount, const transport::MemoryPlace&) override { return nullptr; }
  std::unique_ptr<transport::Region> adopt(const transport::Memory&) override { return nullptr; }
  std::unique_ptr<transport::Endpoint> connect(transport::PeerAddress) override { return nullptr; }
  void on_message(transport::MessageHandler /*handler*/) override {}
  bool progress() override {
    if (broken) throw std::runtime_error("the fabric is broken");
    ++asked;
    if (!event_.clear()) return false;
    ++worked;
    return true;
  }
  [[nodiscard]] int event_descriptor() const override { return event_.descriptor(); }
  bool arm() override {
    ++armed;
    return true;
  }

  std::atomic<std::uint64_t> asked = 0;
  std::atomic<std::uint64_t> worked = 0;
  std::atomic<std::uint64_t> armed = 0;
  std::atomic<bool> broken = false;

 private:
  support::WakeEvent event_;
};

/// A loop that drives a counting fabric.
struct Driven {
  explicit Driven(std::chrono::nanoseconds spin) {
    loop.call([&] {
      driver = std::make_unique<FabricDriver>(loop, std::vector<transport::Fabric*>{&fabric}, spin,
                                              [this](const Error&) { broke = true; });
    });
  }
  ~Driven() {
    loop.call([&] { driver.reset(); });
  }
  Driven(const Driven&) = delete;
  Driven& operator=(const Driven&) = delete;

  bool until(const std::function<bool()>& met) {
    return run_until([] { std::this_thread::sleep_for(1ms); }, met, 30s);
  }
  /// True once the fabric has not been polled for a while: the loop sleeps, since a spinning loop polls all the time.
  bool falls_asleep() {
    std::uint64_t before = fabric.asked;
    return run_until(
        [&] {
          before = fabric.asked;
          std::this_thread::sleep_for(500ms);
        },
        [&] { return fabric.armed > 0 && fabric.asked == before; }, 30s);
  }

  CountingFabric fabric;
  UvLoop loop;
  std::unique_ptr<FabricDriver> driver;
  std::atomic<bool> broke = false;
};

}  // namespace

BOOST_AUTO_TEST_CASE(without_spinning_the_loop_sleeps_as_soon_as_there_is_nothing_to_do) {
  Driven driven(0ns);
  BOOST_TEST(driven.falls_asleep());
  const std::uint64_t asked = driven.fabric.asked;
  driven.fabric.give_work();
  BOOST_TEST(driven.until([&] { return driven.fabric.worked == 1; }));
  BOOST_TEST(driven.falls_asleep());
  // One call for the work and one to see that no more is left; two more if the loop was woken twice.
  BOOST_TEST(driven.fabric.asked - asked <= 4U);
}

BOOST_AUTO_TEST_CASE(a_loop_that_spins_goes_on_asking_and_does_not_sleep_before_its_time) {
  Driven driven(std::chrono::hours(1));
  driven.fabric.give_work();
  BOOST_TEST(driven.until([&] { return driven.fabric.worked == 1 && driven.fabric.asked > 100; }));
  BOOST_TEST(driven.fabric.armed == 0U);
}

BOOST_AUTO_TEST_CASE(a_loop_that_spins_sleeps_when_its_time_is_over) {
  Driven driven(20ms);
  BOOST_TEST(driven.falls_asleep());
  // It also sleeps after a wake-up by the fabric, and after one by a call.
  driven.fabric.give_work();
  BOOST_TEST(driven.until([&] { return driven.fabric.worked == 1; }));
  BOOST_TEST(driven.falls_asleep());
  const std::uint64_t armed = driven.fabric.armed;
  driven.loop.call([] {});
  BOOST_TEST(driven.until([&] { return driven.fabric.armed > armed; }));
  BOOST_TEST(driven.falls_asleep());
}

BOOST_AUTO_TEST_CASE(calls_get_their_turn_while_it_spins) {
  Driven driven(std::chrono::hours(1));
  for (int i = 0; i < 100; ++i) driven.loop.call([] {});
  BOOST_TEST(driven.fabric.armed == 0U);
}

// A group is driven during its rounds, and removed inside its own progress().
BOOST_AUTO_TEST_CASE(what_is_added_is_driven_and_wakes_the_loop_until_it_is_removed) {
  struct Added final : transport::Driven {
    bool progress() override {
      if (!event.clear()) return false;
      if (++worked == 2) driver->remove(*this);
      return true;
    }
    [[nodiscard]] int event_descriptor() const override { return event.descriptor(); }
    bool arm() override { return true; }

    FabricDriver* driver = nullptr;
    std::atomic<int> worked = 0;
    support::WakeEvent event;
  };
  Driven driven(0ns);
  Added added;
  added.driver = driven.driver.get();
  driven.loop.call([&] { driven.driver->add(added); });
  for (const int times : {1, 2}) {
    BOOST_TEST(driven.falls_asleep());
    added.event.signal();
    BOOST_TEST(driven.until([&] { return added.worked == times; }));
  }
  added.event.signal();
  BOOST_TEST(driven.falls_asleep());
  BOOST_TEST(added.worked == 2);
  driven.fabric.give_work();  // the fabric is driven as before
  BOOST_TEST(driven.until([&] { return driven.fabric.worked == 1; }));
}

// The fabric has nothing to do and would sleep.
BOOST_AUTO_TEST_CASE(the_loop_does_not_sleep_while_one_of_several_has_work_left) {
  struct Busy final : transport::Driven {
    bool progress() override { return false; }
    [[nodiscard]] int event_descriptor() const override { return event.descriptor(); }
    bool arm() override { return !busy; }

    std::atomic<bool> busy = true;
    support::WakeEvent event;
  };
  Driven driven(0ns);
  Busy busy;
  driven.loop.call([&] { driven.driver->add(busy); });
  const std::uint64_t asked = driven.fabric.asked;
  BOOST_TEST(driven.until([&] { return driven.fabric.asked > asked + 1000; }));
  busy.busy = false;
  BOOST_TEST(driven.falls_asleep());
  driven.loop.call([&] { driven.driver->remove(busy); });
}

BOOST_AUTO_TEST_CASE(a_fabric_that_breaks_is_not_asked_again) {
  Driven driven(std::chrono::hours(1));
  driven.fabric.broken = true;
  BOOST_TEST(driven.until([&] { return driven.broke.load(); }));
  const std::uint64_t asked = driven.fabric.asked;
  driven.loop.call([] {});
  BOOST_TEST(driven.fabric.asked == asked);
  struct Late final : transport::Driven {
    bool progress() override { return false; }
    [[nodiscard]] int event_descriptor() const override { return -1; }
    bool arm() override { return true; }
  } late;
  BOOST_CHECK_EXCEPTION(driven.loop.call([&] { driven.driver->add(late); }), Error,
                        [](const Error& error) { return error.code() == ErrorCode::transport_failed; });
}

BOOST_AUTO_TEST_SUITE_END()

// SPDX-License-Identifier: Apache-2.0
// When the loop sleeps and when it goes on asking, by counting what a fabric is asked.
#include <boost/test/unit_test.hpp>

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <stdexcept>

#include "session/fabric_driver.hpp"
#include "support/deadline.hpp"

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;

namespace {

/// A fabric that only counts; work is announced by its descriptor.
class CountingFabric final : public transport::Fabric {
 public:
  CountingFabric() : descriptor_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    if (descriptor_ < 0) throw std::runtime_error("eventfd");
  }
  ~CountingFabric() override { ::close(descriptor_); }
  CountingFabric(const CountingFabric&) = delete;
  CountingFabric& operator=(const CountingFabric&) = delete;

  /// From any thread: the next progress() finds something.
  void give_work() {
    const std::uint64_t one = 1;
    if (::write(descriptor_, &one, sizeof one) != sizeof one) throw std::runtime_error("eventfd");
  }

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
    std::uint64_t count = 0;
    if (::read(descriptor_, &count, sizeof count) != sizeof count) return false;
    ++worked;
    return true;
  }
  [[nodiscard]] int event_descriptor() const override { return descriptor_; }
  bool arm() override {
    ++armed;
    return true;
  }

  std::atomic<std::uint64_t> asked = 0;
  std::atomic<std::uint64_t> worked = 0;
  std::atomic<std::uint64_t> armed = 0;
  std::atomic<bool> broken = false;

 private:
  int descriptor_;
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
  /// True once nothing has asked the fabric for a while: the loop sleeps, since a spinning one asks all the time.
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
  Loop loop;
  std::unique_ptr<FabricDriver> driver;
  std::atomic<bool> broke = false;
};

}  // namespace

BOOST_AUTO_TEST_SUITE(fabric_driver)

BOOST_AUTO_TEST_CASE(without_spinning_the_loop_sleeps_as_soon_as_there_is_nothing_to_do) {
  Driven driven(0ns);
  BOOST_TEST(driven.falls_asleep());
  const std::uint64_t asked = driven.fabric.asked;
  driven.fabric.give_work();
  BOOST_TEST(driven.until([&] { return driven.fabric.worked == 1; }));
  BOOST_TEST(driven.falls_asleep());
  // Once for the work, once to see that there is no more; a round more for a loop that was woken twice.
  BOOST_TEST(driven.fabric.asked - asked <= 4U);
}

BOOST_AUTO_TEST_CASE(a_loop_that_spins_goes_on_asking_and_does_not_sleep_before_its_time) {
  Driven driven(std::chrono::hours(1));
  driven.fabric.give_work();
  BOOST_TEST(driven.until([&] { return driven.fabric.worked == 1 && driven.fabric.asked > 10000; }));
  BOOST_TEST(driven.fabric.armed == 0U);
}

BOOST_AUTO_TEST_CASE(a_loop_that_spins_sleeps_when_its_time_is_over) {
  Driven driven(20ms);
  BOOST_TEST(driven.falls_asleep());
  // And again after it was woken: by the fabric, and by a call.
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

BOOST_AUTO_TEST_CASE(a_fabric_that_breaks_is_not_asked_again) {
  Driven driven(std::chrono::hours(1));
  driven.fabric.broken = true;
  BOOST_TEST(driven.until([&] { return driven.broke.load(); }));
  const std::uint64_t asked = driven.fabric.asked;
  driven.loop.call([] {});
  BOOST_TEST(driven.fabric.asked == asked);
}

BOOST_AUTO_TEST_SUITE_END()

// SPDX-License-Identifier: Apache-2.0
// Members of an exchange in rounds, over fake calls: restores whose offer a case sets, and whose wait() always
// fails.
#include <array>
#include <atomic>
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <condition_variable>
#include <latch>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "exchange/exchange.hpp"
#include "exchange/made_exchange_host.hpp"
#include "support/deadline.hpp"
#include "support/fake_device.hpp"
#include "support/job.hpp"

BOOST_AUTO_TEST_SUITE(exchange_group)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;

namespace {

constexpr int member_count = 2;

/// Rendezvous points of the members' threads.
class Barriers {
 public:
  std::vector<Bytes> gather(int member, const std::string& name, Bytes value, Duration timeout,
                            ExchangeHost::Wait wait) {
    std::unique_lock lock(mutex_);
    auto& values = values_[name];
    values[static_cast<std::size_t>(member)] = std::move(value);
    changed_.notify_all();
    const auto met = [&] { return values[0] && values[1]; };
    changed_.wait_for(lock, timeout,
                      [&] { return met() || (wait == ExchangeHost::Wait::until_given_up && reason_.has_value()); });
    if (!met()) throw Error(ErrorCode::timed_out, "nobody else has come to " + name);
    return {*values[0], *values[1]};
  }
  void give_up(int member, const Error& why) {
    const std::lock_guard lock(mutex_);
    if (!reason_) {
      reason_ = Error(why.code(), "the exchange failed on member " + std::to_string(member) + ": " + why.what(),
                      why.ranks().empty() ? std::vector<Rank>{Rank{member}} : why.ranks());
    }
    changed_.notify_all();
  }
  std::optional<Error> reason(Duration at_most) {
    std::unique_lock lock(mutex_);
    const Duration time = at_most == Duration::zero() ? at_most : 40s;  // members are slow on a busy machine
    changed_.wait_for(lock, time, [&] { return reason_.has_value(); });
    return reason_;
  }

 private:
  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::map<std::string, std::array<std::optional<Bytes>, member_count>> values_;
  std::optional<Error> reason_;
};

/// Member 1 holds a tensor, and member 0 wants it.
struct Pair {
  /// One member's session.
  class Host final : public MadeExchangeHost {
   public:
    Host(Pair& pair, int member) : pair_(pair), member_(member) {}

    Meeting meet(const std::string& name, Bytes value, Duration timeout) override {
      Meeting met{pair_.barriers.gather(member_, name, std::move(value), timeout, Wait::to_the_end), nullptr};
      if (member_ == pair_.late) later_ = pair_.time;
      return met;
    }
    [[nodiscard]] Clock::Time now() const override { return MadeExchangeHost::now() + later_; }
    std::vector<Bytes> gather(const std::string& name, Bytes value, Duration timeout, Gathers::Kind,
                              Wait wait) override {
      if (member_ == 1 && pair_.before_member_1) pair_.before_member_1->wait();
      return pair_.barriers.gather(member_, name, std::move(value), timeout, wait);
    }
    Restore restore(const Catalog&, RestoreOptions options, std::optional<Method> method,
                    std::shared_ptr<RoundsStep> rounds) override {
      pair_.in_rounds = rounds != nullptr;
      pair_.method = method;
      pair_.restore_deadline = options.timeout;
      if (rounds) loop()->call([&] { pair_.offer(*rounds); });
      return {};
    }
    [[nodiscard]] std::optional<Error> reason(Duration patience) override { return pair_.barriers.reason(patience); }
    void give_up(const Error& why) override {
      pair_.barriers.give_up(member_, why);
      pair_.gave_up[static_cast<std::size_t>(member_)] = true;
      pair_.hosts[static_cast<std::size_t>(1 - member_)]->notify({pair_.departed, true});
    }

   private:
    Pair& pair_;
    int member_;
    Duration later_{};
  };

  TensorSpec spec{{"w", "exp_avg"}, DType::f32, {100}};
  TestShard target{spec, Layout::replicated(), Rank{0}};
  TestShard source{spec, Layout::replicated(), Rank{0}};
  std::byte* held_at = source.data();
  std::vector<int> departed{};              // as the session reports
  bool restore_fails = false;               // before the rounds begin
  std::array<bool, member_count> forced{};  // into rounds
  bool in_rounds = false;                   // whether it ran in rounds
  std::optional<Method> method{};           // forced on member 0's restore
  Duration restore_deadline{};              // of member 0's restore
  Duration time = 60s;                      // of each exchange
  int late = -1;                            // member whose time is over once all have met
  std::latch* before_member_1 = nullptr;    // it comes to no barrier before, except the first
  std::array<std::atomic<bool>, member_count> gave_up{};
  Barriers barriers;
  std::array<std::unique_ptr<Host>, member_count> hosts{std::make_unique<Host>(*this, 0),
                                                        std::make_unique<Host>(*this, 1)};

  // Error of one member's exchange, which always fails because restores do.
  Error error_of(int member) {
    Host& host = *hosts[static_cast<std::size_t>(member)];
    if (!departed.empty()) host.notify({departed, false});
    KeptGroup kept;
    ExchangeSetup setup{.member = member, .kept = &kept};
    if (forced[static_cast<std::size_t>(member)]) setup.method = Method::collective;
    Catalog held(Rank{0}, 1);
    Catalog wanted(Rank{0}, 1);
    if (member == 0) {
      target.add_to(wanted);
    } else {
      held.add(spec, Layout::replicated(), View{.data = held_at});
    }
    ExchangeOptions options;
    options.timeout = time;
    return failure_of([&] { shardwire::exchange(held, wanted, options, setup, host); });
  }
  void offer(RoundsStep& rounds) {
    const Box box = Box::whole(spec.shape);
    rounds.offer({{1, 0, 400, {box, memory::packed(box), 4, target.data()}}}, nullptr);
    if (restore_fails) rounds.stop();
  }
  /// Indexed by member.
  std::array<std::optional<Error>, member_count> errors() {
    std::array<std::optional<Error>, member_count> all;
    on_members(member_count, [&](int member) { all[static_cast<std::size_t>(member)].emplace(error_of(member)); });
    return all;
  }
};

}  // namespace

BOOST_AUTO_TEST_CASE(one_member_that_is_told_so_brings_all_into_rounds) {
  const Deadline deadline(120s);
  for (const auto& forced : {std::array{false, false}, std::array{false, true}, std::array{true, false}}) {
    Pair pair;
    pair.source.fill(7);
    pair.forced = forced;
    pair.errors();
    BOOST_TEST(pair.in_rounds == (forced[0] || forced[1]));
    BOOST_TEST((pair.target.wrong(7) == 0U) == pair.in_rounds);
  }
}

BOOST_AUTO_TEST_CASE(a_restore_of_an_exchange_has_what_is_left_of_its_time) {
  const Deadline deadline(120s);
  Pair pair;
  pair.errors();
  BOOST_TEST((pair.restore_deadline > 0s));
  BOOST_TEST((pair.restore_deadline < pair.time));  // the first barrier took some of it
}

BOOST_AUTO_TEST_CASE(a_restore_that_fails_just_before_the_rounds_ends_those_of_the_others) {
  const Deadline deadline(120s);
  Pair pair;
  pair.forced = {true, true};
  pair.restore_fails = true;
  const auto errors = pair.errors();
  BOOST_TEST((errors[0]->code() == ErrorCode::invalid_argument), errors[0]->what());
  BOOST_TEST((errors[1]->code() == ErrorCode::invalid_argument), errors[1]->what());
  BOOST_TEST(says(*errors[1], "the exchange failed on member 0"), errors[1]->what());
}

BOOST_AUTO_TEST_CASE(a_member_that_is_gone_ends_the_rounds_of_all) {
  const Deadline deadline(120s);
  Pair pair;
  pair.forced = {true, true};
  pair.departed = {1};
  const auto errors = pair.errors();
  BOOST_TEST((errors[0]->code() == ErrorCode::peer_lost), errors[0]->what());
  BOOST_TEST(says(*errors[0], "member 1 is gone"), errors[0]->what());
  BOOST_TEST((pair.target.wrong(7) != 0U));
}

BOOST_AUTO_TEST_CASE(a_member_that_waits_no_longer_is_heard_by_those_who_come_later) {
  const Deadline deadline(120s);
  Pair pair;
  pair.forced = {true, true};
  pair.late = 0;
  std::latch over(1);
  pair.before_member_1 = &over;
  std::array<std::optional<Error>, member_count> errors;
  on_members(member_count, [&](int member) {
    errors[static_cast<std::size_t>(member)].emplace(pair.error_of(member));
    if (member == 0) over.count_down();
  });
  for (const auto& error : errors) BOOST_TEST((error->code() == ErrorCode::timed_out), error->what());
  BOOST_TEST(says(*errors[1], "the exchange failed on member 0: nobody else has come"), errors[1]->what());
  BOOST_TEST(pair.gave_up[0]);
}

// Rounds between a device and the host do not exist. Restores forced into rounds fail and name the reason.
BOOST_AUTO_TEST_CASE(memory_of_a_device_is_not_sent_in_rounds_of_the_host) {
  const Deadline deadline(120s);
  UsedDevices devices;
  Pair pair;
  pair.forced = {false, true};
  pair.held_at = devices->take(1, 400);
  pair.errors();
  BOOST_TEST(!pair.in_rounds);
  BOOST_TEST((pair.method == Method::collective));
}

BOOST_AUTO_TEST_SUITE_END()

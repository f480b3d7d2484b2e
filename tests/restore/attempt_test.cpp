// SPDX-License-Identifier: Apache-2.0
// An attempt that only binds: its steps follow the states of its sources. Fake clock, link and fabrics; no session.
#include "restore/attempt.hpp"

#include <boost/test/unit_test.hpp>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "catalog/description.hpp"
#include "control/membership.hpp"
#include "fuzz/made_loop.hpp"
#include "restore/descriptions.hpp"
#include "restore/made_source.hpp"

BOOST_AUTO_TEST_SUITE(attempt)

using namespace shardwire;
using namespace shardwire::test;
using restore::Attempt;
using restore::Source;
using State = Source::State;

namespace {

TensorSpec spec() {
  return {{"w", "exp_avg"}, DType::f64, {4, 4}};
}

JobLayout job(int ranks, const Layout& layout) {
  return JobLayout::uniform(ranks, {TensorLayout{spec(), layout}});
}

Catalog catalog_of(std::vector<double>& destination) {
  Catalog catalog(Rank{0}, 1);
  catalog.add(spec(), Layout::replicated(), View{.data = destination.data()});
  return catalog;
}

RestoreOptions only_binds() {
  RestoreOptions options;
  options.bind_only = true;
  return options;
}

/// The member of a job that nobody hears of.
struct MadeMember final : Membership::Host, Membership::Clients {
  void directory_changed() override {}
  void seated(const wire::Joined&, Clock::Time) override {}
  void addresses_came(const wire::Addresses&) override {}
  void attempt_raised(std::uint32_t) override {}
  void rendezvous_lost(const Error&) override {}
  void defer(std::function<void()>) override {}
  void log(LogLevel, const std::string&) override {}
  std::uint16_t listen(const SocketAddress&) override { return 0; }
  std::string listen_locally() override { return {}; }
  void send_to(Rendezvous::ClientId, const Bytes&) override {}
  void notify(Rendezvous::ClientId, const Bytes&) override {}
  void check_alive(Rendezvous::ClientId, Connection::Verdict) override {}
  void dismiss(Rendezvous::ClientId, const Error&) override {}
  void serve_later(Rendezvous::ClientId, const std::function<void()>&) override {}

  fuzz::MadeLoop loop;
  Bootstrap bootstrap;
  Identity identity{};
  Membership membership{loop, *this, *this, bootstrap, identity};
};

/// Two sources with half of a tensor each, over one link that offers shm; or a plan that reads nothing.
struct Bench {
  explicit Bench(bool reads = true) {
    made.link->offer({shm});
    auto planning = std::make_shared<restore::Planning>();
    if (reads) {
      planning->from = job(2, Layout::chunk(0, 2));
      for (int rank = 0; rank < 2; ++rank) {
        wire::PublicationRecord& record = planning->records.emplace_back(made.binding.record);
        record.layout_rank = rank;
        planning->holders.push_back(Rank{rank});
      }
      Planner planner(planning->from, job(1, Layout::replicated()), {}, Replicas::spread);
      planning->plan = planner.plan(Rank{0});
      planning->schedule = planner.schedule(planning->plan);
    }
    attempt = std::make_unique<Attempt>(
        context,
        Attempt::Reports{.verified = [this] { ++verified; },
                         .stage = [this](restore::Stage stage) { stages.push_back(stage); },
                         .failed = [this](const std::exception_ptr&) { ++failures; },
                         .source_ended =
                             [this](const Source&, const std::exception_ptr&) {
                               ++ended;
                               attempt->stop();  // as the operation does
                               made.context.no_link.reset();
                             },
                         .path_lost = [](const Source&, restore::PathLoss, const std::string&) {},
                         .quieter = [] {}},
        target, events, path_failures, nullptr, std::move(planning), Attempt::Earlier{});
  }
  /// Both sources have their leases, and request handles.
  void to_connecting() {
    attempt->start();
    made.link->answer(wire::Leased{0, 77, MadeSource::step});
    made.link->answer(wire::Leased{0, 78, MadeSource::step});
  }
  void bind() {
    wire::Bound reply = MadeSource::reply_over(shm);
    reply.tensors.resize(1);
    made.link->answer(reply);
  }
  [[nodiscard]] State state(std::size_t index) const { return attempt->sources().at(index)->state(); }

  MadeSource made;
  MadeMember member;
  restore::Metadata metadata;
  restore::RestoreCache cache;
  memory::Copier copier{1, [] {}};
  memory::DeviceCopies copies{copier, [] {}, 1u << 20};
  move::PayloadTable payloads;
  CostModel costs;
  restore::Context context{made.context,
                           [](const std::function<void()>&) {},
                           member.membership,
                           member.membership.directory(),
                           metadata,
                           cache,
                           copier,
                           copies,
                           payloads,
                           costs,
                           [] { return restore::SessionFacts(); },
                           [](Operation&) {},
                           nullptr,
                           false,
                           [](std::span<const wire::PublicationRecord>) {},
                           [](const std::string&, const std::string&) {}};
  std::vector<double> destination = std::vector<double>(16);
  std::shared_ptr<const Catalog> catalog = std::make_shared<const Catalog>(catalog_of(destination));
  restore::Target target{{catalog, manifest_of(*catalog), restore::ValueScope::none},
                         {},
                         only_binds(),
                         std::nullopt,
                         made.clock.now(),
                         false};
  int verified = 0;
  int failures = 0;
  int ended = 0;
  std::vector<restore::Stage> stages;
  restore::DestinationEvents events{copies, [this](const std::exception_ptr&) { ++failures; }};
  restore::PathFailures path_failures;
  std::unique_ptr<Attempt> attempt;
};

}  // namespace

BOOST_AUTO_TEST_CASE(an_attempt_without_sources_is_verified_at_once) {
  Bench bench(false);
  bench.attempt->start();
  BOOST_TEST(bench.verified == 1);
  BOOST_TEST(bench.failures == 0);
}

BOOST_AUTO_TEST_CASE(an_attempt_is_verified_once_when_its_last_source_has_confirmed) {
  Bench bench;
  bench.to_connecting();
  bench.bind();
  BOOST_TEST((bench.state(0) == State::bound));
  BOOST_TEST(bench.stages.empty());
  bench.bind();
  BOOST_TEST(bench.verified == 1);
  BOOST_TEST(bench.failures == 0);
  BOOST_TEST((bench.stages == std::vector{restore::Stage::verify}));
  BOOST_TEST(have_reached(bench.attempt->sources(), State::released));
  BOOST_TEST((bench.attempt->tally() == nullptr));
}

BOOST_AUTO_TEST_CASE(no_further_source_is_started_once_an_attempt_is_stopped) {
  Bench bench;
  bench.made.context.no_link = Error(ErrorCode::peer_lost, "no route");
  bench.attempt->start();
  BOOST_TEST(bench.ended == 1);
  BOOST_TEST((bench.state(1) == State::resolving));
  BOOST_TEST(bench.made.link->requests_made == 0U);
  BOOST_TEST(bench.verified == 0);
}

BOOST_AUTO_TEST_CASE(an_attempt_that_is_stopped_goes_no_further_and_returns_its_leases) {
  Bench bench;
  bench.to_connecting();
  bench.attempt->stop();
  bench.bind();
  bench.bind();
  BOOST_TEST(bench.stages.empty());
  BOOST_TEST(bench.verified == 0);
  BOOST_TEST(bench.attempt->quiet(false));
  bench.attempt->release();
  BOOST_TEST(have_reached(bench.attempt->sources(), State::released));
  BOOST_TEST(bench.made.link->posted_releases(77) == 1U);
  BOOST_TEST(bench.made.link->posted_releases(78) == 1U);
  BOOST_TEST(bench.made.link->watchers() == 0U);
}

BOOST_AUTO_TEST_CASE(an_attempt_whose_sources_have_confirmed_is_parked_with_their_bindings) {
  Bench bench;
  bench.to_connecting();
  bench.bind();
  bench.bind();
  bench.attempt->release();
  const auto parked = bench.attempt->park();
  BOOST_REQUIRE(parked != nullptr);
  BOOST_TEST(parked->from == "state");
  BOOST_REQUIRE(parked->bindings.size() == 2U);
  for (const restore::Binding& binding : parked->bindings) BOOST_TEST(binding.generation == MadeSource::generation);
  BOOST_TEST((parked->planning != nullptr));
  BOOST_REQUIRE((parked->chosen.transfers != nullptr));
  BOOST_TEST(parked->chosen.transfers->size() == 2U);
}

BOOST_AUTO_TEST_SUITE_END()

// SPDX-License-Identifier: Apache-2.0
// One source of a restore, transition by transition, on a fake clock, link and fabrics.
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "restore/source_steps.hpp"

BOOST_AUTO_TEST_SUITE(source)

using namespace shardwire;
using namespace shardwire::test;
using restore::Source;
using State = Source::State;
using Event = Source::Event;
using Leasing = Source::Leasing;
using namespace std::chrono_literals;
using namespace std::string_literals;

namespace {

constexpr std::uint64_t generation = MadeSource::generation;
constexpr std::uint64_t lease = MadeSource::lease;
const Error no_route(ErrorCode::transport_failed, "no route");

// --- each row of the table ---

struct Step {
  State from;
  Event event;
  State to;
  std::function<void(MadeSource&)> reach;  ///< brings a new source into state `from`
  std::function<bool(MadeSource&)> fire;   ///< returns false if the event had not its effect
};

const std::vector<Step> steps{
    {State::resolving, Event::own_found, State::bound, [](MadeSource&) {},
     [](MadeSource& made) {
       start_own(made);
       return made.source->requests().lease() == MadeContext::own_lease && made.listener.bound == 1;
     }},
    {State::resolving, Event::binding_kept, State::bound, [](MadeSource& made) { made.keep(shm); },
     [](MadeSource& made) {
       made.start(Leasing::none);
       return made.link->requests.empty() && made.listener.bound == 1;
     }},
    {State::resolving, Event::link_found, State::leasing, [](MadeSource&) {},
     [](MadeSource& made) {
       made.start();
       return asked<wire::Lease>(made).generation == generation;
     }},
    {State::leasing, Event::binding_holds, State::bound,
     [](MadeSource& made) {
       made.keep(shm);
       made.start();
     },
     [](MadeSource& made) {
       made.link->answer(wire::Leased{0, lease, MadeSource::step});
       return made.link->requests.empty() && made.listener.bound == 1;
     }},
    {State::leasing, Event::lease_granted, State::connecting, to_leasing,
     [](MadeSource& made) {
       made.link->answer(wire::Leased{0, lease, MadeSource::step});
       return made.source->requests().lease() == lease && made.asked_over() == "tcp";
     }},
    {State::connecting, Event::proof_began, State::proving,
     [](MadeSource& made) {
       made.link->offer({ucx});
       made.start_with_lease();
     },
     [](MadeSource& made) {
       made.bind_over(ucx);
       return made.fabric(ucx).endpoint().reading() == 1;
     }},
    {State::connecting, Event::fabric_bound, State::connecting, to_connecting_of_two,
     [](MadeSource& made) {
       made.bind_over(shm);
       return made.source->binding().connected.size() == 1 && made.fabric(tcp).prepared == 1;
     }},
    {State::connecting, Event::fabric_excluded, State::connecting, to_connecting_of_two,
     [](MadeSource& made) {
       made.link->refuse(ErrorCode::unsupported);
       return made.source->binding().excluded.contains(shm) && made.fabric(tcp).prepared == 1;
     }},
    {State::connecting, Event::fabrics_done, State::bound, to_connecting,
     [](MadeSource& made) {
       made.bind_over(tcp);
       return made.source->bound_anew() && made.listener.bound == 1;
     }},
    {State::proving, Event::fabric_bound, State::connecting, to_proving_of_two,
     [](MadeSource& made) {
       made.fabric(ucx).endpoint().complete(generation);
       return made.source->binding().connected.size() == 1 && made.fabric(tcp).prepared == 1;
     }},
    {State::proving, Event::fabric_excluded, State::connecting, to_proving_of_two,
     [](MadeSource& made) {
       made.clock.advance(10s);
       return made.source->binding().excluded.contains(ucx) && made.fabric(tcp).prepared == 1;
     }},
    {State::proving, Event::proof_began, State::proving,
     [](MadeSource& made) {
       to_proving(made);
       made.fabric(ucx).endpoint().fail(ErrorCode::transport_failed, "a bit fell over");
     },
     [](MadeSource& made) {
       made.bind_over(ucx);
       return made.fabric(ucx).endpoint().reading() == 1 && made.fabric(ucx).endpoint().reads_begun == 2;
     }},
    {State::bound, Event::move_began, State::moving, to_bound,
     [](MadeSource& made) {
       made.source->begin_moving();
       return made.listener.calls() == 1;
     }},
    {State::bound, Event::move_ended, State::confirming, to_bound,
     [](MadeSource& made) {
       made.source->confirm(false);
       return asked<wire::Release>(made).lease == lease;
     }},
    {State::moving, Event::move_ended, State::confirming, to_moving,
     [](MadeSource& made) {
       made.source->confirm(false);
       return asked<wire::Release>(made).lease == lease;
     }},
    {State::confirming, Event::lease_granted, State::confirming, to_confirming_without_lease_yet,
     [](MadeSource& made) {
       made.link->answer(wire::Leased{0, lease, MadeSource::step});
       return asked<wire::Release>(made).lease == lease;
     }},
    {State::confirming, Event::word_live, State::released, to_reading_word,
     [](MadeSource& made) {
       made.fabric(ucx).endpoint().complete(generation);
       return made.link->requests.empty() && made.listener.confirmed == 1;
     }},
    {State::confirming, Event::word_unclear, State::confirming, to_reading_word,
     [](MadeSource& made) {
       made.fabric(ucx).endpoint().complete(0);
       return asked<wire::Release>(made).lease == lease;
     }},
    {State::confirming, Event::intact, State::released, to_confirming,
     [](MadeSource& made) {
       made.link->answer(wire::Released{0, true});
       return made.listener.confirmed == 1;
     }},
};

bool is(const Source::Transition& row, const Step& step) {
  return row.from == step.from && row.event == step.event && row.to == step.to;
}

// --- the ends ---

struct Place {
  State state;
  std::function<void(MadeSource&)> reach;
};
/// All states except the last three, and resolving, which start() leaves before it returns.
const std::vector<Place> places{{State::leasing, to_leasing}, {State::connecting, to_connecting},
                                {State::proving, to_proving}, {State::bound, to_bound},
                                {State::moving, to_moving},   {State::confirming, to_confirming}};

struct Ending {
  Event event;
  std::optional<ErrorCode> code;  ///< of the reported error; nullopt: no report
  std::function<void(MadeSource&)> end;
};
void ask_and_be_refused(MadeSource& made, ErrorCode code) {
  made.source->requests().ask_for_digests({}, [](const auto&) {});
  made.link->refuse(code, "so it is", made.link->requests.size() - 1);
}
const std::vector<Ending> endings{
    {Event::link_ended, ErrorCode::peer_lost, [](MadeSource& made) { made.link->end(no_route); }},
    {Event::failed, ErrorCode::transport_failed,
     [](MadeSource& made) { ask_and_be_refused(made, ErrorCode::transport_failed); }},
    {Event::refused, ErrorCode::withdrawn, [](MadeSource& made) { ask_and_be_refused(made, ErrorCode::withdrawn); }},
    {Event::dismissed, {}, [](MadeSource& made) { made.source->release(); }},
};
const std::vector<Ending> endings_of_resolving{
    {Event::link_ended, ErrorCode::peer_lost,
     [](MadeSource& made) {
       made.link->ends_when_watched = no_route;
       made.start();
     }},
    {Event::failed, ErrorCode::transport_failed,
     [](MadeSource& made) {
       made.context.no_link = no_route;
       made.start();
     }},
    {Event::refused, ErrorCode::withdrawn,
     [](MadeSource& made) {
       made.binding.record.member = MadeContext::own_member;
       made.start();
     }},
    {Event::dismissed,
     {},
     [](MadeSource& made) {
       // The restore releases the source before starting it.
       made.source =
           std::make_unique<Source>(made.context, made.listener, restore::PathInputs{made.context.table, made.reach},
                                    made.options, 0, made.binding);
       made.source->release();
     }},
};

State end_of(Event event) {
  return std::ranges::find(Source::ends, event, &Source::End::event)->to;
}

}  // namespace

// --- the tables ---

BOOST_AUTO_TEST_CASE(every_transition_has_a_step_that_tries_it_and_no_two_rows_answer_one_event) {
  BOOST_TEST(steps.size() == Source::transitions.size());
  for (const Source::Transition& row : Source::transitions) {
    const auto text = std::string(to_string(row.from)) + ", event " + std::to_string(static_cast<int>(row.event));
    const auto tried = std::ranges::count_if(steps, [&](const Step& step) { return is(row, step); });
    const auto rows = std::ranges::count_if(Source::transitions, [&](const Source::Transition& other) {
      return other.from == row.from && other.event == row.event;
    });
    BOOST_TEST(tried == 1, text << " has " << tried << " steps");
    BOOST_TEST(rows == 1, text << " has " << rows << " rows");
  }
}

BOOST_DATA_TEST_CASE(each_transition, boost::unit_test::data::xrange(steps.size()), index) {
  const Step& step = steps[index];
  MadeSource made;
  step.reach(made);
  BOOST_REQUIRE(to_string(made.source ? made.source->state() : State::resolving) == to_string(step.from));
  BOOST_TEST(step.fire(made));
  BOOST_TEST(made.state() == to_string(step.to));
  BOOST_TEST(made.listener.lost == 0);
  require_over(made);
}

BOOST_DATA_TEST_CASE(each_transition_to_another_state_is_one_line_of_the_log,
                     boost::unit_test::data::xrange(steps.size()), index) {
  const Step& step = steps[index];
  MadeSource made;
  step.reach(made);
  made.context.changes.clear();
  step.fire(made);
  // A step may take further transitions, such as to connecting and on to bound.
  std::string_view state = to_string(step.from);
  for (const std::string& line : made.context.changes) {
    const std::string last = "source rank 3, member " + std::to_string(made.source->binding().record.member) +
                             ", of 'model': " + std::string(state) + " -> ";
    BOOST_REQUIRE(line.starts_with(last));
    const std::string_view rest = std::string_view(line).substr(last.size());
    state = rest.substr(0, rest.find(' '));
  }
  BOOST_TEST(state == to_string(step.to));
  BOOST_TEST(made.context.changes.empty() == (step.from == step.to));
}

BOOST_AUTO_TEST_CASE(the_line_of_a_change_has_the_time_in_the_last_state) {
  MadeSource made;
  made.link->offer({tcp});
  made.start();
  made.clock.advance(20ms);
  made.link->answer(wire::Leased{0, lease, MadeSource::step});
  made.clock.advance(1500us);
  made.bind_over(tcp);
  made.source->begin_moving();
  made.clock.advance(2s);
  made.link->end(no_route);
  made.clock.advance(1s);
  made.source->release();
  BOOST_TEST(
      (made.context.changes == Names{"source rank 3, member 1, of 'model': resolving -> leasing after 0.000000 s",
                                     "source rank 3, member 1, of 'model': leasing -> connecting after 0.020000 s",
                                     "source rank 3, member 1, of 'model': connecting -> bound after 0.001500 s",
                                     "source rank 3, member 1, of 'model': bound -> moving after 0.000000 s",
                                     "source rank 3, member 1, of 'model': moving -> lost after 2.000000 s"}));
}

BOOST_AUTO_TEST_CASE(every_end_is_tried_from_every_state_that_is_not_the_last) {
  for (const Source::End& row : Source::ends) {
    for (const auto* all : {&endings, &endings_of_resolving}) {
      BOOST_TEST(std::ranges::count(*all, row.event, &Ending::event) == 1);
    }
  }
  BOOST_TEST(endings.size() == Source::ends.size());
  for (const Source::Transition& row : Source::transitions) {
    if (row.from == State::resolving) continue;
    BOOST_TEST(std::ranges::count(places, row.from, &Place::state) == 1, to_string(row.from));
  }
}

BOOST_DATA_TEST_CASE(each_end_from_each_state,
                     boost::unit_test::data::xrange(places.size()) * boost::unit_test::data::xrange(endings.size()),
                     place, ending) {
  MadeSource made;
  places[place].reach(made);
  BOOST_REQUIRE(made.state() == to_string(places[place].state));
  const int bound = made.listener.bound;
  endings[ending].end(made);
  BOOST_TEST(made.state() == to_string(end_of(endings[ending].event)));
  BOOST_TEST(made.source->requests().unanswered() == 0);
  BOOST_TEST(made.listener.bound == bound);
  BOOST_TEST(made.listener.confirmed == 0);
  BOOST_TEST(made.listener.lost == (endings[ending].code ? 1 : 0));
  if (endings[ending].code) BOOST_TEST(code_of(made) == to_string(*endings[ending].code));
  require_over(made);
}

BOOST_DATA_TEST_CASE(each_end_before_anything_was_asked, boost::unit_test::data::xrange(endings.size()), ending) {
  MadeSource made;
  endings_of_resolving[ending].end(made);
  BOOST_TEST(made.state() == to_string(end_of(endings_of_resolving[ending].event)));
  BOOST_TEST(made.link->requests_made == 0U);
  BOOST_TEST(made.listener.calls() == made.listener.lost);
  BOOST_TEST(made.listener.lost == (endings_of_resolving[ending].code ? 1 : 0));
  if (const auto code = endings_of_resolving[ending].code) {
    BOOST_TEST(to_string(made.listener.error->code()) == to_string(*code));
  }
  require_over(made);
}

BOOST_AUTO_TEST_CASE(an_event_without_a_row_does_nothing) {
  const std::vector<std::pair<Event, std::function<void(Source&)>>> calls{
      {Event::move_began, [](Source& source) { source.begin_moving(); }},
      {Event::move_ended, [](Source& source) { source.confirm(true); }}};
  std::vector<Place> all = places;
  all.push_back({State::released, [](MadeSource& made) {
                   to_bound(made);
                   made.source->release();
                 }});
  all.push_back({State::lost, [](MadeSource& made) {
                   to_bound(made);
                   made.link->end(no_route);
                 }});
  all.push_back({State::withdrawn, [](MadeSource& made) {
                   to_bound(made);
                   ask_and_be_refused(made, ErrorCode::withdrawn);
                 }});
  int tried = 0;
  for (const Place& place : all) {
    for (const auto& [event, call] : calls) {
      const bool has_row = std::ranges::any_of(Source::transitions, [&, wanted = event](const Source::Transition& row) {
        return row.from == place.state && row.event == wanted;
      });
      if (has_row) continue;
      ++tried;
      MadeSource made;
      place.reach(made);
      const std::size_t requests = made.link->requests_made;
      const int reports = made.listener.calls();
      call(*made.source);
      BOOST_TEST(made.state() == to_string(place.state));
      BOOST_TEST(made.link->requests_made == requests);
      BOOST_TEST(made.listener.calls() == reports);
    }
  }
  BOOST_TEST(tried == 15);
}

BOOST_DATA_TEST_CASE(a_source_that_has_ended_asks_nothing_and_ends_once,
                     boost::unit_test::data::xrange(endings.size()) * boost::unit_test::data::xrange(endings.size()),
                     first, second) {
  MadeSource made;
  to_moving(made);
  endings[first].end(made);
  const auto state = made.state();
  const std::size_t requests = made.link->requests_made;
  const int reports = made.listener.calls();
  made.source->requests().ask_if_live([] { BOOST_ERROR("it was asked"); });
  made.source->requests().ask_for_digests({}, [](const auto&) { BOOST_ERROR("it was asked"); });
  made.source->requests().ask_for_payload({.request = 50, .lease = 0, .parts = {}}, [](const std::string&) {});
  BOOST_TEST(made.link->requests_made == requests);
  if (endings[second].event == Event::link_ended) made.link->end(no_route);
  if (endings[second].event == Event::dismissed) made.source->release();
  BOOST_TEST(made.state() == state);
  BOOST_TEST(made.listener.calls() == reports);
  require_over(made);
}

// --- leases ---

BOOST_AUTO_TEST_CASE(a_lease_is_asked_for_all_that_is_read_of_the_generation) {
  MadeSource made;
  to_leasing(made);
  const auto& request = asked<wire::Lease>(made);
  BOOST_TEST(request.publication == "model");
  BOOST_TEST(request.generation == generation);
  BOOST_TEST((request.ranges == std::vector<wire::TensorRange>{{0, {}}, {2, {}}}));
  BOOST_TEST(request.request == 1000U);
  BOOST_TEST(made.source->requests().unanswered() == 1);
  BOOST_TEST(!made.source->requests().was_leased());
  made.link->answer(wire::Leased{0, lease, MadeSource::step});
  BOOST_TEST(made.source->requests().lease() == lease);
  BOOST_TEST(made.source->requests().was_leased());
  BOOST_TEST(asked<wire::Bind>(made).lease == lease);
  BOOST_TEST(asked<wire::Bind>(made).request == 1001U);
}

BOOST_AUTO_TEST_CASE(a_lease_that_is_granted_too_late_is_given_back) {
  MadeSource made;
  to_leasing(made);
  made.source->release();
  BOOST_TEST(made.link->posted.empty());
  made.link->answer(wire::Leased{0, lease, MadeSource::step});
  BOOST_REQUIRE(made.link->posted.size() == 1U);
  BOOST_TEST((std::get<wire::Release>(made.link->posted[0]) == wire::Release{0, lease}));
  BOOST_TEST(made.source->requests().lease() == 0U);
  BOOST_TEST(made.state() == "released");
}

BOOST_AUTO_TEST_CASE(a_lease_that_is_granted_when_the_source_is_gone_is_given_back) {
  MadeSource made;
  to_leasing(made);
  made.source.reset();
  made.link->answer(wire::Leased{0, lease, MadeSource::step});
  BOOST_TEST(made.link->posted_releases(lease) == 1U);
  to_leasing(made);
  made.source.reset();
  made.link->refuse(ErrorCode::withdrawn);
  BOOST_TEST(made.link->posted_releases(lease) == 1U);
  BOOST_TEST(made.listener.calls() == 0);
}

BOOST_AUTO_TEST_CASE(a_lease_that_comes_after_its_link_is_gone_is_forgotten) {
  MadeSource made;
  to_leasing(made);
  MadeLink::Request request = std::move(made.link->requests.front());
  made.link->requests.clear();
  made.source.reset();
  made.binding = {};
  made.link.reset();
  wire::Message granted = wire::Leased{request.number, lease};
  request.answer(granted);
  BOOST_TEST(made.listener.calls() == 0);
}

BOOST_AUTO_TEST_CASE(a_source_that_has_withdrawn_says_so_and_every_other_refusal_loses_it) {
  {
    MadeSource made;
    to_leasing(made);
    made.link->refuse(ErrorCode::withdrawn, "it is gone");
    BOOST_TEST(made.state() == "withdrawn");
    BOOST_TEST(code_of(made) == "withdrawn");
    BOOST_TEST(error_of(made) == "source rank 3 refused: it is gone");
    require_over(made);
  }
  for (const ErrorCode code : {ErrorCode::unsupported, ErrorCode::out_of_resources, ErrorCode::peer_lost,
                               ErrorCode::transport_failed, ErrorCode::internal}) {
    MadeSource made;
    to_leasing(made);
    made.link->refuse(code, "no");
    BOOST_TEST(made.state() == "lost");
    BOOST_TEST(code_of(made) == to_string(code));
    require_over(made);
  }
}

BOOST_AUTO_TEST_CASE(an_answer_of_another_kind_loses_the_source) {
  for (const auto& reach : {to_leasing, to_connecting, to_confirming}) {
    MadeSource made;
    reach(made);
    made.link->answer(wire::Pong{});
    BOOST_TEST(made.state() == "lost");
    BOOST_TEST(code_of(made) == "transport_failed");
    BOOST_TEST(error_of(made) == "source rank 3 sent another reply than was asked for");
    require_over(made);
  }
}

BOOST_AUTO_TEST_CASE(the_end_of_the_link_names_the_source_and_the_reason) {
  MadeSource made;
  to_moving(made);
  made.link->end(Error(ErrorCode::out_of_resources, "member 1 is lost: no descriptors"));
  BOOST_TEST(code_of(made) == "peer_lost");
  BOOST_TEST(error_of(made) == "source rank 3: member 1 is lost: no descriptors");
}

BOOST_AUTO_TEST_CASE(an_exception_of_the_session_that_is_none_of_ours_loses_the_source) {
  struct Listener final : Source::Listener {
    void on_bound(Source&) override {}
    void on_lost(Source&, const std::exception_ptr& error) override {
      BOOST_CHECK_EXCEPTION(std::rethrow_exception(error), std::runtime_error,
                            [](const auto& one) { return one.what() == "no memory"s; });
      ++lost;
    }
    void on_confirmed(Source&) override {}
    int lost = 0;
  };
  MadeSource made;
  made.context.link = [](const auto&) -> std::shared_ptr<SourceLink> { throw std::runtime_error("no memory"); };
  Listener listener;
  Source source(made.context, listener, {made.context.table, made.reach}, made.options, 0, made.binding);
  source.start(Leasing::first);
  BOOST_TEST(listener.lost == 1);
  BOOST_TEST(to_string(source.state()) == "lost");
}

// --- this process as a source ---

BOOST_AUTO_TEST_CASE(memory_of_this_process_is_leased_read_and_given_back_without_a_link) {
  MadeSource made;
  start_own(made);
  BOOST_TEST(made.state() == "bound");
  BOOST_TEST(made.source->binding().is_own());
  BOOST_TEST(made.source->bound_anew());
  BOOST_TEST(made.source->binding().generation == generation);
  made.source->begin_moving();
  made.source->confirm(false);
  BOOST_TEST(made.state() == "released");
  BOOST_TEST(made.listener.confirmed == 1);
  BOOST_TEST((made.context.released_own == std::vector{MadeContext::own_lease}));
  made.source->release();
  BOOST_TEST(made.context.released_own.size() == 1U);
  BOOST_TEST(!made.source->take_binding().own);
  BOOST_TEST(made.link->requests_made == 0U);
  BOOST_TEST(made.link->watchers() == 0U);
}

BOOST_AUTO_TEST_CASE(memory_of_this_process_that_was_bound_before_is_not_bound_anew) {
  MadeSource made;
  made.binding.generation = generation;
  start_own(made);
  BOOST_TEST(made.state() == "bound");
  BOOST_TEST(!made.source->bound_anew());
}

BOOST_AUTO_TEST_CASE(memory_of_this_process_that_is_given_up_ends_its_lease_once) {
  MadeSource made;
  start_own(made);
  made.source->begin_moving();
  made.source->release();
  made.source->release();
  BOOST_TEST(made.state() == "released");
  BOOST_TEST(made.context.released_own.size() == 1U);
  BOOST_TEST(made.listener.calls() == 1);
}

BOOST_AUTO_TEST_CASE(memory_of_this_process_that_was_touched_meanwhile_is_withdrawn) {
  MadeSource made;
  start_own(made);
  made.context.untouched = false;
  made.source->confirm(false);
  BOOST_TEST(made.state() == "withdrawn");
  BOOST_TEST(code_of(made) == "withdrawn");
  BOOST_TEST(error_of(made) == "source rank 3 withdrew step 7 of 'model' while it was being read");
  made.source->release();
  BOOST_TEST(made.context.released_own.size() == 1U);
}

BOOST_AUTO_TEST_CASE(a_publication_of_this_process_that_is_another_by_now_is_withdrawn) {
  MadeSource made;
  made.context.published = std::make_shared<detail::PublicationState>();
  made.context.published->generation = generation + 1;
  made.binding.record.member = MadeContext::own_member;
  made.start();
  BOOST_TEST(made.state() == "withdrawn");
  BOOST_TEST(code_of(made) == "withdrawn");
  BOOST_TEST(error_of(made) == "'model' was withdrawn while it was being read");
  made.source->release();
  BOOST_TEST(made.context.released_own.empty());
}

BOOST_AUTO_TEST_CASE(device_memory_of_this_process_that_was_freed_is_withdrawn) {
  MadeSource made;
  const std::byte freed{};
  made.context.published = std::make_shared<detail::PublicationState>();
  auto& published = *made.context.published;
  published.name = "model";
  published.generation = generation;
  published.tensors.resize(3);
  published.tensors[2].data = &freed;
  published.tensors[2].place = memory::DeviceAllocation{.device = 0, .address = &freed, .bytes = 1, .number = 5};
  const TensorSpec spec{{"weight", "param"}, DType::f32, {4}};
  published.described.manifest =
      std::make_shared<const Manifest>(Manifest{1, std::vector<TensorLayout>(3, {spec, Layout::replicated()})});
  made.binding.record.member = MadeContext::own_member;
  made.start();
  BOOST_TEST(made.state() == "withdrawn");
  BOOST_TEST(code_of(made) == "withdrawn");
  BOOST_TEST(error_of(made).starts_with("weight:param of 'model' is no longer in the memory of device 0"));
  made.source->release();
  BOOST_TEST(made.context.released_own.empty());
}

// --- a listener that acts at once ---

BOOST_AUTO_TEST_CASE(a_listener_may_release_the_source_when_it_is_bound) {
  const std::vector<std::function<void(MadeSource&)>> ways{
      [](MadeSource& made) { to_bound(made); },  // inside an answer
      [](MadeSource& made) {                     // inside a read's completion
        to_proving(made);
        made.fabric(ucx).endpoint().complete(generation);
      },
      [](MadeSource& made) {  // inside an alarm
        made.options.fabrics.connect = restore::SourceFabrics::Connect::every;
        to_proving(made);
        made.clock.advance(10s);
      },
      [](MadeSource& made) {  // inside the end of preparing
        made.options.fabrics.connect = restore::SourceFabrics::Connect::every;
        made.fabric(tcp).prepares_later = true;
        made.link->offer({tcp});
        made.start_with_lease();
        made.link->end_preparing(tcp, &no_route);
      },
      [](MadeSource& made) {  // inside a lease's answer
        made.keep(shm);
        made.listener.do_when_bound = [](Source& source) { source.release(); };
        made.start_with_lease();
      },
      start_own,
  };
  for (const auto& reach : ways) {
    MadeSource made;
    made.listener.do_when_bound = [](Source& source) { source.release(); };
    reach(made);
    BOOST_TEST(made.state() == "released");
    BOOST_TEST(made.listener.calls() == 1);
    BOOST_TEST(made.listener.bound == 1);
    require_over(made);
  }
}

BOOST_AUTO_TEST_CASE(a_listener_may_release_the_source_when_it_is_lost) {
  for (const Place& place : places) {
    for (const Ending& ending : endings) {
      if (!ending.code) continue;
      MadeSource made;
      made.listener.do_when_lost = [](Source& source) { source.release(); };
      place.reach(made);
      ending.end(made);
      BOOST_TEST(made.state() == to_string(end_of(ending.event)));
      BOOST_TEST(made.link->watchers() == 0U);
      require_over(made);
    }
  }
  MadeSource made;  // inside an alarm
  made.listener.do_when_lost = [](Source& source) { source.release(); };
  to_proving(made);
  made.clock.advance(10s);
  BOOST_TEST(made.state() == "lost");
  require_over(made);
}

BOOST_AUTO_TEST_CASE(a_listener_may_release_the_source_when_it_is_confirmed) {
  MadeSource made;
  made.listener.do_when_confirmed = [](Source& source) { source.release(); };
  to_confirming(made);
  made.link->answer(wire::Released{0, true});
  BOOST_TEST(made.state() == "released");
  require_over(made);
}

BOOST_AUTO_TEST_CASE(a_listener_may_go_on_at_once_when_the_source_is_bound) {
  MadeSource made;
  made.listener.do_when_bound = [](Source& source) {
    source.begin_moving();
    source.confirm(false);
  };
  made.link->offer({shm});
  made.start_with_lease();
  made.bind_over(shm);
  BOOST_TEST(made.state() == "released");
  BOOST_TEST(made.listener.bound == 1);
  BOOST_TEST(made.listener.confirmed == 1);
  require_over(made);
}

BOOST_AUTO_TEST_CASE(a_source_that_is_destroyed_takes_no_answer) {
  for (const Place& place : places) {
    MadeSource made;
    place.reach(made);
    const int calls = made.listener.calls();
    const std::size_t requests = made.link->requests_made;
    made.source.reset();
    made.happen_late();
    made.link->end(no_route);
    BOOST_TEST(made.listener.calls() == calls);
    BOOST_TEST(made.link->requests_made == requests);
    BOOST_TEST(made.clock.alarms_set() == 0U);
  }
}

BOOST_AUTO_TEST_CASE(states_have_names) {
  BOOST_TEST(to_string(State::resolving) == "resolving");
  BOOST_TEST(to_string(State::withdrawn) == "withdrawn");
}

BOOST_AUTO_TEST_SUITE_END()

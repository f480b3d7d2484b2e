// SPDX-License-Identifier: Apache-2.0
// Reading and confirming a source: over a cached binding, without a lease, and again after its connection has ended.
#include <boost/test/unit_test.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "restore/source_steps.hpp"

BOOST_AUTO_TEST_SUITE(source_reading)

using namespace shardwire;
using namespace shardwire::test;
using restore::Source;
using Leasing = Source::Leasing;

namespace {

constexpr std::uint64_t generation = MadeSource::generation;
constexpr std::uint64_t lease = MadeSource::lease;

/// The source is not asked about bytes that came over this transport. `proven`: by the messages that brought them.
void require_no_question(std::size_t over, bool proven) {
  for (const Leasing leasing : {Leasing::first, Leasing::none}) {
    MadeSource made;
    made.keep(over);
    made.start(leasing);
    if (leasing == Leasing::first) made.link->answer(wire::Leased{0, lease, MadeSource::step});
    made.source->begin_moving();
    made.source->confirm(proven);
    BOOST_TEST(made.state() == "released");
    BOOST_TEST(made.listener.confirmed == 1);
    BOOST_TEST(made.link->requests.empty());
    BOOST_TEST(made.link->asked_to_release.empty());
    BOOST_TEST(made.link->posted_releases(lease) == (leasing == Leasing::first ? 1U : 0U));
    require_over(made);
  }
}

}  // namespace

// --- a binding of an earlier operation ---

BOOST_AUTO_TEST_CASE(a_binding_that_holds_is_used_as_it_is) {
  for (const std::size_t over : {shm, ucx, tcp}) {
    MadeSource made;
    made.keep(over);
    made.start_with_lease();
    BOOST_TEST(made.state() == "bound");
    BOOST_TEST(made.link->requests.empty());
    BOOST_TEST(!made.source->bound_anew());
    BOOST_TEST(made.source->requests().lease() == lease);
    require_over(made);
  }
}

BOOST_AUTO_TEST_CASE(a_binding_over_another_link_is_made_anew) {
  MadeSource made;
  made.keep(shm);
  const auto before = made.link;
  made.link = before->another();
  made.start_with_lease();
  BOOST_TEST(made.state() == "connecting");
  BOOST_TEST(asks_for_bind(made));
  BOOST_TEST(made.source->binding().generation == 0U);
  made.bind_over(shm);
  BOOST_TEST(made.source->bound_anew());
  BOOST_TEST(made.source->binding().link == made.link);
  require_over(made);
  BOOST_TEST(before->watchers() == 0U);
}

BOOST_AUTO_TEST_CASE(a_binding_of_another_generation_is_made_anew) {
  MadeSource made;
  made.keep(shm);
  made.binding.record.generation = generation + 1;
  made.start_with_lease();
  BOOST_TEST(asks_for_bind(made));
  made.bind_over(shm);
  BOOST_TEST(made.state() == "bound");
  BOOST_TEST(made.source->bound_anew());
  BOOST_TEST(made.source->binding().generation == generation + 1);
  // The word is the previous generation's.
  made.source->confirm(false);
  BOOST_TEST(made.state() == "confirming");
}

BOOST_AUTO_TEST_CASE(a_binding_over_an_endpoint_that_has_failed_is_made_anew) {
  MadeSource made;
  made.keep(tcp);
  made.fabric(tcp).endpoint().is_failed = true;
  const auto before = made.fabric(tcp).channel;
  made.start_with_lease();
  BOOST_TEST(asks_for_bind(made));
  made.bind_over(tcp);
  BOOST_TEST(made.source->bound_anew());
  BOOST_TEST(made.source->binding().connected.at(0).channel != before);
}

BOOST_AUTO_TEST_CASE(a_binding_without_messages_is_made_anew_for_an_operation_that_wants_them) {
  MadeSource made;
  made.keep(shm);
  made.options.fabrics.wants_messages = true;
  made.link->offer({shm, tcp});
  made.start_with_lease();
  BOOST_TEST(asks_for_bind(made));
  made.bind_over(shm);
  made.bind_over(tcp);
  BOOST_TEST(made.state() == "bound");
  BOOST_TEST((connected(made) == Names{"shm", "tcp"}));
  made.source->confirm(false);
  made.binding = made.source->take_binding();
  made.start_with_lease();
  BOOST_TEST(made.state() == "bound");
  BOOST_TEST(!made.source->bound_anew());
}

BOOST_AUTO_TEST_CASE(a_binding_that_does_not_reach_memory_which_is_on_a_device_now_is_made_anew) {
  MadeSource made;
  made.keep(ucx);
  made.places = {std::nullopt};
  made.binding.targets = {{{0, 64}}, {{memory::on_host, 64}}};
  made.link->offer({ucx, tcp});
  made.start_with_lease();
  BOOST_TEST(asks_for_bind(made));
  made.bind_over(ucx);  // was proven before
  made.bind_over(tcp);
  BOOST_TEST(made.state() == "bound");
  BOOST_TEST((connected(made) == Names{"ucx", "tcp"}));
}

// --- optimistic reads ---

BOOST_AUTO_TEST_CASE(an_optimistic_read_begins_at_once_and_its_end_waits_for_the_lease) {
  MadeSource made;
  made.keep(shm);
  made.start(Leasing::beside);
  BOOST_TEST(made.state() == "bound");
  BOOST_TEST(made.listener.bound == 1);
  BOOST_TEST(made.source->requests().unanswered() == 1);
  BOOST_TEST(asked<wire::Lease>(made).generation == generation);
  made.source->begin_moving();
  made.source->confirm(true);
  BOOST_TEST(made.state() == "confirming");
  BOOST_TEST(made.listener.confirmed == 0);
  made.link->answer(wire::Leased{0, lease, MadeSource::step});
  BOOST_TEST(made.state() == "released");
  BOOST_TEST(made.listener.confirmed == 1);
  require_over(made);
}

BOOST_AUTO_TEST_CASE(a_lease_beside_that_comes_early_is_not_waited_for) {
  for (const bool moving : {false, true}) {
    MadeSource made;
    made.keep(shm);
    made.start(Leasing::beside);
    if (moving) made.source->begin_moving();
    made.link->answer(wire::Leased{0, lease, MadeSource::step});
    BOOST_TEST(made.state() == (moving ? "moving" : "bound"));
    BOOST_TEST(made.listener.calls() == 1);
    made.source->confirm(false);
    BOOST_TEST(made.listener.confirmed == 1);
    require_over(made);
  }
}

BOOST_AUTO_TEST_CASE(a_lease_beside_that_is_refused_ends_the_source_wherever_it_is) {
  for (const int stage : {0, 1, 2}) {
    MadeSource made;
    made.keep(shm);
    made.start(Leasing::beside);
    if (stage > 0) made.source->begin_moving();
    if (stage > 1) made.source->confirm(false);
    made.link->refuse(ErrorCode::withdrawn);
    BOOST_TEST(made.state() == "withdrawn");
    BOOST_TEST(code_of(made) == "withdrawn");
    require_over(made);
  }
}

BOOST_AUTO_TEST_CASE(an_optimistic_read_with_a_lease_beside_is_confirmed_by_the_source_where_no_word_tells) {
  MadeSource made;
  to_confirming_without_lease_yet(made);
  BOOST_TEST(made.link->requests.size() == 1U);
  made.link->answer(wire::Leased{0, lease, MadeSource::step});
  BOOST_TEST(asked<wire::Release>(made).lease == lease);
  made.link->answer(wire::Released{0, true});
  BOOST_TEST(made.listener.confirmed == 1);
  require_over(made);
}

BOOST_AUTO_TEST_CASE(a_read_without_a_lease_is_confirmed_by_the_source) {
  MadeSource made;
  made.keep(tcp);
  made.start(Leasing::none);
  BOOST_TEST(made.state() == "bound");
  BOOST_TEST(made.link->requests.empty());
  made.source->begin_moving();
  made.source->confirm(false);
  const auto& request = asked<wire::Confirm>(made);
  BOOST_TEST(request.publication == "model");
  BOOST_TEST(request.generation == generation);
  made.link->answer(wire::Released{0, true});
  BOOST_TEST(made.listener.confirmed == 1);
  require_over(made);
}

BOOST_AUTO_TEST_CASE(a_read_without_a_lease_that_the_source_does_not_confirm_is_withdrawn) {
  MadeSource made;
  made.keep(tcp);
  made.start(Leasing::none);
  made.source->begin_moving();
  made.source->confirm(false);
  made.link->answer(wire::Released{0, false});
  BOOST_TEST(made.state() == "withdrawn");
  BOOST_TEST(error_of(made) == "source rank 3 withdrew step 7 of 'model' while it was being read");
  require_over(made);
}

BOOST_AUTO_TEST_CASE(bytes_that_are_proven_need_no_question_with_or_without_a_lease) {
  require_no_question(tcp, true);
}

BOOST_AUTO_TEST_CASE(bytes_that_are_not_proven_are_asked_about_where_no_word_tells) {
  MadeSource made;
  to_moving(made);
  made.source->confirm(false);
  BOOST_TEST(made.state() == "confirming");
  BOOST_TEST(asked<wire::Release>(made).lease == lease);
}

BOOST_AUTO_TEST_CASE(a_mapped_word_that_says_live_needs_no_question_with_or_without_a_lease) {
  require_no_question(shm, false);
}

BOOST_AUTO_TEST_CASE(a_mapped_word_that_does_not_say_live_has_the_source_asked) {
  for (const Leasing leasing : {Leasing::first, Leasing::none}) {
    MadeSource made;
    made.keep(shm);
    made.start(leasing);
    if (leasing == Leasing::first) made.link->answer(wire::Leased{0, lease, MadeSource::step});
    made.set_word(shm, 0);
    made.source->confirm(false);
    BOOST_TEST(made.state() == "confirming");
    if (leasing == Leasing::first) {
      BOOST_TEST(asked<wire::Release>(made).lease == lease);
    } else {
      BOOST_TEST(asked<wire::Confirm>(made).generation == generation);
    }
    made.link->answer(wire::Released{0, false});
    BOOST_TEST(made.state() == "withdrawn");
    require_over(made);
  }
}

BOOST_AUTO_TEST_CASE(a_word_that_cannot_be_read_has_the_source_asked) {
  MadeSource made;
  to_reading_word(made);
  BOOST_TEST(made.source->requests().unanswered() == 1);
  made.fabric(ucx).endpoint().fail(ErrorCode::withdrawn, "the key is gone");
  BOOST_TEST(made.state() == "confirming");
  BOOST_TEST(asked<wire::Release>(made).lease == lease);
  made.link->answer(wire::Released{0, true});
  BOOST_TEST(made.listener.confirmed == 1);
  require_over(made);
}

BOOST_AUTO_TEST_CASE(a_word_that_is_read_after_the_source_was_given_up_does_nothing) {
  MadeSource made;
  to_reading_word(made);
  made.source->release();
  BOOST_TEST(made.link->posted_releases(lease) == 1U);
  made.fabric(ucx).endpoint().complete(0);
  BOOST_TEST(made.state() == "released");
  BOOST_TEST(made.link->requests.empty());
  require_over(made);
}

BOOST_AUTO_TEST_CASE(an_optimistic_read_over_another_link_than_before_loses_the_source) {
  for (const Leasing leasing : {Leasing::beside, Leasing::none}) {
    MadeSource made;
    made.keep(shm);
    made.link = made.link->another();
    made.start(leasing);
    BOOST_TEST(made.state() == "lost");
    BOOST_TEST(code_of(made) == "peer_lost");
    BOOST_TEST(error_of(made) == "source rank 3 disconnected while it was bound again");
    BOOST_TEST(made.link->watchers() == 0U);
    BOOST_TEST(made.link->requests.empty());
    made.source->release();
  }
}

// --- moving ---

BOOST_AUTO_TEST_CASE(a_source_is_asked_whether_it_is_live_under_its_lease) {
  MadeSource made;
  to_moving(made);
  int live = 0;
  made.source->requests().ask_if_live([&] { ++live; });
  const auto& request = asked<wire::DigestRequest>(made);
  BOOST_TEST(request.lease == lease);
  BOOST_TEST(request.parts.empty());
  BOOST_TEST(made.source->requests().unanswered() == 1);
  made.source->requests().ask_if_live([] { BOOST_ERROR("an answer was due"); });
  BOOST_TEST(made.link->requests.size() == 1U);
  made.link->answer(wire::Digests{});
  BOOST_TEST(live == 1);
  BOOST_TEST(made.state() == "moving");
  BOOST_TEST(made.source->requests().unanswered() == 0);
  made.source->requests().ask_if_live([&] { ++live; });
  made.link->refuse(ErrorCode::withdrawn, "it is gone");
  BOOST_TEST(live == 1);
  BOOST_TEST(made.state() == "withdrawn");
  BOOST_TEST(code_of(made) == "withdrawn");
  require_over(made);
}

BOOST_AUTO_TEST_CASE(a_source_without_a_lease_is_asked_whether_its_generation_is_live) {
  for (const bool intact : {true, false}) {
    MadeSource made;
    made.keep(tcp);
    made.start(Leasing::none);
    made.source->begin_moving();
    int live = 0;
    made.source->requests().ask_if_live([&] { ++live; });
    BOOST_TEST(asked<wire::Confirm>(made).publication == "model");
    BOOST_TEST(asked<wire::Confirm>(made).generation == generation);
    made.link->answer(wire::Released{0, intact});
    BOOST_TEST(live == (intact ? 1 : 0));
    BOOST_TEST(made.state() == (intact ? "moving" : "withdrawn"));
    require_over(made);
  }
}

BOOST_AUTO_TEST_CASE(a_question_that_is_open_when_all_bytes_are_confirmed_is_dropped) {
  MadeSource made;
  made.keep(shm);
  made.start_with_lease();
  made.source->begin_moving();
  made.source->requests().ask_if_live([] { BOOST_ERROR("the source has ended"); });
  made.source->confirm(false);
  BOOST_TEST(made.listener.confirmed == 1);
  BOOST_TEST(made.source->requests().unanswered() == 0);
  made.link->refuse(ErrorCode::withdrawn);
  BOOST_TEST(made.listener.calls() == 2);
  require_over(made);
}

BOOST_AUTO_TEST_CASE(an_error_of_what_is_to_follow_an_answer_loses_the_source) {
  MadeSource made;
  to_moving(made);
  made.source->requests().ask_if_live(
      [] { throw Error(ErrorCode::internal, "it is our fault", std::vector{Rank{3}}); });
  made.link->answer(wire::Digests{});
  BOOST_TEST(made.state() == "lost");
  BOOST_TEST(code_of(made) == "internal");
  require_over(made);
}

BOOST_AUTO_TEST_CASE(digests_are_asked_for_under_the_lease) {
  MadeSource made;
  to_moving(made);
  const std::vector<wire::RequestedBox> boxes{{2, Box{{0}, {8}}}};
  std::vector<Digest128> received;
  made.source->requests().ask_for_digests(boxes, [&](const auto& digests) { received = digests; });
  const auto& request = asked<wire::DigestRequest>(made);
  BOOST_TEST(request.lease == lease);
  BOOST_TEST((request.parts == boxes));
  BOOST_TEST(made.source->requests().unanswered() == 1);
  made.link->answer(wire::Digests{0, {{5, 6}}});
  BOOST_TEST((received == std::vector<Digest128>{{5, 6}}));
  BOOST_TEST(made.source->requests().unanswered() == 0);
  BOOST_TEST(made.state() == "moving");
}

BOOST_AUTO_TEST_CASE(payload_is_asked_for_under_the_lease_or_without_one_by_generation) {
  for (const Leasing leasing : {Leasing::first, Leasing::none}) {
    MadeSource made;
    made.keep(tcp);
    made.start(leasing);
    if (leasing == Leasing::first) made.link->answer(wire::Leased{0, lease, MadeSource::step});
    made.source->begin_moving();
    made.source->requests().ask_for_payload({.request = 50, .lease = 0, .parts = {}}, [](const std::string&) {});
    const auto& request = asked<wire::PackRequest>(made);
    BOOST_TEST(request.request == 50U);
    const bool leased = leasing == Leasing::first;
    BOOST_TEST(request.lease == (leased ? lease : 0));
    BOOST_TEST(request.publication == (leased ? "" : "model"));
    BOOST_TEST(request.generation == (leased ? 0 : generation));
    BOOST_TEST(made.source->requests().unanswered() == 0);
  }
}

BOOST_AUTO_TEST_CASE(payload_that_is_refused_ends_the_source) {
  for (const ErrorCode code : {ErrorCode::withdrawn, ErrorCode::transport_failed}) {
    MadeSource made;
    to_moving(made);
    made.source->requests().ask_for_payload({.request = 50, .lease = 0, .parts = {}},
                                            [](const std::string&) { BOOST_ERROR("the channel is well"); });
    made.link->refuse(code, "no payload");
    BOOST_TEST(made.state() == (code == ErrorCode::withdrawn ? "withdrawn" : "lost"));
    BOOST_TEST(code_of(made) == to_string(code));
    BOOST_TEST(error_of(made) == "source rank 3 refused: no payload");
    require_over(made);
  }
}

BOOST_AUTO_TEST_CASE(payload_that_is_refused_over_a_channel_that_was_aborted_is_reported_to_the_asker) {
  MadeSource made;
  to_moving(made);
  Names why;
  made.source->requests().ask_for_payload({.request = 50, .lease = 0, .parts = {}},
                                          [&](const std::string& text) { why.push_back(text); });
  made.fabric(tcp).channel->abort();
  made.link->refuse(ErrorCode::peer_lost, "the connection is gone");
  BOOST_TEST((why == Names{"the connection is gone"}));
  BOOST_TEST(made.state() == "moving");
  BOOST_TEST(made.listener.lost == 0);
  require_over(made);
}

// --- confirming ---

BOOST_AUTO_TEST_CASE(a_source_that_was_changed_meanwhile_is_withdrawn) {
  MadeSource made;
  to_confirming(made);
  made.link->answer(wire::Released{0, false});
  BOOST_TEST(made.state() == "withdrawn");
  BOOST_TEST(code_of(made) == "withdrawn");
  BOOST_TEST(error_of(made) == "source rank 3 withdrew step 7 of 'model' while it was being read");
  require_over(made);
}

BOOST_AUTO_TEST_CASE(a_binding_is_left_for_the_next_operation_with_what_was_found_out) {
  MadeSource made;
  to_confirming(made);
  made.link->answer(wire::Released{0, true});
  const restore::Binding binding = made.source->take_binding();
  BOOST_TEST(binding.generation == generation);
  BOOST_TEST(binding.link == made.link);
  BOOST_TEST(binding.connected.size() == 1U);
  BOOST_TEST(binding.path.sent_by.value() == 0U);
}

BOOST_AUTO_TEST_SUITE_END()

// SPDX-License-Identifier: Apache-2.0
// Binding of a source: its fabrics, reasons to exclude one, and answers that are rejected.
#include <boost/test/unit_test.hpp>

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "restore/source_steps.hpp"

BOOST_AUTO_TEST_SUITE(source_connecting)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;
using namespace std::string_literals;

namespace {

constexpr std::uint64_t generation = MadeSource::generation;
constexpr std::uint64_t lease = MadeSource::lease;
const Error no_route(ErrorCode::transport_failed, "no route");

}  // namespace

// --- fabrics, one after the other ---

BOOST_AUTO_TEST_CASE(the_best_fabric_is_bound_and_no_further_one_where_it_serves) {
  MadeSource made;
  made.link->offer({tcp, ucx, shm});
  made.start_with_lease();
  BOOST_TEST(made.asked_over() == "shm");
  made.bind_over(shm);
  BOOST_TEST(made.state() == "bound");
  BOOST_TEST((connected(made) == Names{"shm"}));
  BOOST_TEST(made.fabric(ucx).prepared + made.fabric(tcp).prepared == 0);
  BOOST_TEST((made.link->bound_calls ==
              std::vector<MadeLink::BoundCall>{{"model", generation, {key("region"), key("word")}}}));
  BOOST_TEST(made.source->binding().generation == generation);
  BOOST_TEST(made.source->binding().max_pack_bytes == ByteCount{1} << 20);
}

BOOST_AUTO_TEST_CASE(the_next_fabric_is_bound_where_the_first_does_not_serve_all_memory) {
  MadeSource made;
  made.fabric(shm).regions[key("region")] = std::make_shared<MadeRegion>();  // not mapped
  made.link->offer({shm, ucx, tcp});
  made.start_with_lease();
  made.bind_over(shm);
  BOOST_TEST(made.asked_over() == "ucx");
  made.bind_over(ucx);
  made.fabric(ucx).endpoint().complete(generation);
  BOOST_TEST(made.state() == "bound");
  BOOST_TEST((connected(made) == Names{"shm", "ucx"}));
  BOOST_TEST(made.source->binding().path.read_by.value() == 1U);
  BOOST_TEST(made.source->binding().word.is_mapped());
}

BOOST_AUTO_TEST_CASE(a_fabric_that_cannot_be_prepared_is_excluded_and_logged) {
  MadeSource made;
  made.fabric(shm).unprepared = Error(ErrorCode::transport_failed, "nobody listens");
  made.link->offer({shm, tcp});
  made.start_with_lease();
  BOOST_TEST(made.asked_over() == "tcp");
  BOOST_TEST(excluded(made, shm) == "nobody listens");
  BOOST_TEST((made.context.logged == Names{"source rank 3 is not reached over shm: nobody listens"}));
  BOOST_TEST(!made.source->binding().lacked_resources);
  made.bind_over(tcp);
  BOOST_TEST(made.state() == "bound");
}

BOOST_AUTO_TEST_CASE(a_fabric_that_was_given_up_is_not_tried_and_the_next_one_is_bound) {
  MadeSource made;
  made.binding.failed_fabrics = {{shm, "it failed 8 times in a row: reset"}};
  made.link->offer({shm, tcp});
  made.start_with_lease();
  BOOST_TEST(made.fabric(shm).prepared == 0);
  BOOST_TEST(excluded(made, shm) == "it failed 8 times in a row: reset");
  made.bind_over(tcp);
  BOOST_TEST(made.state() == "bound");
}

BOOST_AUTO_TEST_CASE(a_source_whose_fabrics_were_all_given_up_is_lost_naming_it_and_them) {
  MadeSource made;
  made.binding.failed_fabrics = {{shm, "it failed 8 times in a row: reset"}};
  made.link->offer({shm});
  made.start_with_lease();
  BOOST_REQUIRE(made.listener.error.has_value());
  BOOST_TEST((made.listener.error->code() == ErrorCode::transport_failed));
  BOOST_TEST((made.listener.error->ranks() == std::vector<Rank>{Rank{3}}));
  const std::string text = made.listener.error->what();
  BOOST_TEST(text.find("source rank 3") != std::string::npos, text);
  BOOST_TEST(text.find("shm: it failed 8 times in a row: reset") != std::string::npos, text);
}

BOOST_AUTO_TEST_CASE(sockets_are_opened_beside_the_lease_where_a_fabric_will_carry_bytes) {
  using Connect = restore::SourceFabrics::Connect;
  for (const Connect connect : {Connect::needed, Connect::every, Connect::none}) {
    MadeSource made;
    made.options.fabrics.connect = connect;
    made.link->offer({tcp});
    made.start();
    BOOST_TEST(made.state() == "leasing");
    BOOST_TEST(made.link->prepared_ahead == (connect == Connect::needed ? 1 : 0));
    require_over(made);
  }
}

BOOST_AUTO_TEST_CASE(no_sockets_are_opened_ahead_where_a_fabric_was_given_up) {
  MadeSource made;
  made.binding.failed_fabrics = {{tcp, "it failed 8 times in a row: reset"}};
  made.link->offer({shm, tcp});
  made.start();
  BOOST_TEST(made.link->prepared_ahead == 0);
  require_over(made);
}

BOOST_AUTO_TEST_CASE(fabrics_that_prepare_later_are_awaited) {
  MadeSource made;
  made.fabric(shm).prepares_later = true;
  made.fabric(tcp).prepares_later = true;
  made.link->offer({shm, tcp});
  made.start_with_lease();
  BOOST_TEST(made.link->requests.empty());
  BOOST_TEST(made.source->requests().unanswered() == 1);
  const Error full(ErrorCode::out_of_resources, "no descriptors");
  made.link->end_preparing(shm, &full);
  BOOST_TEST(made.source->binding().lacked_resources);
  BOOST_TEST(made.source->requests().unanswered() == 1);
  made.link->end_preparing(tcp);
  BOOST_TEST(made.asked_over() == "tcp");
  BOOST_TEST(made.source->requests().unanswered() == 1);
  made.bind_over(tcp);
  BOOST_TEST(made.source->requests().unanswered() == 0);
  BOOST_TEST(made.state() == "bound");
}

BOOST_AUTO_TEST_CASE(what_a_source_refuses_for_one_fabric_only_excludes_that) {
  MadeSource made;
  made.link->offer({ucx, tcp});
  made.start_with_lease();
  made.link->refuse(ErrorCode::unsupported, "not over ucx");
  BOOST_TEST(excluded(made, ucx) == "not over ucx");
  made.bind_over(tcp);
  BOOST_TEST(made.state() == "bound");
  BOOST_TEST((connected(made) == Names{"tcp"}));
  require_over(made);
}

BOOST_AUTO_TEST_CASE(what_cannot_be_connected_or_imported_for_want_of_something_excludes_the_fabric) {
  for (const ErrorCode code : {ErrorCode::unsupported, ErrorCode::out_of_resources}) {
    for (const bool imports : {false, true}) {
      MadeSource made;
      (imports ? made.fabric(shm).no_region : made.fabric(shm).no_channel) = Error(code, "it is short of something");
      made.link->offer({shm, tcp});
      made.start_with_lease();
      made.bind_over(shm);
      BOOST_TEST(made.asked_over() == "tcp");
      BOOST_TEST(excluded(made, shm) == "it is short of something");
      BOOST_TEST(made.source->binding().lacked_resources == (code == ErrorCode::out_of_resources));
    }
  }
}

BOOST_AUTO_TEST_CASE(other_faults_in_connecting_lose_the_source) {
  for (const bool imports : {false, true}) {
    MadeSource made;
    (imports ? made.fabric(shm).no_region : made.fabric(shm).no_channel) =
        Error(ErrorCode::transport_failed, "nonsense", std::vector{Rank{3}});
    made.link->offer({shm, tcp});
    made.start_with_lease();
    made.bind_over(shm);
    BOOST_TEST(made.state() == "lost");
    BOOST_TEST(code_of(made) == "transport_failed");
    require_over(made);
  }
}

BOOST_AUTO_TEST_CASE(fabrics_are_excluded_until_none_is_left_and_the_error_names_each_reason) {
  MadeSource made;
  made.link->offer({shm, ucx, tcp});
  made.start_with_lease();
  for (const char* const name : {"shm", "ucx", "tcp"}) {
    BOOST_REQUIRE(made.asked_over() == name);
    made.link->refuse(ErrorCode::unsupported, "no "s + name);
  }
  BOOST_TEST(made.state() == "lost");
  BOOST_TEST(code_of(made) == "unsupported");
  BOOST_TEST(error_of(made) ==
             "no transport of this session carries the bytes of source rank 3 (member 1); shm: no shm; ucx: no ucx; "
             "libfabric: its library was not found; tcp: no tcp");
  require_over(made);
}

BOOST_AUTO_TEST_CASE(where_one_was_excluded_for_want_of_resources_the_error_says_that) {
  MadeSource made;
  made.fabric(tcp).unprepared = Error(ErrorCode::out_of_resources, "no descriptors");
  made.link->offer({tcp});
  made.start_with_lease();
  BOOST_TEST(made.state() == "lost");
  BOOST_TEST(code_of(made) == "out_of_resources");
  BOOST_TEST(error_of(made).ends_with("; tcp: no descriptors"));
  require_over(made);
}

// The peer ends while its fabrics are connected, before its control connection tells.
BOOST_AUTO_TEST_CASE(where_the_last_fabric_ended_with_its_peer_the_peer_is_lost) {
  MadeSource made;
  made.fabric(shm).unprepared = Error(ErrorCode::unsupported, "no sockets");
  made.fabric(tcp).unprepared = Error(ErrorCode::peer_lost, "the peer closed its connection");
  made.link->offer({shm, tcp});
  made.start_with_lease();
  BOOST_TEST(made.state() == "lost");
  BOOST_TEST(code_of(made) == "peer_lost");
}

BOOST_AUTO_TEST_CASE(a_source_without_a_fabric_in_common_is_lost_with_the_reasons) {
  MadeSource made;
  made.link->local = false;
  made.link->offer({shm});
  made.start_with_lease();
  BOOST_TEST(made.state() == "lost");
  BOOST_TEST(code_of(made) == "unsupported");
  BOOST_TEST(error_of(made).find("shm: it is on another host; ucx: member 1 has not opened it") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(a_fabric_that_is_connected_and_carries_nothing_is_no_path) {
  MadeSource made;
  made.fabric(tcp).path = {.carrier = "tcp/eth0", .why_not = {FallbackReason::failed, "it is out of order"}};
  made.link->offer({tcp});
  made.start_with_lease();
  made.bind_over(tcp);
  BOOST_TEST(made.state() == "lost");
  BOOST_TEST(error_of(made).ends_with("; tcp: it is out of order"));
  BOOST_TEST(made.link->bound_calls.empty());
}

// --- sockets and channels that have ended ---

BOOST_AUTO_TEST_CASE(sockets_that_had_ended_are_opened_once_more) {
  MadeSource made;
  made.fabric(tcp).sockets = 5;
  made.link->offer({tcp});
  made.start_with_lease();
  BOOST_TEST(asked<wire::Bind>(made).fabrics[0].sockets == 5U);
  made.fabric(tcp).sockets = 6;
  made.link->refuse(ErrorCode::peer_lost, "they have ended");
  BOOST_TEST((made.fabric(tcp).replaced == std::vector<std::uint64_t>{5}));
  BOOST_TEST(made.fabric(tcp).prepared == 2);
  BOOST_TEST(asked<wire::Bind>(made).fabrics[0].sockets == 6U);
  BOOST_TEST(made.source->requests().unanswered() == 1);
  made.bind_over(tcp);
  BOOST_TEST(made.state() == "bound");
  require_over(made);
}

BOOST_AUTO_TEST_CASE(sockets_that_have_ended_twice_lose_the_source) {
  MadeSource made;
  made.fabric(tcp).sockets = 5;
  made.link->offer({tcp});
  made.start_with_lease();
  made.link->refuse(ErrorCode::peer_lost, "they have ended");
  made.link->refuse(ErrorCode::peer_lost, "they have ended");
  BOOST_TEST(made.fabric(tcp).replaced.size() == 1U);
  BOOST_TEST(made.state() == "lost");
  BOOST_TEST(code_of(made) == "peer_lost");
  require_over(made);
}

BOOST_AUTO_TEST_CASE(a_source_that_misses_sockets_where_there_are_none_is_lost) {
  MadeSource made;
  made.link->offer({tcp});
  made.start_with_lease();
  made.link->refuse(ErrorCode::peer_lost, "they have ended");
  BOOST_TEST(made.fabric(tcp).replaced.empty());
  BOOST_TEST(made.state() == "lost");
  BOOST_TEST(code_of(made) == "peer_lost");
}

BOOST_AUTO_TEST_CASE(a_channel_that_is_gone_is_made_once_more) {
  MadeSource made;
  made.fabric(tcp).channels_gone = 1;
  made.link->offer({tcp});
  made.start_with_lease();
  made.bind_over(tcp);
  BOOST_TEST(made.state() == "connecting");
  BOOST_TEST(made.fabric(tcp).prepared == 2);
  BOOST_TEST(asks_for_bind(made));
  made.bind_over(tcp);
  BOOST_TEST(made.state() == "bound");
}

BOOST_AUTO_TEST_CASE(a_channel_that_is_gone_twice_excludes_the_fabric) {
  MadeSource made;
  made.fabric(ucx).channels_gone = 2;
  made.link->offer({ucx, tcp});
  made.start_with_lease();
  made.bind_over(ucx);
  made.bind_over(ucx);
  BOOST_TEST(excluded(made, ucx) == "the source closed the connection right after it was made");
  BOOST_TEST(made.asked_over() == "tcp");
  made.bind_over(tcp);
  BOOST_TEST(made.state() == "bound");
}

// --- proofs ---

BOOST_AUTO_TEST_CASE(a_fabric_that_reads_shows_it_once) {
  MadeSource made;
  to_proving(made);
  BOOST_TEST(made.source->requests().unanswered() == 1);
  BOOST_TEST(made.clock.alarms_set() == 1U);
  BOOST_TEST(!made.fabric(ucx).channel->proven);
  made.fabric(ucx).endpoint().complete(0);  // its value does not matter
  BOOST_TEST(made.state() == "bound");
  BOOST_TEST(made.fabric(ucx).channel->proven);
  BOOST_TEST(made.source->requests().unanswered() == 0);
  BOOST_TEST(made.clock.alarms_set() == 0U);
  made.source->release();
  // Another source over the same channel.
  MadeSource other;
  other.link = made.link;
  other.start_with_lease();
  other.bind_over(ucx);
  BOOST_TEST(other.state() == "bound");
  BOOST_TEST(made.fabric(ucx).endpoint().reads_begun == 1);
}

BOOST_AUTO_TEST_CASE(a_first_read_that_fails_is_tried_once_more) {
  MadeSource made;
  to_proving(made);
  made.fabric(ucx).endpoint().fail(ErrorCode::transport_failed, "flushed");
  BOOST_TEST(made.state() == "proving");
  BOOST_TEST(made.clock.alarms_set() == 0U);
  BOOST_TEST(made.fabric(ucx).prepared == 2);
  BOOST_TEST(asks_for_bind(made));
  made.bind_over(ucx);
  BOOST_TEST(made.source->requests().unanswered() == 1);
  made.fabric(ucx).endpoint().complete(generation);
  BOOST_TEST(made.state() == "bound");
  BOOST_TEST(made.fabric(ucx).ruled_out.empty());
  require_over(made);
}

BOOST_AUTO_TEST_CASE(a_first_read_that_fails_twice_excludes_the_fabric) {
  MadeSource made;
  made.link->offer({ucx, tcp});
  made.start_with_lease();
  made.bind_over(ucx);
  made.fabric(ucx).endpoint().fail(ErrorCode::transport_failed, "flushed");
  made.bind_over(ucx);
  made.fabric(ucx).endpoint().fail(ErrorCode::transport_failed, "flushed again");
  BOOST_TEST(excluded(made, ucx) == "flushed again");
  BOOST_TEST(made.fabric(ucx).ruled_out.empty());
  BOOST_TEST(made.asked_over() == "tcp");
  BOOST_TEST(made.state() == "connecting");
  made.bind_over(tcp);
  BOOST_TEST(made.state() == "bound");
  BOOST_TEST((connected(made) == Names{"tcp"}));
  require_over(made);
}

BOOST_AUTO_TEST_CASE(a_fabric_that_cannot_be_prepared_again_after_a_read_that_failed_is_excluded) {
  MadeSource made;
  made.link->offer({ucx, tcp});
  made.start_with_lease();
  made.bind_over(ucx);
  made.fabric(ucx).unprepared = no_route;
  made.fabric(ucx).endpoint().fail(ErrorCode::transport_failed, "flushed");
  BOOST_TEST(excluded(made, ucx) == "no route");
  BOOST_TEST(made.state() == "connecting");
  BOOST_TEST(made.asked_over() == "tcp");
}

BOOST_AUTO_TEST_CASE(a_fabric_that_needs_no_proof_the_second_time_is_bound_at_once) {
  MadeSource made;
  to_proving(made);
  made.fabric(ucx).endpoint().fail(ErrorCode::transport_failed, "flushed");
  made.fabric(ucx).channel->proven = true;  // by another operation
  made.bind_over(ucx);
  BOOST_TEST(made.state() == "bound");
}

BOOST_AUTO_TEST_CASE(a_fabric_that_reads_nothing_for_ten_seconds_is_ruled_out) {
  MadeSource made;
  made.link->offer({ucx, tcp});
  made.start_with_lease();
  made.bind_over(ucx);
  made.clock.advance(9999ms);
  BOOST_TEST(made.state() == "proving");
  made.clock.advance(1ms);
  BOOST_TEST(excluded(made, ucx) == "it has read nothing within 10 s");
  BOOST_TEST((made.fabric(ucx).ruled_out == Names{"it has read nothing within 10 s"}));
  BOOST_TEST(made.fabric(ucx).channel->aborted);
  BOOST_TEST(made.asked_over() == "tcp");
  made.bind_over(tcp);
  BOOST_TEST(made.state() == "bound");
  require_over(made);
}

BOOST_AUTO_TEST_CASE(a_read_that_ends_after_its_limit_is_ignored) {
  for (const bool succeeds : {true, false}) {
    MadeSource made;
    made.link->offer({ucx, tcp});
    made.start_with_lease();
    made.bind_over(ucx);
    made.clock.advance(10s);
    BOOST_TEST(made.source->requests().unanswered() == 1);
    if (succeeds) {
      made.fabric(ucx).endpoint().complete(generation);
    } else {
      made.fabric(ucx).endpoint().fail(ErrorCode::cancelled, "aborted");
    }
    BOOST_TEST(made.state() == "connecting");
    BOOST_TEST(!made.fabric(ucx).channel->proven);
    BOOST_TEST(made.fabric(ucx).prepared == 1);
    BOOST_TEST(made.source->requests().unanswered() == 1);
    made.bind_over(tcp);
    BOOST_TEST((connected(made) == Names{"tcp"}));
    BOOST_TEST(made.source->requests().unanswered() == 0);
  }
}

BOOST_AUTO_TEST_CASE(an_operation_with_a_near_deadline_goes_on_without_the_fabric_and_condemns_it_for_no_other) {
  MadeSource made;
  made.options.fabrics.deadline = made.clock.now() + 5s;
  made.link->offer({ucx, tcp});
  made.start_with_lease();
  made.clock.advance(1s);
  made.bind_over(ucx);
  made.clock.advance(1999ms);
  BOOST_TEST(made.state() == "proving");
  made.clock.advance(1ms);
  BOOST_TEST(excluded(made, ucx) == "it has read nothing within 2 s");
  BOOST_TEST(made.fabric(ucx).ruled_out.empty());
  BOOST_TEST(!made.fabric(ucx).channel->aborted);
  BOOST_TEST(made.asked_over() == "tcp");
}

BOOST_AUTO_TEST_CASE(both_tries_of_a_first_read_share_its_limit) {
  MadeSource made;
  made.options.fabrics.patience = 4s;
  made.link->offer({ucx, tcp});
  made.start_with_lease();
  made.bind_over(ucx);
  made.clock.advance(3s);
  made.fabric(ucx).endpoint().fail(ErrorCode::transport_failed, "flushed");
  made.bind_over(ucx);
  made.clock.advance(999ms);
  BOOST_TEST(made.state() == "proving");
  made.clock.advance(1ms);
  BOOST_TEST(excluded(made, ucx) == "it has read nothing within 4 s");
  BOOST_TEST(made.fabric(ucx).ruled_out.empty());
  BOOST_TEST(made.asked_over() == "tcp");
}

BOOST_AUTO_TEST_CASE(a_proof_after_the_deadline_excludes_the_fabric_on_the_next_turn) {
  MadeSource made;
  made.options.fabrics.deadline = made.clock.now() - 1s;
  made.link->offer({ucx, tcp});
  made.start_with_lease();
  made.bind_over(ucx);
  BOOST_TEST(made.state() == "proving");
  made.clock.advance(0s);
  BOOST_TEST(made.asked_over() == "tcp");
  BOOST_TEST(made.fabric(ucx).ruled_out.empty());
}

BOOST_AUTO_TEST_CASE(a_fabric_that_another_operation_has_proven_meanwhile_is_excluded_for_this_one_only) {
  MadeSource made;
  made.link->offer({ucx, tcp});
  made.start_with_lease();
  made.bind_over(ucx);
  made.fabric(ucx).channel->proven = true;
  made.clock.advance(10s);
  BOOST_TEST(excluded(made, ucx) == "it has read nothing within 10 s");
  BOOST_TEST(made.fabric(ucx).ruled_out.empty());
}

BOOST_AUTO_TEST_CASE(a_fabric_without_a_word_to_read_needs_no_proof) {
  auto reply = MadeSource::reply_over(ucx);
  for (const int what : {0, 1, 2, 3}) {
    MadeSource made;
    auto changed = reply;
    if (what == 0) changed.word.reset();
    if (what == 1) changed.word->offset_bytes = 4;   // not aligned
    if (what == 2) changed.word->offset_bytes = 64;  // outside of its region
    if (what == 3) made.fabric(ucx).path = {.carrier = "nic", .message = true};
    made.link->offer({ucx});
    made.start_with_lease();
    made.link->answer(changed);
    BOOST_TEST(made.state() == "bound");
    BOOST_TEST(made.fabric(ucx).endpoint().reads_begun == 0);
    BOOST_TEST((made.source->binding().word.region == nullptr));
    made.source->confirm(false);
    BOOST_TEST(asked<wire::Release>(made).lease == lease);
  }
}

BOOST_AUTO_TEST_CASE(a_word_that_is_mapped_needs_no_proof) {
  MadeSource made;
  made.fabric(shm).path.read = true;
  made.link->offer({shm});
  made.start_with_lease();
  made.bind_over(shm);
  BOOST_TEST(made.state() == "bound");
  BOOST_TEST(made.fabric(shm).endpoint().reads_begun == 0);
}

BOOST_AUTO_TEST_CASE(a_source_that_refuses_while_a_proof_is_tried_again_has_ended) {
  for (const ErrorCode code : {ErrorCode::withdrawn, ErrorCode::internal}) {
    MadeSource made;
    to_proving(made);
    made.fabric(ucx).endpoint().fail(ErrorCode::transport_failed, "flushed");
    made.link->refuse(code);
    BOOST_TEST(made.state() == (code == ErrorCode::withdrawn ? "withdrawn" : "lost"));
    BOOST_TEST(code_of(made) == to_string(code));
    require_over(made);
  }
}

// --- answers to Bind that cannot be right ---

BOOST_AUTO_TEST_CASE(an_answer_that_does_not_fit_the_question_loses_the_source) {
  struct Wrong {
    std::string what;
    std::function<void(wire::Bound&)> change;
  };
  const std::vector<Wrong> all{
      {"addresses of other fabrics than it was asked for", [](wire::Bound& reply) { reply.addresses.clear(); }},
      {"addresses of other fabrics than it was asked for", [](wire::Bound& reply) { reply.addresses.emplace_back(2); }},
      {"handles for other tensors than it was asked for", [](wire::Bound& reply) { reply.tensors.pop_back(); }},
      {"handles for other tensors than it was asked for", [](wire::Bound& reply) { reply.tensors[1].tensor = 1; }},
      {"a handle without a region", [](wire::Bound& reply) { reply.tensors[1].region = 1; }},
      {"a handle without a region", [](wire::Bound& reply) { reply.regions.clear(); }},
  };
  for (const Wrong& one : all) {
    MadeSource made;
    to_connecting(made);
    auto reply = MadeSource::reply_over(tcp);
    one.change(reply);
    made.link->answer(reply);
    BOOST_TEST(made.state() == "lost");
    BOOST_TEST(code_of(made) == "transport_failed");
    BOOST_TEST(error_of(made) == "source rank 3 gave " + one.what);
    require_over(made);
  }
}

BOOST_AUTO_TEST_CASE(an_answer_that_contradicts_the_one_over_another_fabric_loses_the_source) {
  struct Wrong {
    std::string what;
    std::function<void(wire::Bound&)> change;
  };
  const std::vector<Wrong> all{
      {"other handles than before, of the same generation",
       [](wire::Bound& reply) { reply.tensors[1].offset_bytes = 8; }},
      {"other handles than before, of the same generation",
       [](wire::Bound& reply) { reply.tensors[1].region = wire::no_region; }},
      {"other handles than before, of the same generation", [](wire::Bound& reply) { reply.tensors[0].strides = {1}; }},
      {"other regions than before, of the same generation",
       [](wire::Bound& reply) { reply.regions.push_back(reply.regions[0]); }},
      {"another kind of memory than before",
       [](wire::Bound& reply) { reply.regions[0].memory_kind = wire::RegionHandle::cuda; }},
      {"another kind of memory than before", [](wire::Bound& reply) { reply.regions[0].memory_kind = 9; }},
  };
  for (const Wrong& one : all) {
    MadeSource made;
    made.options.fabrics.wants_messages = true;
    made.link->offer({shm, tcp});
    made.start_with_lease();
    made.bind_over(shm);
    BOOST_REQUIRE(made.asked_over() == "tcp");
    auto reply = MadeSource::reply_over(tcp);
    one.change(reply);
    made.link->answer(reply);
    BOOST_TEST(made.state() == "lost");
    BOOST_TEST(code_of(made) == "transport_failed");
    BOOST_TEST(error_of(made) == "source rank 3 gave " + one.what);
    require_over(made);
  }
}

BOOST_AUTO_TEST_CASE(descriptors_go_to_the_regions_in_their_order) {
  auto reply = MadeSource::reply_over(shm);
  reply.regions[0].keys[0].descriptors = 2;
  reply.word->region.keys[0].descriptors = 1;
  for (const int handed_over : {3, 2}) {
    MadeSource made;
    made.link->offer({shm});
    made.start_with_lease();
    for (int i = 0; i < handed_over; ++i) made.link->descriptors.emplace_back(::dup(STDERR_FILENO));
    made.link->answer(reply);
    if (handed_over == 3) {
      BOOST_TEST(made.state() == "bound");
      BOOST_TEST((made.fabric(shm).descriptors == std::vector<std::size_t>{2, 1}));
    } else {
      BOOST_TEST(made.state() == "lost");
      BOOST_TEST(code_of(made) == "transport_failed");
      BOOST_TEST(error_of(made) == "source rank 3 has not handed over the descriptors of a region");
    }
    require_over(made);
  }
}

// --- all fabrics ---

BOOST_AUTO_TEST_CASE(every_fabric_that_both_sides_have_is_bound_where_that_is_wanted) {
  MadeSource made;
  made.options.fabrics.connect = restore::SourceFabrics::Connect::every;
  made.link->offer({shm, ucx, tcp});
  made.start_with_lease();
  made.bind_over(shm);
  made.bind_over(ucx);
  BOOST_TEST(made.state() == "proving");
  made.fabric(ucx).endpoint().complete(generation);
  made.bind_over(tcp);
  BOOST_TEST(made.state() == "bound");
  BOOST_TEST((connected(made) == Names{"shm", "ucx", "tcp"}));
  BOOST_TEST(made.link->bound_calls.empty());
  BOOST_TEST(!made.source->binding().path.sent_by);
  BOOST_TEST(!made.source->binding().path.read_by);
  BOOST_TEST(made.source->bound_anew());
  require_over(made);
}

BOOST_AUTO_TEST_CASE(where_every_fabric_is_bound_none_need_carry_bytes) {
  MadeSource made;
  made.options.fabrics.connect = restore::SourceFabrics::Connect::every;
  made.fabric(tcp).path = {};
  made.link->offer({shm, tcp});
  made.start_with_lease();
  made.link->refuse(ErrorCode::unsupported, "no shm");
  made.bind_over(tcp);
  BOOST_TEST(made.state() == "bound");
  BOOST_TEST(excluded(made, shm) == "no shm");
  BOOST_TEST((connected(made) == Names{"tcp"}));
}

// Each fault: refused by the source, no channel, no region.
BOOST_AUTO_TEST_CASE(where_every_fabric_is_bound_no_fault_of_one_loses_the_source) {
  for (const ErrorCode code : {ErrorCode::transport_failed, ErrorCode::peer_lost, ErrorCode::internal}) {
    for (const int fault : {0, 1, 2}) {
      MadeSource made;
      made.options.fabrics.connect = restore::SourceFabrics::Connect::every;
      if (fault == 1) made.fabric(shm).no_channel = Error(code, "out of order");
      if (fault == 2) made.fabric(shm).no_region = Error(code, "out of order");
      made.link->offer({shm, tcp});
      made.start_with_lease();
      if (fault == 0) {
        made.link->refuse(code, "out of order");
      } else {
        made.bind_over(shm);
      }
      BOOST_TEST(excluded(made, shm) == "out of order");
      BOOST_TEST(made.asked_over() == "tcp");
      made.bind_over(tcp);
      BOOST_TEST(made.state() == "bound");
      require_over(made);
    }
  }
}

BOOST_AUTO_TEST_CASE(where_every_fabric_is_bound_sockets_that_have_ended_twice_exclude_one) {
  MadeSource made;
  made.options.fabrics.connect = restore::SourceFabrics::Connect::every;
  made.fabric(tcp).sockets = 5;
  made.link->offer({tcp});
  made.start_with_lease();
  made.link->refuse(ErrorCode::peer_lost, "they have ended");
  BOOST_TEST(made.fabric(tcp).replaced.size() == 1U);
  made.link->refuse(ErrorCode::peer_lost, "they have ended again");
  BOOST_TEST(excluded(made, tcp) == "they have ended again");
  BOOST_TEST(made.state() == "bound");
  BOOST_TEST(connected(made).empty());
}

// --- no fabric ---

BOOST_AUTO_TEST_CASE(a_source_that_nothing_is_read_from_takes_a_lease_and_binds_no_fabric) {
  MadeSource made;
  made.options.fabrics.connect = restore::SourceFabrics::Connect::none;
  made.link->offer({shm, ucx, tcp});
  made.start();
  BOOST_TEST(made.state() == "leasing");
  made.link->answer(wire::Leased{0, MadeSource::lease, MadeSource::step});
  BOOST_TEST(made.state() == "bound");
  BOOST_TEST(made.link->requests.empty());
  BOOST_TEST(made.link->bound_calls.empty());  // keys of other restores of the publication stay
  bool answered = false;
  made.source->requests().ask_for_digests(std::vector<wire::RequestedBox>{{0, Box{{0}, {1}}}},
                                          [&](const auto&) { answered = true; });
  const auto& asked = std::get<wire::DigestRequest>(made.link->requests.front().message);
  BOOST_TEST(asked.lease == MadeSource::lease);
  made.link->answer(wire::Digests{0, {{1, 2}}});
  BOOST_TEST(answered);
  made.source->confirm(false);
  BOOST_TEST(made.state() == "confirming");
  made.link->answer(wire::Released{0, true});
  BOOST_TEST(made.state() == "released");
  BOOST_TEST(made.listener.confirmed == 1);
}

BOOST_AUTO_TEST_SUITE_END()

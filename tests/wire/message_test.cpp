// SPDX-License-Identifier: Apache-2.0
#define BOOST_TEST_NO_MAIN
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <cstring>

#include "support/seed.hpp"
#include "wire/limits.hpp"
#include "wire/samples.hpp"

BOOST_AUTO_TEST_SUITE(message)

namespace data = boost::unit_test::data;
using namespace samples;

namespace {

/// decode() must refuse `bytes` with a text that names `field`.
void check_refused(const Bytes& bytes, const std::string& field) {
  BOOST_CHECK_EXCEPTION((void)decode(bytes), Error, [&](const Error& error) {
    BOOST_TEST_INFO(error.what());
    BOOST_CHECK(error.code() == ErrorCode::transport_failed);
    return std::string(error.what()).find(field) != std::string::npos;
  });
}

template <typename Change>
Message hello(Change change) {
  Hello result;
  change(result);
  return result;
}

Message lease_of(Box box) {
  return Lease{1, "state", 1, {{0, {std::move(box)}}}};
}

struct Refused {
  const char* field;
  Message message;
};
std::ostream& operator<<(std::ostream& out, const Refused& refused) {
  return out << refused.field;
}

constexpr Extent huge = std::numeric_limits<Extent>::max();
const Bound dangling{1, {}, 0, {}, {{0, 0, 0}}};
const Bound beyond_end{1, {}, 0, {{16, {}}}, {{0, 0, 17}}};
const Bound word_beyond_end{1, {}, 0, {}, {}, Bound::Word{{16, {}}, 17}};
const Bound long_mark{1, {{}}, 0, {}, {}, Bound::Word{{16, {{0, Bytes(4097), 0}}}, 0}};
Bind bind_of(const FabricHandle& fabric) {
  return {1, 1, {fabric}};
}
Bound bound_of(const RegionKey& key) {
  return {1, {{}}, 0, {{1, {key}}}, {}};
}

// encode() writes any value; the reader must detect errors in it.
const std::vector<Refused> refused{
    {"Hello.rank", hello([](Hello& h) { h.rank = -2; })},
    {"Hello.rank", hello([](Hello& h) { h.rank = max_rank + 1; })},
    {"Hello.worldSize", hello([](Hello& h) { h.world_size = -5; })},
    {"Hello.host", hello([](Hello& h) { h.host.assign(257, 'h'); })},
    {"Hello.host", hello([](Hello& h) { h.host.assign("a\0b", 3); })},
    {"Hello.runId", hello([](Hello& h) { h.run_id.assign(257, 'r'); })},
    {"Hello.runId", hello([](Hello& h) { h.run_id.assign("a\0b", 3); })},
    {"Hello.capabilities", hello([](Hello& h) { h.capabilities.resize(65); })},
    {"Hello.capabilities", hello([](Hello& h) { h.capabilities = {std::string(257, 'c')}; })},
    {"Join.rank", Join{MemberRecord{.rank = -2}}},
    {"Join.address", Join{MemberRecord{.address = std::string(257, 'a')}}},
    {"Join.domain", Join{MemberRecord{.domain = std::string(257, 'd')}}},
    {"Publish.publication", Publish{std::string(257, 'p'), {}}},
    {"Publish.record.member", Publish{"state", PublicationRecord{.member = -1}}},
    {"Publish.record.layout_rank", Publish{"state", PublicationRecord{.layout_rank = max_rank + 1}}},
    {"Publish.record.attempt", Publish{"state", PublicationRecord{.attempt = max_attempt + 1}}},
    {"Watch.publication", Watch{std::string("p\0", 2)}},
    {"Unwatch.publication", Unwatch{std::string("p\0", 2)}},
    {"Roster.publication", Roster{std::string(257, 'p'), false, {}, {}}},
    {"Roster.groups[0]", Roster{"state", true, {{0, 1, 0, 1, 1, {}, {}}}, {}}},
    {"Roster.groups[1]", Roster{"state", true, {{7, 1, 0, 1, 1, {}, {}}, {7, 2, 0, 1, 1, {}, {}}}, {}}},
    {"Roster.groups[0]", Roster{"state", true, {{7, 1, 0, 1, 1, {}, {}, max_attempt + 1}}, {}}},
    {"Roster.runs", Roster{"state", true, {}, {{max_rank, 2, 0, 1}}}},
    {"Roster.runs", Roster{"state", true, {}, {{max_rank + 1, 1, 0, 1}}}},
    {"Roster.runs", Roster{"state", true, {}, {{0, std::numeric_limits<std::int32_t>::max(), 0, 1}}}},
    {"Roster.runs", Roster{"state", true, {}, {{0, 2, max_rank, 1}}}},
    {"Roster.runs", Roster{"state", true, {}, {{5, 1, -1, 1}}}},
    {"MembershipChanges.runs", MembershipChanges{{{0, 1, 0, 3}}}},
    {"Lookup.members", Lookup{{3, 3}}},
    {"Lookup.members", Lookup{{3, 2}}},
    {"Lookup.members", Lookup{{-1}}},
    {"Addresses.members[0]", Addresses{{{1, MemberRecord{.rank = max_rank + 1}}}, {}}},
    {"Addresses.absent", Addresses{{}, {4, 1}}},
    {"Gather.name", Gather{1, std::string(1025, 'g'), {}}},
    {"GatherAbsent.members", GatherAbsent{"all", true, {1, 1}}},
    {"Lease.publication", Lease{1, std::string(257, 'p'), 1, {}}},
    {"Lease.ranges[0]", lease_of({{-1}, {4}})},
    {"Lease.ranges[0]", lease_of({{0}, {-4}})},
    {"Lease.ranges[0]", lease_of({{1, 2}, {4, huge}})},
    {"Hello.fabrics", hello([](Hello& h) { h.fabrics.resize(17); })},
    {"Hello.fabrics", hello([](Hello& h) {
       h.fabrics = {{std::string(257, 'f'), ""}};
     })},
    {"Hello.fabrics", hello([](Hello& h) {
       h.fabrics = {{"", std::string(257, 'd')}};
     })},
    {"Bind.fabrics", bind_of({std::string(257, 'f'), "", {}})},
    {"Bind.fabrics", bind_of({"", std::string(257, 'd'), {}})},
    {"Bind.fabrics", bind_of({"", "", Bytes(65537)})},
    {"Bind.fabrics", Bind{1, 1, std::vector<FabricHandle>(17)}},
    {"Bound.addresses", Bound{1, {Bytes(65537)}, 0, {}, {}}},
    {"Bound.addresses", Bound{1, std::vector<Bytes>(17), 0, {}, {}}},
    {"Bound.regions[0]", bound_of({0, Bytes(4097), 0})},
    {"Bound.regions[0]", bound_of({1, {}, 0})},
    {"Bound.regions[0]", bound_of({0, {}, 65})},
    {"Descriptors.count", Descriptors{1, 65}},
    {"Bound.tensors[0]", dangling},
    {"Bound.tensors[0]", beyond_end},
    {"Bound.wordRegion", word_beyond_end},
    {"Bound.wordRegion", long_mark},
    {"PartsRequest.publication", PackRequest{1, 0, {}, false, false, std::string(257, 'p'), 1}},
    {"PartsRequest.boxes", PackRequest{1, 1, {{0, {{huge}, {1}}}}}},
    {"Failure.boxes", Failure{1, ErrorCode::corrupt, "rotten", {{0, {{huge}, {1}}}}}},
    {"BlockRequest.ranges[1]", BlockRequest{1, 1, {{0, 0, 1}, {0, 1, max_boxes_per_message}}}},
    {"Joined.member", Joined{1, -1}},
    {"Joined.worldSize", Joined{1, 0, -1}},
    {"Joined.attempt", Joined{.attempt = max_attempt + 1}},
    {"Joined.ageNs", Joined{.age_ns = max_age_ns + 1}},
    {"AttemptRaised.attempt", AttemptRaised{max_attempt + 1}},
    {"KeepJob.address", KeepJob{.address = std::string(257, 'a')}},
    {"KeepJob.worldSize", KeepJob{.world_size = -1}},
    {"KeepJob.jobKey", KeepJob{.job_key = Bytes(4097)}},
    {"KeepJob.attempt", KeepJob{.attempt = max_attempt + 1}},
    {"KeepJoined.attempt", KeepJoined{.attempt = max_attempt + 1}},
    {"KeepBegin.publication", KeepBegin{.publication = std::string(257, 'p')}},
    {"KeepBegin.place", KeepBegin{.publication = "p", .layout_rank = -1}},
    {"KeepBegin.numaNode", KeepBegin{.publication = "p", .numa_node = -2}},
    {"KeepBegin.free", KeepBegin{.publication = "p", .free = std::vector<std::uint64_t>(max_kept_buffers + 1)}},
    {"KeepBuffer.descriptors", KeepBuffer{.descriptors = 65}},
    {"KeepBuffer.released", KeepBuffer{.released = std::vector<std::uint64_t>(max_kept_buffers + 1)}},
    {"KeepMembersLost.copies", KeepMembersLost{.copies = std::vector<std::uint64_t>(max_kept_buffers + 1)}},
    {"KeepDone.tensors[0]", KeepDone{.tensors = {{0, 0, Extents{-1}}}}},
    {"KeepStatus.json", KeepStatus{1, std::string("a\0b", 3)}},
    {"KeepDrop.publication", KeepDrop{1, std::string(257, 'p')}},
};

}  // namespace

BOOST_AUTO_TEST_CASE(every_message_survives_a_round_trip) {
  Maker maker(test_seed());
  for (int round = 0; round < 50; ++round) {
    const std::vector<Message> messages = maker.messages();
    BOOST_REQUIRE_EQUAL(messages.size(), std::variant_size_v<MessageKinds>);
    for (std::size_t i = 0; i < messages.size(); ++i) {
      BOOST_REQUIRE_EQUAL(messages[i].index(), i);
      const Bytes bytes = encode(messages[i]);
      BOOST_CHECK_EQUAL(bytes.size() % 8, 0u);
      BOOST_CHECK_MESSAGE(decode(bytes) == messages[i], "message kind " << i);
    }
  }
}

BOOST_AUTO_TEST_CASE(default_values_survive_a_round_trip) {
  for (const Message& message :
       {Message(Hello{}), Message(Lease{}), Message(Bound{}), Message(PackRequest{}), Message(Failure{})}) {
    BOOST_CHECK(decode(encode(message)) == message);
  }
}

BOOST_AUTO_TEST_CASE(input_may_lie_at_any_address) {
  Maker maker(test_seed());
  for (const Message& message : maker.messages()) {
    const Bytes bytes = encode(message);
    for (const std::size_t shift : {1u, 4u, 7u}) {
      Bytes moved(bytes.size() + 8);
      std::memcpy(moved.data() + shift, bytes.data(), bytes.size());
      BOOST_CHECK(decode(std::span(moved).subspan(shift, bytes.size())) == message);
    }
  }
}

BOOST_DATA_TEST_CASE(a_field_out_of_bounds_is_refused_by_name, data::make(refused), sample) {
  check_refused(encode(sample.message), sample.field);
}

// Not in the table above, which every start of the program builds: they are large.
BOOST_AUTO_TEST_CASE(more_boxes_and_digests_than_a_message_may_have_are_refused) {
  check_refused(encode(DigestRequest{1, 1, std::vector<RequestedBox>(max_boxes_per_message + 1)}), "PartsRequest");
  check_refused(encode(KeepDone{.digests = std::vector<Digest128>(max_kept_digests + 1)}), "KeepDone.digests");
}

BOOST_DATA_TEST_CASE(bytes_that_are_no_message_are_refused, data::make({0, 1, 7, 8, 9, 16, 24, 64, 4096}), size) {
  check_refused(Bytes(static_cast<std::size_t>(size)), "Message");
  check_refused(Bytes(static_cast<std::size_t>(size), std::byte{0xff}), "Message");
}

BOOST_AUTO_TEST_CASE(bytes_after_the_message_are_refused) {
  Bytes bytes = encode(Goodbye{});
  bytes.resize(bytes.size() + 8);
  check_refused(bytes, "Message");
}

BOOST_AUTO_TEST_CASE(a_long_failure_text_is_shortened) {
  const Message decoded = decode(encode(Failure{3, ErrorCode::internal, std::string(100'000, 'x')}));
  BOOST_CHECK_EQUAL(std::get<Failure>(decoded).message.size(), max_failure_bytes);
}

BOOST_AUTO_TEST_CASE(a_failure_whose_code_is_not_known_here_is_still_a_failure) {
  const Bytes one = encode(Failure{3, ErrorCode::withdrawn, "gone"});
  Bytes other = encode(Failure{3, ErrorCode::step_mismatch, "gone"});
  BOOST_TEST((std::get<Failure>(decode(one)).code == ErrorCode::withdrawn));
  BOOST_TEST((std::get<Failure>(decode(other)).code == ErrorCode::step_mismatch));
  const auto at = std::mismatch(one.begin(), one.end(), other.begin()).second;
  *at = std::byte{200};  // from a later version
  const Message decoded = decode(other);
  BOOST_TEST((std::get<Failure>(decoded) == Failure{3, ErrorCode::transport_failed, "gone"}));
}

BOOST_AUTO_TEST_CASE(the_largest_request_is_decoded) {
  PackRequest request{1, 2, std::vector<RequestedBox>(max_boxes_per_message, RequestedBox{7, {{1, 2, 3}, {4, 5, 6}}})};
  const Message message = request;
  const Bytes bytes = encode(message);
  BOOST_CHECK(decode(bytes) == message);
}

BOOST_AUTO_TEST_SUITE_END()

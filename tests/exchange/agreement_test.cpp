// SPDX-License-Identifier: Apache-2.0
// Conclusions of members from the same notes: who is in the group of an exchange, and whether the last group serves.
#include "exchange/agreement.hpp"

#include <boost/test/unit_test.hpp>

#include <string>
#include <string_view>
#include <vector>

#include "restore/rounds_step.hpp"
#include "shardwire/error.hpp"
#include "support/job.hpp"

BOOST_AUTO_TEST_SUITE(agreement)

using namespace shardwire;
using namespace shardwire::test;

namespace {

// The note of a member with memory on a device and the collectives that it may use.
wire::ExchangeNote on_device(std::int16_t device, std::vector<std::string> collectives = {"nccl (2.27.3)"}) {
  wire::ExchangeNote note;
  note.device = device;
  note.unasked = true;
  note.collectives = std::move(collectives);
  return note;
}
std::string_view name_of(const GroupChoice& choice) {
  return choice.collective == nullptr ? "none" : choice.collective->name;
}
bool refuses(const std::vector<wire::ExchangeNote>& notes, ErrorCode code, const std::string& text) {
  const Error error = failure_of([&] { agree_on_group(notes); });
  return error.code() == code && says(error, text);
}

}  // namespace

BOOST_AUTO_TEST_CASE(host_memory_goes_in_rounds_where_somebody_asks_for_them) {
  wire::ExchangeNote note;
  note.collectives = offered_collectives(MemoryKind::host);
  BOOST_REQUIRE(!note.collectives.empty());
  note.unasked = true;
  BOOST_TEST(name_of(agree_on_group(std::vector{note, note})) == "none");
  wire::ExchangeNote forced = note;
  forced.forced = true;
  const GroupChoice choice = agree_on_group(std::vector{note, forced});
  BOOST_TEST(name_of(choice) == "loopback");
  BOOST_TEST(choice.forced);
  BOOST_TEST((choice.members == std::vector{0, 1}));
  // Threads of another process have another domain.
  for (const auto& other : {std::vector<std::string>{"loopback (process 1)"}, std::vector<std::string>{}}) {
    forced.collectives = other;
    BOOST_TEST(refuses({note, forced}, ErrorCode::unsupported, "member 1 offers"));
  }
}

BOOST_AUTO_TEST_CASE(device_memory_may_go_in_rounds_unasked_where_all_offer_them) {
  const GroupChoice choice = agree_on_group(std::vector{on_device(0), on_device(1)});
  BOOST_TEST(name_of(choice) == "nccl");
  BOOST_TEST(!choice.forced);
  BOOST_TEST((choice.devices == std::vector{0, 1}));
  // One member has another version, has none, or does not allow it.
  BOOST_TEST(name_of(agree_on_group(std::vector{on_device(0), on_device(0, {"nccl (2.18.1)"})})) == "none");
  BOOST_TEST(name_of(agree_on_group(std::vector{on_device(0), on_device(0, {})})) == "none");
  wire::ExchangeNote unwilling = on_device(0);
  unwilling.unasked = false;
  BOOST_TEST(name_of(agree_on_group(std::vector{on_device(0), unwilling})) == "none");
  // A member that forces rounds gets an error.
  wire::ExchangeNote forced = on_device(0, {});
  forced.forced = true;
  BOOST_TEST(refuses({on_device(0), forced}, ErrorCode::unsupported, "member 1 offers none"));
}

BOOST_AUTO_TEST_CASE(a_group_is_of_the_members_with_device_memory) {
  wire::ExchangeNote host;
  host.unasked = true;
  host.collectives = {"loopback (process 1)"};
  const GroupChoice choice = agree_on_group(std::vector{host, on_device(3), host, on_device(1)});
  BOOST_TEST(name_of(choice) == "nccl");
  BOOST_TEST((choice.members == std::vector{1, 3}));
  BOOST_TEST(choice.rank_of(3) == 1);
  BOOST_TEST(choice.rank_of(2) == -1);
  BOOST_TEST((choice.devices == std::vector{RoundsGroup::nowhere, 3, RoundsGroup::nowhere, 1}));
  BOOST_TEST(name_of(agree_on_group(std::vector{host, on_device(3)})) == "none");
}

BOOST_AUTO_TEST_CASE(a_group_is_kept_where_all_of_it_have_kept_the_same) {
  const auto kept = [](std::uint8_t id, std::uint32_t size) {
    wire::ExchangeNote note = on_device(0);
    note.kept_group = Bytes(4, std::byte{id});
    note.kept_size = size;
    return note;
  };
  BOOST_TEST((agree_on_group(std::vector{kept(7, 2), kept(7, 2)}).kept == Bytes(4, std::byte{7})));
  BOOST_TEST(agree_on_group(std::vector{kept(7, 2), kept(8, 2)}).kept.empty());
  BOOST_TEST(agree_on_group(std::vector{kept(7, 2), on_device(0)}).kept.empty());
  BOOST_TEST(agree_on_group(std::vector{kept(7, 3), kept(7, 3)}).kept.empty());
}

BOOST_AUTO_TEST_CASE(communicators_are_given_by_all_of_a_group_or_by_none) {
  wire::ExchangeNote giving = on_device(0);
  giving.adopts = true;
  BOOST_TEST(agree_on_group(std::vector{giving, giving}).adopted);
  BOOST_TEST(!agree_on_group(std::vector{on_device(0), on_device(0)}).adopted);
  BOOST_TEST(refuses({giving, on_device(0)}, ErrorCode::invalid_argument, "not by 1"));
  giving.kept_group = Bytes(4, std::byte{7});
  giving.kept_size = 2;
  BOOST_TEST(agree_on_group(std::vector{giving, giving}).kept.empty());
}

BOOST_AUTO_TEST_CASE(one_member_without_a_direct_path_brings_all_into_rounds) {
  std::vector<wire::ExchangeNote> notes(3);
  BOOST_TEST(!needs_rounds(notes));
  notes[2].indirect = true;
  BOOST_TEST(needs_rounds(notes));
}

BOOST_AUTO_TEST_SUITE_END()

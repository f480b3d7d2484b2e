// SPDX-License-Identifier: Apache-2.0
// Conclusions of members from the same notes: who is in the group of an exchange, and whether the last group serves.
#include "exchange/agreement.hpp"

#include <boost/test/unit_test.hpp>

#include <string>
#include <vector>

#include "shardwire/error.hpp"

BOOST_AUTO_TEST_SUITE(agreement)

using namespace shardwire;
using wire::ExchangeNote;

namespace {

/// Notes of members that all force rounds of host memory, and kept a group of `kept_size` members.
std::vector<ExchangeNote> notes_of(std::size_t members, std::uint32_t kept_size) {
  ExchangeNote note;
  note.forced = true;
  note.collectives = offered_collectives(MemoryKind::host);
  note.kept_group = {std::byte{1}, std::byte{2}};
  note.kept_size = kept_size;
  return std::vector<ExchangeNote>(members, note);
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_group_of_the_same_members_serves_again) {
  const auto notes = notes_of(3, 3);
  const GroupChoice choice = agree_on_group(notes);
  BOOST_TEST((choice.members == std::vector<int>{0, 1, 2}));
  BOOST_TEST((choice.kept == notes.front().kept_group));
  BOOST_TEST(choice.rank_of(2) == 2);
  BOOST_TEST(choice.rank_of(3) == -1);
}

BOOST_AUTO_TEST_CASE(a_group_of_another_size_is_made_anew) {
  BOOST_TEST(agree_on_group(notes_of(3, 2)).kept.empty());
}

BOOST_AUTO_TEST_CASE(a_group_that_one_member_did_not_keep_is_made_anew) {
  auto notes = notes_of(3, 3);
  notes[1].kept_group = {std::byte{9}};
  BOOST_TEST(agree_on_group(notes).kept.empty());
  notes[1].kept_group.clear();
  BOOST_TEST(agree_on_group(notes).kept.empty());
}

BOOST_AUTO_TEST_CASE(rounds_of_host_memory_run_only_if_they_are_forced) {
  auto notes = notes_of(2, 0);
  for (ExchangeNote& note : notes) {
    note.forced = false;
    note.unasked = true;
  }
  BOOST_TEST(agree_on_group(notes).collective == nullptr);
  notes[1].forced = true;
  BOOST_TEST(agree_on_group(notes).collective != nullptr);
}

BOOST_AUTO_TEST_CASE(a_collective_that_one_member_lacks_is_refused_with_all_offers) {
  auto notes = notes_of(2, 0);
  notes[1].collectives.clear();
  BOOST_CHECK_EXCEPTION(agree_on_group(notes), Error, [](const Error& error) {
    return error.code() == ErrorCode::unsupported &&
           std::string(error.what()).find("member 1 offers none") != std::string::npos;
  });
}

BOOST_AUTO_TEST_CASE(a_communicator_is_given_by_all_or_none) {
  auto notes = notes_of(2, 2);
  notes[0].adopts = true;
  BOOST_CHECK_EXCEPTION(agree_on_group(notes), Error,
                        [](const Error& error) { return error.code() == ErrorCode::invalid_argument; });
  notes[1].adopts = true;
  const GroupChoice choice = agree_on_group(notes);
  BOOST_TEST(choice.adopted);
  BOOST_TEST(choice.kept.empty());
}

BOOST_AUTO_TEST_SUITE_END()

// SPDX-License-Identifier: Apache-2.0
#include <boost/test/unit_test.hpp>

#include <functional>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "control/directory.hpp"
#include "restore/publishers.hpp"
#include "support/seed.hpp"

BOOST_AUTO_TEST_SUITE(roster)

using namespace shardwire;
using namespace shardwire::restore;

namespace {

constexpr std::int32_t members = 300;

wire::Digest digest(std::uint64_t number) {
  wire::Digest result{};
  result[0] = static_cast<std::byte>(number);
  return result;
}

wire::PublicationRecord record(std::int32_t member, std::int32_t layout_rank, std::int64_t step = 7) {
  return {member, 1, 0, layout_rank, step, 1, true, digest(1), digest(2)};
}

/// The message as a watcher receives it, encoded and decoded.
wire::Roster sent(wire::Roster message) {
  message.publication = "state";
  return std::get<wire::Roster>(wire::decode(wire::encode(message)));
}

/// The tables of a rendezvous and of a watcher that joins at some time.
struct Pair {
  RosterTable host;
  std::optional<RosterTable> watcher;

  void change(const RosterTable::Changes& changes) {
    const wire::Roster message = sent(host.message_for(changes));
    host.apply(message, members);
    if (watcher) watcher->apply(message, members);
  }
  void watch() {
    watcher.emplace();
    watcher->apply(sent(host.whole()), members);
  }
};

std::vector<wire::PublicationRecord> values_of(const std::map<std::int32_t, wire::PublicationRecord>& model) {
  std::vector<wire::PublicationRecord> result;
  for (const auto& [member, is] : model) result.push_back(is);
  return result;
}

void check_refused(const std::function<void()>& call) {
  BOOST_CHECK_EXCEPTION(call(), Error, [](const Error& error) { return error.code() == ErrorCode::transport_failed; });
}

std::vector<int> lost_of(const Directory& directory) {
  std::vector<int> lost;
  for (const auto& [member, presence] : directory.departed()) {
    if (presence == wire::Presence::lost) lost.push_back(member);
  }
  return lost;
}

}  // namespace

BOOST_AUTO_TEST_CASE(any_sequence_of_changes_gives_what_a_plain_map_gives) {
  std::mt19937_64 random(test_seed());
  const auto below = [&](std::uint64_t bound) { return random() % bound; };
  for (int round = 0; round < 40; ++round) {
    Pair pair;
    std::map<std::int32_t, wire::PublicationRecord> model;
    std::map<std::int32_t, std::uint32_t> epochs;
    const int joins_at = static_cast<int>(below(30));
    for (int batch = 0; batch < 60; ++batch) {
      if (batch == joins_at) pair.watch();
      RosterTable::Changes changes;
      for (std::uint64_t n = below(3) == 0 ? members : below(12); n > 0; --n) {
        const auto member = static_cast<std::int32_t>(below(members));
        const auto what = below(10);
        if (what < 2) {
          changes[member] = std::nullopt;  // departs
          ++epochs[member];
          model.erase(member);
          continue;
        }
        wire::PublicationRecord is = record(member, what < 8 ? member : static_cast<std::int32_t>(below(1000)));
        is.epoch = epochs[member];
        is.step = static_cast<std::int64_t>(below(3)) - 1;
        is.generation = below(2);
        is.live = below(5) != 0;
        is.manifest = digest(static_cast<std::uint64_t>(member) / 64);
        is.values = digest(below(4) == 0 ? random() : 9);
        is.attempt = static_cast<std::uint32_t>(below(2));
        changes[member] = is;
        if (is.live) {
          model[member] = is;
        } else {
          model.erase(member);
        }
      }
      pair.change(changes);
      BOOST_REQUIRE(pair.host.records() == values_of(model));
      if (pair.watcher) BOOST_REQUIRE(pair.watcher->records() == values_of(model));
      BOOST_REQUIRE_EQUAL(pair.host.empty(), model.empty());
    }
  }
}

BOOST_AUTO_TEST_CASE(equal_publications_of_consecutive_members_are_one_run_and_one_group) {
  Pair pair;
  RosterTable::Changes changes;
  for (std::int32_t member = 0; member < members; ++member) changes[member] = record(member, member + 5);
  const wire::Roster message = pair.host.message_for(changes);
  BOOST_TEST(message.groups.size() == 1U);
  BOOST_REQUIRE(message.runs.size() == 1U);
  BOOST_TEST((message.runs[0] == wire::MemberRun{0, members, 5, message.groups[0].number}));
}

BOOST_AUTO_TEST_CASE(a_change_that_changes_nothing_is_empty) {
  Pair pair;
  pair.change({{3, record(3, 3)}, {4, std::nullopt}});
  const wire::Roster message = pair.host.message_for({{3, record(3, 3)}, {4, std::nullopt}, {299, std::nullopt}});
  BOOST_TEST(message.groups.empty());
  BOOST_TEST(message.runs.empty());
}

BOOST_AUTO_TEST_CASE(a_known_group_is_not_described_again_until_its_last_member_left_it) {
  Pair pair;
  pair.change({{3, record(3, 3)}});
  pair.watch();
  BOOST_TEST(pair.host.message_for({{4, record(4, 4)}}).groups.empty());
  pair.change({{3, std::nullopt}});
  BOOST_TEST(pair.host.message_for({{4, record(4, 4)}}).groups.size() == 1U);
  pair.change({{4, record(4, 4)}});
  BOOST_TEST((pair.watcher->records() == std::vector{record(4, 4)}));
}

BOOST_AUTO_TEST_CASE(a_refused_roster_changes_nothing) {
  const wire::RosterGroup group{1, 1, 0, 7, 1, digest(1), digest(2)};
  RosterTable table;
  table.apply({"state", true, {group}, {{3, 1, 3, 1}}}, members);
  const auto before = table.records();
  const std::vector<wire::Roster> wrong{
      {"state", false, {group}, {{4, 1, 4, 1}}},                          // a number that is in use
      {"state", false, {{0, 1, 0, 7, 1, {}, {}}}, {}},                    // the number reserved for none
      {"state", true, {group, group}, {{4, 1, 4, 1}}},                    // a number twice
      {"state", false, {}, {{4, 1, 4, 2}}},                               // no such group
      {"state", true, {}, {{4, 1, 4, 1}}},                                // a group of an earlier roster
      {"state", false, {}, {{members + wire::max_guests, 1, 0, 1}}},      // no such member or guest
      {"state", false, {}, {{members + wire::max_guests - 1, 2, 0, 1}}},  // the last one of the run does not exist
      {"state", false, {}, {{0, 1 << 24, 0, 1}}},                         // nor does this run
      {"state", false, {}, {{4, 2, 4, 1}, {5, 1, 5, 1}}},                 // overlapping runs
      {"state", false, {}, {{4, 1, 4, 1}, {9, 1, 9, 1}, {8, 1, 8, 1}}},   // not ascending
      {"state", false, {}, {{4, 1, 4, 1}, {9, 0, 9, 1}}}};                // an empty run
  for (const wire::Roster& roster : wrong) {
    check_refused([&] { table.apply(roster, members); });
    BOOST_TEST((table.records() == before));
  }
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(directory)

using namespace roster;

BOOST_AUTO_TEST_CASE(publications_of_departed_members_are_left_out_until_they_come_back) {
  Directory directory(members);
  const wire::RosterGroup group{1, 1, 0, 7, 1, digest(1), digest(2)};
  BOOST_TEST(!directory.knows("state"));
  check_refused([&] { directory.apply(wire::Roster{"state", false, {group}, {{0, 4, 0, 1}}}); });
  directory.apply(wire::Roster{"state", true, {group}, {{0, 4, 0, 1}}});
  BOOST_TEST(directory.knows("state"));
  BOOST_TEST(directory.publications("state").size() == 4U);
  BOOST_TEST(directory.publications("other").empty());

  directory.apply(wire::MembershipChanges{{{1, 1, 1, 2}, {2, 1, 2, 1}}});
  BOOST_TEST((directory.publications("state") == std::vector{record(0, 0), record(3, 3)}));
  BOOST_TEST((lost_of(directory) == std::vector{1}));  // 2 left in order
  BOOST_TEST((directory.presence(2) == wire::Presence::left));
  directory.apply(wire::MembershipChanges{{{1, 2, 0, 0}}});
  BOOST_TEST(directory.publications("state").size() == 4U);
  BOOST_TEST(lost_of(directory).empty());
}

BOOST_AUTO_TEST_CASE(an_address_serves_the_epoch_that_it_was_given_for) {
  Directory directory(members);
  wire::MemberRecord first{.rank = 5, .incarnation = 11};
  directory.apply(wire::Addresses{{{1, first}}, {6}});
  BOOST_REQUIRE(directory.address(5, 1) != nullptr);
  BOOST_TEST(directory.address(5, 1)->incarnation == 11U);
  BOOST_TEST(directory.address(5, 2) == nullptr);
  BOOST_TEST(directory.address(6, 1) == nullptr);
  directory.apply(wire::Addresses{{{2, {.rank = 5, .incarnation = 12}}}, {}});
  BOOST_TEST(directory.address(5, 1) == nullptr);
  BOOST_TEST(directory.address(5, 2)->incarnation == 12U);
}

BOOST_AUTO_TEST_CASE(members_that_the_job_does_not_have_are_refused) {
  Directory directory(members);
  check_refused([&] { directory.apply(wire::MembershipChanges{{{members + wire::max_guests - 1, 2, 0, 2}}}); });
  BOOST_TEST(lost_of(directory).empty());
  check_refused([&] { directory.apply(wire::Addresses{{{1, {.rank = members + wire::max_guests}}}, {}}); });
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(awaited_publishers)

using namespace roster;

namespace {

using Numbers = std::vector<int>;

// For a job of four members.
Numbers possible(const std::vector<wire::MemberRun>& departed, const std::vector<wire::PublicationRecord>& records,
                 const PublishersInput& input) {
  Directory directory(4);
  directory.apply(wire::MembershipChanges{departed});
  return possible_publishers(directory, records, input);
}

constexpr std::uint32_t left = 1;
constexpr std::uint32_t lost = 2;

}  // namespace

BOOST_AUTO_TEST_CASE(an_open_rank_is_awaited_from_the_member_at_the_distance_of_the_others) {
  const std::vector half{record(1, 0)};
  BOOST_TEST((possible({}, half, {.member = 3, .ranks = 2}) == Numbers{2}));
  BOOST_TEST((possible({{2, 1, 0, left}}, half, {.member = 3, .ranks = 2}).empty()));
  BOOST_TEST((possible({{2, 1, 0, lost}}, half, {.member = 3, .ranks = 2}).empty()));
  BOOST_TEST((possible({{0, 1, 0, lost}}, half, {.member = 3, .ranks = 2}) == Numbers{2}));  // a reader
  BOOST_TEST((possible({}, {record(1, 0), record(2, 1)}, {.member = 3, .ranks = 2}) == Numbers{0, 3}));
}

BOOST_AUTO_TEST_CASE(a_process_that_publishes_nothing_waits_for_itself_unless_others_have_departed) {
  BOOST_TEST((possible({}, {}, {.member = 0}) == Numbers{0, 1, 2, 3}));
  BOOST_TEST((possible({{1, 2, 0, left}}, {}, {.member = 0}) == Numbers{0, 3}));
  BOOST_TEST((possible({{1, 3, 0, lost}}, {}, {.member = 0}).empty()));
  BOOST_TEST((possible({{1, 3, 0, lost}}, {}, {.member = 0, .own_on_its_way = true}) == Numbers{0}));
  // All distances differ, one rank is open, and this process has not published.
  const std::vector mixed{record(1, 3), record(2, 1), record(3, 0)};
  BOOST_TEST((possible({}, mixed, {.member = 0, .ranks = 4}) == Numbers{0}));
  BOOST_TEST((possible({{1, 1, 0, lost}}, {mixed[1], mixed[2]}, {.member = 0, .ranks = 4}) == Numbers{0}));
  BOOST_TEST((possible({{1, 1, 0, lost}}, {mixed[1], mixed[2]}, {.member = 0, .ranks = 3}).empty()));
}

BOOST_AUTO_TEST_CASE(who_publishes_an_earlier_step_may_still_come_to_the_one_asked_for) {
  const std::vector records{record(0, 0, 7), record(1, 1, 7)};
  BOOST_TEST((possible({}, records, {.member = 2, .step = 8, .ranks = 2}) == Numbers{0, 1}));
  BOOST_TEST((possible({}, records, {.member = 2, .step = 6, .ranks = 2}).empty()));
  BOOST_TEST((possible({}, {record(0, 0, 6), record(1, 1, 7)}, {.member = 2, .step = 7, .ranks = 2}) == Numbers{0}));
}

BOOST_AUTO_TEST_CASE(a_spare_of_a_rank_changes_nothing_about_where_the_others_are_awaited_from) {
  const std::vector with_spare{record(0, 0), record(3, 0)};
  BOOST_TEST((possible({}, with_spare, {.member = 2, .ranks = 2}) == Numbers{1}));
  BOOST_TEST((possible({{1, 1, 0, lost}}, with_spare, {.member = 2, .ranks = 2}).empty()));
  BOOST_TEST((possible({}, {record(0, 0), record(1, 1), record(3, 1)}, {.member = 2, .ranks = 3}) == Numbers{2}));
  // The spare is where rank 1 would be awaited from, so that is elsewhere.
  BOOST_TEST((possible({}, {record(0, 0), record(1, 0)}, {.member = 3, .ranks = 2}) == Numbers{2}));
  // Either of two may be the spare.
  BOOST_TEST((possible({{1, 1, 0, lost}}, {record(0, 0), record(2, 0)}, {.member = 1, .ranks = 2}) == Numbers{3}));
}

BOOST_AUTO_TEST_CASE(the_newest_common_step_is_one_of_every_published_rank) {
  using Records = std::vector<wire::PublicationRecord>;
  BOOST_TEST(!newest_common_step(Records{}).has_value());
  BOOST_TEST((newest_common_step(Records{record(0, 0, 5), record(1, 1, 5)}) == 5));
  BOOST_TEST(!newest_common_step(Records{record(0, 0, 6), record(1, 1, 5)}).has_value());
  BOOST_TEST((newest_common_step(Records{record(0, 0, 6), record(1, 1, 5), record(2, 1, 6)}) == 6));
  BOOST_TEST((newest_common_step(Records{record(0, 0, 6), record(3, 0, 5), record(1, 1, 5), record(2, 1, 7)}) == 5));
}

BOOST_AUTO_TEST_CASE(further_publications_of_a_rank_are_its_copies) {
  const auto manifest = std::make_shared<const Manifest>(Manifest{3, {}});
  const auto other = std::make_shared<const Manifest>(Manifest{3, {}});
  const std::vector records{record(5, 0), record(1, 1), record(4, 1), record(6, 1), record(2, 2), record(7, 2)};
  const std::vector manifests{manifest, manifest, manifest, manifest, other, other};
  const JobLayout side = side_of(records, manifests);
  BOOST_TEST(side.ranks == 3);
  BOOST_REQUIRE(side.sections.size() == 2U);
  BOOST_TEST((side.sections[0].ranks == std::vector{Rank{0}, Rank{1}}));
  BOOST_TEST((side.sections[1].ranks == std::vector{Rank{2}}));
  BOOST_TEST((side.copies == std::vector{Rank{1}, Rank{1}, Rank{2}}));
  const std::vector holders{Rank{0}, Rank{1}, Rank{3}, Rank{4}, Rank{2}, Rank{5}};
  BOOST_TEST((holders_of(records, side) == holders));
  for (std::size_t i = 0; i < records.size(); ++i) {
    BOOST_TEST(to_int(side.rank_of(holders[i])) == records[i].layout_rank);
  }
}

BOOST_AUTO_TEST_SUITE_END()

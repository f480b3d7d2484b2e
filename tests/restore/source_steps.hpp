// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <boost/test/unit_test.hpp>

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "restore/made_source.hpp"

// Brings a source on fake parts into each state, and checks the invariants of every source that has ended.
namespace shardwire::test {

using Names = std::vector<std::string>;

/// The unanswered request at this index.
template <typename Message>
const Message& asked(const MadeSource& made, std::size_t index = 0) {
  return std::get<Message>(made.link->requests.at(index).message);
}

/// Whether it only awaits the answer to a Bind.
inline bool asks_for_bind(const MadeSource& made) {
  return made.link->requests.size() == 1 && std::holds_alternative<wire::Bind>(made.link->requests[0].message);
}

inline void start_own(MadeSource& made) {
  made.binding.record.member = MadeContext::own_member;
  made.context.published = std::make_shared<detail::PublicationState>();
  made.context.published->generation = MadeSource::generation;
  made.context.published->tensors.resize(3);
  made.start();
}

inline void to_leasing(MadeSource& made) {
  made.link->offer({tcp});
  made.start();
}

inline void to_connecting(MadeSource& made) {
  made.link->offer({tcp});
  made.start_with_lease();
}

inline void to_proving(MadeSource& made) {
  made.link->offer({ucx});
  made.start_with_lease();
  made.bind_over(ucx);
}

inline void to_bound(MadeSource& made) {
  to_connecting(made);
  made.bind_over(tcp);
}

inline void to_moving(MadeSource& made) {
  to_bound(made);
  made.source->begin_moving();
}

/// Confirmation has been requested.
inline void to_confirming(MadeSource& made) {
  to_moving(made);
  made.source->confirm(false);
}

/// The generation word is being read.
inline void to_reading_word(MadeSource& made) {
  to_proving(made);
  made.fabric(ucx).endpoint().complete(MadeSource::generation);
  made.source->begin_moving();
  made.source->confirm(false);
}

/// shm was requested, and tcp is wanted in addition, for messages.
inline void to_connecting_of_two(MadeSource& made) {
  made.options.fabrics.wants_messages = true;
  made.fabric(tcp).prepares_later = true;
  made.link->offer({shm, tcp});
  made.start_with_lease();
}

/// The first read over ucx is in flight, and tcp is wanted in addition.
inline void to_proving_of_two(MadeSource& made) {
  made.options.fabrics.wants_messages = true;
  made.fabric(tcp).prepares_later = true;
  made.link->offer({ucx, tcp});
  made.start_with_lease();
  made.bind_over(ucx);
}

inline void to_confirming_without_lease_yet(MadeSource& made) {
  made.keep(tcp);
  made.start(MadeSource::Source::Leasing::beside);
  made.source->begin_moving();
  made.source->confirm(false);
}

/// Releases the source. It must leave nothing at the link and the clock, late answers must have no effect, and each
/// lease that the source has granted, or grants late, must be returned exactly once.
inline void require_over(MadeSource& made) {
  made.source->release();
  BOOST_TEST(made.source->requests().unanswered() == 0);
  BOOST_TEST(made.link->watchers() == 0U);
  BOOST_TEST(made.link->unwatched <= 1);
  BOOST_TEST(made.clock.alarms_set() == 0U);
  const std::string_view state = made.state();
  const std::size_t requests = made.link->requests_made;
  const int calls = made.listener.calls();
  const std::size_t ruled_out = made.fabric(ucx).ruled_out.size();
  made.happen_late();
  made.source->release();
  BOOST_TEST(made.state() == state);
  BOOST_TEST(made.link->requests_made == requests);
  BOOST_TEST(made.listener.calls() == calls);
  BOOST_TEST(made.fabric(ucx).ruled_out.size() == ruled_out);
  BOOST_TEST(made.source->requests().unanswered() == 0);
  BOOST_TEST(made.source->requests().lease() == 0U);
  BOOST_TEST(made.releases() == made.link->leases_granted);
}

inline std::string error_of(const MadeSource& made) {
  BOOST_REQUIRE(made.listener.lost == 1);
  return made.listener.error->what();
}
inline std::string_view code_of(const MadeSource& made) {
  BOOST_REQUIRE(made.listener.lost == 1);
  BOOST_TEST((made.listener.error->ranks() == std::vector{Rank{3}}));
  return to_string(made.listener.error->code());
}

inline std::string excluded(const MadeSource& made, std::size_t fabric) {
  const auto& all = made.source->binding().excluded;
  const auto found = all.find(fabric);
  return found == all.end() ? "it is not excluded" : found->second;
}

inline Names connected(const MadeSource& made) {
  Names names;
  for (const ConnectedFabric& one : made.source->binding().connected)
    names.push_back(made.context.table.name(one.fabric));
  return names;
}

}  // namespace shardwire::test

// SPDX-License-Identifier: Apache-2.0
// A process that is killed during a restore is lost to its peers soon. In made time; session/killed has real processes, whose mapped
// memory outlives them.
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <string_view>
#include <vector>

#include "simulation/slow_restores.hpp"

BOOST_AUTO_TEST_SUITE(killed_members)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;
using namespace shardwire::simulation;

namespace {

const auto cases = boost::unit_test::data::make(made_fabrics) * boost::unit_test::data::make({false, true}) *
                   boost::unit_test::data::make(made_methods);

void require_lost(Pair& pair, Restore& restore) {
  const auto began = pair.made.now();
  const Error error = failure_of([&] { restore.wait(); });
  BOOST_TEST((error.code() == ErrorCode::peer_lost), error.what());
  BOOST_TEST((error.ranks() == std::vector{Rank{0}}));
  BOOST_TEST(!error.gaps().empty());
  BOOST_TEST((pair.made.now() - began < soon));
}

}  // namespace

BOOST_DATA_TEST_CASE(a_source_that_is_killed_while_it_is_read_ends_the_restore_soon, cases, fabric, in_arena, method) {
  Pair pair(fabric, in_arena);
  Restore restore = pair.begun(slowly(method_of(method)));
  pair.kill_source();
  require_lost(pair, restore);
}

BOOST_DATA_TEST_CASE(a_source_that_is_killed_once_all_is_bound_is_lost_to_the_restore, cases, fabric, in_arena,
                     method) {
  Pair pair(fabric, in_arena);
  pair.at_bound = [&] { pair.kill_source(); };
  Restore restore = pair.restore(slowly(method_of(method), 0));
  require_lost(pair, restore);
  BOOST_TEST(!pair.source.has_value());
  const bool mapped = std::string_view(fabric) == "maps" && in_arena && !method_of(method);
  BOOST_TEST(restore.report().moved_bytes == (mapped ? made_bytes : 0U));
}

// The source is stopped first, so that all bytes arrive but no digests. Of memory outside an arena it would have to send them.
BOOST_DATA_TEST_CASE(a_source_that_is_killed_while_its_digests_are_awaited_is_lost_to_the_restore,
                     boost::unit_test::data::make({"maps", "reads"}), fabric) {
  Pair pair(fabric, true);
  pair.at_bound = [&] { pair.source_process().stop(); };
  RestoreOptions options = slowly({}, 0);
  options.verify = Verify::digest;
  bool verifying = false;
  Restore restore = pair.restore(options);
  restore.on_progress([&](const Progress& progress) { verifying = std::string_view(progress.stage) == "verify"; }, 0s);
  pair.made.wait_until([&] { return verifying || restore.poll(); });
  pair.kill_source();
  require_lost(pair, restore);
}

BOOST_DATA_TEST_CASE(a_reader_that_is_killed_holds_no_publication, cases, fabric, in_arena, method) {
  Pair pair(fabric, in_arena, 0);
  const Restore restore = pair.begun(slowly(method_of(method)));
  pair.kill_reader();
  const auto began = pair.made.now();
  pair.publication.retire(patience);
  BOOST_TEST((pair.made.now() - began < soon));
}

BOOST_AUTO_TEST_SUITE_END()

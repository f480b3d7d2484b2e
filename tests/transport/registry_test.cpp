// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <boost/test/unit_test.hpp>

#include "transport/config.hpp"
#include "transport/transport.hpp"

using namespace shardwire;
using namespace shardwire::transport;

namespace {

bool unsupported(const Error& error) {
  return error.code() == ErrorCode::unsupported;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(registry)

BOOST_AUTO_TEST_CASE(every_transport_has_a_name_of_its_own) {
  for (const Transport& transport : registered()) {
    BOOST_TEST(std::ranges::count(registered(), transport.name, &Transport::name) == 1);
    BOOST_TEST(!transport.probe().detail.empty());
  }
}

BOOST_AUTO_TEST_CASE(loopback_is_chosen_by_name_and_never_by_auto) {
  const Transport& loopback = choose("loopback");
  BOOST_TEST(loopback.name == "loopback");
  BOOST_TEST(loopback.probe().viable);
  BOOST_TEST(loopback.open()->name() == "loopback");
  for (const Transport* transport : select(automatic)) BOOST_TEST(transport->name != "loopback");
}

BOOST_AUTO_TEST_CASE(auto_takes_all_that_are_viable_in_the_order_of_the_table) {
  std::vector<const Transport*> expected;
  for (const Transport& transport : registered()) {
    if (transport.reach != Reach::process && transport.probe().viable) expected.push_back(&transport);
  }
  BOOST_TEST((select(automatic) == expected));
  BOOST_TEST(std::ranges::count(expected, "tcp", &Transport::name) == 1);
}

BOOST_AUTO_TEST_CASE(names_are_taken_from_a_list_in_the_order_of_the_table_and_once) {
  BOOST_TEST((select("tcp") == std::vector{&choose("tcp")}));
  BOOST_TEST((select("loopback,tcp,loopback") == std::vector{&choose("tcp"), &choose("loopback")}));
  BOOST_CHECK_EXCEPTION(select("tcp,"), Error, unsupported);
  BOOST_CHECK_EXCEPTION(select("tcp,auto"), Error, unsupported);
  BOOST_CHECK_EXCEPTION(select(""), Error, unsupported);
}

// The order in which paths are taken is these numbers.
BOOST_AUTO_TEST_CASE(no_two_transports_that_reach_other_processes_are_as_good_as_each_other) {
  std::vector<int> ranks;
  for (const Transport& transport : registered()) {
    if (transport.reach == Reach::process) continue;
    for (const int rank : {transport.preference.read, transport.preference.message}) {
      if (rank != 0) ranks.push_back(rank);
    }
  }
  std::ranges::sort(ranks);
  BOOST_TEST((std::ranges::adjacent_find(ranks) == ranks.end()));
}

BOOST_AUTO_TEST_CASE(an_unknown_name_is_refused_with_the_known_ones) {
  BOOST_CHECK_EXCEPTION(choose("carrier-pigeon"), Error, [](const Error& error) {
    const std::string what = error.what();
    return unsupported(error) && what.find("carrier-pigeon") != std::string::npos &&
           what.find("loopback") != std::string::npos;
  });
  BOOST_CHECK_EXCEPTION(choose(""), Error, unsupported);
}

#if SHARDWIRE_HAVE_UCX
BOOST_AUTO_TEST_CASE(ucx_says_what_was_loaded_or_why_it_is_off) {
  BOOST_TEST(!std::ranges::find(registered(), "ucx", &Transport::name)->probe().detail.empty());
}
#else
BOOST_AUTO_TEST_CASE(a_transport_that_is_not_in_the_build_says_why) {
  BOOST_CHECK_EXCEPTION(choose("ucx"), Error, [](const Error& error) {
    return unsupported(error) && std::string(error.what()).find(SHARDWIRE_UCX_DETAIL) != std::string::npos;
  });
}
#endif

BOOST_AUTO_TEST_SUITE_END()

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
  try {
    BOOST_TEST(choose("auto").name != "loopback");
  } catch (const Error& error) {
    BOOST_TEST(unsupported(error));
  }
}

BOOST_AUTO_TEST_CASE(a_transport_that_needs_sockets_is_chosen_by_name_only) {
  BOOST_TEST(choose("tcp").needs_sockets);
  for (const Transport& transport : registered()) {
    if (!transport.probe().viable) continue;
    BOOST_TEST((transport.open()->sockets().count > 0) == transport.needs_sockets);
  }
  try {
    BOOST_TEST(!choose("auto").needs_sockets);
  } catch (const Error& error) {
    BOOST_TEST(std::string(error.what()).find("tcp: has to be asked for by name") != std::string::npos);
  }
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
BOOST_AUTO_TEST_CASE(auto_takes_ucx_where_it_is_viable) {
  BOOST_TEST(choose("auto").name == "ucx");
  BOOST_TEST(choose("ucx").probe().detail.find("ucx 1.") != std::string::npos);
}
#else
BOOST_AUTO_TEST_CASE(a_transport_that_is_not_in_the_build_says_why) {
  BOOST_CHECK_EXCEPTION(choose("ucx"), Error, [](const Error& error) {
    return unsupported(error) && std::string(error.what()).find(SHARDWIRE_UCX_DETAIL) != std::string::npos;
  });
  BOOST_CHECK_EXCEPTION(choose("auto"), Error, unsupported);
}
#endif

BOOST_AUTO_TEST_SUITE_END()

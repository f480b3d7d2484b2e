// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <boost/test/unit_test.hpp>

#include <string>

#include "control/tls.hpp"

namespace shardwire::test {

/// Precondition of tests that encrypt.
inline boost::test_tools::assertion_result encryption_is_built(boost::unit_test::test_unit_id /*case*/) {
  std::string why_not;
  boost::test_tools::assertion_result result(load_tls(why_not) != nullptr);
  if (!result) result.message() << why_not;
  return result;
}

}  // namespace shardwire::test

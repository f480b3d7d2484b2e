// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <boost/test/unit_test.hpp>

#include "support/sanitizer.hpp"

namespace shardwire::test {

/// Precondition of tests that use up all file descriptors.
inline boost::test_tools::assertion_result descriptors_may_run_out(boost::unit_test::test_unit_id /*case*/) {
  boost::test_tools::assertion_result result(!with_address_sanitizer);
  result.message() << "the sanitizer looks at memory through descriptors of its own, and reports nonsense without";
  return result;
}

}  // namespace shardwire::test

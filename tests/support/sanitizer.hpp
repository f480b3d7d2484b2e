// SPDX-License-Identifier: Apache-2.0
// Which sanitizer the program was built with: a few tests are about what one of them takes for itself.
#pragma once

#include <boost/test/unit_test.hpp>

#ifndef __has_feature  // clang's way of saying it; GCC defines macros
#define __has_feature(name) 0
#endif

namespace shardwire::test {

#if __has_feature(address_sanitizer) || defined(__SANITIZE_ADDRESS__)
inline constexpr bool with_address_sanitizer = true;
#else
inline constexpr bool with_address_sanitizer = false;
#endif

#if __has_feature(thread_sanitizer) || defined(__SANITIZE_THREAD__)
inline constexpr bool with_thread_sanitizer = true;
#else
inline constexpr bool with_thread_sanitizer = false;
#endif

/// Precondition of tests that take all file descriptors away.
inline boost::test_tools::assertion_result descriptors_may_run_out(boost::unit_test::test_unit_id /*case*/) {
  boost::test_tools::assertion_result result(!with_address_sanitizer);
  result.message() << "the sanitizer looks at memory through descriptors of its own, and reports nonsense without";
  return result;
}

}  // namespace shardwire::test

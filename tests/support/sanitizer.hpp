// SPDX-License-Identifier: Apache-2.0
// The sanitizer that the program was built with: a few tests use resources that a sanitizer needs for itself.
#pragma once

#include <boost/test/unit_test.hpp>

#ifndef __has_feature  // defined by clang; GCC defines macros
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
inline constexpr bool with_sanitizer = with_address_sanitizer || with_thread_sanitizer;

/// Rounds of a test with random input: a sanitizer makes each many times as slow.
template <typename Count>
constexpr Count rounds(Count all) {
  return with_sanitizer ? all / 10 : all;
}

/// Precondition of tests that use up all file descriptors.
inline boost::test_tools::assertion_result descriptors_may_run_out(boost::unit_test::test_unit_id /*case*/) {
  boost::test_tools::assertion_result result(!with_address_sanitizer);
  result.message() << "the sanitizer looks at memory through descriptors of its own, and reports nonsense without";
  return result;
}

}  // namespace shardwire::test

// SPDX-License-Identifier: Apache-2.0
// The sanitizer that the program was built with: a few tests use resources that a sanitizer needs for itself.
#pragma once

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

}  // namespace shardwire::test

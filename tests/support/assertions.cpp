// SPDX-License-Identifier: Apache-2.0
// Boost.Test writes where an assertion stands, and counts it, without a lock: assertions of several threads at once broke its
// strings. The two functions here come before those of its library, and call these one thread at a time.
#include <dlfcn.h>

#include <boost/test/unit_test.hpp>
#include <cstdarg>
#include <cstddef>
#include <mutex>
#include <stdexcept>
#include <string>

namespace {

using boost::unit_test::const_string;

std::recursive_mutex& mutex() {
  static std::recursive_mutex one;
  return one;
}

template <typename Function>
Function* of_library(const char* symbol) {
  void* const found = dlsym(RTLD_NEXT, symbol);
  if (found == nullptr) throw std::runtime_error(std::string("Boost.Test has no ") + symbol);
  return reinterpret_cast<Function*>(found);
}

// The most that any macro gives: of each argument its text and its value.
constexpr std::size_t most_pointers = 8;

}  // namespace

namespace boost::unit_test {

void unit_test_log_t::set_checkpoint(const_string file, std::size_t line, const_string message) {
  using Function = void(unit_test_log_t*, const_string, std::size_t, const_string);
  static Function* const next =
      of_library<Function>("_ZN5boost9unit_test15unit_test_log_t14set_checkpointENS0_13basic_cstringIKcEEmS4_");
  const std::lock_guard lock(mutex());
  next(this, file, line, message);
}

}  // namespace boost::unit_test

namespace boost::test_tools::tt_detail {

bool report_assertion(const assertion_result& result, const unit_test::lazy_ostream& text, const_string file,
                      std::size_t line, tool_level level, check_type type, std::size_t arguments, ...) {
  using Function = bool(const assertion_result&, const unit_test::lazy_ostream&, const_string, std::size_t, tool_level,
                        check_type, std::size_t, ...);
  static Function* const next = of_library<Function>(
      "_ZN5boost10test_tools9tt_detail16report_assertionERKNS0_16assertion_resultERKNS_9unit_test12lazy_ostreamENS5_"
      "13basic_cstringIKcEEmNS1_10tool_levelENS1_10check_typeEmz");
  const void* given[most_pointers] = {};
  if (2 * arguments > most_pointers) throw std::logic_error("an assertion with more arguments than are handed on");
  std::va_list all;
  va_start(all, arguments);
  for (std::size_t i = 0; i < 2 * arguments; ++i) given[i] = va_arg(all, const void*);
  va_end(all);
  const std::lock_guard lock(mutex());
  return next(result, text, file, line, level, type, arguments, given[0], given[1], given[2], given[3], given[4],
              given[5], given[6], given[7]);
}

}  // namespace boost::test_tools::tt_detail

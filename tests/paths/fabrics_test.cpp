// SPDX-License-Identifier: Apache-2.0
// Transports that a session opens, and its behaviour for those that fail to open.
#include "paths/fabrics.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <cstdlib>
#include <string>
#include <vector>

#include "support/descriptor_limit.hpp"
#include "support/job.hpp"

BOOST_AUTO_TEST_SUITE(fabrics)

using namespace shardwire;
using namespace shardwire::test;

namespace {

constexpr const char* streams_variable = "SHARDWIRE_TCP_STREAMS";

/// Limits the file descriptors that can still be opened.
class FewDescriptors {
 public:
  explicit FewDescriptors(rlim_t left) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    // Below the highest open descriptor, none is free any more.
    const int highest = ::fcntl(0, F_DUPFD_CLOEXEC, 512);
    for (int next = ::dup(highest); next >= 0 && next < highest; next = ::dup(highest)) filled_.push_back(next);
    filled_.push_back(highest);
    rlimit few = before_;
    few.rlim_cur = static_cast<rlim_t>(::dup(highest)) + left;
    ::close(static_cast<int>(few.rlim_cur - left));
    ::setrlimit(RLIMIT_NOFILE, &few);
  }
  ~FewDescriptors() {
    ::setrlimit(RLIMIT_NOFILE, &before_);
    for (const int one : filled_) ::close(one);
  }
  FewDescriptors(const FewDescriptors&) = delete;
  FewDescriptors& operator=(const FewDescriptors&) = delete;

 private:
  rlimit before_{};
  std::vector<int> filled_;
};

}  // namespace

BOOST_AUTO_TEST_CASE(auto_goes_on_without_what_cannot_be_opened,
                     *boost::unit_test::precondition(descriptors_may_run_out)) {
  std::vector<std::string> left_out;
  const auto note = [&](const std::string& why) { left_out.push_back(why); };
  const std::size_t all = Fabrics("auto", 1, note).size();
  BOOST_TEST(left_out.empty());
  BOOST_REQUIRE(all > 1U);
  bool seen = false;  // some are open, others not
  for (rlim_t left = 0; left < 32; ++left) {
    left_out.clear();
    try {
      const FewDescriptors few(left);
      const Fabrics fabrics("auto", 1, note);
      BOOST_TEST(fabrics.size() + left_out.size() <= all);  // some detect themselves that they cannot work
      seen = seen || !left_out.empty();
    } catch (const Error& error) {
      BOOST_TEST((error.code() == ErrorCode::unsupported), error.what());
    }
    for (const std::string& why : left_out) BOOST_TEST(why.find("cannot be opened") != std::string::npos, why);
  }
  BOOST_TEST(seen);
}

BOOST_AUTO_TEST_CASE(a_setting_that_makes_no_sense_is_an_error_under_auto_too) {
  ::setenv(streams_variable, "many", 1);
  const Error error = failure_of([] { Fabrics("auto", 1, [](const std::string&) {}); });
  ::unsetenv(streams_variable);
  BOOST_TEST((error.code() == ErrorCode::invalid_argument));
  BOOST_TEST(std::string(error.what()).find(streams_variable) != std::string::npos, error.what());
}

BOOST_AUTO_TEST_SUITE_END()

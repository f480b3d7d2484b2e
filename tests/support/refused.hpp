// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <boost/test/unit_test.hpp>
#include <functional>
#include <string>

#include "shardwire/error.hpp"

namespace shardwire::test {

/// Checks that `action` throws an Error with this code and a message that contains `part`.
inline void refused(ErrorCode code, const std::string& part, const std::function<void()>& action) {
  BOOST_CHECK_EXCEPTION(action(), Error, [&](const Error& error) {
    BOOST_TEST_INFO(error.what());
    BOOST_TEST(std::string(error.what()).find(part) != std::string::npos);
    return error.code() == code;
  });
}

}  // namespace shardwire::test

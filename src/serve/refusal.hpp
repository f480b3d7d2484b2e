// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/core.h>

#include <string>

#include "shardwire/error.hpp"

namespace shardwire {

[[noreturn]] inline void refuse_request(const std::string& message) {
  throw Error(ErrorCode::invalid_argument, message);
}

/// The answer to an update of a publication that was withdrawn.
[[noreturn]] inline void refuse_update(const std::string& publication) {
  refuse_request(fmt::format("'{}' has been withdrawn: publish it again", publication));
}

/// The answer to a read of a publication that was withdrawn before the read has ended.
inline Error withdrawn_while_read(const std::string& publication) {
  return {ErrorCode::withdrawn, fmt::format("'{}' was withdrawn while it was being read", publication)};
}

}  // namespace shardwire

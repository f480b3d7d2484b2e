// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "shardwire/c/error.h"
#include "shardwire/error.hpp"

namespace shardwire::c_api {

constexpr shardwire_code code_of(ErrorCode code) {
  return static_cast<shardwire_code>(code) + 1;
}

/// Borrow the strings of the gaps.
shardwire_gap gap_of(const Gap& gap);
std::vector<shardwire_gap> gaps_of(std::span<const Gap> gaps);

/// The object behind a shardwire_error.
struct ErrorRecord {
  explicit ErrorRecord(const Error& error);
  ErrorRecord(ErrorCode number, std::string text);
  ErrorRecord(const ErrorRecord&) = delete;
  ErrorRecord& operator=(const ErrorRecord&) = delete;

  shardwire_code code;
  bool retryable;
  std::string message;
  std::vector<std::int32_t> ranks;
  std::vector<Gap> described;
  std::vector<shardwire_gap> gaps;  // borrows from `described`
  std::shared_ptr<const RestoreReport> report;
};

}  // namespace shardwire::c_api

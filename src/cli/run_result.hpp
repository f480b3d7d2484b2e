// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "shardwire/report.hpp"
#include "shardwire/types.hpp"

namespace shardwire::cli {

struct RunError {
  std::string code;  ///< as to_string(ErrorCode), or "wrong_element", "wrong_value", "process_died"
  std::string message;
};

/// What one member found out. Travels as JSON, over a pipe or a gather.
struct MemberResult {
  int member = 0;
  std::optional<Rank> target;
  bool verified = false;  ///< every element and value of every repeat was right; true for a member that wants nothing
  ElementCount elements = 0;  ///< checked after the last restore
  std::vector<double> walls;  ///< seconds of each restore
  RestoreReport report;       ///< of the last restore
  ByteCount peak_rss_bytes = 0;
  std::vector<RunError> errors;
};

nlohmann::json to_json(const MemberResult& result);
/// Errors: throws nlohmann::json::exception for text that is none of ours.
MemberResult member_result_from(const nlohmann::json& json);
nlohmann::json to_json(const StageSeconds& seconds);

}  // namespace shardwire::cli

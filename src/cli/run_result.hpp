// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/links.hpp"
#include "perf/measure/ports.hpp"
#include "shardwire/error.hpp"
#include "shardwire/report.hpp"
#include "shardwire/types.hpp"

namespace shardwire::cli {

struct RunError {
  std::string code;  ///< as to_string(ErrorCode), or "wrong_element", "wrong_value", "process_died"
  std::string message;
  std::vector<Gap> gaps{};  ///< wanted regions without a holder, from the start or since a loss; all of them
};

/// A source that a restore of one member has given up.
struct Loss {
  LostSource source;
  std::int64_t at_ns = 0;  ///< on the clock of this host, as FaultOutcome::struck_ns
};

/// The result of one member. Sent as lines of JSON, over a pipe or by gathers.
struct MemberResult {
  int member = 0;
  std::optional<Rank> target;
  bool verified = false;  ///< every element and value of every repeat was right; true for a member that wants nothing
  ElementCount elements = 0;  ///< checked after the last restore
  std::vector<double> walls;  ///< seconds of each restore
  RestoreReport report;       ///< of the last restore
  ByteCount peak_rss_bytes = 0;
  std::vector<Loss> losses;            ///< of all restores
  std::vector<perf::PortBytes> ports;  ///< of the last restore
  MemberLinks links;                   ///< empty unless RunOptions::finds_links
  std::vector<RunError> errors;
};

/// Calls `write` with JSON texts, without line ends, that together contain the result. Texts with gaps come first, with
/// a bounded number of gaps each, so that no text grows with their number.
void write_result(const MemberResult& result, const std::function<void(const std::string&)>& write);

/// Reassembles results.
class ResultReader {
 public:
  /// Takes the next text of any member; returns its result with the last one.
  /// Errors: throws nlohmann::json::exception for text of another format.
  std::optional<MemberResult> take(const nlohmann::json& json);

 private:
  std::map<std::pair<int, std::size_t>, std::vector<Gap>> gaps_;  // by member and number of the error
};

/// Calls `visit` for each complete line of `text` and removes it.
template <typename Visit>
void take_lines(std::string& text, Visit visit) {
  std::size_t begin = 0;
  for (std::size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    visit(std::string_view(text).substr(begin, end - begin));
  }
  text.erase(0, begin);
}

nlohmann::json to_json(const StageSeconds& seconds);
/// Rows of the methods that moved something.
nlohmann::json to_json(const MethodTable& methods);

}  // namespace shardwire::cli

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <optional>
#include <string>

namespace shardwire::telemetry {

/// One text of the files that members have written to a folder (MetricsFile). Of several files of a member the newest counts: earlier
/// runs of a job leave others. `max_age`: leaves out files that were written longer ago.
/// Errors: throws std::filesystem::filesystem_error if the folder cannot be read.
std::string metrics_union(const std::string& folder, std::optional<std::chrono::duration<double>> max_age);

}  // namespace shardwire::telemetry

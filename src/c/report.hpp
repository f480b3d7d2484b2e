// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "shardwire/c/report.h"
#include "shardwire/report.hpp"

namespace shardwire::c_api {

/// Borrows the name of the stage.
shardwire_progress progress_of(const Progress& progress);
shardwire_usage usage_of(const SessionUsage& usage);

}  // namespace shardwire::c_api

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "plan/replan.hpp"
#include "restore/planning.hpp"
#include "shardwire/report.hpp"
#include "shardwire/session.hpp"

namespace shardwire::restore {

/// What an ended restore leaves, for Restore::resume() of the public API. Holds no lease and no connection.
struct Unfinished {
  std::shared_ptr<Planning> planning{};       ///< null: nothing is in place. Owners: this, and the run that has ended
  std::vector<PieceBox> missing{};            ///< of its plan; all other bytes are in place, and of the planned step
  Unavailable unavailable{};                  ///< its holders, at the end
  std::map<TensorKey, SharedValue> values{};  ///< received by value
  RestoreReport report{};                     ///< of what is in place
};

}  // namespace shardwire::restore
